"""The times of a job: cron expressions, an interval, one time, or only triggers.

A schedule defines a set of scheduled times (`nominal`) that never changes. Bounds cut the set.
Jitter adds a delay to each scheduled time, hashed from the job and that time. So every member
computes the same `Occurrence` from the same definition, without state between two of them.

Invariants (times are aware datetimes in UTC)
- `next_after(x)` depends only on `x`: the smallest scheduled time greater than `x`.
- nominal <= due, and due < the next nominal: due times are in the order of scheduled times.
- Bounds and jitter never change which scheduled times lie inside the bounds.
- The exclusions of a job (`core/schedule/calendars`) divide its scheduled times in two. Some run;
  all methods here return these. The others are only recorded as skipped. `whole` has both.
"""

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice, takewhile
from typing import Final, TypeAlias

from schedd.core.ids import Id
from schedd.core.schedule import local_times
from schedd.core.schedule.calendars.exclusion import Exclusion, exclusion_of
from schedd.core.schedule.calendars.open_times import AllInstants, OpenInstants
from schedd.core.schedule.calendars.rolling import moved
from schedd.core.schedule.calendars.rules import NOTHING, Exclude
from schedd.core.schedule.cron import DEBIAN, EPOCH, DstPolicy, ScheduleError, parse
from schedd.core.schedule.cron.dialect import is_hashed
from schedd.core.schedule.cron.expression import SECOND
from schedd.core.schedule.scheduled_times import (
    CronInstants,
    DailyInstants,
    EveryInstants,
    Instants,
    OneInstant,
    newest,
)
from schedd.core.schedule.work_budget import spend
from schedkit.records import dataclass

AT_TOLERANCE: Final = timedelta(seconds=60)
"""How far in the past an `at` time may be when its job is created; it then fires at once."""

ROW: Final = timedelta(days=1)
"""Consecutive excluded times within a day are recorded together."""

_SHARED: Final = 8_192
_ZERO: Final = timedelta(0)
_TICK: Final = timedelta(microseconds=1)
_DAY: Final = timedelta(days=1)
_MILLISECOND: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """The union of these expressions, read in `zone` (an expression's CRON_TZ= has priority)."""

    expressions: tuple[str, ...]
    zone: str = "UTC"
    dst: DstPolicy = DEBIAN


@dataclass(frozen=True, slots=True)
class EverySchedule:
    """Each `interval` (at least 1 s, whole milliseconds) since 1970 UTC, moved by `phase`.

    With an `anchor` (a naive local time in `zone`), the intervals are aligned to it, both before
    and after it. Whole days keep the local time; other intervals count elapsed time.
    """

    interval: timedelta
    phase: timedelta = _ZERO
    anchor: datetime | None = None
    zone: str = ""


@dataclass(frozen=True, slots=True)
class AtSchedule:
    """A single time: aware, or a naive local time in `zone`."""

    instant: datetime
    zone: str = ""


@dataclass(frozen=True, slots=True)
class OnDemand:
    """No schedule: runs are only triggered."""


Schedule: TypeAlias = CronSchedule | EverySchedule | AtSchedule | OnDemand


@dataclass(frozen=True, slots=True)
class ScheduleBounds:
    """First and last scheduled time that count (both inclusive), and the maximum jitter."""

    start: datetime | None = None
    end: datetime | None = None
    jitter: timedelta = _ZERO


