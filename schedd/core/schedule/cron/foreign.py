"""Read cron expressions of other schedulers: one reader per dialect, independent of our parser.

    "0 0 9 ? * 2-6 2026-2030" ──Quartz──▶ sets of seconds, minutes, hours; a test for a date; years

A reading is plain sets and a test of a date. Rewrites are compared with it (`rewrites`), so nothing
here shares code with `dialect`, `expand` or `masks`. A form whose meaning isn't certain raises
UnknownExpression, and no rewrite is offered.
"""

import re
from calendar import monthrange
from collections.abc import Callable, Sequence
from dataclasses import field
from datetime import date
from functools import cache
from typing import Final

from schedkit.records import dataclass

Test = Callable[[date], bool]

MONTHS: Final = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
WEEKDAYS: Final = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]


class UnknownExpression(ValueError):
    """The dialect has no such expression, or its meaning isn't certain."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The rules of a dialect. `sunday`: the number of Sunday."""

    name: str
    fields: str
    sunday: int = 0
    exclusive_days: bool = False
    """Whether exactly one of the two day fields must be `?`."""
    both_days: bool = False
    """Whether both day fields must match. Otherwise, if both are restricted, either is enough."""
    wraps: bool = False
    """Whether a range may wrap around: `22-2`, `FRI-MON`."""
    open_steps: bool = True
    """Whether a step may follow a single value: `5/15`."""
    specials: bool = True
    """Whether `L`, `W` and `#` are known."""


QUARTZ: Final = Dialect("Quartz", "s m h D M W Y", 1, exclusive_days=True, wraps=True)
QUARTZ_SHORT: Final = Dialect("Quartz", "s m h D M W", 1, exclusive_days=True, wraps=True)
AWS: Final = Dialect("AWS", "m h D M W Y", 1, exclusive_days=True)
VIXIE: Final = Dialect("cron", "m h D M W", open_steps=False, specials=False)
WITH_YEAR: Final = Dialect("five fields and a year", "m h D M W Y")
SECONDS_AND_YEAR: Final = Dialect("seconds first and a year last", "s m h D M W Y")
BOTH_DAYS: Final = Dialect("both day fields", "m h D M W", both_days=True)
BOTH_DAYS_SECONDS: Final = Dialect("both day fields", "s m h D M W", both_days=True)
WRAPPING: Final = Dialect("wrapping ranges", "m h D M W", wraps=True)
WRAPPING_SECONDS: Final = Dialect("wrapping ranges", "s m h D M W", wraps=True)


@dataclass(frozen=True, slots=True)
class ForeignReading:
    """The meaning of an expression in a dialect. `years` None: all years."""

    dialect: Dialect
    seconds: frozenset[int]
    minutes: frozenset[int]
    hours: frozenset[int]
    day: Test
    years: frozenset[int] | None
    ours: str = field(compare=False)
    """The same fields in our notation: a proposal that is verified before it is shown."""


def read_fields(text: str, dialect: Dialect) -> ForeignReading:
    """Read the fields of an expression. Raises UnknownExpression."""
    letters, words = dialect.fields.split(), text.lower().split()
    if len(words) != len(letters):
        raise UnknownExpression(
            f"the cron expression has {len(words)} fields, and {len(letters)} are expected"
        )
    if len(text) > LONGEST:
        raise UnknownExpression(f"the cron expression has more than {LONGEST} characters")
    found = dict(zip(letters, words, strict=True))
    second, minute, hour, month = (
        _field(dialect, found.get(letter, "0"), *_RANGES[letter]) for letter in "smhM"
    )
    day_of_month, day_of_week = _days_of_month(dialect, found["D"]), _weekdays(dialect, found["W"])
    years = None if found.get("Y", "*") in ("*", "?") else _years(found["Y"])
    ours = [minute.ours, hour.ours, day_of_month.ours, month.ours, day_of_week.ours]
    if second.values != {0}:
        ours.insert(0, second.ours)
    return ForeignReading(
        dialect,
        second.values,
        minute.values,
        hour.values,
        _day(dialect, found["D"], found["W"], month.values, day_of_month, day_of_week),
        years,
        " ".join(ours),
    )


LONGEST: Final = 256
"""Maximum characters of an expression, so that the time to verify a rewrite is bounded."""
_RANGES: Final = {
    "s": (0, 59, ()),
    "m": (0, 59, ()),
    "h": (0, 23, ()),
    "M": (1, 12, tuple(MONTHS)),
}


@dataclass(frozen=True, slots=True)
class _Values:
    """The values of a field, and the field in our notation."""

    values: frozenset[int]
    ours: str


