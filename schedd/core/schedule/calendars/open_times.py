"""The sets of times of a schedule with exclusions: all times, and those that run.

After an excluded time, the next one that runs is searched day by day. The open seconds of a day and
its scheduled seconds are one number each. So a day costs the same few microseconds, whether a
calendar closes years or every other second, and no time is missed.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from heapq import merge
from typing import Final

from schedd.core.schedule.calendars.exclusion import Exclusion, instant_of, second_of
from schedd.core.schedule.calendars.rolling import MOST_DAYS, Moved
from schedd.core.schedule.cron import day_bits
from schedd.core.schedule.cron.day_bits import DAY
from schedd.core.schedule.cron.masks import lowest
from schedd.core.schedule.scheduled_times import Instants
from schedd.core.schedule.work_budget import spend
from schedd.core.schedule.zones import LAST
from schedkit.records import dataclass

FARTHEST: Final = timedelta(days=5 * 366)
"""How far ahead of an excluded time the next one that runs is searched."""
_FAR: Final = timedelta(days=MOST_DAYS + 2)
_TICK: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class AllInstants:
    """The times of a schedule, excluded or not, and the moved ones."""

    base: Instants
    moved: tuple[Moved, ...]

    def next_after(self, instant: datetime) -> datetime | None:
        found = self.base.next_after(instant)
        # A moved time comes from at most this far away.
        until = instant + _FAR if found is None else found
        for one in self.moved:
            first = next(one.between(instant, until), None)
            if first is not None:
                found = until = first if found is None else min(found, first)
        return found

    def times_on_day(self, day: int) -> int:
        start = instant_of(day * DAY) - _TICK
        found = self.base.times_on_day(day)
        for one in self.moved:
            for instant in one.between(start, start + timedelta(1)):
                found |= 1 << (second_of(instant) - day * DAY)
        return found

    def count(self, after: datetime, until: datetime) -> int:
        count, before = self.base.count(after, until), after
        for one in merge(*(moved.between(after, until) for moved in self.moved)):
            if one != before and self.base.next_after(one - _TICK) != one:
                count += 1
            before = one
        return count


@dataclass(frozen=True, slots=True)
class OpenInstants:
    """The times of `every` that nothing excludes."""

    every: AllInstants
    exclusion: Exclusion

    def next_after(self, instant: datetime) -> datetime | None:
        return self.next_in(instant, instant + FARTHEST)

    def next_in(self, instant: datetime, until: datetime) -> datetime | None:
        """Return the smallest time in (instant, until]. If the next time isn't excluded, return it
        even if it is after `until`.
        """
        found = self.every.next_after(instant)
        if found is None or not self.exclusion.excludes(found):
            return found
        at, last = second_of(found) + 1, min(second_of(until), LAST)
        while at <= last:
            day = at // DAY
            if (free := self.exclusion.open_on(day)) and (first := self._from(at, free)):
                return first if first <= until else None
            at = (day + 1) * DAY
        return None

    def _from(self, at: int, free: int) -> datetime | None:
        """Return the first time in the rest of a day, whose open seconds are `free`."""
        day, rest = divmod(at, DAY)
        runs = (self.every.base.times_on_day(day) & free) >> rest
        found = self.every.base.next_after(instant_of(at + lowest(runs)) - _TICK) if runs else None
        end = instant_of((day + 1) * DAY) - _TICK if found is None else found
        for moved in self.every.moved:
            first = next(moved.between(instant_of(at) - _TICK, end), None)
            if first is not None:
                found = end = first if found is None else min(found, first)
        return found

    def times_on_day(self, day: int) -> int:
        free = self.exclusion.open_on(day)
        return self.every.times_on_day(day) & free if free else 0

    def walk_after(self, instant: datetime) -> Iterator[datetime]:
        """Yield every later time. The times of a day are computed together."""
        first = self.next_after(instant)
        while first is not None:
            yield first
            day, second = divmod(second_of(first), DAY)
            rest = self.times_on_day(day) >> second + 1 << second + 1
            while rest:
                spend(10)
                second = lowest(rest)
                rest ^= 1 << second
                found = self.every.next_after(instant_of(day * DAY + second) - _TICK)
                assert found is not None, "it is one of its day"
                yield found
            first = self.next_after(instant_of((day + 1) * DAY) - _TICK)

    def count(self, after: datetime, until: datetime) -> int:
        low, high = second_of(after), min(second_of(until), LAST)
        counted = day_bits.count(self.times_on_day, low, high - 1)
        for second in {low, high}:  # in part outside (after, until]
            found = self.next_in(max(after, instant_of(second) - _TICK), until)
            counted += found is not None and found <= until and second_of(found) == second
        return counted
