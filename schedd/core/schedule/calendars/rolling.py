"""Rolling: an excluded instant of a fixed time runs at the same local time of another day.

    roll: next        Fri   [Sat] [Sun]  Mon          roll: previous is its mirror
    09:00             runs    └─────┴───▶ runs once

One idea: a local day is asked what was moved *onto* it, by looking back (or ahead) from it for as
long as the time of day is excluded. So the instants stay a set that no starting point changes, and
two that are moved onto the same one are one.

Invariants
- Only what has a time of its own is moved: `at`, and cron expressions whose minute and hour don't
  begin with `*`. A job of every five minutes has instants enough on the next day.
- What is moved is never excluded, and at most `MOST_DAYS` away from where it was.
- It is the local time as it was written that stays; where it falls into a gap, or comes twice, the
  job's rule for that holds.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Final, Protocol

from schedd.core.schedule.calendars.exclusion import Exclusion, instant_of, second_of
from schedd.core.schedule.calendars.rules import Roll
from schedd.core.schedule.cron import CronExpression, Dst, DstGap, Pass
from schedd.core.schedule.cron.day_bits import DAY
from schedd.core.schedule.cron.masks import Masks
from schedd.core.schedule.cron.times import listed
from schedd.core.schedule.scheduled_times import CronInstants, Instants, OneInstant
from schedd.core.schedule.work_budget import spend
from schedd.core.schedule.zones import NEAR, Zone
from schedd.core.schedule.zones import zone as zone_of

MOST_DAYS: Final = 31
"""How far an instant is moved; what finds no open day so near doesn't run."""
MOST_TIMES: Final = 100
"""Times a day; an expression with more isn't moved, as one that begins with `*` isn't."""
_AROUND: Final = MOST_DAYS + 2
"""The same by the days of another zone's clock."""
_KEPT: Final = 256


class Moved(Protocol):
    """Instants that are there for others that were excluded."""

    def between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """Those in (after, until], growing."""
        ...


class MovedOne:
    """The one instant that an `at` was moved to."""

    def __init__(self, instant: datetime) -> None:
        self._instant = instant

    def between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        if after < self._instant <= until:
            yield self._instant


class MovedCron:
    """What is moved of one expression."""

    def __init__(self, masks: Masks, zone: Zone, dst: Dst, exclusion: Exclusion) -> None:
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
            # Nothing comes from so far away.
            day = max(day, source - MOST_DAYS, rolled - _AROUND)
            for second in self._on(day) if day <= end else ():
                if first <= second <= last:
                    yield instant_of(second)
            day += 1

    def _rolled(self, day: int) -> int | None:
        """The first local day not before `day` on which anything is excluded, and rolls."""
        rolling = (one.time for one in self._exclusion.closures if one.roll is not Roll.NONE)
        found = (time.next_day(day) for time in rolling)
        return min((one for one in found if one is not None), default=None)

    def _on(self, day: int) -> tuple[int, ...]:
        """What is moved onto a local day: seconds since 1970 UTC."""
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
            here = self._shown(day, time)
            if not here or self._exclusion.decider_at(here[0]) is not None:
                continue
            back, ahead = (-1, Roll.NEXT), (1, Roll.PREVIOUS)
            if any(self._reached(day, time, *way) for way in (back, ahead)):
                found.update(here)
        return tuple(sorted(found))

    def _reached(self, day: int, time: int, step: int, roll: Roll) -> bool:
        """Whether an instant beyond, with nothing but excluded days between, is moved here."""
        for other in range(day + step, day + step * (MOST_DAYS + 1), step):
            spend(3)
            there = self._shown(other, time)
            if not there:
                continue  # the clock doesn't show this time on that day
            decider = self._exclusion.decider_at(there[0])
            if decider is None:
                return False
            if decider.roll is roll and self._masks.matches_day(other):
                return True
        return False

    def _shown(self, day: int, time: int) -> tuple[int, ...]:
        return instants_of(day * DAY + time, self._zone, self._dst)


def moved(base: Instants, zone: str, exclusion: Exclusion) -> tuple[Moved, ...]:
    """What is moved of these instants; `zone` is the job's."""
    if all(closure.roll is Roll.NONE for closure in exclusion.closures):
        return ()
    if isinstance(base, OneInstant):
        target = _moved_one(base.instant, zone_of(zone), exclusion)
        return () if target is None else (MovedOne(target),)
    if isinstance(base, CronInstants):
        fixed = filter(_is_fixed, base.expressions)
        return tuple(_moved_cron(each, base.dst, exclusion) for each in fixed)
    return ()


def instants_of(local: int, zone: Zone, dst: Dst) -> tuple[int, ...]:
    """The instants, in seconds since 1970 UTC, at which a fixed local time counts: mostly one."""
    segment = zone.segment(local)
    found = local - segment.offset
    if segment.start + NEAR <= found < segment.end - NEAR:
        return (found,)
    passes: list[int] = []
    after_gap: int | None = None
    segment = zone.segment(local - NEAR)
    while segment.start <= local + NEAR:
        if segment.start <= local - segment.offset < segment.end:
            passes.append(local - segment.offset)
        if segment.start + segment.before <= local < segment.start + segment.offset:
            after_gap = segment.start
        segment = zone.segment(segment.end)
    if passes:
        return {Pass.FIRST: (passes[0],), Pass.SECOND: (passes[-1],)}.get(
            dst.overlap, tuple(passes)
        )
    return (after_gap,) if after_gap is not None and dst.gap is DstGap.RUN_AFTER else ()


def _is_fixed(expression: CronExpression) -> bool:
    masks = expression.masks
    return masks is not None and not expression.wildcard and masks.times.count <= MOST_TIMES


def _moved_cron(expression: CronExpression, dst: Dst, exclusion: Exclusion) -> MovedCron:
    assert expression.masks is not None, "fixed times have masks"
    return MovedCron(expression.masks, zone_of(expression.zone), dst, exclusion)


def _moved_one(instant: datetime, zone: Zone, exclusion: Exclusion) -> datetime | None:
    decider = exclusion.decider(instant)
    if decider is None or decider.roll is Roll.NONE:
        return None
    second = second_of(instant)
    local = second + zone.segment(second).offset
    step = DAY if decider.roll is Roll.NEXT else -DAY
    for other in range(local + step, local + step * (MOST_DAYS + 1), step):
        there = instants_of(other, zone, Dst())
        if there and exclusion.decider_at(there[0]) is None:
            return instant_of(there[0]) + (instant - instant_of(second))
    return None