@dataclass(frozen=True, slots=True)
class _Days:
    """A day field: a test of dates, and the field in our notation."""

    matches: Test
    ours: str


def _day(
    dialect: Dialect, by_month: str, by_week: str, months: frozenset[int], month: _Days, week: _Days
) -> Test:
    questions = (by_month == "?", by_week == "?")
    if dialect.exclusive_days:
        if questions[0] == questions[1]:
            raise UnknownExpression(
                "in Quartz, exactly one of the two day fields must be ?: write ? in the day field"
                " that any day matches"
            )
        chosen = week if questions[0] else month
        return lambda at: at.month in months and chosen.matches(at)
    if any(questions) and dialect is VIXIE:
        raise UnknownExpression(
            "the cron expression has ? in a day field, which vixie-cron doesn't support: write *"
            " in this field"
        )
    if dialect.both_days or by_month[0] in "*?" or by_week[0] in "*?":
        return lambda at: at.month in months and month.matches(at) and week.matches(at)
    return lambda at: at.month in months and (month.matches(at) or week.matches(at))


_TERM: Final = re.compile(
    r"(\*|\d{1,4}|[a-z]{3})?(?:-(\d{1,4}|[a-z]{3}))?(?:/(\d{1,4}))?", re.ASCII
)


def _field(dialect: Dialect, text: str, low: int, high: int, names: Sequence[str] = ()) -> _Values:
    values: set[int] = set()
    ours = []
    for term in text.split(","):
        found, written = _term(dialect, term, low, high, names)
        values.update(found)
        ours.append(written)
    return _Values(frozenset(values), ",".join(ours))


def _term(
    dialect: Dialect, term: str, low: int, high: int, names: Sequence[str]
) -> tuple[list[int], str]:
    """Return the values of one term, and the term in our notation."""
    found = _TERM.fullmatch(term)
    if found is None or not term:
        raise UnknownExpression(term)
    first, last, step = found[1], found[2], found[3]
    size = int(step or 1)
    if size == 0 or (first in (None, "*") and last) or (first is None and dialect.name != "Quartz"):
        raise UnknownExpression(term)
    if first in (None, "*"):
        return list(range(low, high + 1, size)), f"*/{size}" if step else "*"
    begin = _value(first, low, high, names)
    if last is None and step is None:
        return [begin], str(begin)
    if last is None and not dialect.open_steps:
        raise UnknownExpression(term)
    end = high if last is None else _value(last, low, high, names)
    suffix = f"/{size}" if step else ""
    if begin <= end:
        values = list(range(begin, end + 1, size))
        return values, f"{begin}{suffix}" if last is None else f"{begin}-{end}{suffix}"
    if not dialect.wraps:
        raise UnknownExpression(term)
    count = high - low + 1
    values = [(at - low) % count + low for at in range(begin, end + count + 1, size)]
    if size > 1:
        return values, ",".join(map(str, values))
    return values, ",".join(f"{a}-{b}" if a < b else str(a) for a, b in ((begin, high), (low, end)))


def _value(text: str, low: int, high: int, names: Sequence[str]) -> int:
    if text in names:
        return names.index(text) + low
    if not text.isdigit() or not low <= int(text) <= high:
        raise UnknownExpression(text)
    return int(text)


def _any(at: date) -> bool:
    del at
    return True


Place = Callable[[int, int], int]
"""Function that returns the day of a month that a special term names.

Arguments: the length of the month, and the weekday of its first day (0 is Sunday). A result outside
the month means no day.
"""


def _named(plain: Callable[[int, int, int], bool], places: Sequence[Place]) -> Test:
    """Return a test of dates that looks up the days of each month once, for all terms."""

    @cache
    def days(length: int, first: int) -> frozenset[int]:
        named = {place(length, first) for place in places}
        return frozenset(
            day for day in range(1, length + 1) if day in named or plain(day, length, first)
        )

    return lambda at: (
        at.day in days(monthrange(at.year, at.month)[1], (at.replace(day=1).weekday() + 1) % 7)
    )


def _days_of_month(dialect: Dialect, text: str) -> _Days:
    if text == "?":
        return _Days(_any, "*")
    _check_alone(dialect, text)
    places: list[Place] = []
    ours: list[str] = []
    plain: set[int] = set()
    for term in text.split(","):
        if dialect.specials and (found := re.fullmatch(r"(\d{1,2})-l", term, re.ASCII)):
            term = f"{found[1]}-31"  # noqa: PLW2901 - the same days
        special = _special_day(term) if dialect.specials else None
        if special is None:
            values, written = _term(dialect, term, 1, 31, ())
            plain.update(values)
        else:
            places.append(special)
            written = term.upper()
        ours.append(written)
    return _Days(_named(lambda day, _length, _first: day in plain, places), ",".join(ours))


