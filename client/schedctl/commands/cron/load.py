"""`schedctl cron forecast` and `collide`: what many schedules add up to."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import click

from schedctl.options.global_options import Command, pass_session
from schedctl.output import message, show_data, show_rows, stamp
from schedctl.session import Session
from schedctl.timetables import flattened
from schedctl.timetables.timetables import (
    ScheduleTable,
    given,
    source_options,
    tell_left_out,
    window_options,
)
from schedd.core.schedule import timetable
from schedd.core.schedule.timetable import (
    Collisions,
    Flattened,
    Forecast,
    Grid,
    Hot,
    Row,
    StartsAtOnce,
    TimetableEntry,
)
from schedkit.clock import utcnow
from schedkit.text import duration

NAMED: Final = 3
SHOWN_MOVES: Final = 20


@click.command(cls=Command)
@source_options
@window_options("7d")
@click.option("--top", default=5, show_default=True, type=click.IntRange(1, 100))
@click.option(
    "--rewritten",
    is_flag=True,
    help="Print the flattened version: a crontab anew, else a patch. Nothing is changed.",
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
    """How many runs start in each minute, the hottest minutes, who is in them, and how to flatten.

    Of crontabs, manifests or expressions; of the cluster's jobs if none is named. Nominal instants
    are counted: jitter comes on top. --rewritten prints what to write instead of the herd: a
    crontab with the minutes that H stands for, a patch of manifests, or commands for jobs.
    """
    table = given(session, expressions, files, tz, user_column)
    grid = _grid(start, span)
    rows = _rows(table, grid)
    flat = timetable.flatten(rows, grid)
    if rewritten:
        _print_rewritten(flattened.rewritten(table, flat))
        return
    found = timetable.forecast(rows, grid, top)
    if session.tabular:
        _tell(session, found, rows)
        _tell_flat(flat, session.output == "wide")
    else:
        show_data(session, _data(found, rows, flat))


def _print_rewritten(found: flattened.Rewritten) -> None:
    """Print the rewrite. Name the moves that it lacks, and exit 1."""
    for line in found.lines:
        click.echo(line)
    for move in found.left_out:
        written = move.after if move.number >= 0 else f"phase: {move.after}"
        message(
            f"left out: {move.entry.where}: {move.entry.name}: {move.before} → {written}: this "
            "spelling can't be replaced in place (an anchor, a block or a tag); edit it by hand"
        )
    if found.left_out:
        click.get_current_context().exit(1)


def _grid(start: datetime | None, span: timedelta) -> Grid:
    return timetable.grid_over((start or utcnow()).replace(second=0, microsecond=0), span)


def _rows(table: ScheduleTable, grid: Grid) -> list[Row]:
    """What can be counted; what can't is said."""
    rows, wrong = timetable.rows_of(table.entries, grid)
    tell_left_out(table, wrong)
    return rows


def _tell(session: Session, found: Forecast, rows: Sequence[Row]) -> None:
    grid = found.grid
    length = duration.render(timedelta(minutes=grid.minutes))
    mean = found.total / grid.minutes
    click.echo(
        f"{length} from {_at(grid.at(0))}: {len(rows):,} schedules start {found.total:,} runs, "
        f"{mean:.1f} a minute; {found.peak:,} in the hottest"
    )
    if not found.hottest:
        return
    click.echo()
    heads = ("HOTTEST MINUTE", "DAY", "STARTS", "TIMES", "JOBS")
    show_rows(session, heads, [_hot_row(hot, session.output == "wide") for hot in found.hottest])
    click.echo()


def _hot_row(hot: Hot, full: bool) -> tuple[str, str, str, str, str]:
    alike = f"{hot.alike:,}" if hot.alike > 1 else "1"
    names = _names([entry for entry, _ in hot.entries], full)
    return _at(hot.at), f"{hot.at:%a}", f"{hot.starts:,}", alike, names


def _names(entries: Sequence[TimetableEntry], full: bool) -> str:
    shown = entries if full else entries[:NAMED]
    more = len(entries) - len(shown)
    return ", ".join(entry.name for entry in shown) + (f" and {more:,} more" if more else "")


def _tell_flat(flat: Flattened | None, full: bool) -> None:
    if flat is None:
        click.echo("flattened: no minute given to H would make the hottest one cooler")
        return
    moves = len(flat.moves)
    click.echo(
        f"flattened: {moves:,} schedule{'s' if moves > 1 else ''} given an H, the hottest minute "
        f"{flat.peak_before:,} → {flat.peak_after:,} (--rewritten prints it)"
    )
    shown = flat.moves if full else flat.moves[:SHOWN_MOVES]
    for move in shown:
        after = move.after if move.number >= 0 else f"phase {move.after}"
        fixed = f"  (here {move.fixed})" if move.number >= 0 else ""
        click.echo(f"  {move.entry.where}  {move.entry.name}: {move.before} → {after}{fixed}")
    if len(flat.moves) > len(shown):
        click.echo(f"  … {len(flat.moves) - len(shown):,} more: -o wide")


def _at(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M}Z"


def _data(found: Forecast, rows: Sequence[Row], flat: Flattened | None) -> dict[str, Any]:
    grid = found.grid
    hours = range(0, grid.minutes, 60)
    return {
        "from": stamp(grid.at(0)),
        "to": stamp(grid.at(grid.minutes)),
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
                "at": stamp(grid.at(minute)),
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
@click.option(
    "--more-than", "allowed", default=1, show_default=True, type=click.IntRange(1), metavar="N"
)
@click.option("--limit", default=10, show_default=True, type=click.IntRange(1, 1000))
@click.option("--strict", is_flag=True, help="Exit 1 if there is such an instant.")
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
    """The instants at which more than N start together, the worst first, and who."""
    table = given(session, expressions, files, tz, user_column)
    grid = _grid(start, span)
    rows = _rows(table, grid)
    found = timetable.collide(rows, grid, allowed, limit)
    if session.tabular:
        _tell_collisions(session, found, grid, len(rows), allowed)
    else:
        show_data(session, _collisions(found, grid, len(rows), allowed))
    if strict and found.instants:
        click.get_current_context().exit(1)


def _tell_collisions(
    session: Session, found: Collisions, grid: Grid, schedules: int, allowed: int
) -> None:
    length = duration.render(timedelta(minutes=grid.minutes))
    most = f", at most {found.most:,}" if found.most else ""
    click.echo(
        f"{length} from {_at(grid.at(0))}: {schedules:,} schedules, {found.instants:,} "
        f"instants with more than {allowed:,} starts{most}"
    )
    if found.worst:
        heads, full = ("AT", "DAY", "STARTS", "JOBS"), session.output == "wide"
        show_rows(session, heads, [_collision_row(one, full) for one in found.worst])


def _collision_row(one: StartsAtOnce, full: bool) -> tuple[str, str, str, str]:
    names = _names(one.entries, full)
    return f"{one.at:%Y-%m-%d %H:%M:%S}Z", f"{one.at:%a}", f"{len(one.entries):,}", names


def _collisions(found: Collisions, grid: Grid, schedules: int, allowed: int) -> dict[str, Any]:
    return {
        "from": stamp(grid.at(0)),
        "to": stamp(grid.at(grid.minutes)),
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
