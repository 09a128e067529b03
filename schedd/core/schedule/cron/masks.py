"""Expressions as bit masks, and the search for the next matching local time.

A field is a number whose bit `v` means that value `v` matches. So the next match is a shift and the
lowest bit set, and counting matches is counting bits. The matching days of a month depend only on
its length and on the weekday of its first day: its *shape*. 28 masks, computed once, cover all
rules of `L`, `W`, `#` and the two day fields.

Local times and days are whole numbers since 1970 on the local clock. Zones aren't used here.
"""

from collections.abc import Iterator
from dataclasses import field
from datetime import date
from functools import lru_cache
from typing import Final

from schedd.core.schedule.cron import day_bits
from schedd.core.schedule.cron.day_bits import DAY
from schedkit.records import dataclass

# The times of day of an expression, as small tables.
#
# `hours[h]` is the first matching hour not before `h`, so the next time of day takes one look into
# each of three tables and no search. `_NONE` is past the last match. A table is one longer than its
# field, so that "the next value" needs no check. 147 bytes for any expression.

_NONE: Final = 255


@dataclass(frozen=True, slots=True)
class Times:
    """The matching seconds of a day. Created by `times`."""

    hours: bytes
    minutes: bytes
    seconds: bytes
    first: int
    """First matching second of the day."""
    in_hour: int
    """First matching second of a matching hour."""
    count: int

    def next(self, rest: int) -> int:
        """Return the first matching second of a day not before `rest` (0 to 86399), or -1."""
        hour = rest // 3600
        if self.hours[hour] == hour:
            minute = rest // 60 - hour * 60
            found = self.minutes[minute]
            if found == minute:
                second = self.seconds[rest % 60]
                if second != _NONE:
                    return rest - rest % 60 + second
                found = self.minutes[minute + 1]
            if found != _NONE:
                return hour * 3600 + found * 60 + self.seconds[0]
        found = self.hours[hour + 1]
        return -1 if found == _NONE else found * 3600 + self.in_hour


@lru_cache(maxsize=4096)
def times(hour: int, minute: int, second: int) -> Times:
    """Return the tables of three masks, none of which is empty."""
    hours, minutes, seconds = _table(hour, 24), _table(minute, 60), _table(second, 60)
    in_hour = minutes[0] * 60 + seconds[0]
    count = hour.bit_count() * minute.bit_count() * second.bit_count()
    return Times(hours, minutes, seconds, hours[0] * 3600 + in_hour, in_hour, count)


@lru_cache(maxsize=64)
def listed(of: Times) -> tuple[int, ...]:
    """Return all matching seconds of a day. Few lists are cached: one may have 86,400 numbers."""
    return tuple(
        hour * 3600 + minute * 60 + second
        for hour in _values(of.hours)
        for minute in _values(of.minutes)
        for second in _values(of.seconds)
    )


def _table(mask: int, size: int) -> bytes:
    table = bytearray([_NONE] * (size + 1))
    found = _NONE
    for value in reversed(range(size)):
        if mask >> value & 1:
            found = value
        table[value] = found
    return bytes(table)


def _values(table: bytes) -> list[int]:
    return [value for value, found in enumerate(table) if value == found]


EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_LAST_YEAR: Final = 9990
_LAST_DAY: Final = date(_LAST_YEAR, 1, 1).toordinal() - EPOCH_DAY

_LENGTHS: Final = (28, 29, 30, 31)
LAST: Final = -1
"""In `Masks.nth`: the last such weekday of the month."""


