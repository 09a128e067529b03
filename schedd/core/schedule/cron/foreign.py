"""Read cron expressions of other schedulers: one reader per dialect, independent of our parser.

    "0 0 9 ? * 2-6 2026-2030" ──Quartz──▶ sets of seconds, minutes, hours; a test for a date; years

A reading is plain sets and a test of a date. Rewrites are compared with it (`rewrites`), so nothing
here shares code with `dialect` or `masks`. A form whose meaning isn't certain raises
UnknownExpression, and no rewrite is offered.
"""

import re
from calendar import monthrange
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from datetime import date
from functools import cache
from typing import Final

from schedkit.records import dataclass

Test = Callable[[date], bool]

MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


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
    day_of_month = _day_field(dialect, found["D"], _special_day, _day_term, lambda day, _: day)
    day_of_week = _day_field(
        dialect,
        found["W"],
        _special_weekday,
        _weekday_term,
        lambda day, first: (first + day - 1) % 7,
    )
    years = None if found.get("Y", "*") in ("*", "?") else _years(found["Y"])
    ours = [minute.ours, hour.ours, day_of_month.ours, month.ours, day_of_week.ours]
    if second.values != {0}:
        ours.insert(0, second.ours)
    return ForeignReading(
        dialect,
        second.values,
        minute.values,
        hour.values,
        _day(
            dialect, found["D"], found["W"], month.values, day_of_month.matches, day_of_week.matches
        ),
        years,
        " ".join(ours),
    )


LONGEST: Final = 256
"""Maximum characters of an expression, so that the time to verify a rewrite is bounded."""
_RANGES: Final = {"s": (0, 59, ()), "m": (0, 59, ()), "h": (0, 23, ()), "M": (1, 12, MONTHS)}


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
    dialect: Dialect, by_month: str, by_week: str, months: frozenset[int], month: Test, week: Test
) -> Test:
    questions = (by_month == "?", by_week == "?")
    if dialect.exclusive_days:
        if questions[0] == questions[1]:
            raise UnknownExpression(
                "in Quartz, exactly one of the two day fields must be ?: write ? in the day field"
                " that any day matches"
            )
        chosen = week if questions[0] else month
        return lambda at: at.month in months and chosen(at)
    if any(questions) and dialect is VIXIE:
        raise UnknownExpression(
            "the cron expression has ? in a day field, which vixie-cron doesn't support: write *"
            " in this field"
        )
    if dialect.both_days or by_month[0] in "*?" or by_week[0] in "*?":
        return lambda at: at.month in months and month(at) and week(at)
    return lambda at: at.month in months and (month(at) or week(at))


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


Place = Callable[[int, int], int]
"""Function that returns the day of a month that a special term names.

Arguments: the length of the month, and the weekday of its first day (0 is Sunday). A result outside
the month means no day.
"""


def _day_field(
    dialect: Dialect,
    text: str,
    special_of: Callable[[Dialect, str], tuple[Place, str] | None],
    values_of: Callable[[Dialect, str], tuple[Iterable[int], str]],
    value_at: Callable[[int, int], int],
) -> _Days:
    """Read a day field. `value_at`: the value of a day of the month, whose 1st has a weekday."""
    if text == "?":
        return _Days(lambda _: True, "*")
    _check_alone(dialect, text)
    places: list[Place] = []
    ours: list[str] = []
    plain: set[int] = set()
    for term in text.split(","):
        if dialect.specials and (special := special_of(dialect, term)):
            place, written = special
            places.append(place)
        else:
            values, written = values_of(dialect, term)
            plain.update(values)
        ours.append(written)

    @cache
    def days(length: int, first: int) -> set[int]:
        named = {place(length, first) for place in places}
        return named | {day for day in range(1, length + 1) if value_at(day, first) in plain}

    def matches(at: date) -> bool:
        first = (at.replace(day=1).weekday() + 1) % 7
        return at.day in days(monthrange(at.year, at.month)[1], first)

    return _Days(matches, ",".join(ours))


def _day_term(dialect: Dialect, term: str) -> tuple[list[int], str]:
    if dialect.specials:
        term = re.sub(r"^(\d{1,2})-l$", r"\1-31", term, flags=re.ASCII)  # the same days
    return _term(dialect, term, 1, 31, ())


def _check_alone(dialect: Dialect, text: str) -> None:
    """Raise UnknownExpression for a special term in a list, or for `L-29` and above.

    Quartz and AWS don't define `L`, `W` and `#` in a list, and `L-29` doesn't exist in each month.
    """
    if dialect.exclusive_days and (
        ("," in text and re.search(r"#|w\b|l", text.replace("wed", "")))
        or re.search(r"l-(?:2[89]|3)", text)
    ):
        raise UnknownExpression(text)


def _special_day(_dialect: Dialect, term: str) -> tuple[Place, str] | None:
    place = _place_of(term)
    return None if place is None else (place, term.upper())


def _place_of(term: str) -> Place | None:
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
        return (lambda length, first: max(_weekdays_of(last, length, first))), f"{last}L"
    if found := re.fullmatch(r"(\d|[a-z]{3})#([1-5])", term, re.ASCII):
        day, week = _weekday_number(dialect, found[1]), int(found[2])
        return (lambda length, first: _weekdays_of(day, length, first)[week - 1]), f"{day}#{week}"
    return None


def _weekdays_of(weekday: int, length: int, first: int) -> list[int]:
    """Return the days of the month with this weekday; 0 if there is no fifth."""
    return [*(at for at in range(1, length + 1) if (first + at - 1) % 7 == weekday), 0][:5]


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
