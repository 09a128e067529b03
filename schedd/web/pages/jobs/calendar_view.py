"""A calendar of results: the runs of a job by day, or by hour where they are too many for days.

    days     a row a weekday, a column a week      hours     a row a day, a column an hour

A cell has the colour of the worst that happened in it, else of what ran, and says how many of each.
Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from schedd.web import formatting
from schedd.web.formatting import LOOKS, StateStyle
from schedd.web.pages.rows import look_of
from schedproto.v1 import run_pb2

WEEKS: Final = 16
DAYS: Final = 7
HOURS: Final = 24
LONG: Final = timedelta(days=3)
"""Runs that reach back less far than this are shown by the hour."""

WORST_FIRST: Final = (
    "FAILED",
    "MISSED",
    "RETRYING",
    "CANCELLED",
    "SUCCEEDED",
    "RUNNING",
    "SKIPPED",
    "COALESCED",
    "PENDING",
)
_RANK: Final = {LOOKS[state].style: rank for rank, state in enumerate(WORST_FIRST)}


@dataclass(frozen=True, slots=True)
class Cell:
    """A day or an hour with runs: where it stands, how it looks, and what it holds in words."""

    column: int
    row: int
    look: StateStyle
    told: str
    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class Almanac:
    """The cells, and what stands beside the rows and above the columns, each with its number."""

    by: str
    columns: int
    rows: int
    cells: tuple[Cell, ...]
    row_names: tuple[tuple[int, str], ...]
    column_names: tuple[tuple[int, str], ...]
    since: datetime | None
    """The oldest run that was read; None: there may be no older one."""


def almanac(runs: Sequence[run_pb2.Run], now: datetime, *, more: bool) -> Almanac:
    """The calendar of runs, newest first; `more`: there are older ones. Pure."""
    oldest = formatting.instant(runs[-1].scheduled_at) if runs else now
    today = _day(now)
    since = oldest if more else None
    if more and now - oldest < LONG:
        first = today - timedelta(days=DAYS - 1)
        names = [(row, f"{first + timedelta(days=row):%a %d}") for row in range(DAYS)]
        hours = [(hour, f"{hour:02}") for hour in range(0, HOURS, 6)]
        cells = tuple(_cells(runs, timedelta(hours=1), first, by_hour=True))
        return Almanac("hour", HOURS, DAYS, cells, tuple(names), tuple(hours), since)
    monday = today - timedelta(days=today.weekday(), weeks=WEEKS - 1)
    cells = tuple(_cells(runs, timedelta(days=1), monday, by_hour=False))
    weeks = [(week, monday + timedelta(weeks=week)) for week in range(WEEKS)]
    months = [(week, f"{at:%b}") for week, at in weeks if at.day <= DAYS or week == 0]
    if len(months) > 1 and months[1][0] < 2:
        months = months[1:]
    days = ((0, "Mon"), (2, "Wed"), (4, "Fri"), (6, "Sun"))
    return Almanac("day", WEEKS, DAYS, cells, days, tuple(months), since)


def _cells(
    runs: Iterable[run_pb2.Run], size: timedelta, first: datetime, *, by_hour: bool
) -> Iterable[Cell]:
    held: dict[datetime, Counter[StateStyle]] = {}
    for run in runs:
        at = formatting.instant(run.scheduled_at)
        start = at.replace(minute=0, second=0, microsecond=0) if by_hour else _day(at)
        held.setdefault(start, Counter())[look_of(run.state)] += run.count or 1
    for start, looks in sorted(held.items()):
        if start < first:
            continue
        days = (_day(start) - first).days
        row, column = (days, start.hour) if by_hour else (days % DAYS, days // DAYS)
        worst = min(looks, key=lambda look: _RANK[look.style])
        many = ", ".join(f"{count:,} {look.word}" for look, count in looks.most_common())
        when = f"{start:%a %d %b %H}:00" if by_hour else f"{start:%a %d %b}"
        yield Cell(column, row, worst, f"{when}: {many}", start, start + size)


def _day(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