@dataclass(frozen=True, slots=True)
class Masks:
    """The matching values, bit `v` for value `v`; weekdays are 0 (Sunday) to 6.

    `last_day` is `L`. `before_last` holds the 3 of `L-3`. `nearest` holds the days of `15W` (31 for
    `LW`). `nth` holds pairs of weekday and week (`5#2` is (5, 2), `5L` is (5, LAST)). `both_days`:
    a day must match both day fields, since one of them begins with `*`; else either is enough.

    The other fields are derived. `days`: matching days (bits 1 to 31) of a month, by its shape,
    `(length - 28) * 7 + weekday of its first day`. `every_day`: all days match. `times`: the times
    of day that hours, minutes and seconds match.
    """

    second: int
    minute: int
    hour: int
    day_of_month: int
    month: int
    day_of_week: int
    last_day: bool
    before_last: tuple[int, ...]
    nearest: tuple[int, ...]
    nth: tuple[tuple[int, int], ...]
    both_days: bool
    days: tuple[int, ...] = field(init=False, compare=False)
    every_day: bool = field(init=False, compare=False)
    times: Times = field(init=False, compare=False)

    def __post_init__(self) -> None:
        shapes = [(length, first) for length in _LENGTHS for first in range(7)]
        self.days = tuple(self._matching(*shape) for shape in shapes)  # type: ignore[misc]
        every_day = all(self.days[at] == (2 << length) - 2 for at, (length, _) in enumerate(shapes))
        self.every_day = every_day and self.month.bit_count() == 12  # type: ignore[misc]
        self.times = times(self.hour, self.minute, self.second)  # type: ignore[misc]

    def _matching(self, length: int, first: int) -> int:
        """Return the matching days of a month of this length whose 1st is this weekday, as bits."""
        by_month = self.day_of_month | self.last_day << length
        for before in self.before_last:
            by_month |= 1 << max(length - before, 0)  # day 0: the month has no such day
        for day in self.nearest:
            by_month |= 1 << _nearest_weekday(day, length, first)
        by_week = 0
        for day in range(1, length + 1):
            by_week |= (self.day_of_week >> (first + day - 1) % 7 & 1) << day
        for weekday, week in self.nth:
            day = 1 + (weekday - first) % 7
            day += (length - day) // 7 * 7 if week == LAST else (week - 1) * 7
            by_week |= 1 << day
        matching = by_month & by_week if self.both_days else by_month | by_week
        return matching & ((2 << length) - 2)

    def months_days(self) -> Iterator[int]:
        """Yield the matching days of each matching month, for each of its shapes."""
        for month in range(1, 13):
            if self.month >> month & 1:
                lengths = (28, 29) if month == 2 else (month_length(2001, month),)
                yield from (self.days[(n - 28) * 7 + first] for n in lengths for first in range(7))

    def next_local(self, local: int) -> int | None:
        """Return the first matching local time not before `local`, both in seconds since 1970
        local; None past the year 9990.
        """
        day = local // DAY
        found = self.times.next(local - day * DAY)
        if found >= 0 and (self.every_day or self.matches_day(day)):
            return day * DAY + found
        following = self.next_day(day + 1)
        return None if following is None else following * DAY + self.times.first

    def matches_day(self, day: int) -> bool:
        """Return whether this local day (since 1970) matches month and day fields."""
        month, shape, at = _placed(day)
        return bool(self.month >> month & 1 and self.days[shape] >> at & 1)

    def matches_on_day(self, day: int) -> int:
        """Return the matching seconds of this local day, as its bits (`day_bits`)."""
        if not self.matches_day(day):
            return 0
        return day_bits.of_times(self.hour, self.minute, self.second)

    def next_day(self, day: int) -> int | None:
        """Return the first matching local day not before `day`; None past the year 9990."""
        if day >= _LAST_DAY:
            return None
        if self.every_day:
            return day
        month, shape, at = _placed(day)
        if self.month >> month & 1:
            days = self.days[shape] >> at
            if days:
                return day + lowest(days)
        day += 29 + shape // 7 - at  # the first day of the next month
        month, shape, _ = _placed(day)
        if self.month >> month & 1:
            days = self.days[shape]
            if days:
                return day - 1 + lowest(days)
        year = date.fromordinal(day + EPOCH_DAY).year
        while True:
            later = self.month >> (month + 1)
            if later:
                month += 1 + lowest(later)
            else:
                year, month = year + 1, lowest(self.month)
            if year >= _LAST_YEAR:
                return None
            days = self.days[_shape(year, month)]
            if days:
                return date(year, month, lowest(days)).toordinal() - EPOCH_DAY


def _nearest_weekday(day: int, length: int, first: int) -> int:
    """Return the Monday to Friday nearest to `day` in the month. Past its end: to its last day."""
    day = min(day, length)
    weekday = (first + day - 1) % 7
    if weekday == 6:
        return day - 1 if day > 1 else day + 2
    if weekday == 0:
        return day + 1 if day < length else day - 2
    return day


def lowest(mask: int) -> int:
    """Return the index of the lowest bit set."""
    return (mask & -mask).bit_length() - 1


@lru_cache(maxsize=4096)
def _placed(day: int) -> tuple[int, int, int]:
    """Return month, shape of the month, and day of the month of a day since 1970."""
    at = date.fromordinal(day + EPOCH_DAY)
    return at.month, _shape(at.year, at.month), at.day


@lru_cache(maxsize=4096)
def _shape(year: int, month: int) -> int:
    """Return the shape of a month, 0 to 27."""
    return (month_length(year, month) - 28) * 7 + date(year, month, 1).toordinal() % 7


def month_length(year: int, month: int) -> int:
    if month != 2:
        return 30 if month in (4, 6, 9, 11) else 31
    return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
