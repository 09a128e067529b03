"""The sets of instants of a schedule that excludes some: all of them, and those that run."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import merge
from typing import Final

from schedd.core.calendars.exclusion import Exclusion
from schedd.core.calendars.groups import groups
from schedd.core.calendars.moving import MOST_DAYS, Moved
from schedd.core.instants import Instants

LEAPS: Final = 50_000
"""Stretches of closed time in a row, each of one calendar and with an instant of the schedule,
behind which one that runs is looked for: a month of a job that is excluded each minute anew, and
half a day of one that two calendars exclude each second in turns. So many take a quarter of a
second, which whoever looks may do with a shard's row locked.
"""
FARTHEST: Final = timedelta(days=5 * 366)
"""How far ahead one that runs is looked for behind an excluded one."""
_FAR: Final = timedelta(days=MOST_DAYS + 2)
_TICK: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class AllInstants:
    """The instants of a schedule, excluded or not, and those that were moved."""

    base: Instants
    moved: tuple[Moved, ...]

    def next_after(self, instant: datetime) -> datetime | None:
        found = self.base.next_after(instant)
        # What is moved comes from an instant at most so far away.
        until = instant + _FAR if found is None else found
        for one in self.moved:
            first = next(one.between(instant, until), None)
            if first is not None:
                found = until = first if found is None else min(found, first)
        return found

    def count(self, after: datetime, until: datetime, limit: int) -> tuple[int, datetime]:
        count, reached = self.base.count(after, until, limit)
        before = after
        for one in merge(*(moved.between(after, reached) for moved in self.moved)):
            if one != before and self.base.next_after(one - _TICK) != one:
                count += 1
            before = one
        return count, reached


@dataclass(frozen=True, slots=True)
class OpenInstants:
    """Those of `every` that nothing excludes."""

    every: AllInstants
    exclusion: Exclusion

    def next_after(self, instant: datetime) -> datetime | None:
        return self.next_in(instant, instant + FARTHEST)

    def next_in(self, instant: datetime, until: datetime) -> datetime | None:
        """The smallest one in (instant, until]; it may be later, if nothing before is excluded."""
        found = self.every.next_after(instant)
        for _ in range(LEAPS):
            if found is None:
                return None
            free = self.exclusion.end_of_one(found)
            if free is None or free > until:
                return None
            if free == found:
                return found
            found = self.every.next_after(free - _TICK)
        return None

    def count(self, after: datetime, until: datetime, limit: int) -> tuple[int, datetime]:
        first = self.every.next_after(after)
        if first is None or first > until:
            return 0, until
        counted, reached = 0, after
        for group in groups(self.every, self.exclusion, first, until, limit):
            counted += group.count if group.decider is None else 0
            reached = group.last
        following = self.every.next_after(reached)
        return counted, until if following is None or following > until else reached
