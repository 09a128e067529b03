"""Data on stdout, in the format of `--output`: table, wide, json, jsonl, yaml, name."""

import json
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

import click

from schedclient import Client, Job, Value
from schedctl.session import Session
from schedkit.records import dataclass

V = TypeVar("V", bound=Value)
Of_contra = TypeVar("Of_contra", contravariant=True)

MARKS: Final = {
    "PENDING": ("○", "cyan"),
    "RUNNING": ("▶", "blue"),
    "RETRYING": ("↻", "yellow"),
    "SUCCEEDED": ("✓", "green"),
    "FAILED": ("✗", "red"),
    "CANCELLED": ("⊘", "bright_black"),
    "SKIPPED": ("→", "bright_black"),
    "MISSED": ("!", "magenta"),
    "COALESCED": ("⊕", "bright_black"),
    "LIVE": ("●", "green"),
    "DRAINING": ("◐", "yellow"),
    "LOST": ("✗", "red"),
    "STOPPED": ("⊘", "bright_black"),
    "LEADER": ("★", "green"),
    "PAUSED": ("‖", "yellow"),
    "refused": ("✗", "red"),
    "OK": ("✓", "green"),
    "WARN": ("!", "yellow"),
    "BAD": ("✗", "red"),
}
"""Symbol and color of a word in colored output."""

UNBOUNDED: Final = 10_000
LEAST_CUT: Final = 20
"""The fewest characters shown of a truncated cell."""


@dataclass(frozen=True, slots=True)
class Column(Generic[Of_contra]):
    """A column of a table: its head, its cell, and whether only `-o wide` shows it. `cut`: on a
    terminal the cell is truncated to the width that the other columns leave.
    """

    head: str
    cell: Callable[[Of_contra], Any]
    wide: bool
    cut: bool


class ValueTable(Generic[V]):
    """The table of values `of` a class.

    `name`: the attribute, or function, that `-o name` prints. `heads`: the columns, with `_` for a
    space. `STATE` shows the attribute `state`, `NEXT=next_run_at` another one; a function of the
    head's name in `cells` comes first. `+` after a head: only `-o wide` shows the column. `~`: its
    cells may be cut.
    """

    def __init__(
        self,
        of: type[V],
        name: str | Callable[[V], str],
        heads: str = "",
        **cells: Callable[[V], Any],
    ) -> None:
        self.of = of
        self.name: Callable[[V], Any] = attrgetter(name) if isinstance(name, str) else name
        self.columns: list[Column[V]] = []
        for word in heads.split():
            given, _, attribute = word.partition("=")
            head = given.rstrip("+~")
            cell = cells.get(head) or attrgetter(attribute or head.lower())
            column = Column(head.replace("_", " "), cell, "+" in given, "~" in given)
            self.columns.append(column)

    def facts(self, value: V) -> list[tuple[str, Any]]:
        return [(one.head.capitalize(), one.cell(value)) for one in self.columns]


def show_list(session: Session, values: Sequence[V], table: ValueTable[V]) -> None:
    """Print a list."""
    form = session.output
    if form in ("json", "jsonl", "yaml"):
        show_objects(session, [value.to_json(snake=form == "yaml") for value in values])
    elif form == "name":
        for value in values:
            _echo(str(table.name(value)))
    else:
        shown = [one for one in table.columns if form == "wide" or not one.wide]
        heads = [one.head for one in shown]
        rows = [[_cell(session, one.cell(value)) for one in shown] for value in values]
        if form == "table" and sys.stdout.isatty():
            for at in (at for at, one in enumerate(shown) if one.cut):
                rows = _cut(session, heads, rows, at)
        _table(session, heads, rows)


def show_listing(
    session: Session,
    asked: int | None,
    listing: Callable[[Client, int | None], AsyncIterator[V]],
    table: ValueTable[V],
) -> None:
    """Read a list and print it: up to `--limit` entries, by default 50 in a table and else all.
    `listing` receives the client and the limit. A message on stderr says if the table is truncated.
    """
    most = session.limit(asked)
    cut = most if asked is None else None
    values = session.collect(lambda client: listing(client, most if cut is None else cut + 1))
    show_list(session, values[:cut], table)
    if cut is not None and len(values) > cut:
        message(f"only the first {cut} are shown: --limit N shows more, -o json all")


def show_one(session: Session, value: V, table: ValueTable[V]) -> None:
    """Print one value: an object, a document, or a table of one line."""
    if session.output in ("json", "jsonl", "yaml"):
        show_data(session, value.to_json(snake=session.output == "yaml"))
    else:
        show_list(session, [value], table)


def show_fields(session: Session, value: V, table: ValueTable[V]) -> None:
    """Print one value, in tables one line for each column."""
    if session.tabular:
        show_facts(session, table.facts(value))
    else:
        show_one(session, value, table)


