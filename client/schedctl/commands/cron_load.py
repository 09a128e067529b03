"""`schedctl cron forecast` and `schedctl cron collide`: the load of many schedules."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import click

from schedctl.options.global_options import Command, flag, option, pass_session
from schedctl.output import message, show_data, show_rows, stamp
from schedctl.session import Session
from schedctl.timetables import flattened
from schedctl.timetables.timetables import (
    ScheduleTable,
    given,
    on_one_line,
    report_left_out,
    source_options,
    window_options,
)
from schedd.core.schedule.timetable.flatten import Flattened, flatten
from schedd.core.schedule.timetable.load import Collisions, Forecast, Row, TimetableEntry, rows_of
from schedd.core.schedule.timetable.load import collide as find_collisions
from schedd.core.schedule.timetable.load import forecast as count_starts
from schedd.core.schedule.timetable.minutes import MinuteGrid, grid_over
from schedkit.clock import utcnow
from schedkit.text import duration

NAMED: Final = 3
SHOWN_MOVES: Final = 20


@click.command(cls=Command)
@source_options
@window_options("7d")
@option(
    "--top N",
    "Number of busiest minutes to show.",
    default=5,
    show_default=True,
    type=click.IntRange(1, 100),
)
@flag(
    "--rewritten",
    "Print the changed schedules that spread the starts: a new crontab, a patch of manifests,"
    " or commands for jobs. Nothing is stored.",
)
@pass_session
def forecast(
    session: Session,
    expressions: tuple[str, ...],
    files: tuple[str, ...],
    tz: str,
    user_column: bool | None,
    start: datetime | None,
    span: timedelta,
    top: int,
    rewritten: bool,
) -> None:
    """Count the starts per minute, list the busiest minutes, and suggest how to spread them.

    The command reads crontabs, manifests or expressions, else the cluster's jobs. Jitter isn't
    counted. To spread the starts, the command replaces fixed minutes by H, a minute that is hashed
    from the job's name. With --rewritten, the command prints these schedules: a crontab with the
    hashed minutes, a patch for manifests, or commands for jobs.
    """
    table = given(session, expressions, files, tz, user_column)
    grid = _grid(start, span)
    rows = _rows(table, grid)
    flat = flatten(rows, grid)
    if rewritten:
        _print_rewritten(flattened.rewritten(table, flat))
        return
    found = count_starts(rows, grid, top)
    if session.tabular:
        _show(session, found, rows)
        _show_flat(flat, session.output == "wide")
    else:
        show_data(session, _data(found, rows, flat))


def _print_rewritten(found: flattened.Rewritten) -> None:
    """Print the rewritten schedules; report the moves that are left out, and exit with 1."""
    for line in found.lines:
        click.echo(line)
    for move in found.left_out:
        written = move.after if move.number >= 0 else f"phase: {move.after}"
        before = on_one_line(move.before)
        message(
            f"left out: {move.entry.where}: {move.entry.name}: {before} → {written}: this "
            "notation can't be replaced (an anchor, a block or a tag); edit this line by hand"
        )
    if found.left_out:
        click.get_current_context().exit(1)


def _grid(start: datetime | None, span: timedelta) -> MinuteGrid:
    return grid_over((start or utcnow()).replace(second=0, microsecond=0), span)


def _rows(table: ScheduleTable, grid: MinuteGrid) -> list[Row]:
    """Return the rows that can be counted; report the others."""
    rows, wrong = rows_of(table.entries, grid)
    report_left_out(table, wrong)
    return rows


def _show(session: Session, found: Forecast, rows: Sequence[Row]) -> None:
    grid = found.grid
    length = duration.render(timedelta(minutes=grid.minutes))
    mean = found.total / grid.minutes
    click.echo(
        f"{length} from {_minute_text(grid.start_of_minute(0))}: "
        f"{len(rows):,} schedules start {found.total:,} runs, "
        f"{mean:.1f} a minute; {found.peak:,} in the busiest"
    )
    if not found.hottest:
        return
    click.echo()
    heads = ("BUSIEST MINUTE", "DAY", "STARTS", "TIMES", "JOBS")
    rows_shown = [
        (
            _minute_text(hot.at),
            f"{hot.at:%a}",
            f"{hot.starts:,}",
            f"{max(hot.alike, 1):,}",
            _names([entry for entry, _ in hot.entries], session.output == "wide"),
        )
        for hot in found.hottest
    ]
    show_rows(session, heads, rows_shown)
    click.echo()


def _names(entries: Sequence[TimetableEntry], full: bool) -> str:
    shown = entries if full else entries[:NAMED]
    more = len(entries) - len(shown)
    return ", ".join(entry.name for entry in shown) + (f" and {more:,} more" if more else "")


def _show_flat(flat: Flattened | None, full: bool) -> None:
    if flat is None:
        click.echo("flattened: no use of H would lower the busiest minute")
        return
    moves = len(flat.moves)
    click.echo(
        f"flattened: {moves:,} schedule{'s' if moves > 1 else ''} changed to H, the busiest minute "
        f"{flat.peak_before:,} → {flat.peak_after:,} (--rewritten prints them)"
    )
    shown = flat.moves if full else flat.moves[:SHOWN_MOVES]
    for move in shown:
        after = move.after if move.number >= 0 else f"phase {move.after}"
        fixed = f"  (here {move.fixed})" if move.number >= 0 else ""
        before = on_one_line(move.before)
        click.echo(f"  {move.entry.where}  {move.entry.name}: {before} → {after}{fixed}")
    if len(flat.moves) > len(shown):
        click.echo(f"  … {len(flat.moves) - len(shown):,} more: -o wide")


def _minute_text(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M}Z"


def _data(found: Forecast, rows: Sequence[Row], flat: Flattened | None) -> dict[str, Any]:
    grid = found.grid
    hours = range(0, grid.minutes, 60)
    return {
        "from": stamp(grid.start_of_minute(0)),
        "to": stamp(grid.start_of_minute(grid.minutes)),
        "schedules": len(rows),
        "runs": found.total,
        "peak": found.peak,
        "hottest": [
            {
                "at": stamp(hot.at),
                "starts": hot.starts,
                "times": hot.alike,
                "jobs": [{"name": e.name, "where": e.where, "starts": n} for e, n in hot.entries],
            }
            for hot in found.hottest
        ],
        "hours": [
            {
                "at": stamp(grid.start_of_minute(minute)),
                "runs": sum(found.counts[minute : minute + 60]),
                "peak": max(found.counts[minute : minute + 60]),
            }
            for minute in hours
        ],
        "flattened": None
        if flat is None
        else {
            "peakBefore": flat.peak_before,
            "peakAfter": flat.peak_after,
            "moves": [
                {
                    "name": move.entry.name,
                    "where": move.entry.where,
                    "field": "cron" if move.number >= 0 else "phase",
                    "before": move.before,
                    "after": move.after,
                    "fixed": move.fixed,
                }
                for move in flat.moves
            ],
        },
    }


@click.command(cls=Command)
@source_options
@window_options("7d")
@option(
    "--more-than N",
    "Number of schedules that may start together; times with more are listed.",
    "allowed",
    default=1,
    show_default=True,
    type=click.IntRange(1),
)
@option(
    "--limit N",
    "Show at most N times.",
    default=10,
    show_default=True,
    type=click.IntRange(1, 1000),
)
@flag("--strict", "Exit with 1 if a time is listed.")
@pass_session
def collide(
    session: Session,
    expressions: tuple[str, ...],
    files: tuple[str, ...],
    tz: str,
    user_column: bool | None,
    start: datetime | None,
    span: timedelta,
    allowed: int,
    limit: int,
    strict: bool,
) -> None:
    """List the times at which more than N schedules start together, most starts first."""
    table = given(session, expressions, files, tz, user_column)
    grid = _grid(start, span)
    rows = _rows(table, grid)
    found = find_collisions(rows, grid, allowed, limit)
    if session.tabular:
        _show_collisions(session, found, grid, len(rows), allowed)
    else:
        show_data(session, _collisions(found, grid, len(rows), allowed))
    if strict and found.instants:
        click.get_current_context().exit(1)


def _show_collisions(
    session: Session, found: Collisions, grid: MinuteGrid, schedules: int, allowed: int
) -> None:
    length = duration.render(timedelta(minutes=grid.minutes))
    most = f", at most {found.most:,}" if found.most else ""
    click.echo(
        f"{length} from {_minute_text(grid.start_of_minute(0))}: "
        f"{schedules:,} schedules, {found.instants:,} "
        f"times with more than {allowed:,} starts{most}"
    )
    if found.worst:
        full = session.output == "wide"
        rows = [
            (f"{at:%Y-%m-%d %H:%M:%S}Z", f"{at:%a}", f"{len(entries):,}", _names(entries, full))
            for at, entries in ((one.at, one.entries) for one in found.worst)
        ]
        show_rows(session, ("AT", "DAY", "STARTS", "JOBS"), rows)


def _collisions(
    found: Collisions, grid: MinuteGrid, schedules: int, allowed: int
) -> dict[str, Any]:
    return {
        "from": stamp(grid.start_of_minute(0)),
        "to": stamp(grid.start_of_minute(grid.minutes)),
        "schedules": schedules,
        "moreThan": allowed,
        "instants": found.instants,
        "most": found.most,
        "worst": [
            {
                "at": stamp(one.at),
                "starts": len(one.entries),
                "jobs": [{"name": e.name, "where": e.where} for e in one.entries],
            }
            for one in found.worst
        ],
    }
