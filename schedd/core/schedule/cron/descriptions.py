"""Describe an expression in plain English: "every 5 minutes, Monday to Friday".

The words are made from the masks, not from the text. So two ways to write the same times read the
same, and the words state what will happen.
"""

from collections.abc import Sequence
from typing import Final

from schedd.core.schedule.cron.expression import CronExpression
from schedd.core.schedule.cron.masks import LAST, Masks, month_length

MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_WEEKDAYS: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_WEEKS: Final = {1: "first", 2: "second", 3: "third", 4: "fourth", 5: "fifth", LAST: "last"}

_MOST_TIMES: Final = 6
"""Maximum number of times of a day that are listed; more are described as a pattern."""


def describe_parsed(expression: CronExpression) -> str:
    """Return the expression in plain English."""
    masks = expression.masks
    if masks is None:
        return f"every {duration_text(expression.every)}, counted from 1970-01-01T00:00:00Z"
    days, times = _days(masks), _clock_times(masks)
    if times:
        return f"{days or 'every day'} at {_and(times)}"
    return _pattern(masks) + (f", {days}" if days else "")


def duration_text(seconds: int) -> str:
    """Return a duration in its largest whole unit: "5 minutes", "minute"."""
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds % size == 0:
            return _plural(seconds // size, unit)
    return _plural(seconds, "second")


def _plural(number: int, unit: str) -> str:
    return unit if number == 1 else f"{number} {unit}s"


# -- The time of day --


def _clock_times(masks: Masks) -> list[str]:
    """Return the times of a day; empty: too many to list."""
    hours, minutes, seconds = (_bits(mask) for mask in (masks.hour, masks.minute, masks.second))
    if len(hours) * len(minutes) * len(seconds) > _MOST_TIMES:
        return []
    exact = seconds != [0]
    return [
        f"{hour:02}:{minute:02}" + (f":{second:02}" if exact else "")
        for hour in hours
        for minute in minutes
        for second in seconds
    ]


def _pattern(masks: Masks) -> str:
    """Return the times of a day as a pattern: "every 15 minutes from 09:00 to 17:59"."""
    hours, minutes, seconds = (_bits(mask) for mask in (masks.hour, masks.minute, masks.second))
    if seconds == [0]:
        if minutes == [0]:
            return _hourly(hours)
        if (step := _step(minutes, 60)) is not None:
            during = f" from {hours[0]:02}:00 to {hours[0]:02}:59" if len(hours) == 1 else ""
            return _each(step, "minute", minutes[0]) + (during or _within(hours))
        return f"at {_named('minute', minutes)}" + (_within(hours) or " of every hour")
    if (step := _step(seconds, 60)) is not None:
        start = _each(step, "second", seconds[0])
        if len(minutes) == 60:
            return start + _within(hours)
        return f"{start} of {_of_minutes(minutes)}" + (_within(hours) or " of every hour")
    start = f"at {_named('second', seconds)} of {_of_minutes(minutes)}"
    return start + (_within(hours) or ("" if len(minutes) == 60 else " of every hour"))


def _hourly(hours: Sequence[int]) -> str:
    if (step := _step(hours, 24)) is not None:
        return f"every {_plural(step, 'hour')}" + (f" from {hours[0]:02}:00" if hours[0] else "")
    return f"every hour{_within(hours)}" if _is_run(hours) else f"at minute 0{_within(hours)}"


def _each(step: int, unit: str, first: int) -> str:
    return f"every {_plural(step, unit)}" + (f" from {unit} {first}" if first else "")


def _of_minutes(minutes: Sequence[int]) -> str:
    if (step := _step(minutes, 60)) is not None:
        return "every minute" if step == 1 else f"every {_ordinal(step)} minute"
    return _named("minute", minutes)


def _within(hours: Sequence[int]) -> str:
    """Return the hours as the end of a phrase; empty: all hours."""
    if len(hours) == 24:
        return ""
    if _is_run(hours):
        return f" from {hours[0]:02}:00 to {hours[-1]:02}:59"
    if (step := _step(hours, 24)) is not None:
        return f" of every {_ordinal(step)} hour" + (f" from {hours[0]:02}:00" if hours[0] else "")
    return f" of {_named('hour', hours)}"


def _named(unit: str, values: Sequence[int]) -> str:
    names = _spans(values, [str(value) for value in range(60)])
    return f"{unit}{'s' if len(values) > 1 else ''} {_and(names)}"


def _and(words: Sequence[str], last: str = "and") -> str:
    return f" {last} ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


# -- The days --


def _days(masks: Masks) -> str:
    """Return the days in words; empty: every day."""
    months = _bits(masks.month)
    all_months = len(months) == 12
    named = _and(_spans([month - 1 for month in months], MONTHS))
    of_months = "every month" if all_months else named
    by_month = _month_days(masks, of_months)
    by_week = _week_days(masks, of_months)
    if masks.both_days:
        if by_month and by_week:
            also = _week_days(masks, of_months, last="or").removeprefix("on ")
            return f"{by_month} if that is also {also}"
    elif not by_month or not by_week:
        # Either field is enough, and one of them matches every day: the other adds nothing.
        by_month = by_week = ""
    if by_month and by_week:
        in_months = "" if all_months or named in by_week else f" in {named}"
        return f"{by_month}, or {by_week}{in_months}"
    days = by_month or by_week
    if all_months or named in days:
        return days
    return f"{days} in {named}" if days else f"every day in {named}"


def _month_days(masks: Masks, months: str) -> str:
    """Return the days of the month; empty: no restriction."""
    days = _bits(masks.day_of_month)
    if len(days) == 31:
        return ""
    phrases = []
    if len(days) > 2 and (step := _step(days, 31)) is not None:
        phrases.append(f"every {_ordinal(step)} day from day {days[0]}")
    elif days:
        names = _spans(days, [str(day) for day in range(32)])
        phrases.append(f"day{'s' if len(days) > 1 else ''} {_and(names)}")
    if masks.last_day:
        phrases.append("the last day")
    phrases += [
        f"the day {before} day{'' if before == 1 else 's'} before the last"
        for before in masks.before_last
    ]
    phrases += [_nearest(day, masks.month) for day in masks.nearest]
    return f"on {_and(phrases)} of {months}" if phrases else ""


def _nearest(day: int, months: int) -> str:
    """Return `15W` in words. A month without that day counts from its last day."""
    if day == 31:
        return "the last weekday"
    shorter = any(month_length(2001, month) < day for month in _bits(months))
    return f"the weekday nearest to day {day}" + (" (or the last day)" if shorter else "")


def _week_days(masks: Masks, months: str, last: str = "and") -> str:
    """Return the days of the week; empty: no restriction. `last` connects the last two."""
    days = _bits(masks.day_of_week)
    if len(days) == 7:
        return ""
    monday_first = sorted((day + 6) % 7 for day in days)
    phrases = _spans(monday_first, [*_WEEKDAYS[1:], _WEEKDAYS[0]])
    if masks.nth:
        named = [f"the {_WEEKS[week]} {_WEEKDAYS[day]}" for day, week in masks.nth]
        return f"on {_and([*phrases, *named], last)} of {months}"
    return f"on {_and(phrases, last)}" if len(days) < 3 or not _is_run(monday_first) else phrases[0]


# -- Lists of values --


def _bits(mask: int) -> list[int]:
    return [value for value in range(mask.bit_length()) if mask >> value & 1]


def _is_run(values: Sequence[int]) -> bool:
    return len(values) > 1 and values[-1] - values[0] == len(values) - 1


def _step(values: Sequence[int], size: int) -> int | None:
    """Return the step if the values divide their cycle of `size` evenly.

    With 31, the days of a month, it is enough that they reach the end.
    """
    if len(values) < 2:
        return None
    step = values[1] - values[0]
    low = 1 if size == 31 else 0
    if list(values) != list(range(values[0], size + low, step)) or values[0] - low >= step:
        return None
    return step if size == 31 or size % step == 0 else None


def _spans(values: Sequence[int], names: Sequence[str]) -> list[str]:
    """Return the names of the values, three or more consecutive ones as "first to last"."""
    spans: list[list[int]] = []
    for value in values:
        if spans and spans[-1][-1] == value - 1:
            spans[-1].append(value)
        else:
            spans.append([value])
    words: list[str] = []
    for span in spans:
        if len(span) > 2:
            words.append(f"{names[span[0]]} to {names[span[-1]]}")
        else:
            words += [names[value] for value in span]
    return words


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}" + {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
