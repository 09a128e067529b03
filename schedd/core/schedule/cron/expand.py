"""Build masks from translated terms: croniter expands them, and month shapes get their days.

croniter gets only the plain terms of `dialect`, which every parser reads alike. It expands lists,
ranges and steps. It never computes a fire time.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import cast

from croniter import croniter

from schedd.core.schedule.cron.errors import CronError
from schedd.core.schedule.cron.fields import DAY_OF_WEEK, FIELDS, FieldSpec, FieldTerms
from schedd.core.schedule.cron.masks import LAST, Masks, month_length, times


@lru_cache(maxsize=4096)
def build(fields: tuple[FieldTerms, ...]) -> Masks:
    """Return the masks of six translated fields. Raises CronError if no day can ever match."""
    plain, last_day, before_last, nearest, nth = _expand(fields)
    second, minute, hour, day_of_month, month, day_of_week = plain
    both = fields[3].star or fields[5].star
    days = tuple(
        _matching_days(
            length, first, day_of_month, day_of_week, last_day, before_last, nearest, nth, both
        )
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
        before_last,
        nearest,
        nth,
        both,
        days,
        every_day=_every_day(month, days),
        times=times(hour, minute, second),
    )
    _refuse_never(masks)
    return masks


def _every_day(month: int, days: tuple[int, ...]) -> bool:
    lengths = (28, 29, 30, 31)
    each = all(bits == (2 << lengths[shape // 7]) - 2 for shape, bits in enumerate(days))
    return each and month.bit_count() == 12


_Specials = tuple[list[int], bool, tuple[int, ...], tuple[int, ...], tuple[tuple[int, int], ...]]


def _expand(fields: tuple[FieldTerms, ...]) -> _Specials:
    """Let croniter expand the terms: all plain ones at once, each special one alone.

    croniter rejects special terms in a list (`15W,1` and `5#2,1`), hence alone. It doesn't know
    `L-3`, so the days of `L-3` are computed here.
    """
    expanded, _, _ = _croniter([terms.plain or "*" for terms in fields])
    plain = [
        _mask(spec, values) if terms.plain else 0
        for spec, terms, values in zip(FIELDS, fields, expanded, strict=True)
    ]
    last_day = False
    nearest: set[int] = set()
    nth: set[tuple[int, int]] = set()
    before_last = {int(term[2:]) for term in fields[3].special if term.startswith("l-")}
    for term in fields[3].special:
        if term.startswith("l-"):
            continue
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
    return plain, last_day, tuple(sorted(before_last)), tuple(sorted(nearest)), tuple(sorted(nth))


_Values = list[int | str]


def _croniter(words: list[str]) -> tuple[list[_Values], dict[int, set[int | str]], set[int]]:
    """Return croniter's reading of six plain fields. In its answer, too, seconds come first."""
    try:
        parsed = croniter(" ".join(words), 0, second_at_beginning=True)
    except (ValueError, KeyError, IndexError, TypeError) as refusal:
        # A term that `dialect` accepts and croniter rejects: never a bug of the caller.
        raise CronError(
            "expression",
            f"the fields {' '.join(words)!r} (seconds first) can't be parsed: {refusal}",
            "use numbers, ranges (1-5), lists (1,3) and steps (*/10) in these fields",
        ) from refusal
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
    before_last: tuple[int, ...],
    nearest: tuple[int, ...],
    nth: tuple[tuple[int, int], ...],
    both: bool,
) -> int:
    """Return the matching days of a month of this length whose 1st is this weekday, as bits."""
    by_month = day_of_month
    if last_day:
        by_month |= 1 << length
    for before in before_last:
        by_month |= 1 << max(length - before, 0)  # day 0: the month has no such day
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
    """Return the Monday to Friday nearest to `day` in the month. Past its end: to its last day."""
    day = min(day, length)
    weekday = (first + day - 1) % 7
    if weekday == 6:
        return day - 1 if day > 1 else day + 2
    if weekday == 0:
        return day + 1 if day < length else day - 2
    return day


def _refuse_never(masks: Masks) -> None:
    """Raise CronError if no day matches. This is exact: all 28 month shapes occur."""
    for month in range(1, 13):
        if masks.month >> month & 1:
            lengths = (28, 29) if month == 2 else (month_length(2001, month),)
            if any(masks.days[(n - 28) * 7 + first] for n in lengths for first in range(7)):
                return
    if masks.both_days and (masks.day_of_week != 127 or masks.nth):
        raise CronError(
            "expression",
            "the expression never matches: because one day field begins with *, a day must"
            " match both day fields, and no day matches both",
            "write that day field as a list, such as 1,11,21 instead of */10: then a day that"
            " matches one of the fields is enough",
        )
    raise CronError(
        "expression",
        "the expression never matches: none of its months has such a day",
        "use days that its months have; L is the last day of any month",
    )
