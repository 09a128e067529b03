"""Find errors in cron expressions, and valid expressions that surprise people.

The dialect rejects an expression with an error. A warning is for a valid schedule that, by
experience, often isn't what its author meant. Each warning says what will happen and what to write
instead.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice, pairwise
from typing import Final

from schedd.core.ids import Id
from schedd.core.schedule import compiled_schedule as schedules
from schedd.core.schedule import zones
from schedd.core.schedule.compiled_schedule import Schedule
from schedd.core.schedule.cron import (
    DEBIAN,
    CronError,
    CronExpression,
    DstPolicy,
    Rewrite,
    describe,
    foreign,
    notes,
    parse,
)
from schedd.core.schedule.cron.descriptions import describe_parsed, duration_text
from schedd.core.schedule.cron.dialect import MACROS, is_hashed
from schedd.core.schedule.cron.fields import FIELDS, FieldSpec
from schedd.core.schedule.cron.foreign import AWS, QUARTZ_SHORT, WITH_YEAR
from schedd.core.schedule.cron.masks import Masks, month_length
from schedd.core.schedule.cron.rewrites import both_days, if_meant, instead
from schedd.core.schedule.timetable.spreading import fixed, spread
from schedkit.records import dataclass

_NO_JOB: Final = Id.from_int(0)

_ALL_DAYS: Final = (2 << 31) - 2
_ALL_WEEKDAYS: Final = 127
_FAR: Final = timedelta(days=366)


class LintLevel(StrEnum):
    """The severity: an invalid expression, or one that may not be what was meant."""

    ERROR = "ERROR"
    WARNING = "WARNING"


@dataclass(frozen=True, slots=True)
class LintFinding:
    """A finding. `rule` names its kind, `hint` says what to write or to do."""

    level: LintLevel
    rule: str
    problem: str
    hint: str = ""
    rewrites: tuple[Rewrite, ...] = ()
    """The expressions that `hint` offers, verified by the engine."""


def lint(
    expression: str,
    zone: str = "UTC",
    *,
    after: datetime,
    seed: str = "",
    dst: DstPolicy = DEBIAN,
    crontab: bool = False,
) -> tuple[LintFinding, ...]:
    """Return the findings of an expression: one error, or warnings, or none.

    Changes of the clock are checked in the year after `after`. `crontab`: cron reads the
    expression, so the advice is limited to what cron can read.
    """
    try:
        parsed = parse(expression, zone=zone, seed=seed)
    except CronError as error:
        return (_refused(error),)
    found = [*_zone(parsed)]
    if crontab:
        found += _unknown_to_cron(parsed)
    if parsed.masks is not None:
        words = _words(expression)
        found += _shape(words, parsed)
        found += _steps(words, parsed, crontab=crontab)
        found += _days(words, parsed, crontab=crontab)
        found += _herd(parsed, seed, dst, crontab=crontab)
        found += _rare(parsed, after)
        found += _clock_changes(words, parsed, after, dst, crontab=crontab)
    return tuple(found)


def _refused(error: CronError) -> LintFinding:
    hint = error.hint
    if "~" in error.problem:
        hint = "write H(0-59) instead of 0~59: H chooses one value for each job, and keeps it"
    rule = error.field.replace(" ", "-").replace("_", "-")
    problem = error.problem if error.field == "expression" else f"{error.field}: {error.problem}"
    return LintFinding(LintLevel.ERROR, rule, problem, hint, error.rewrites)


def _warn(rule: str, problem: str, hint: str | Rewrite = "", before: str = "") -> LintFinding:
    """Return a warning; the words `before` introduce a rewrite."""
    if isinstance(hint, Rewrite):
        return LintFinding(LintLevel.WARNING, rule, problem, f"{before}{hint}", (hint,))
    return LintFinding(LintLevel.WARNING, rule, problem, hint)


def _words(expression: str) -> list[str]:
    """Return the fields as written, in lower case; for a macro, its fields."""
    words = expression.lower().split()
    if words[0].startswith("cron_tz="):
        words.pop(0)
    return MACROS.get(words[0], " ".join(words)).split()


def _zone(parsed: CronExpression) -> Iterator[LintFinding]:
    if found := zones.doubts(parsed.zone):
        yield _warn("zone-offset" if "/" in parsed.zone else "zone-abbreviation", *found)


# -- A job that can't finish --

_MOST_LOOKED_AT: Final = 1000
"""Maximum number of fire times examined for the shortest interval: this bounds the time."""


def never_finishes(
    schedule: Schedule, seed: str, overlap: str, timeout: timedelta, after: datetime
) -> LintFinding | None:
    """Return a warning if each run may be ended by the next one before it finishes.

    `overlap` is the policy in lower case. Raises ScheduleError.
    """
    if overlap not in ("cancel_other", "terminate_other"):
        return None
    compiled = schedules.compile(schedule, seed, _NO_JOB)
    found = [one.nominal for one in islice(compiled.walk_after(after), _MOST_LOOKED_AT)]
    shortest = min((later - one for one, later in pairwise(found)), default=timedelta.max)
    if shortest >= timeout:
        return None
    ends = "cancels" if overlap == "cancel_other" else "kills"
    length = _length(shortest)
    problem = f"each run {ends} the previous run after {length}: a run that takes longer than"
    problem += f" {length} never finishes (timeout {_length(timeout)})"
    hint = f"set overlap: skip, or set a timeout of at most {length}"
    return _warn("never-finishes", problem, hint)


def _length(length: timedelta) -> str:
    words = duration_text(int(length.total_seconds()))
    return words if words[0].isdigit() else f"1 {words}"


# -- What cron can't read --


def _unknown_to_cron(parsed: CronExpression) -> Iterator[LintFinding]:
    words = parsed.text.lower().split()
    if words[0] in MACROS:
        return
    try:
        foreign.read_fields(" ".join(words), foreign.VIXIE)
    except foreign.UnknownExpression:
        problem = f"cron can't read this expression; schedd runs it {describe_parsed(parsed)}"
        hint = "move the job to a manifest of schedd, or write plain numbers and ranges"
        yield _warn("not-cron", problem, hint)


# -- Six fields --


def _shape(words: Sequence[str], parsed: CronExpression) -> Iterator[LintFinding]:
    masks = parsed.masks
    assert masks is not None, "asked of calendar expressions alone"
    if len(words) == 6:
        yield from _six_fields(words, parsed)
    minute, hour = words[-5], words[-4]
    if minute == "*" and hour != "*" and masks.hour.bit_count() <= 2 and "-" not in hour:
        once = " ".join([*_prefix(parsed), *words[:-5], "0", *words[-4:]])
        yield _warn(
            "each-minute",
            f"runs {60 * masks.hour.bit_count()} times a day: {describe_parsed(parsed)}",
            *_offer(parsed, once, "to run once an hour, "),
        )


def _offer(parsed: CronExpression, text: str, before: str) -> tuple[Rewrite | str, str]:
    """Return a text to write instead, with the difference. With an `H`, only the text is known."""
    if is_hashed(text):
        return f"{before}write {text}", ""
    return instead(parsed, text, parsed.zone), before


def _prefix(parsed: CronExpression) -> list[str]:
    first = parsed.text.split()[0]
    return [first] if first.upper().startswith("CRON_TZ=") else []


def _six_fields(words: Sequence[str], parsed: CronExpression) -> Iterator[LintFinding]:
    """Warn of six fields: seconds are first here; others have a year last, or count from 1."""
    if is_hashed(parsed.text):
        return
    reads = f"in six fields, the first is seconds: the job runs {describe_parsed(parsed)}"
    if "?" in (words[2], words[4]):
        if meant := if_meant(parsed.text, (AWS, WITH_YEAR), parsed.zone):
            yield _warn("year-last", f"{reads}; in AWS, the last field is the year", meant, _IF)
    elif "?" in (words[3], words[5]):
        if meant := if_meant(parsed.text, (QUARTZ_SHORT,), parsed.zone):
            runs = f"in Quartz, day 1 is Sunday; in schedd, the job runs {describe_parsed(parsed)}"
            yield _warn("quartz-weekday", runs, meant, _IF)
    elif (
        words[5] == "*"
        and words[2] == "*"
        and words[:2] != ["0", "0"]
        and re.fullmatch(r"[\d,]+", f"{words[0]}{words[1]}")
    ):
        if meant := if_meant(parsed.text, (WITH_YEAR,), parsed.zone):
            yield _warn("seconds-first", f"{reads}; the last * looks like a year", meant, _IF)
    elif not re.fullmatch(r"\d+", words[0]):
        meant = if_meant(parsed.text, (WITH_YEAR,), parsed.zone)
        yield _warn("seconds-first", reads, meant or "", "if the first field means minutes, ")


_IF: Final = "if you mean this, "


# -- Steps --

_STEPPED: Final = re.compile(r"(\*|h|\d+|(?:h\()?\d+-\d+\)?)/(\d+)", re.ASCII)
_UNITS: Final = {"second": "s", "minute": "m", "hour": "h"}


def _steps(words: Sequence[str], parsed: CronExpression, *, crontab: bool) -> Iterator[LintFinding]:
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
                plain = " ".join([*_prefix(parsed), *(w if w != word else "*" for w in words)])
                problem = f"{spec.name}: {term} means the same as *"
                yield _warn("step-of-one", problem, *_offer(parsed, plain, ""))
            elif found[1] not in ("*", "h") and not _whole(found[1], spec.low, size):
                continue
            elif step >= size:
                yield _warn(
                    "step-past-range",
                    f"{spec.name}: {written} matches one value, as the field has {size} values",
                    *_evenly(words, spec, step, parsed, crontab=crontab),
                )
            elif size % step:
                last = spec.low + (size - 1) // step * step
                yield _warn(
                    "uneven-step",
                    f"{spec.name}: {written} starts again after {last}, so the last step is"
                    f" {size - last + spec.low}, not {step}",
                    *_evenly(words, spec, step, parsed, crontab=crontab),
                )


def _whole(written: str, low: int, size: int) -> bool:
    """Return whether a range or start covers the whole field: `0-59`, or `0` with a step."""
    first, _, last = written.removeprefix("h(").removesuffix(")").partition("-")
    return int(first) == low and (not last or int(last) == low + size - 1)


def _evenly(
    words: Sequence[str], spec: FieldSpec, step: int, parsed: CronExpression, *, crontab: bool
) -> tuple[Rewrite | str, str]:
    """Return even steps as an interval, if the later fields restrict nothing."""
    unit, place = _UNITS.get(spec.name), FIELDS.index(spec) - len(FIELDS)
    below = {"0"} if spec.name != "hour" else {"0", *words[-5:-4]}
    if crontab or unit is None or any(word not in "*?" for word in words[place + 1 :]):
        return "list the values that you mean", ""
    if any(word not in below for word in words[:place]):
        return "list the values that you mean", ""
    every = instead(parsed, f"@every {step}{unit}", parsed.zone, "all steps are equal")
    return every, "for equal steps, "


# -- Days --


def _days(words: Sequence[str], parsed: CronExpression, *, crontab: bool) -> Iterator[LintFinding]:
    masks = parsed.masks
    assert masks is not None, "asked of calendar expressions alone"
    day, week = words[-3], words[-1]
    by_week = masks.day_of_week != _ALL_WEEKDAYS or masks.nth
    by_month = (
        masks.day_of_month != _ALL_DAYS or masks.last_day or masks.before_last or masks.nearest
    )
    if by_week and by_month and not masks.both_days:
        yield _warn(
            "either-day",
            "both day fields are set, so a day needs to match only one of them: day"
            f" {day} of the month, or weekday {week}",
            *_both(words, parsed, crontab=crontab),
        )
    if by_week and by_month and masks.both_days:
        yield _warn(
            "both-days",
            f"one day field begins with *, so a day must match both fields: {day} and {week}",
            "to match either field, list the days instead of *",
        )
    yield from _short_months(masks, bool(by_week and not masks.both_days), crontab=crontab)


def _both(
    words: Sequence[str], parsed: CronExpression, *, crontab: bool
) -> tuple[Rewrite | str, str]:
    """Return how to write the days that match both fields."""
    if crontab:
        schedule = " ".join([*words[:-1], "*"])
        return f"to match both: write {schedule}, and test date +\\%u in the command", ""
    if not is_hashed(parsed.text) and (found := both_days(parsed.text, parsed.zone)):
        return found, "to match both fields, "
    return "to use only one day field, write * in the other", ""


def _short_months(masks: Masks, also_by_week: bool, *, crontab: bool) -> Iterator[LintFinding]:
    days = masks.day_of_month
    first = (days & -days).bit_length() - 1
    if (
        days in (0, _ALL_DAYS)
        or first < 29
        or also_by_week
        or masks.last_day
        or masks.before_last
        or masks.nearest
    ):
        return
    names = "January February March April May June July August September October November December"
    short = [
        name
        for month, name in enumerate(names.split(), 1)
        if masks.month >> month & 1 and month_length(2001, month) < first
    ]
    if short:
        ends = ", except in leap years" if first == 29 else ""
        yield _warn(
            "short-months",
            f"doesn't run in {', '.join(short)}{ends}: day {first} doesn't exist there",
            "for the last day of a month, write 28-31, and test date -d tomorrow +\\%d in the"
            " command"
            if crontab
            else "for the last day of a month, write L",
        )


# -- Changes of the clock --

_ALL_HOURS: Final = (1 << 24) - 1
_MOST_LISTED: Final = 6


def _clock_changes(
    words: Sequence[str], parsed: CronExpression, after: datetime, dst: DstPolicy, *, crontab: bool
) -> Iterator[LintFinding]:
    """Warn of times that a clock change skips or repeats, except for jobs of all hours."""
    masks = parsed.masks
    assert masks is not None, "asked of calendar expressions alone"
    if parsed.wildcard and masks.hour == _ALL_HOURS:
        return
    hint: str | Rewrite = "choose another hour" + ("" if crontab else ", or set dst")
    before = ""
    if parsed.wildcard:
        hint = "choose another hour"
        minutes = [value for value in range(60) if masks.minute >> value & 1]
        if words[-4][0] != "*" and len(minutes) <= _MOST_LISTED and not is_hashed(parsed.text):
            listed = ",".join(map(str, minutes))
            text = " ".join([*_prefix(parsed), *words[:-5], listed, *words[-4:]])
            note = "only on days of a clock change: once after the gap, once in the repeated hour"
            hint, before = instead(parsed, text, parsed.zone, note), "choose another hour; or "
    for note in notes(parsed, after, dst):
        yield _warn("clock-change", note, hint, before)


# -- Common schedules --


def _herd(
    parsed: CronExpression, seed: str, dst: DstPolicy, *, crontab: bool
) -> Iterator[LintFinding]:
    masks = parsed.masks
    assert masks is not None, "asked of calendar expressions alone"
    if masks.minute != 1 or masks.second != 1:
        return
    when = {24: "at minute 0 of every hour", 1: "at midnight"}.get(masks.hour.bit_count())
    if when and masks.hour & 1 and (moved := spread(parsed.text, parsed.zone, seed, dst)):
        text = fixed(moved, seed) if crontab else moved
        difference = "at another minute, equally often"
        rewrite = Rewrite(text, describe(text, seed), difference=difference)
        yield _warn("herd", f"runs {when}, when many jobs start", rewrite, "to spread the load, ")


def _rare(parsed: CronExpression, after: datetime) -> Iterator[LintFinding]:
    found = parsed.next_after(after)
    if found is None or found - after > _FAR:
        when = f"next on {found:%Y-%m-%d}" if found else "never"
        yield _warn("rare", f"doesn't run within a year: {when}", "check day and month")
