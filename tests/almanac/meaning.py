"""The meaning of an expression: sets of values, and tests of days."""

import calendar
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta

OfDay = Callable[[date], bool]


@dataclass(frozen=True)
class Field:
    """A field: its text, the values it means, and what else makes a day match.

    `shared`: cronsim reads this text in the same way.
    """

    text: str
    values: frozenset[int]
    days: tuple[OfDay, ...] = ()
    shared: bool = True

    @property
    def star(self) -> bool:
        return self.text[0] in "*?"


@dataclass(frozen=True)
class Meaning:
    """An expression as text, and what it means.

    `every` is the interval of `@every` in seconds, or 0; the fields then mean nothing. `zone` is
    that of CRON_TZ=. `shared`: cronsim reads the whole in the same way.
    """

    text: str
    second: Field
    minute: Field
    hour: Field
    day: Field
    month: Field
    weekday: Field
    every: int = 0
    zone: str = ""
    shared: bool = True

    @property
    def wildcard(self) -> bool:
        """Whether it follows real elapsed time."""
        return self.minute.star or self.hour.star

    def matches_day(self, at: date) -> bool:
        if at.month not in self.month.values:
            return False
        by_month = at.day in self.day.values or any(matches(at) for matches in self.day.days)
        sunday_first = (at.weekday() + 1) % 7
        by_week = sunday_first in self.weekday.values or any(
            matches(at) for matches in self.weekday.days
        )
        if self.day.star or self.weekday.star:
            return by_month and by_week
        return by_month or by_week


def last_day(at: date) -> bool:
    """`L`."""
    return at.day == calendar.monthrange(at.year, at.month)[1]


def before_last(days: int) -> OfDay:
    """`L-3`: so many days before the last day of the month."""
    return lambda at: at.day == calendar.monthrange(at.year, at.month)[1] - days


def nearest_weekday(day: int) -> OfDay:
    """`15W`; past the end of a month it is about its last day."""

    def matches(at: date) -> bool:
        length = calendar.monthrange(at.year, at.month)[1]
        wanted = min(day, length)
        choices = [d for d in range(1, length + 1) if date(at.year, at.month, d).weekday() < 5]
        return at.day == min(choices, key=lambda d: abs(d - wanted))

    return matches


def last_weekday_of_month(at: date) -> bool:
    """`LW`: the last Monday to Friday of a month."""
    later = [at + timedelta(days=n) for n in range(1, 4)]
    return at.weekday() < 5 and all(d.month != at.month or d.weekday() > 4 for d in later)


def nth_weekday(weekday: int, week: int) -> OfDay:
    """`5#2`."""
    return lambda at: (at.weekday() + 1) % 7 == weekday and (at.day + 6) // 7 == week


def last_such_weekday(weekday: int) -> OfDay:
    """`5L`."""

    def matches(at: date) -> bool:
        same = (at.weekday() + 1) % 7 == weekday
        return same and (at + timedelta(days=7)).month != at.month

    return matches
