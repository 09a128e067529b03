"""When a job is due: cron expressions, an interval, one instant, or never by itself.

A schedule gives *nominal* instants, a set fixed for ever; bounds cut it, and jitter adds to each
nominal instant a delay that is hashed from the job and the instant. So any member computes the
same `Occurrence` from the same definition, and nothing needs to be remembered between two of them.

Invariants (instants are aware datetimes in UTC)
- `next_after(x)` depends on `x` alone: nominal > x, the smallest such.
- nominal <= due, and due < the next nominal: due instants are in the order of the nominal ones.
- Neither bounds nor jitter ever changes which instants are nominal inside the bounds.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final, TypeAlias
from uuid import UUID

from schedd.core.cron import DEBIAN, Dst, ScheduleError, parse
from schedd.core.instants import CronInstants, EveryInstants, Instants, NoInstants, OneInstant

AT_TOLERANCE: Final = timedelta(seconds=60)
"""How far past an `at` instant may lie when its job is made; it then fires at once."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ZERO: Final = timedelta(0)
_TICK: Final = timedelta(microseconds=1)
_MILLISECOND: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """The union of these expressions, read in `zone` (an expression's own CRON_TZ= goes before)."""

    expressions: tuple[str, ...]
    zone: str = "UTC"
    dst: Dst = DEBIAN


@dataclass(frozen=True, slots=True)
class EverySchedule:
    """Each `interval` (at least 1 s, whole milliseconds) since 1970 UTC, moved by `phase`."""

    interval: timedelta
    phase: timedelta = _ZERO


@dataclass(frozen=True, slots=True)
class AtSchedule:
    """One instant."""

    instant: datetime


@dataclass(frozen=True, slots=True)
class OnDemand:
    """Never by itself; only triggers."""


Schedule: TypeAlias = CronSchedule | EverySchedule | AtSchedule | OnDemand


@dataclass(frozen=True, slots=True)
class Bounds:
    """From when to when nominal instants count (both inclusive), and how far jitter may delay."""

    start: datetime | None = None
    end: datetime | None = None
    jitter: timedelta = _ZERO