_UNBOUNDED: Final = ScheduleBounds()


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A time of a schedule. `nominal`: scheduled time, the key. `due`: earliest start."""

    nominal: datetime
    due: datetime


@dataclass(frozen=True, slots=True)
class CompiledSchedule:
    """A schedule with methods to compute its times. Created by `compile`."""

    instants: Instants
    bounds: ScheduleBounds
    job_id: Id
    exclusion: Exclusion | None = None
    excluding: "CompiledSchedule | None" = None
    """The same schedule with its excluded times; None: it excludes none."""

    @property
    def whole(self) -> "CompiledSchedule":
        """The schedule with excluded and moved times: each of them gets a row."""
        return self if self.excluding is None else self.excluding

    @property
    def single(self) -> datetime | None:
        """The time of an `at`, wherever it may have been moved to; else None."""
        base = self._base
        return base.instant if isinstance(base, OneInstant) else None

    @property
    def _base(self) -> Instants:
        """The times of the schedule itself, without exclusions and moves."""
        instants = self.instants
        return instants.every.base if isinstance(instants, OpenInstants) else instants

    def silent(self, after: datetime) -> str | None:
        """Return the first cron expression without a time after `after`; None: each has one."""
        base = self._base
        if not isinstance(base, CronInstants):
            return None
        silent = (one for one in base.expressions if one.next_after(after, base.dst) is None)
        return next((one.text for one in silent), None)

    def excludes(self, instant: datetime) -> bool:
        """Return whether this time of the schedule doesn't run."""
        return self.exclusion is not None and self.exclusion.excludes(instant)

    def excluded_by(self, instant: datetime) -> str:
        """Return the name of the calendar that excludes this time; empty: none does."""
        decider = None if self.exclusion is None else self.exclusion.decider(instant)
        return "" if decider is None else str(decider)

    def excludes_all_after(self, instant: datetime) -> bool:
        """Return whether exclusions leave no known time to run after this one."""
        return self.excluding is not None and self.next_after(instant) is None

    def following(self, instant: datetime) -> Occurrence | None:
        """Return the next occurrence for a timer, excluded ones included. Consecutive excluded ones
        within a day are due with the last of them: they share a row.
        """
        found = self.whole.next_after(instant)
        if found is None or not self.excludes(found.nominal):
            return found
        return Occurrence(found.nominal, self.due(self._end_of_row(found.nominal)))

    def next_after(self, instant: datetime) -> Occurrence | None:
        """Return the first occurrence with `nominal` > `instant`; None: the schedule has ended."""
        nominal = self._next_nominal(instant)
        return None if nominal is None else Occurrence(nominal, self.due(nominal))

    def first(self, now: datetime) -> Occurrence | None:
        """Return the first occurrence for the timer of a job that is created or edited at `now`. An
        `at` time at most `AT_TOLERANCE` in the past is due now, whatever the catch-up policy.
        """
        at = self.single
        if at is not None and now - AT_TOLERANCE <= at <= now and self.contains(at):
            return Occurrence(at, now)
        return self.following(now)

    def contains(self, instant: datetime) -> bool:
        """Return whether this is a time of this schedule. Only `whole` includes excluded times."""
        return self._next_nominal(instant - _TICK) == instant

    def runs_at(self, instant: datetime) -> bool:
        """Return whether this is a scheduled time that isn't excluded."""
        return self.whole.contains(instant) and not self.excludes(instant)

    def walk_after(self, after: datetime) -> Iterator[Occurrence]:
        """Yield every later occurrence in order."""
        start, end = self.bounds.start, self.bounds.end
        if start is not None and after < start:
            after = start - _TICK
        for nominal in self._walk(after):
            if end is not None and nominal > end:
                return
            yield Occurrence(nominal, self.due(nominal))

    def _walk(self, after: datetime) -> Iterator[datetime]:
        """Yield every later time, also past the bounds."""
        if isinstance(self.instants, OpenInstants):
            yield from self.instants.walk_after(after)
            return
        found = self.instants.next_after(after)
        while found is not None:
            spend(4)
            yield found
            found = self.instants.next_after(found)

    def instants_between(self, after: datetime, until: datetime, limit: int) -> list[Occurrence]:
        """Return the first `limit` occurrences with nominal in (after, until]."""
        return list(
            islice(takewhile(lambda one: one.nominal <= until, self.walk_after(after)), limit)
        )

    def newest(self, after: datetime, until: datetime) -> datetime | None:
        """Return the greatest scheduled time in (after, until], without a walk through all."""
        return newest(lambda at: self._next_nominal(at, until), after, until)

    def count(self, after: datetime, until: datetime) -> int:
        """Return how many scheduled times lie in (after, until]."""
        if self.bounds.start is not None:
            after = max(after, self.bounds.start - _TICK)
        if self.bounds.end is not None:
            until = min(until, self.bounds.end)
        return self.instants.count(after, until) if after < until else 0

    def due(self, nominal: datetime) -> datetime:
        """Return the due time of this scheduled time.

        nominal + hash(job, nominal) mod jitter, in whole milliseconds. Jitter ends at the
        schedule's next scheduled time, even if that time is outside the bounds.
        """
        spread = self.bounds.jitter
        if not spread:
            return nominal
        following = self.whole.instants.next_after(nominal)
        if following is not None:
            spread = min(spread, following - nominal)
        size = spread // _MILLISECOND
        key = self.job_id + ((nominal - EPOCH) // _TICK).to_bytes(8, "big", signed=True)
        number = int.from_bytes(hashlib.sha256(key).digest()[:8], "big")
        return nominal + number % size * _MILLISECOND if size else nominal

    def _next_nominal(self, instant: datetime, until: datetime | None = None) -> datetime | None:
        """Return the next scheduled time within the bounds; times after `until` may be omitted."""
        start, end = self.bounds.start, self.bounds.end
        if start is not None and instant < start:
            instant = start - _TICK
        if until is not None and isinstance(self.instants, OpenInstants):
            nominal = self.instants.next_in(instant, until)
        else:
            nominal = self.instants.next_after(instant)
        return None if nominal is None or (end is not None and nominal > end) else nominal

    def _end_of_row(self, first: datetime) -> datetime:
        """Return the last consecutive excluded time after `first`, within a day of it."""
        end = first + ROW - _TICK
        runs = self._next_nominal(first, end)
        if runs is not None and runs <= end:
            end = runs - _TICK
        return self.whole.newest(first, end) or first


def compile(  # noqa: A001 - called as schedule.compile, as one calls re.compile
    schedule: Schedule,
    seed: str,
    job_id: Id,
    bounds: ScheduleBounds = _UNBOUNDED,
    exclude: Exclude = NOTHING,
) -> CompiledSchedule:
    """Compile and validate a schedule. `seed` is "namespace/job" (for `H`). Raises ScheduleError,
    or its subclass CronError; the methods of a compiled schedule raise none.

    Equal schedules share their `instants`, and equal bounds are one object, while they are cached.
    """
    hashed = isinstance(schedule, CronSchedule) and any(map(is_hashed, schedule.expressions))
    base, bounds = _instants(schedule, seed if hashed else ""), _checked(bounds)
    exclusion = exclusion_of(exclude)
    if exclusion is None:
        return CompiledSchedule(base, bounds, job_id)
    every = AllInstants(base, moved(base, exclude.zone, exclusion))
    whole = CompiledSchedule(every, bounds, job_id)
    return CompiledSchedule(OpenInstants(every, exclusion), bounds, job_id, exclusion, whole)


@lru_cache(maxsize=_SHARED)
def _instants(schedule: Schedule, seed: str) -> Instants:
    match schedule:
        case CronSchedule(expressions, zone, dst):
            if not expressions:
                raise ScheduleError(
                    "cron", "no expression is given", 'write for example "30 2 * * *"'
                )
            return CronInstants(tuple(parse(e, zone=zone, seed=seed) for e in expressions), dst)
        case EverySchedule(interval, phase, anchor, zone):
            if interval < timedelta(seconds=1) or interval % _MILLISECOND:
                problem = f"{interval} isn't a valid interval"
                raise ScheduleError("every", problem, "give at least 1s, in whole milliseconds")
            if not _ZERO <= phase < interval:
                length = interval.total_seconds()
                problem = f"{phase.total_seconds():g}s is out of range for the interval {length:g}s"
                raise ScheduleError("phase", problem, "give 0s or more, and less than the interval")
            if anchor is None:
                return EveryInstants(interval, phase)
            return _anchored(interval, phase, anchor, zone)
        case AtSchedule(instant, zone):
            if instant.tzinfo is None:
                instant = local_times.instant_of(instant, zone, "at")
            return OneInstant(_utc("at", instant))
        case OnDemand():
            return CronInstants((), DEBIAN)


def _anchored(interval: timedelta, phase: timedelta, anchor: datetime, zone: str) -> Instants:
    """Return the times of an interval that is aligned to a local time."""
    if phase:
        problem = "an anchor can't be combined with a phase"
        raise ScheduleError("anchor", problem, "give one of them")
    first = local_times.instant_of(anchor, zone, "anchor")
    if interval % _DAY:
        return EveryInstants(interval, (first - EPOCH) % interval)
    local = (anchor.replace(tzinfo=UTC) - EPOCH) // SECOND
    return DailyInstants(interval // _DAY, local, zone)


@lru_cache(maxsize=_SHARED)
def _checked(bounds: ScheduleBounds) -> ScheduleBounds:
    start = None if bounds.start is None else _utc("start", bounds.start)
    end = None if bounds.end is None else _utc("end", bounds.end)
    if start is not None and end is not None and end < start:
        raise ScheduleError("end", f"the end {end:%FT%TZ} is before the start", "give a later end")
    if bounds.jitter < _ZERO:
        problem = f"the jitter {bounds.jitter.total_seconds():g}s is negative"
        raise ScheduleError("jitter", problem, "give a positive duration, for example 30s")
    return ScheduleBounds(start, end, bounds.jitter)


def _utc(name: str, instant: datetime) -> datetime:
    if instant.tzinfo is None:
        raise ScheduleError(
            name, "the time has no offset from UTC", "write for example 2030-01-01T00:00:00Z"
        )
    return instant.astimezone(UTC)
