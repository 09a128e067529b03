"""The forecast: how many runs start in each hour of the next seven days, and the busiest minutes.

    now 14:20   ─▶ 14:00 today ──168 hours──▶ 14:00 in a week      a row a day: eight of them

    definitions ──digest──▶ known? ──▶ the forecast
                              └─ no ──▶ counted, kept

Invariants
- Counting runs in one thread of its own, so that it takes no other thread of the member.
- The definitions of the newest JOBS jobs are read once a minute for all readers. They are counted
  again only after a definition or the hour has changed.
"""

import asyncio
import hashlib
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from math import sqrt
from typing import Final

from schedd.api.jobs.jobs import newest_definitions
from schedd.core.runs.records import StoredDefinition
from schedd.core.schedule.cron import ScheduleError
from schedd.core.schedule.timetable.load import (
    BusyMinute,
    Forecast,
    Row,
    TimetableEntry,
    forecast,
    row_of,
)
from schedd.core.schedule.timetable.minutes import MinuteGrid, grid_over
from schedd.core.schedule.work_budget import TooMuchWork, limited
from schedd.runtime import job_codec
from schedd.web.pages.page import Page, PageRequest, Shown
from schedkit.clock import utcnow
from schedkit.records import dataclass
from schedproto.v1 import job_pb2

EVERY: Final = 60.0
JOBS: Final = 1_000
"""Definitions that are counted, newest first."""
DAYS: Final = 7
HOURS: Final = 24
MILD: Final = 0.25
HOTTEST: Final = 5
NAMED: Final = 6
"""Jobs listed for a busy minute."""
BUDGET: Final = 2_000_000
"""Units of work (`core/schedule/work_budget`): about 4,000 expressions that aren't cached."""
KEPT: Final = 16
"""Cached forecasts, one for each namespace, tens of KB each."""


@dataclass(frozen=True, slots=True)
class Hour:
    """An hour of the map: its starts, and its heat, 0 to 1. `row`: of its day."""

    row: int
    column: int
    starts: int
    heat: float
    text: str


@dataclass(frozen=True, slots=True)
class HotMinute:
    at: datetime
    starts: int
    alike: int
    names: tuple[str, ...]
    more: int


@dataclass(frozen=True, slots=True)
class ForecastSeen:
    """The map, the busiest minutes, and what isn't counted."""

    days: tuple[str, ...]
    hours: tuple[Hour, ...]
    hottest: tuple[HotMinute, ...]
    total: int
    counted: int
    left_out: tuple[str, ...]


