"""What is wrong with an expression, and what is right but surprises people.

An error is what the dialect refuses. A warning is a schedule that will do exactly what it says,
where experience shows that somebody meant another thing. Each says what will happen, and what to
write instead.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from schedd.core.cron import DEBIAN, CronError, CronExpression, Dst, notes, parse
from schedd.core.cron.dialect import MACROS
from schedd.core.cron.fields import FIELDS
from schedd.core.cron.masks import Masks, month_length
from schedd.core.cron.words import describe_parsed
from schedd.core.timetable.spreading import spread
from schedkit.records import dataclass

_ALL_DAYS: Final = (2 << 31) - 2
_ALL_WEEKDAYS: Final = 127
_FAR: Final = timedelta(days=366)


class Level(StrEnum):
    """Whether it can't be meant, or perhaps isn't what was meant."""

    ERROR = "ERROR"
    WARNING = "WARNING"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to know: `rule` names its kind, `hint` is what to write or to do."""

    level: Level
    rule: str
    problem: str
    hint: str = ""


ABBREVIATIONS: Final = {
    "BST": "Europe/London",
    "CDT": "America/Chicago",
    "CEST": "Europe/Berlin",
    "CET": "Europe/Berlin",
    "CST": "America/Chicago, or Asia/Shanghai",
    "CST6CDT": "America/Chicago",
    "EDT": "America/New_York",
    "EEST": "Europe/Riga",
    "EET": "Europe/Riga",
    "EST": "America/New_York",
    "EST5EDT": "America/New_York",
    "HST": "Pacific/Honolulu",
    "IST": "Asia/Kolkata, Europe/Dublin, or Asia/Jerusalem",
    "JST": "Asia/Tokyo",
    "MDT": "America/Denver",
    "MET": "Europe/Berlin",
    "MSK": "Europe/Moscow",
    "MST": "America/Phoenix, or America/Denver",
    "MST7MDT": "America/Denver",
    "PDT": "America/Los_Angeles",
    "PST": "America/Los_Angeles",
    "PST8PDT": "America/Los_Angeles",
    "WEST": "Europe/Lisbon",
    "WET": "Europe/Lisbon",
}
"""Abbreviations of zones, and the places that people mean by them."""


def lint(
    expression: str,
    zone: str = "UTC",
    *,
    after: datetime,
    seed: str = "",
    dst: Dst = DEBIAN,
) -> tuple[Finding, ...]:
    """All that is to be said of an expression: one error, or warnings, or nothing.

    Changes of the clock are looked for in the year after `after`.
    """
    try:
        parsed = parse(expression, zone=zone, seed=seed)
    except CronError as error:
        return (_refused(error),)
    found = [*_zone(parsed)]
    if parsed.masks is not None:
        words = _words(expression)
        found += _shape(words, parsed)
        found += _steps(words)
        found += _days(words, parsed.masks)
        found += _herd(expression, parsed.masks)
        found += _rare(parsed, after)
        if not parsed.wildcard:
            found += [
                Finding(Level.WARNING, "clock-change", note, "choose another hour, or set dst")
                for note in notes(parsed, after, dst)
            ]
    return tuple(found)


def _refused(error: CronError) -> Finding:
    hint = error.hint
    if error.field == "time_zone":
        name = error.problem.partition("'")[2].rstrip("'")
        if place := ABBREVIATIONS.get(name.upper()):
            hint = f"an abbreviation is no zone: write {place}"
    if "~" in error.problem:
        hint = "a random minute is H here, stable for each job: H(0-59) for 0~59"
    rule = error.field.replace(" ", "-").replace("_", "-")
    told = error.problem if error.field == "expression" else f"{error.field}: {error.problem}"
    return Finding(Level.ERROR, rule, told, hint)


def _warn(rule: str, problem: str, hint: str) -> Finding:
    return Finding(Level.WARNING, rule, problem, hint)


def _words(expression: str) -> list[str]:
    """Its fields as written, in lower case; a macro's are those that it stands for."""
    words = expression.lower().split()
    if words[0].startswith("cron_tz="):
        words.pop(0)
    return MACROS.get(words[0], " ".join(words)).split()


def _zone(parsed: CronExpression) -> Iterator[Finding]:
    if place := ABBREVIATIONS.get(parsed.zone):
        yield _warn(
            "zone-abbreviation",
            f"{parsed.zone} is an abbreviation, not a place; it may never change its clocks",
            f"write the place that is meant: {place}",
        )


# -- Six fields --


