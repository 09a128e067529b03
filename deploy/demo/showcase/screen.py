"""Everything that the demo prints, on a terminal or off one.

Every color comes with a symbol and a word. Without a terminal there is no color, and nothing is
cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from schedclient import Job, Run
from schedkit.text import duration
from showcase.verdict import Row

STATES = {
    "PENDING": ("○", "dim"),
    "RUNNING": ("▶", "blue"),
    "RETRYING": ("↻", "yellow"),
    "SUCCEEDED": ("✓", "green"),
    "FAILED": ("✗", "red"),
    "CANCELLED": ("⊘", "magenta"),
    "SKIPPED": ("»", "dim"),
    "MISSED": ("∅", "magenta"),
    "COALESCED": ("≡", "dim"),
}
SHOWN_AT_ONCE = frozenset({"PENDING", "RUNNING"})
"""States without a line: the next one follows within milliseconds."""
WIDE = 160


class Screen:
    def __init__(self) -> None:
        self._console = Console(highlight=False)
        if not self._console.is_terminal:
            self._console.width = WIDE

    def say(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)

    def dashboard(self, address: str) -> None:
        self._console.print(
            Text.assemble("dashboard  ", (address, "bold underline")), soft_wrap=True
        )

    def jobs(self, jobs: Iterable[Job]) -> None:
        table = _table("job", "runs", "does", "priority", "next")
        for job in jobs:
            table.add_row(
                job.name,
                _schedule(job),
                job.action or "",
                (job.priority or "MEDIUM").lower(),
                _next(job),
            )
        self._console.print()
        self._console.print(table)
        self._console.print()

    def run(self, run: Run) -> None:
        if run.state in SHOWN_AT_ONCE:
            return
        symbol, style = STATES.get(run.state, ("?", ""))
        late = " " * 9 if run.lateness_ms is None else f"{run.lateness_ms:>6,} ms"
        line = Text.assemble(
            (f"{_clock(run.due_at)}  ", "dim"),
            f"{run.job or '':<14} ",
            (f"{symbol} {run.state:<9}", style),
            f" {late}  {run.worker or '':<3} attempt {run.attempt}",
            (_remark(run), style),
        )
        self._console.print(line, soft_wrap=True)

    def summary(self, rows: Sequence[Row]) -> None:
        table = _table("job")
        for column in ("due", "fired", "late p50 ms", "max ms", "succeeded", "retried", "dead"):
            table.add_column(column, justify="right")
        table.add_column("")
        for row in rows:
            good = not row.faults
            table.add_row(
                row.job,
                f"{row.due:,}",
                f"{row.fired:,}",
                _number(row.late_p50),
                _number(row.late_max),
                f"{row.succeeded:,}",
                f"{row.retried:,}",
                f"{row.dead:,}",
                Text("✓ ok", "green") if good else Text(f"✗ {len(row.faults)}", "red"),
            )
        self._console.print()
        self._console.print(table)

    def faults(self, rows: Iterable[Row], most: int = 10) -> None:
        for row in rows:
            for fault in row.faults[:most]:
                self.say(f"✗ {row.job}: {fault}", "red")
            if len(row.faults) > most:
                self.say(f"  {row.job}: and {len(row.faults) - most} more", "red")


def _table(*columns: str) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        header_style="bold",
    )
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _schedule(job: Job) -> str:
    zone = f" {job.time_zone}" if job.time_zone and job.time_zone != "UTC" else ""
    if job.cron:
        return f"{', '.join(job.cron)}{zone}"
    if job.every:
        return f"every {duration.render(job.every)}"
    return "once" if job.at else "on demand"


def _next(job: Job) -> str:
    if job.next_run_at is None:
        return "—"
    zone = ZoneInfo(job.time_zone) if job.time_zone else UTC
    at = job.next_run_at.astimezone(zone)
    soon = (job.next_run_at - datetime.now(UTC)).total_seconds() < 3600
    return f"{at:%H:%M:%S}" if soon else f"{at:%a %d %b %H:%M %Z}"


def _remark(run: Run) -> str:
    if run.state == "RETRYING" and run.retry_at:
        return f"  {run.reason}, again at {_clock(run.retry_at)}"
    if run.state == "FAILED":
        return f"  {run.reason}, a dead letter"
    return f"  {run.reason}" if run.reason else ""


def _clock(at: datetime | None) -> str:
    return "" if at is None else f"{at:%H:%M:%S}.{at.microsecond // 1000:03}"


def _number(value: int | None) -> str:
    return "—" if value is None else f"{value:,}"
