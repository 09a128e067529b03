"""The rules of a calendar (docs/semantics/calendars.md), parsed and validated: all errors are
reported at once. Days are whole days of the zone's clock, numbered since 1970. Rules that leave
this module are valid for any time.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from enum import StrEnum
from typing import Final, TypeVar

from schedd.core.schedule.cron import CronError, CronExpression, ScheduleError, parse
from schedd.core.schedule.cron.dialect import DAY_OF_WEEK, is_hashed
from schedd.core.schedule.cron.masks import EPOCH_DAY
from schedd.core.schedule.zones import UnknownZone
from schedd.core.schedule.zones import zone as zone_of
from schedkit.records import dataclass

MOST_DATES: Final = 5000
MOST_RANGES: Final = 500
MOST_EXPRESSIONS: Final = 100
LONGEST_RANGE: Final = 3660
"""Maximum days of a range, ten years: its days are examined one by one."""

_WEEKDAYS: Final = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
_DATE: Final = re.compile(r"(?:(\d{4})-)?(\d{2})-(\d{2})", re.ASCII)
_YEARS: Final = range(1970, 9000)
T = TypeVar("T")
R = TypeVar("R")


class Roll(StrEnum):
    """The policy for a scheduled time on an excluded day."""

    NONE = "NONE"
    NEXT = "NEXT"
    """Run at the same local time of the next day on which that time isn't excluded."""
    PREVIOUS = "PREVIOUS"
    """Run at the same local time of the last such day before it."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The exclusions of one version of a calendar. `days`: days since 1970. `yearly`: (month, day).
    `weekdays`: bit 0 is Sunday. `ranges`: first and last day. `zone`: empty for the job's own.
    """

    days: frozenset[int] = frozenset()
    yearly: frozenset[tuple[int, int]] = frozenset()
    weekdays: int = 0
    ranges: tuple[tuple[int, int], ...] = ()
    cron: tuple[str, ...] = ()
    zone: str = ""
    roll: Roll = Roll.NONE


@dataclass(frozen=True, slots=True)
class CalendarVersion:
    """A version of a named calendar. Its rules never change."""

    name: str
    version: int
    rules: Rules


@dataclass(frozen=True, slots=True)
class Exclude:
    """The exclusions of a job. The first calendar that excludes a time decides about it."""

    calendars: tuple[CalendarVersion, ...] = ()
    cron: tuple[str, ...] = ()
    zone: str = "UTC"

    def __bool__(self) -> bool:
        return bool(self.calendars or self.cron)


NOTHING: Final = Exclude()


class WrongRules(ValueError):
    """A calendar that can't be accepted, with all of its errors."""

    def __init__(self, faults: Sequence[ScheduleError]) -> None:
        super().__init__("; ".join(map(str, faults)))
        self.faults = tuple(faults)


def rules(
    *,
    dates: Sequence[str] = (),
    weekdays: Sequence[str] = (),
    ranges: Sequence[tuple[str, str]] = (),
    cron: Sequence[str] = (),
    zone: str = "",
    roll: Roll = Roll.NONE,
) -> Rules:
    """Read the rules of a calendar. Raises WrongRules."""
    faults = [
        ScheduleError(name, f"the list has {len(given):,} entries", f"give at most {most:,}")
        for name, given, most in (
            ("dates", dates, MOST_DATES),
            ("ranges", ranges, MOST_RANGES),
            ("cron", cron, MOST_EXPRESSIONS),
        )
        if len(given) > most
    ]
    if faults:
        raise WrongRules(faults)
    days = _each(dates, "dates", _date, faults)
    named = _each(weekdays, "weekdays", _weekday, faults)
    spans = _each(ranges, "ranges", _range, faults)
    _each(cron, "cron", check_expression, faults)
    if not (dates or weekdays or ranges or cron):
        hint = "give dates, weekdays, ranges or cron"
        faults.append(ScheduleError("dates", "the calendar excludes nothing", hint))
    mask = sum(1 << day for day in set(named))
    if mask == 127:
        problem = "the weekdays exclude every day"
        faults.append(ScheduleError("weekdays", problem, "leave one day out"))
    try:
        zone_of(zone or "UTC")
    except UnknownZone as unknown:
        faults.append(ScheduleError("time_zone", str(unknown), unknown.hint))
    if faults:
        raise WrongRules(faults)
    return Rules(
        days=frozenset(day for day in days if isinstance(day, int)),
        yearly=frozenset(day for day in days if isinstance(day, tuple)),
        weekdays=mask,
        ranges=_merged(spans),
        cron=tuple(cron),
        zone=zone,
        roll=roll,
    )


