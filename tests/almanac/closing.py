"""Find what a job excludes, without the product: the judge of `schedd.core.schedule.calendars`.

    drawn calendars ─▶ is this minute of that clock excluded?  (sets of days, meanings of cron)
    fixed times × days ─▶ the day onto which each excluded one is moved

One idea: an instant is judged by what a walk through real time wrote down that the clock showed,
and what is moved is moved from each excluded instant, day by day. The product looks the other way:
it asks each day what was moved onto it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import cached_property
from random import Random
from typing import Any

from almanac.drawing import draw
from almanac.meaning import Meaning
from almanac.walker import Walk, instants, walk
from schedd.core.schedule.calendars.rolling import MOST_DAYS
from schedd.core.schedule.calendars.rules import Roll
from schedd.core.schedule.cron import DstGap, DstOverlap, DstPolicy

_DAY = 24 * 60
_EPOCH = date(1970, 1, 1)
_FAR = (MOST_DAYS + 2) * 86400
_NAMES = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MOST_TIMES = 100


@dataclass(frozen=True)
class Drawn:
    """A calendar as text (`said`, what `rules` is given), and what it means."""

    said: dict[str, Any]
    days: frozenset[date]
    weekdays: frozenset[int]
    cron: tuple[Meaning, ...]
    roll: Roll
    zone: str

    def excludes(self, clock: int, second: int) -> bool:
        """Whether it names this minute of its clock (since 1970), and second of it."""
        day, time = _EPOCH + timedelta(days=clock // _DAY), clock % _DAY
        if day in self.days or day.weekday() in self.weekdays:
            return True
        return any(
            meaning.matches_day(day)
            and time // 60 in meaning.hour.values
            and time % 60 in meaning.minute.values
            and (len(meaning.text.split()) < 6 or second in meaning.second.values)
            for meaning in self.cron
        )


@dataclass
class Foundations:
    """A window of a zone, with what the clocks around it showed; other zones are walked too."""

    zone: str
    start: int
    end: int
    walks: dict[str, Walk] = field(default_factory=dict)
    clocks: dict[str, dict[int, int]] = field(default_factory=dict)

    def walked(self, zone: str) -> Walk:
        if zone not in self.walks:
            self.walks[zone] = found = walk(zone, self.start - _FAR, self.end + _FAR)
            self.clocks[zone] = {
                real: clock for clock, reals in found.shown.items() for real in reals
            }
        return self.walks[zone]

    def clock(self, zone: str, second: int) -> int:
        """The minute that the clock shows."""
        self.walked(zone)
        return self.clocks[zone][second // 60]


@dataclass
class Case:
    """An expression with what its job excludes, over a ground."""

    ground: Foundations
    meaning: Meaning
    dst: DstPolicy
    calendars: Sequence[Drawn]

    def decider(self, second: int) -> Drawn | None:
        for calendar in self.calendars:
            clock = self.ground.clock(calendar.zone or self.ground.zone, second)
            if calendar.excludes(clock, second % 60):
                return calendar
        return None

    @cached_property
    def base(self) -> list[int]:
        """The instants of the expression in the window."""
        found = instants(self.meaning, self.ground.walked(self.ground.zone), self.dst)
        return [at for at in found if self.ground.start < at <= self.ground.end]

    @cached_property
    def runs(self) -> list[int]:
        """Times that run: the ones that aren't excluded, and the ones moved into the window."""
        moved = (at for at in self._moved() if self.ground.start < at <= self.ground.end)
        return sorted({*moved, *(at for at in self.base if self.decider(at) is None)})

    @cached_property
    def every(self) -> list[int]:
        """All that are accounted for."""
        return sorted({*self.runs, *self.base})

    def _moved(self) -> Iterator[int]:
        meaning = self.meaning
        times = [
            (hour * 60 + minute, second)
            for hour in meaning.hour.values
            for minute in meaning.minute.values
            for second in meaning.second.values
        ]
        rolls = any(calendar.roll is not Roll.NONE for calendar in self.calendars)
        if meaning.wildcard or meaning.every or len(times) > MOST_TIMES or not rolls:
            return
        days = self.ground.walked(self.ground.zone).days
        for day in days[1:-1]:
            if not meaning.matches_day(_EPOCH + timedelta(days=day)):
                continue
            for time, second in times:
                yield from self._moved_from(day, time, second)

    def _moved_from(self, day: int, time: int, second: int) -> Iterator[int]:
        here = self._counted(day * _DAY + time, second)
        decider = self.decider(here[0]) if here else None
        if decider is None or decider.roll is Roll.NONE:
            return
        step = 1 if decider.roll is Roll.NEXT else -1
        for away in range(1, MOST_DAYS + 1):
            there = self._counted((day + step * away) * _DAY + time, second)
            if there and self.decider(there[0]) is None:
                yield from there
                return

    def _counted(self, clock: int, second: int) -> list[int]:
        """The instants at which a fixed time of the clock counts, in seconds since 1970."""
        walked = self.ground.walked(self.ground.zone)
        passes = [real * 60 + second for real in walked.shown.get(clock, ())]
        if passes and self.dst.overlap is not DstOverlap.BOTH:
            return passes[:1] if self.dst.overlap is DstOverlap.FIRST else passes[-1:]
        if not passes and self.dst.gap is DstGap.RUN_AFTER:
            return [real * 60 for real, skipped in walked.gaps if clock in skipped]
        return passes


def draw_calendar(random: Random, around: int, zones: Sequence[str]) -> Drawn:
    """Return a random calendar with days around an instant."""
    today = _EPOCH + timedelta(days=around // 86400)
    said: dict[str, Any] = {"roll": random.choice(list(Roll))}
    days: set[date] = set()
    weekdays: set[int] = set()
    cron: list[Meaning] = []
    while not (days or weekdays or cron):
        if random.random() < 0.5:
            some = [today + timedelta(days=random.randint(-20, 20)) for _ in range(8)]
            plain = [str(one) for one in some[:6]]
            said["dates"] = [*plain, *(f"{one:%m-%d}" for one in some[6:])]
            days |= {*some[:6], *(_of_year(one, year) for one in some[6:] for year in (-1, 0, 1))}
        if random.random() < 0.4:
            weekdays = set(random.sample(range(7), random.randint(1, 3)))
            said["weekdays"] = [_NAMES[number] for number in weekdays]
        if random.random() < 0.4:
            first = today + timedelta(days=random.randint(-20, 20))
            last = first + timedelta(days=random.choice((0, 1, 4, 12, 40)))
            said["ranges"] = [(str(first), str(last))]
            days |= {first + timedelta(days=one) for one in range((last - first).days + 1)}
        if random.random() < 0.4:
            cron = [draw_expression(random) for _ in range(random.randint(1, 2))]
            said["cron"] = [meaning.text for meaning in cron]
    zone = random.choice(zones) if random.random() < 0.2 else ""
    said["zone"] = zone
    return Drawn(said, frozenset(days), frozenset(weekdays), tuple(cron), said["roll"], zone)


def draw_expression(random: Random) -> Meaning:
    """Return a random expression without a zone of its own that isn't an interval."""
    while True:
        meaning = draw(random, ("UTC",))
        if not meaning.every and not meaning.zone:
            return meaning


def _of_year(at: date, away: int) -> date:
    """The same day of a year near it; of 02-29 there is none but in leap years."""
    try:
        return at.replace(year=at.year + away)
    except ValueError:
        return at