def _shape(words: Sequence[str], parsed: CronExpression) -> Iterator[Finding]:
    masks = parsed.masks
    assert masks is not None, "asked of calendar expressions alone"
    if len(words) == 6:
        if "?" in (words[2], words[4]):
            yield _warn(
                "year-last",
                f"looks like five fields and a year, as AWS has them; read here as seconds first: "
                f"{describe_parsed(parsed)}",
                f"leave the year out: {' '.join(words[:-1])}",
            )
        elif "?" in (words[3], words[5]) and re.search(r"\d", words[5]):
            yield _warn(
                "quartz-weekday",
                f"looks like Quartz, where 1 is Sunday; here it runs {describe_parsed(parsed)}",
                "write days by name (mon, tue): they mean the same to both",
            )
        elif not re.fullmatch(r"\d+|h(\(.*\))?", words[0]):
            yield _warn(
                "seconds-first",
                f"six fields: the first is seconds, so it runs {describe_parsed(parsed)}",
                f"if minutes were meant, leave the sixth out: {' '.join(words[:-1])}",
            )
    minute, hour = words[-5], words[-4]
    if minute == "*" and hour != "*" and masks.hour.bit_count() <= 2 and "-" not in hour:
        yield _warn(
            "each-minute",
            f"runs {60 * masks.hour.bit_count()} times a day: {describe_parsed(parsed)}",
            f"for once write {' '.join([*words[:-5], '0', *words[-4:]])}",
        )


# -- Steps --

_STEPPED: Final = re.compile(r"(\*|h|\d+|(?:h\()?\d+-\d+\)?)/(\d+)", re.ASCII)
_UNITS: Final = {"second": "s", "minute": "m", "hour": "h"}


def _steps(words: Sequence[str]) -> Iterator[Finding]:
    specs = FIELDS[-len(words) :]
    for spec, word in zip(specs, words, strict=True):
        size = 7 if spec.high == 7 else spec.high - spec.low + 1
        for term in word.split(","):
            found = _STEPPED.fullmatch(term)
            if found is None:
                continue
            step = int(found[2])
            written = term.upper() if term.startswith("h") else term
            if step == 1 and found[1] == "*":
                yield _warn("step-of-one", f"{spec.name}: {term} is *", "write *")
            elif found[1] not in ("*", "h") and not _whole(found[1], spec.low, size):
                continue
            elif step >= size:
                yield _warn(
                    "step-past-range",
                    f"{spec.name}: {written} has one value, for there are only {size}",
                    _instead(spec.name, step),
                )
            elif size % step:
                last = spec.low + (size - 1) // step * step
                yield _warn(
                    "uneven-step",
                    f"{spec.name}: {written} begins anew after {last}, so the last step is "
                    f"{size - last + spec.low} and not {step}",
                    _instead(spec.name, step),
                )


def _whole(written: str, low: int, size: int) -> bool:
    """Whether a range, or a start, covers the field's whole range: `0-59`, or `0` with a step."""
    first, _, last = written.removeprefix("h(").removesuffix(")").partition("-")
    return int(first) == low and (not last or int(last) == low + size - 1)


def _instead(field: str, step: int) -> str:
    unit = _UNITS.get(field)
    if unit is None:
        return "list the values that are meant"
    return f"for even steps: @every {step}{unit}; or a step that divides"


# -- Days --


def _days(words: Sequence[str], masks: Masks) -> Iterator[Finding]:
    day, week = words[-3], words[-1]
    by_week = masks.day_of_week != _ALL_WEEKDAYS or masks.nth
    by_month = masks.day_of_month != _ALL_DAYS or masks.last_day or masks.nearest
    if by_week and by_month and not masks.both_days:
        yield _warn(
            "either-day",
            f"both day fields are restricted, so either is enough: day {day}, and also each "
            f"weekday {week}",
            "for one of them write * in the other; for both, two jobs or an H of the day",
        )
    if by_week and by_month and masks.both_days:
        yield _warn(
            "both-days",
            f"a day field that begins with * must match as well: {day} and {week} together",
            "list its days to have either",
        )
    yield from _short_months(masks, bool(by_week and not masks.both_days))


def _short_months(masks: Masks, also_by_week: bool) -> Iterator[Finding]:
    days = masks.day_of_month
    first = (days & -days).bit_length() - 1
    if days in (0, _ALL_DAYS) or first < 29 or also_by_week or masks.last_day or masks.nearest:
        return
    names = "January February March April May June July August September October November December"
    short = [
        name
        for month, name in enumerate(names.split(), 1)
        if masks.month >> month & 1 and month_length(2001, month) < first
    ]
    if short:
        ends = " but in leap years" if first == 29 else ""
        yield _warn(
            "short-months",
            f"has no day {first} in {', '.join(short)}{ends}: nothing runs then",
            "the last day of a month is L",
        )


# -- What everybody does --


def _herd(expression: str, masks: Masks) -> Iterator[Finding]:
    if masks.minute != 1 or masks.second != 1 or (instead := spread(expression)) is None:
        return
    when = {24: "every hour at minute 0", 1: "at midnight sharp"}.get(masks.hour.bit_count())
    if when and masks.hour & 1:
        hint = f"to spread them: {instead}"
        yield _warn("herd", f"{when}, when everybody's jobs start", hint)


def _rare(parsed: CronExpression, after: datetime) -> Iterator[Finding]:
    found = parsed.next_after(after)
    if found is None or found - after > _FAR:
        when = f"{found:%Y-%m-%d}" if found else "never"
        yield _warn("rare", f"is not due within a year: next {when}", "is that date meant?")