def check_expression(text: str) -> CronExpression:
    """Return a valid expression of excluded time. Raises CronError."""
    named = f"the cron expression {text[:100]!r}"
    if is_hashed(text):
        problem = f"{named} contains H, which isn't allowed in calendars"
        raise CronError("cron", problem, "write a number instead of H")
    if text.strip()[:8].upper() == "CRON_TZ=":
        hint = "remove CRON_TZ=: time_zone applies to the whole calendar"
        raise CronError("cron", f"{named} has its own time zone", hint)
    try:
        parsed = parse(text, zone="UTC", seed="")
    except CronError as wrong:
        raise CronError("cron", f"{named} isn't valid: {wrong}") from wrong
    if parsed.masks is None:
        hint = "write five fields, which exclude whole minutes: * 22-23 * * *"
        raise CronError("cron", f"{named} has no time of day", hint)
    return parsed


def _each(
    given: Iterable[T], field: str, read: Callable[[T], R], faults: list[ScheduleError]
) -> list[R]:
    """Return the valid values; add an error of `field[position]` to `faults` for each other one."""
    found: list[R] = []
    for position, one in enumerate(given):
        try:
            found.append(read(one))
        except ScheduleError as wrong:
            faults.append(ScheduleError(f"{field}[{position}]", wrong.problem, wrong.hint))
    return found


def _date(text: str) -> int | tuple[int, int]:
    """Return a day since 1970, or month and day of each year."""
    found = _DATE.fullmatch(text)
    if found is None:
        raise _no_date(text, "the date must have the form 2026-12-25, or 12-25 for each year")
    if found[1] is not None:
        return _day(text)
    month, day = int(found[2]), int(found[3])
    try:
        date(2028, month, day)  # a leap year: 02-29 is valid
    except ValueError as wrong:
        raise _no_date(text, str(wrong)) from wrong
    return month, day


def _day(text: str) -> int:
    try:
        found = date.fromisoformat(text) if _DATE.fullmatch(text) else None
    except ValueError as wrong:
        raise _no_date(text, str(wrong)) from wrong
    if found is None:
        raise _no_date(text, "the date must have the form 2026-12-25")
    if found.year not in _YEARS:
        raise _no_date(text, f"the date must have a year from {_YEARS[0]} to {_YEARS[-1]}")
    return found.toordinal() - EPOCH_DAY


def _no_date(text: str, hint: str) -> ScheduleError:
    return ScheduleError("date", f"{text[:40]!r} isn't a valid date", hint)


def _weekday(text: str) -> int:
    word = text.strip().lower()
    if len(word) >= 3:
        for number, name in enumerate(_WEEKDAYS):
            if word in (name, name[:3]):
                return number
    hint = f"use one of {' '.join(DAY_OF_WEEK.names)}"
    raise ScheduleError("weekday", f"{text[:40]!r} isn't a valid day of the week", hint)


def _range(span: tuple[str, str]) -> tuple[int, int]:
    first, last = map(_day, span)
    if last < first:
        problem = f"the end {span[1]} is before the start {span[0]}"
        raise ScheduleError("range", problem, "swap the two days")
    if last - first >= LONGEST_RANGE:
        problem = f"the range has {last - first + 1:,} days, which is too many"
        hint = f"give at most {LONGEST_RANGE:,} days; to end a job for good, set `end` of the job"
        raise ScheduleError("range", problem, hint)
    return first, last


def _merged(spans: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the spans in order, without overlaps or touching ends."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)
