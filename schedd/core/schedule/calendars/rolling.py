"""Rolling: an excluded fixed time runs at the same local time of another day.

For a local day, the search looks for times that are moved *onto* it. It looks back (or ahead) for
as long as the time of day is excluded. So the times remain a set without a starting point, and two
times that are moved onto the same one count once.

Invariants
- Only schedules with a fixed time of day are moved: `at`, and cron expressions whose minute and
  hour don't begin with `*`. A job of every five minutes has enough times on the next day.
- A moved time is never excluded, and at most `MOST_DAYS` away from its original.
- The local time stays as it was written. If it falls into a gap or comes twice, the job's rule for
  that applies.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Final, Protocol

from schedd.core.schedule.calendars.exclusion import Exclusion, instant_of, second_of
from schedd.core.schedule.calendars.rules import Roll
from schedd.core.schedule.cron import DstPolicy
from schedd.core.schedule.cron.day_bits import DAY
from schedd.core.schedule.cron.dst import instants_of
from schedd.core.schedule.cron.masks import Masks, listed
from schedd.core.schedule.scheduled_times import CronInstants, Instants, OneInstant
from schedd.core.schedule.work_budget import spend
from schedd.core.schedule.zones import Zone
from schedd.core.schedule.zones import zone as zone_of

MOST_DAYS: Final = 31
"""Maximum distance of a move in days. A time without an open day that near doesn't run."""
MOST_TIMES: Final = 100
"""Maximum times a day. An expression with more isn't moved, like one that begins with `*`."""
_AROUND: Final = MOST_DAYS + 2
"""Maximum distance in days of another zone's clock."""
_KEPT: Final = 256


class Moved(Protocol):
    """Times that replace excluded times."""

    def between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """Yield the times in (after, until], ascending."""
        ...


class MovedOne:
    """The time to which an `at` was moved."""

    def __init__(self, instant: datetime) -> None:
        self._instant = instant

    def between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        if after < self._instant <= until:
            yield self._instant


class MovedCron:
    """The moved times of one expression."""

    def __init__(self, masks: Masks, zone: Zone, dst: DstPolicy, exclusion: Exclusion) -> None:
        self._masks = masks
        self._zone = zone
        self._dst = dst
        self._exclusion = exclusion
        self._days: dict[int, tuple[int, ...]] = {}

    def between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        first, last = second_of(after) + 1, second_of(until)
        day, end = (first - DAY) // DAY, (last + DAY) // DAY
        while day <= end:
            spend(10)
            source, rolled = self._masks.next_day(day - MOST_DAYS), self._rolled(day - _AROUND)
            if source is None or rolled is None:
                return
            # No time is moved further than this.
            day = max(day, source - MOST_DAYS, rolled - _AROUND)
            for second in self._times_on_day(day) if day <= end else ():
                if first <= second <= last:
                    yield instant_of(second)
            day += 1

    def _rolled(self, day: int) -> int | None:
        """Return the first local day from `day` on that a rolling calendar excludes in part."""
        rolling = (one.time for one in self._exclusion.closures if one.roll is not Roll.NONE)
        found = (time.next_day(day) for time in rolling)
        return min((one for one in found if one is not None), default=None)

    def _times_on_day(self, day: int) -> tuple[int, ...]:
        """Return the times that are moved onto a local day, in seconds since 1970 UTC."""
        found = self._days.get(day)
        if found is None:
            if len(self._days) >= _KEPT:
                self._days = {}
            found = self._days[day] = self._worked_out(day)
        return found

    def _worked_out(self, day: int) -> tuple[int, ...]:
        if self._masks.matches_day(day):
            return ()  # the day has all of its times without rolling
        found: set[int] = set()
        for time in listed(self._masks.times):
            here = instants_of(day * DAY + time, self._zone, self._dst)
            if not here or self._exclusion.decider_at(here[0]) is not None:
                continue
            back, ahead = (-1, Roll.NEXT), (1, Roll.PREVIOUS)
            if any(self._reached(day, time, *way) for way in (back, ahead)):
                found.update(here)
        return tuple(sorted(found))

    def _reached(self, day: int, time: int, step: int, roll: Roll) -> bool:
        """Return whether a time beyond, with only excluded days between, is moved to this day."""
        for other in range(day + step, day + step * (MOST_DAYS + 1), step):
            spend(3)
            there = instants_of(other * DAY + time, self._zone, self._dst)
            if not there:
                continue  # the clock doesn't show this time on that day
            decider = self._exclusion.decider_at(there[0])
            if decider is None:
                return False
            if decider.roll is roll and self._masks.matches_day(other):
                return True
        return False


def moved(base: Instants, zone: str, exclusion: Exclusion) -> tuple[Moved, ...]:
    """Return the moved times of a schedule; `zone` is the job's."""
    if all(closure.roll is Roll.NONE for closure in exclusion.closures):
        return ()
    if isinstance(base, OneInstant):
        target = _moved_one(base.instant, zone_of(zone), exclusion)
        return () if target is None else (MovedOne(target),)
    if isinstance(base, CronInstants):
        return tuple(
            MovedCron(masks, zone_of(each.zone), base.dst, exclusion)
            for each in base.expressions
            if not each.wildcard
            and (masks := each.masks) is not None
            and masks.times.count <= MOST_TIMES
        )
    return ()


def _moved_one(instant: datetime, zone: Zone, exclusion: Exclusion) -> datetime | None:
    decider = exclusion.decider(instant)
    if decider is None or decider.roll is Roll.NONE:
        return None
    second = second_of(instant)
    local = second + zone.segment(second).offset
    step = DAY if decider.roll is Roll.NEXT else -DAY
    for other in range(local + step, local + step * (MOST_DAYS + 1), step):
        there = instants_of(other, zone, DstPolicy())
        if there and exclusion.decider_at(there[0]) is None:
            return instant_of(there[0]) + (instant - instant_of(second))
    return None
