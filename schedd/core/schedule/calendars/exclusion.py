"""The exclusions of a job: its calendars in their order, then its own cron expressions. The first
match decides which calendar is reported, and whether the time rolls.
"""

from datetime import datetime, timedelta

from schedd.core.schedule.calendars.closed_time import ClosedTime, closed
from schedd.core.schedule.calendars.rules import Exclude, Roll, Rules
from schedd.core.schedule.cron import EPOCH
from schedd.core.schedule.cron.day_bits import FULL
from schedd.core.schedule.work_budget import spend
from schedkit.records import dataclass


@dataclass(frozen=True, slots=True)
class Closure:
    """A source of exclusions: a version of a calendar, or the job's own expressions (no name)."""

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
    """The exclusions of a job, in order. Times are aware datetimes in UTC."""

    closures: tuple[Closure, ...]

    def decider(self, instant: datetime) -> Closure | None:
        """Return the first closure that excludes this time; None: it isn't excluded."""
        return self.decider_at(second_of(instant))

    def decider_at(self, second: int) -> Closure | None:
        """Return the `decider` of a time in whole seconds since 1970."""
        spend(2 * len(self.closures))
        for closure in self.closures:
            if closure.time.excludes_second(second):
                return closure
        return None

    def excludes(self, instant: datetime) -> bool:
        return self.decider_at(second_of(instant)) is not None

    def open_on(self, day: int) -> int:
        """Return the seconds of a UTC day since 1970 that aren't excluded, as its `day_bits`."""
        spend(2)
        found = 0
        for closure in self.closures:
            closed = closure.time.day(day)
            if closed is FULL:
                return 0
            found = found | closed if found and closed else found or closed
        return FULL ^ found if found else FULL

    def border_after(self, instant: datetime) -> datetime | None:
        """Return the next time at which a closure begins or ends; None: there is none."""
        second = second_of(instant)
        found = (
            closure.time.free_from(second)
            if closure.time.excludes_second(second)
            else closure.time.closed_from(second)
            for closure in self.closures
        )
        first = min((one for one in found if one is not None), default=None)
        return None if first is None else instant_of(first)


def exclusion_of(exclude: Exclude) -> Exclusion | None:
    """Return the exclusions of a job; None if it has none."""
    sources = [(one.name, one.version, one.rules) for one in exclude.calendars]
    if exclude.cron:
        sources.append(("", 0, Rules(cron=exclude.cron)))
    closures = tuple(
        Closure(name, version, rules.roll, closed(rules, exclude.zone))
        for name, version, rules in sources
    )
    return Exclusion(closures) if closures else None


def second_of(instant: datetime) -> int:
    past = instant - EPOCH
    return past.days * 86400 + past.seconds


def instant_of(second: int) -> datetime:
    """Return the time of a number of seconds since 1970."""
    return EPOCH + timedelta(0, second)
