"""The exclusions of a job: its calendars in their order, then its own cron expressions.

The first one that matches a time decides which calendar is reported, and whether the time rolls.
Any match excludes the time.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

from schedd.core.schedule.calendars.closed_time import ClosedTime, closed
from schedd.core.schedule.calendars.rules import Exclude, Roll, Rules
from schedd.core.schedule.cron import EPOCH
from schedd.core.schedule.cron.day_bits import FULL
from schedd.core.schedule.work_budget import spend
from schedkit.records import dataclass


@dataclass(frozen=True, slots=True)
class Closure:
    """One thing that excludes: a version of a calendar, or the job's own expressions (no name)."""

    name: str
    version: int
    roll: Roll
    time: ClosedTime

    def __str__(self) -> str:
        if not self.name:
            return "the job's exclude.cron"
        return f"calendar {self.name}" + (f" v{self.version}" if self.version else "")


@dataclass(frozen=True, slots=True)
class Exclusion:
    """What excludes, in order. Instants are aware datetimes in UTC."""

    closures: tuple[Closure, ...]

    def decider(self, instant: datetime) -> Closure | None:
        """The first that excludes this instant; None: it isn't excluded."""
        return self.decider_at(second_of(instant))

    def decider_at(self, second: int) -> Closure | None:
        """`decider` of whole seconds since 1970."""
        spend(2 * len(self.closures))
        for closure in self.closures:
            if closure.time.has(second):
                return closure
        return None

    def excludes(self, instant: datetime) -> bool:
        """Whether this instant is excluded."""
        return self.decider_at(second_of(instant)) is not None

    def open_on(self, day: int) -> int:
        """What nothing excludes of a UTC day since 1970, as its bits
        (`core/schedule/cron/day_bits`).
        """
        spend(2)
        found = 0
        for closure in self.closures:
            closed = closure.time.day(day)
            if closed is FULL:
                return 0
            found = found | closed if found and closed else found or closed
        return FULL ^ found if found else FULL

    def border_after(self, instant: datetime) -> datetime | None:
        """The first later instant from which another of these excludes, or one less; None: from
        then on nothing changes.
        """
        second = second_of(instant)
        found = (
            closure.time.free_from(second)
            if closure.time.has(second)
            else closure.time.closed_from(second)
            for closure in self.closures
        )
        first = min((one for one in found if one is not None), default=None)
        return None if first is None else instant_of(first)


def exclusion_of(exclude: Exclude) -> Exclusion | None:
    """What a job excludes, ready to be asked; None if that is nothing."""
    closures = tuple(_closures(exclude))
    return Exclusion(closures) if closures else None


def _closures(exclude: Exclude) -> Iterator[Closure]:
    for calendar in exclude.calendars:
        time = closed(calendar.rules, exclude.zone)
        yield Closure(calendar.name, calendar.version, calendar.rules.roll, time)
    if exclude.cron:
        yield Closure("", 0, Roll.NONE, closed(Rules(cron=exclude.cron), exclude.zone))


def second_of(instant: datetime) -> int:
    """Whole seconds since 1970."""
    past = instant - EPOCH
    return past.days * 86400 + past.seconds


def instant_of(second: int) -> datetime:
    """The instant of so many seconds since 1970."""
    return EPOCH + timedelta(0, second)