def _check_alone(dialect: Dialect, text: str) -> None:
    """Raise UnknownExpression for a special term in a list, or for `L-29` and above.

    Quartz and AWS don't define `L`, `W` and `#` in a list, and `L-29` doesn't exist in each month.
    """
    if dialect.exclusive_days and (
        ("," in text and re.search(r"#|w\b|l", text.replace("wed", "")))
        or re.search(r"l-(?:2[89]|3)", text)
    ):
        raise UnknownExpression(text)


def _special_day(term: str) -> Place | None:
    if term == "l":
        return lambda length, _: length
    if found := re.fullmatch(r"l-(\d{1,2})", term, re.ASCII):
        before = int(found[1])
        if not 1 <= before <= 30:
            raise UnknownExpression(term)
        return lambda length, _: length - before
    if term in ("lw", "wl"):
        return lambda length, first: _weekday_near(length, length, first)
    if found := re.fullmatch(r"(\d{1,2})w", term, re.ASCII):
        day = int(found[1])
        if not 1 <= day <= 28:  # dialects differ in months without that day
            raise UnknownExpression(term)
        return lambda length, first: _weekday_near(day, length, first)
    return None


def _weekday_near(day: int, length: int, first: int) -> int:
    """Return the day of the month, Monday to Friday, that is nearest to `day`."""
    nearby = (day, day - 1, day + 1, day - 2, day + 2)
    return next(at for at in nearby if 1 <= at <= length and (first + at - 1) % 7 not in (0, 6))


def _weekdays(dialect: Dialect, text: str) -> _Days:
    """Read a weekday field. Numbers in the result count from 0 for Sunday."""
    if text == "?":
        return _Days(_any, "*")
    _check_alone(dialect, text)
    places: list[Place] = []
    ours: list[str] = []
    plain: set[int] = set()
    for term in text.split(","):
        if dialect.specials and (special := _special_weekday(dialect, term)):
            place, written = special
            places.append(place)
        else:
            values, written = _weekday_term(dialect, term)
            plain.update(values)
        ours.append(written)
    return _Days(
        _named(lambda day, _length, first: (first + day - 1) % 7 in plain, places), ",".join(ours)
    )


def _weekday_term(dialect: Dialect, term: str) -> tuple[set[int], str]:
    if term == "l" and dialect.name == "Quartz":
        return {6}, "6"  # in Quartz, L alone is 7, Saturday
    if dialect.sunday == 1:
        values, written = _term(dialect, term, 1, 7, WEEKDAYS)
        if written[0] == "*":
            return {value - 1 for value in values}, written
        shifted = re.sub(r"(?<![/\d])\d", lambda found: str(int(found[0]) - 1), written)
        return {value - 1 for value in values}, shifted
    if dialect.wraps:
        term = re.sub(r"(?<=[a-z\d])-sun(?=/|$)", "-7", term)
    # 0 and 7 are Sunday, and only a range that ends with 7 counts to 7.
    high = 7 if re.search(r"(?<!/)7", term) else 6
    values, written = _term(dialect, term, 0, high, WEEKDAYS)
    return {value % 7 for value in values}, written


def _special_weekday(dialect: Dialect, term: str) -> tuple[Place, str] | None:
    if found := re.fullmatch(r"(\d|[a-z]{3})l", term, re.ASCII):
        last = _weekday_number(dialect, found[1])
        return (lambda length, first: _nth(last, 5, length, first, last=True)), f"{last}L"
    if found := re.fullmatch(r"(\d|[a-z]{3})#([1-5])", term, re.ASCII):
        day, week = _weekday_number(dialect, found[1]), int(found[2])
        return (lambda length, first: _nth(day, week, length, first)), f"{day}#{week}"
    return None


def _nth(weekday: int, week: int, length: int, first: int, *, last: bool = False) -> int:
    """Return the day of the month that is the nth such weekday; 0 if there is none."""
    days = [at for at in range(1, length + 1) if (first + at - 1) % 7 == weekday]
    if last:
        return days[-1]
    return days[week - 1] if week <= len(days) else 0


def _weekday_number(dialect: Dialect, text: str) -> int:
    if text in WEEKDAYS:
        return WEEKDAYS.index(text)
    if not text.isdigit() or not dialect.sunday <= int(text) <= 7:
        raise UnknownExpression(text)
    return (int(text) - dialect.sunday) % 7


def _years(text: str) -> frozenset[int]:
    values: set[int] = set()
    for term in text.split(","):
        found, _ = _term(QUARTZ_SHORT, term, 1970, 2199, ())
        values.update(found)
    return frozenset(values)