class Counted:
    """A cache of forecasts, by a digest of their definitions. Only one thread uses it, so
    concurrent readers of the same forecast count it once.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, ForecastSeen] = {}

    def forecast_from(self, stored: Sequence[StoredDefinition], start: datetime) -> ForecastSeen:
        """Return the forecast for the week from `start`, the same value while nothing changes. A
        hit takes 1 ms for 1,000 jobs.
        """
        digest = digest_of(stored, start)
        seen = self._known.pop(digest, None) or _foreseen(stored, start)
        self._known[digest] = seen
        if len(self._known) > KEPT:
            del self._known[next(iter(self._known))]
        return seen


_COUNTED: Final = Counted()
_THREAD: Final = ThreadPoolExecutor(1, thread_name_prefix="forecast")


async def _read(asked: PageRequest) -> Shown:
    found = await asked.read(newest_definitions, asked.services, asked.namespace, JOBS + 1)
    hour = utcnow().replace(minute=0, second=0, microsecond=0)
    loop = asyncio.get_running_loop()
    return Shown(
        "Forecast", await loop.run_in_executor(_THREAD, _COUNTED.forecast_from, found, hour)
    )


def digest_of(stored: Sequence[StoredDefinition], start: datetime) -> bytes:
    """Return a digest of all that a forecast depends on. Pure."""
    digest = hashlib.sha256(start.isoformat().encode())
    for one in stored:
        head = f"{one.namespace}\0{one.name}\0{one.paused}\0{one.idle}\0{len(one.spec)}\0"
        digest.update(head.encode() + one.spec)
    return digest.digest()


def _foreseen(stored: Sequence[StoredDefinition], start: datetime) -> ForecastSeen:
    counted = stored[:JOBS]
    idle = frozenset(one.name for one in counted if one.idle)
    return foreseen([job_of(one) for one in counted], start, more=len(stored) > JOBS, idle=idle)


def foreseen(
    jobs: Sequence[job_pb2.Job], start: datetime, *, more: bool, idle: Collection[str] = frozenset()
) -> ForecastSeen:
    """Return the map of a week from `start`, a full hour. `idle`: jobs without further scheduled
    times. Pure. For 1,000 jobs it takes some 10 ms, and far longer if each has its own schedule.
    """
    grid = grid_over(start, timedelta(days=DAYS))
    unpaused = [job for job in jobs if not job.paused]
    going = [job for job in unpaused if job.on_demand or job.name not in idle]
    rows, wrong, uncounted = _rows_within(BUDGET, going, grid)
    found = forecast(rows, grid, HOTTEST)
    left_out = [
        (len(jobs) - len(unpaused), "paused"),
        (len(unpaused) - len(going), "done"),
        (wrong, "with an unreadable schedule"),
        (uncounted, "over the CPU budget of a forecast"),
        (sum(bool(job.max_runs) for job in going), "with max_runs, counted without that limit"),
        (
            sum(job.HasField("exclude") for job in going),
            "with excluded times, counted without them",
        ),
    ]
    listed = [f"{many:,} {what}" for many, what in left_out if many]
    return ForecastSeen(
        days=tuple(f"{day:%a %d %b}" for day in days_of(grid)),
        hours=tuple(hours_of(found, grid)),
        hottest=tuple(map(_hot, found.hottest)),
        total=found.total,
        counted=len(rows),
        left_out=(*listed, *([f"all but the newest {len(jobs):,}"] if more else [])),
    )


def _rows_within(
    budget: int, jobs: Sequence[job_pb2.Job], grid: MinuteGrid
) -> tuple[list[Row], int, int]:
    """Return the rows of as many jobs as the budget allows, the number of unreadable jobs, and the
    number of jobs left.
    """
    rows: list[Row] = []
    wrong = 0
    with limited(budget):
        for number, job in enumerate(jobs):
            try:
                rows.append(row_of(entry_of(job), grid))
            except ScheduleError:
                wrong += 1
            except TooMuchWork:
                return rows, wrong, len(jobs) - number
    return rows, wrong, 0


def job_of(stored: StoredDefinition) -> job_pb2.Job:
    """Return what is counted of a definition: its spec, and whether it is paused. Pure."""
    job = job_codec.stored_spec(stored.spec)
    job.namespace, job.name, job.paused = stored.namespace, stored.name, stored.paused
    return job


def entry_of(job: job_pb2.Job) -> TimetableEntry:
    return TimetableEntry(
        job.name,
        job.name,
        job_codec.when(job),
        job.namespace or "default",
        job_codec.bounds_of(job),
    )


def days_of(grid: MinuteGrid) -> list[datetime]:
    """Return the days of the grid; the first and the last may be partial. Pure."""
    first = grid.start_of_minute(0).replace(hour=0)
    many = -((first - grid.start_of_minute(grid.minutes)) // timedelta(days=1))
    return [first + timedelta(days=day) for day in range(many)]


def hours_of(found: Forecast, grid: MinuteGrid) -> Iterable[Hour]:
    """Yield the hours of the grid, each in the row of its day. Pure."""
    starts = [sum(found.counts[at : at + 60]) for at in range(0, len(found.counts), 60)]
    busy = [many for many in starts if many]
    least, most = min(busy, default=0), max(busy, default=0)
    for at, many in enumerate(starts):
        row, column = divmod(grid.start_of_minute(0).hour + at, HOURS)
        when = f"{grid.start_of_minute(at * 60):%a %d %b %H}:00"
        yield Hour(row, column, many, heat(many, least, most), f"{when}: {many:,}")


def heat(many: int, least: int, most: int) -> float:
    """Return the heat of an hour: MILD to 1, or 0 without starts. The scale begins at the least
    busy hour, so that a steady base load hides no peak. Pure.
    """
    if not many:
        return 0.0
    spread = max(most - least, most / 2)
    return round(MILD + (1 - MILD) * sqrt((many - least) / spread), 3)


def _hot(hot: BusyMinute) -> HotMinute:
    names = tuple(entry.name for entry, _ in hot.entries)
    return HotMinute(hot.at, hot.starts, hot.alike, names[:NAMED], max(0, len(names) - NAMED))


PAGE: Final = Page("/forecast", "Forecast", "forecast", _read, every=EVERY)