def show_data(session: Session, data: dict[str, Any]) -> None:
    """Print an object that isn't a protobuf message: json, jsonl or yaml."""
    if session.output == "yaml":
        _echo(_yaml(data), end="")
    else:
        _echo(_json_line(data) if session.output == "jsonl" else _json(data))


def show_objects(session: Session, objects: Sequence[dict[str, Any]]) -> None:
    """Print a list of objects that aren't protobuf messages: json, jsonl or yaml."""
    if session.output == "yaml":
        _echo("---\n".join(_yaml(one) for one in objects), end="")
    elif session.output == "jsonl":
        for one in objects:
            _echo(_json_line(one))
    else:
        _echo(_json(objects))


def show_facts(session: Session, facts: Iterable[tuple[str, Any]]) -> None:
    """Print one line for each name and value; leave out values that are unknown."""
    shown = [(head, _cell(session, value)) for head, value in facts if value not in (None, "", {})]
    width = max((len(head) for head, _ in shown), default=0)
    for head, cell in shown:
        mark, colour = MARKS.get(cell, ("", ""))
        text = click.style(f"{mark} {cell}", fg=colour) if mark and session.colour else cell
        _echo(f"{head + ':':<{width + 1}} {text}")


def show_rows(session: Session, heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table of values that aren't protobuf messages."""
    _table(session, heads, [[_cell(session, value) for value in row] for row in rows])


def event(session: Session, value: V, line: Callable[[V], str]) -> None:
    """Print one event of a stream: a JSON object or a line of text."""
    _echo(line(value) if session.tabular else _json_line(value.to_json()))


def message(text: str) -> None:
    """Print a message for people, on stderr."""
    click.echo(text, err=True)


def show_warnings(job: Job) -> None:
    """Print on stderr the warnings that the cluster returned with a job."""
    for warning in job.warnings:
        message(f"warning: job {job.name}: {warning}")


def stamp(at: datetime) -> str:
    """Return the time in UTC, to the millisecond."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def instant(session: Session, at: datetime | None) -> str:
    """Return a time in the format of `--time-format`; empty if unknown."""
    if at is None:
        return ""
    if not session.relative:
        return stamp(at)
    away = at - datetime.now(UTC)
    return f"in {length(away)}" if away > timedelta(0) else f"{length(-away)} ago"


def length(span: timedelta | None) -> str:
    """Return a duration in its two largest units: `2h 5m`, `1.3s`, `20ms`."""
    if span is None:
        return ""
    seconds = span.total_seconds()
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    if seconds < 60:
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    parts = []
    left = int(seconds)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


def _cell(session: Session, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return instant(session, value)
    if isinstance(value, timedelta):
        return length(value)
    if isinstance(value, dict):
        return ",".join(f"{key}={one}" for key, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_cell(session, one) for one in value)
    return str(value)


def _table(session: Session, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if session.colour:
        _rich_table(session, heads, rows)
        return
    lines = [list(heads), *map(list, rows)] if session.headers else [list(row) for row in rows]
    widths = [max((len(line[at]) for line in lines), default=0) for at in range(len(heads))]
    for line in lines:
        cells = (f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True))
        _echo("  ".join(cells).rstrip())


def _cut(
    session: Session, heads: Sequence[str], rows: Sequence[Sequence[str]], at: int
) -> list[list[str]]:
    """Return the rows with this column truncated so that each line fits the terminal."""
    marks = 2 * session.colour  # a symbol and a space
    others = sum(
        2 + max(len(head), *(len(row[n]) + marks * (row[n] in MARKS) for row in rows))
        for n, head in enumerate(heads)
        if n != at and rows
    )
    room = max(LEAST_CUT, shutil.get_terminal_size().columns - others)
    return [
        [
            cell if n != at or len(cell) <= room else f"{cell[: room - 1]}…"
            for n, cell in enumerate(row)
        ]
        for row in rows
    ]


def _rich_table(session: Session, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=session.headers, header_style="bold")
    for head in heads:
        table.add_column(head, no_wrap=True)
    for row in rows:
        cells = []
        for cell in row:
            mark, colour = MARKS.get(cell, ("", ""))
            cells.append(Text(f"{mark} {cell}", style=colour) if mark else Text(cell))
        table.add_row(*cells)
    # full width: the terminal wraps long lines, and ids can still be copied
    Console(force_terminal=True, highlight=False, width=UNBOUNDED).print(table)


def _echo(text: str, *, end: str = "\n") -> None:
    click.echo(text + end, nl=False, color=True)


def _json(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False)


def _json_line(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def _yaml(data: Any) -> str:
    import yaml

    text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
    return text
