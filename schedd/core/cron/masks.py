"""An expression as bit masks, and the search for the next matching local time.

One idea: a field is a number whose bit `v` says that value `v` matches, so the next match is a
shift and the lowest bit set. A month's matching days depend only on its length and on the weekday
of its first day: 28 masks computed once hold all that `L`, `W`, `#` and the rule of the two day
fields can say.

The parser is croniter, given the plain terms of `dialect` and nothing that it reads in its own
way. It expands; it never computes an instant.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Final, cast

from croniter import croniter

from schedd.core.cron.dialect import DAY_OF_WEEK, FIELDS, FieldSpec, Terms
from schedd.core.cron.errors import CronError

DAY: Final = 86400
EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_LAST_YEAR: Final = 9990

LAST: Final = -1
"""In `Masks.nth`: the last such weekday of the month."""


@dataclass(frozen=True, slots=True)
class Masks:
    """What matches, bit `v` for value `v`; weekdays are 0 (Sunday) to 6.

    `last_day` is `L`; `nearest` holds the days of `15W` (31 for `LW`); `nth` pairs of weekday and
    week (`5#2` is (5, 2), `5L` is (5, LAST)). `both_days`: a day must match both day fields, since
    one of them begins with `*`; else either is enough.
    `days` is derived: matching days (bits 1 to 31) of a month, at
    `(length - 28) * 7 + weekday of its first day`.
    """

    second: int
    minute: int
    hour: int
    day_of_month: int
    month: int
    day_of_week: int
    last_day: bool
    nearest: tuple[int, ...]
    nth: tuple[tuple[int, int], ...]
    both_days: bool
    days: tuple[int, ...]

    def next_local(self, local: int) -> int | None:
        """The first matching local time not before `local`, both as seconds since 1970 local.

        None past the year 9990 alone: an expression that never matches is refused when it is made.
        """
        day, rest = divmod(local, DAY)
        if self.matches_day(day):
            found = self._time_from(rest)
            if found >= 0:
                return day * DAY + found
        following = self.next_day(day + 1)
        return None if following is None else following * DAY + self.first_time

    @property
    def first_time(self) -> int:
        """The first matching second of a matching day."""
        return _lowest(self.hour) * 3600 + _lowest(self.minute) * 60 + _lowest(self.second)

    def matches_day(self, day: int) -> bool:
        """Whether this local day (since 1970) matches month and day fields."""
        at = date.fromordinal(day + EPOCH_DAY)
        return bool(self.month >> at.month & 1 and self._days_of(at.year, at.month) >> at.day & 1)

    def next_day(self, day: int) -> int | None:
        """The first matching local day not before `day`; None past the year 9990."""
        at = date.fromordinal(day + EPOCH_DAY)
        year, month, first = at.year, at.month, at.day
        while year < _LAST_YEAR:
            if self.month >> month & 1:
                days = self._days_of(year, month) >> first
                if days:
                    return date(year, month, first + _lowest(days)).toordinal() - EPOCH_DAY
            later = self.month >> (month + 1)
            if later:
                month += 1 + _lowest(later)
            else:
                year, month = year + 1, _lowest(self.month)
            first = 1
        return None

    def _days_of(self, year: int, month: int) -> int:
        first = date(year, month, 1).toordinal() % 7
        return self.days[(_length(year, month) - 28) * 7 + first]

    def _time_from(self, rest: int) -> int:
        """The first matching second of a day not before `rest`, or -1."""
        hour, below = divmod(rest, 3600)
        if self.hour >> hour & 1:
            minute, second = divmod(below, 60)
            if self.minute >> minute & 1:
                seconds = self.second >> second
                if seconds:
                    return rest + _lowest(seconds)
            minutes = self.minute >> (minute + 1)
            if minutes:
                minute += 1 + _lowest(minutes)
                return hour * 3600 + minute * 60 + _lowest(self.second)
        hours = self.hour >> (hour + 1)
        if hours:
            hour += 1 + _lowest(hours)
            return hour * 3600 + _lowest(self.minute) * 60 + _lowest(self.second)
        return -1


def _lowest(mask: int) -> int:
    """Index of the lowest bit set."""
    return (mask & -mask).bit_length() - 1


def _length(year: int, month: int) -> int:
    if month != 2:
        return 30 if month in (4, 6, 9, 11) else 31
    return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28


@lru_cache(maxsize=4096)
def build(fields: tuple[Terms, ...]) -> Masks:
    """The masks of six translated fields. Raises CronError if no day can ever match."""
    plain, last_day, nearest, nth = _expand(fields)
    second, minute, hour, day_of_month, month, day_of_week = plain
    both = fields[3].star or fields[5].star
    days = tuple(
        _matching_days(length, first, day_of_month, day_of_week, last_day, nearest, nth, both)
        for length in (28, 29, 30, 31)
        for first in range(7)
    )
    masks = Masks(
        second,
        minute,
        hour,
        day_of_month,
        month,
        day_of_week,
        last_day,
        nearest,
        nth,
        both,
        days,
    )
    _refuse_never(masks)
    return masks


_Specials = tuple[list[int], bool, tuple[int, ...], tuple[tuple[int, int], ...]]


def _expand(fields: tuple[Terms, ...]) -> _Specials:
    """Let croniter expand the terms: all plain ones at once, each special one alone.

    Alone, because croniter refuses to mix them with others (`15W,1` and `5#2,1`).
    """
    expanded, _, _ = _croniter([terms.plain or "*" for terms in fields])
    plain = [
        _mask(spec, values) if terms.plain else 0
        for spec, terms, values in zip(FIELDS, fields, expanded, strict=True)
    ]
    last_day = False
    nearest: set[int] = set()
    nth: set[tuple[int, int]] = set()
    for term in fields[3].special:
        expanded, _, near = _croniter(["0", "0", "0", term, "*", "*"])
        last_day = last_day or "l" in expanded[3]
        nearest |= near
    for term in fields[5].special:
        _, weeks, _ = _croniter(["0", "0", "0", "*", "*", term])
        nth |= {
            (day, LAST if week == "l" else cast("int", week))
            for day, found in weeks.items()
            for week in found
        }
    return plain, last_day, tuple(sorted(nearest)), tuple(sorted(nth))


_Values = list[int | str]


def _croniter(words: list[str]) -> tuple[list[_Values], dict[int, set[int | str]], set[int]]:
    """How croniter reads six plain fields; seconds come first in the answer too."""
    try:
        parsed = croniter(" ".join(words), 0, second_at_beginning=True)
    except (ValueError, KeyError, IndexError, TypeError) as refusal:
        # Whatever `dialect` let through and the parser still refuses: never a bug of the caller.
        raise CronError("expression", str(refusal), f"read as {' '.join(words)}") from refusal
    minute, hour, day, month, weekday, second = cast("list[_Values]", parsed.expanded)
    weeks = cast("dict[int, set[int | str]]", parsed.nth_weekday_of_month)
    return [second, minute, hour, day, month, weekday], weeks, parsed.nearest_weekday


def _mask(spec: FieldSpec, values: Iterable[int | str]) -> int:
    mask = 0
    for value in values:
        if value == "*":
            high = 6 if spec is DAY_OF_WEEK else spec.high
            return (2 << high) - (1 << spec.low)
        mask |= 1 << int(value)
    return mask


def _matching_days(
    length: int,
    first: int,
    day_of_month: int,
    day_of_week: int,
    last_day: bool,
    nearest: tuple[int, ...],
    nth: tuple[tuple[int, int], ...],
    both: bool,
) -> int:
    """Bits of the matching days of a month of this length whose 1st is this weekday."""
    by_month = day_of_month
    if last_day:
        by_month |= 1 << length
    for day in nearest:
        by_month |= 1 << _nearest_weekday(day, length, first)
    by_week = 0
    for day in range(1, length + 1):
        if day_of_week >> (first + day - 1) % 7 & 1:
            by_week |= 1 << day
    for weekday, week in nth:
        day = 1 + (weekday - first) % 7
        day += (length - day) // 7 * 7 if week == LAST else (week - 1) * 7
        by_week |= 1 << day
    matching = by_month & by_week if both else by_month | by_week
    return matching & ((1 << (length + 1)) - 2)


def _nearest_weekday(day: int, length: int, first: int) -> int:
    """The Monday to Friday nearest to `day`, within the month; past its end: to its last day."""
    day = min(day, length)
    weekday = (first + day - 1) % 7
    if weekday == 6:
        return day - 1 if day > 1 else day + 2
    if weekday == 0:
        return day + 1 if day < length else day - 2
    return day


def _refuse_never(masks: Masks) -> None:
    """Each length of month begins on each weekday some day, so looking at all of them is exact."""
    for month in range(1, 13):
        if masks.month >> month & 1:
            lengths = (28, 29) if month == 2 else (_length(2001, month),)
            if any(masks.days[(n - 28) * 7 + first] for n in lengths for first in range(7)):
                return
    raise CronError(
        "expression",
        "never matches: none of its months has such a day",
        "the last day of a month is L",
    )