_UNBOUNDED: Final = Bounds()


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One instant of a schedule: `nominal` is its key, `due` is when it may start."""

    nominal: datetime
    due: datetime


@dataclass(frozen=True, slots=True)
class CompiledSchedule:
    """A schedule ready for questions about time. Made by `compile`."""

    instants: Instants
    bounds: Bounds
    job_id: UUID

    def next_after(self, instant: datetime) -> Occurrence | None:
        """The first occurrence with `nominal` > `instant`; None if the schedule has ended."""
        nominal = self._next_nominal(instant)
        return None if nominal is None else Occurrence(nominal, self.due(nominal))

    def first(self, now: datetime) -> Occurrence | None:
        """What the timer of a job that is made (or whose schedule is edited) now begins with.

        As `next_after(now)`, but an `at` instant at most `AT_TOLERANCE` past is due now, whatever
        the catch-up policy.
        """
        if isinstance(self.instants, OneInstant) and self.instants.instant <= now:
            past = now - self.instants.instant
            recent = past <= AT_TOLERANCE and self.contains(self.instants.instant)
            return Occurrence(self.instants.instant, now) if recent else None
        return self.next_after(now)

    def contains(self, instant: datetime) -> bool:
        """Whether this is a nominal instant of the schedule."""
        return self._next_nominal(instant - _TICK) == instant

    def instants_between(self, after: datetime, until: datetime, limit: int) -> list[Occurrence]:
        """The first `limit` occurrences with nominal in (after, until]."""
        return list(islice(self._walk(after, until), limit))

    def newest(self, after: datetime, until: datetime) -> datetime | None:
        """The greatest nominal instant in (after, until], found without walking through them.

        Looks back from `until` in growing steps, then halves what is left.
        """
        step = timedelta(seconds=1)
        low, high = until - step, until
        while low > after and not self._reached(low, until):
            step, high = step * 2, low
            low = until - step
        nominal = self._reached(max(low, after), until)
        while nominal and (following := self._reached(nominal, until)):
            middle = following + (high - following) / 2
            if later := self._reached(middle, until):
                nominal = later
            else:
                nominal, high = following, middle
        return nominal

    def count(self, after: datetime, until: datetime, limit: int) -> tuple[int, datetime]:
        """How many nominal instants lie in (after, reached], and `reached`.

        That is `until`, or an instant before it where more than `limit` must be looked at singly.
        """
        low, high = after, until
        if self.bounds.start is not None:
            low = max(low, self.bounds.start - _TICK)
        if self.bounds.end is not None:
            high = min(high, self.bounds.end)
        if low >= high:
            return 0, until
        count, reached = self.instants.count(low, high, limit)
        return count, until if reached == high else reached

    def due(self, nominal: datetime) -> datetime:
        """When the occurrence of this nominal instant may start.

        nominal + hash(job, nominal) mod jitter in whole milliseconds, where jitter ends at the next
        nominal instant of the schedule (whether or not the bounds still hold it).
        """
        spread = self.bounds.jitter
        if not spread:
            return nominal
        following = self.instants.next_after(nominal)
        if following is not None:
            spread = min(spread, following - nominal)
        size = spread // _MILLISECOND
        key = self.job_id.bytes + ((nominal - _EPOCH) // _TICK).to_bytes(8, "big", signed=True)
        number = int.from_bytes(hashlib.sha256(key).digest()[:8], "big")
        return nominal + number % size * _MILLISECOND if size else nominal

    def _next_nominal(self, instant: datetime) -> datetime | None:
        start, end = self.bounds.start, self.bounds.end
        if start is not None and instant < start:
            instant = start - _TICK
        nominal = self.instants.next_after(instant)
        return None if nominal is None or (end is not None and nominal > end) else nominal

    def _reached(self, after: datetime, until: datetime) -> datetime | None:
        nominal = self._next_nominal(after)
        return nominal if nominal is not None and nominal <= until else None

    def _walk(self, after: datetime, until: datetime) -> Iterator[Occurrence]:
        found = self.next_after(after)
        while found is not None and found.nominal <= until:
            yield found
            found = self.next_after(found.nominal)


def compile(  # noqa: A001 - called as schedule.compile, as one calls re.compile
    schedule: Schedule, seed: str, job_id: UUID, bounds: Bounds = _UNBOUNDED
) -> CompiledSchedule:
    """Make a schedule ready for questions, and judge it on the way.

    `seed` is "namespace/job" (for `H`). Raises ScheduleError, CronError among them, for anything
    that can't be meant; whatever compiles can be asked without errors.
    """
    return CompiledSchedule(_instants(schedule, seed), _checked(bounds), job_id)


def _instants(schedule: Schedule, seed: str) -> Instants:
    match schedule:
        case CronSchedule(expressions, zone, dst):
            if not expressions:
                raise ScheduleError("cron", "has no expression", 'for example "30 2 * * *"')
            return CronInstants(tuple(parse(e, zone=zone, seed=seed) for e in expressions), dst)
        case EverySchedule(interval, phase):
            if interval < timedelta(seconds=1) or interval % _MILLISECOND:
                raise ScheduleError(
                    "every", f"{interval} is no interval", "at least 1s, in whole milliseconds"
                )
            if not _ZERO <= phase < interval:
                length = interval.total_seconds()
                problem = f"{phase.total_seconds():g}s is not from 0s to below {length:g}s"
                raise ScheduleError("phase", problem, "it moves the instants within one interval")
            return EveryInstants(interval, phase)
        case AtSchedule(instant):
            return OneInstant(_utc("at", instant))
        case OnDemand():
            return NoInstants()


def _checked(bounds: Bounds) -> Bounds:
    start = None if bounds.start is None else _utc("start", bounds.start)
    end = None if bounds.end is None else _utc("end", bounds.end)
    if start is not None and end is not None and end < start:
        raise ScheduleError("end", f"{end:%FT%TZ} is before start", "end is inclusive")
    if bounds.jitter < _ZERO:
        length = f"{bounds.jitter.total_seconds():g}s"
        raise ScheduleError("jitter", f"{length} is negative", "for example 30s")
    return Bounds(start, end, bounds.jitter)


def _utc(name: str, instant: datetime) -> datetime:
    if instant.tzinfo is None:
        raise ScheduleError(name, "has no offset from UTC", "for example 2030-01-01T00:00:00Z")
    return instant.astimezone(UTC)
