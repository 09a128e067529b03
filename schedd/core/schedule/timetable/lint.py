"""Find errors in cron expressions, and valid expressions that surprise people.

A warning is for a valid schedule that, by experience, often isn't what its author meant. It says
what will happen and what to write instead.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
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
from schedd.core.schedule.cron.descriptions import MONTHS, describe_parsed, duration_text
from schedd.core.schedule.cron.dialect import FIELDS, MACROS, FieldSpec, is_hashed
from schedd.core.schedule.cron.foreign import AWS, QUARTZ_SHORT, WITH_YEAR, Dialect
from schedd.core.schedule.cron.masks import Masks, lowest, month_length
from schedd.core.schedule.cron.rewrites import both_days, if_meant, instead, split_zone
from schedd.core.schedule.timetable.flatten import fixed, spread
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
    found: list[LintFinding] = []
    if doubts := zones.doubts(parsed.zone):
        found.append(_warn("zone-offset" if "/" in parsed.zone else "zone-abbreviation", *doubts))
    if crontab:
        found += _unknown_to_cron(parsed)
    if parsed.masks is not None:
        body = split_zone(expression.strip())[1].lower()
        one = _Linted(parsed, parsed.masks, MACROS.get(body, body).split(), crontab)
        found += _shape(one)
        found += _steps(one)
        found += _days(one)
        found += _herd(one, seed, dst)
        following = parsed.next_after(after)
        if following is None or following - after > _FAR:
            when = f"next on {following:%Y-%m-%d}" if following else "never"
            found.append(_warn("rare", f"doesn't run within a year: {when}", "check day and month"))
        found += _clock_changes(one, after, dst)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Linted:
    """A calendar expression. `words`: its fields as written, in lower case; for a macro, its own.

    `crontab`: cron reads it.
    """

    parsed: CronExpression
    masks: Masks
    words: Sequence[str]
    crontab: bool

    @property
    def described(self) -> str:
        return describe_parsed(self.parsed)

    def offer(self, words: Iterable[str], before: str, note: str = "") -> tuple[Rewrite | str, str]:
        """Return fields to write instead, with the difference. With an `H`, only they are known."""
        text = split_zone(self.parsed.text.strip())[0] + " ".join(words)
        if is_hashed(text):
            return f"{before}write {text}", ""
        return instead(self.parsed, text, self.parsed.zone, note), before


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


# -- A job that can't finish --

_MOST_LOOKED_AT: Final = 1000
"""Maximum number of fire times examined for the shortest interval: this bounds the time."""


def never_finishes(
    schedule: Schedule, seed: str, overlap: str, timeout: timedelta, after: datetime
) -> LintFinding | None:
    """Return a warning if each run may be ended by the next one. Raises ScheduleError."""
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


def _shape(one: _Linted) -> Iterator[LintFinding]:
    words, hours = one.words, one.masks.hour.bit_count()
    if len(words) == 6 and not is_hashed(one.parsed.text):
        yield from _six_fields(one, words)
    minute, hour = words[-5], words[-4]
    if minute == "*" and hour != "*" and hours <= 2 and "-" not in hour:
        yield _warn(
            "each-minute",
            f"runs {60 * hours} times a day: {one.described}",
            *one.offer([*words[:-5], "0", *words[-4:]], "to run once an hour, "),
        )


def _six_fields(one: _Linted, words: Sequence[str]) -> Iterator[LintFinding]:
    """Warn of six fields: seconds are first here; others have a year last, or count from 1."""
    reads = f"in six fields, the first is seconds: the job runs {one.described}"
    dialects: tuple[Dialect, ...] = (WITH_YEAR,)
    rule, before = "seconds-first", "if you mean this, "
    if "?" in (words[2], words[4]):
        rule, dialects = "year-last", (AWS, WITH_YEAR)
        problem = f"{reads}; in AWS, the last field is the year"
    elif "?" in (words[3], words[5]):
        rule, dialects = "quartz-weekday", (QUARTZ_SHORT,)
        problem = f"in Quartz, day 1 is Sunday; in schedd, the job runs {one.described}"
    elif (
        words[5] == "*"
        and words[2] == "*"
        and words[:2] != ["0", "0"]
        and re.fullmatch(r"[\d,]+", f"{words[0]}{words[1]}")
    ):
        problem = f"{reads}; the last * looks like a year"
    elif not re.fullmatch(r"\d+", words[0]):
        problem, before = reads, "if the first field means minutes, "
    else:
        return
    meant = if_meant(one.parsed.text, dialects, one.parsed.zone)
    if meant or problem == reads:
        yield _warn(rule, problem, meant or "", before)


# -- Steps --

_STEPPED: Final = re.compile(r"(\*|h|\d+|(?:h\()?\d+-\d+\)?)/(\d+)", re.ASCII)
_UNITS: Final = {"second": "s", "minute": "m", "hour": "h"}


def _steps(one: _Linted) -> Iterator[LintFinding]:
    for spec, word in zip(FIELDS[-len(one.words) :], one.words, strict=True):
        size = 7 if spec.high == 7 else spec.high - spec.low + 1
        for term in word.split(","):
            found = _STEPPED.fullmatch(term)
            if found is None:
                continue
            step = int(found[2])
            written = term.upper() if term.startswith("h") else term
            if step == 1 and found[1] == "*":
                plain = (w if w != word else "*" for w in one.words)
                problem = f"{spec.name}: {term} means the same as *"
                yield _warn("step-of-one", problem, *one.offer(plain, ""))
            elif found[1] not in ("*", "h") and not _whole(found[1], spec.low, size):
                continue
            elif step >= size:
                yield _warn(
                    "step-past-range",
                    f"{spec.name}: {written} matches one value, as the field has {size} values",
                    *_evenly(one, spec, step),
                )
            elif size % step:
                last = spec.low + (size - 1) // step * step
                yield _warn(
                    "uneven-step",
                    f"{spec.name}: {written} starts again after {last}, so the last step is"
                    f" {size - last + spec.low}, not {step}",
                    *_evenly(one, spec, step),
                )


def _whole(written: str, low: int, size: int) -> bool:
    """Return whether a range or start covers the whole field: `0-59`, or `0` with a step."""
    first, _, last = written.removeprefix("h(").removesuffix(")").partition("-")
    return int(first) == low and (not last or int(last) == low + size - 1)


def _evenly(one: _Linted, spec: FieldSpec, step: int) -> tuple[Rewrite | str, str]:
    """Return even steps as an interval, if the later fields restrict nothing."""
    words, unit, place = one.words, _UNITS.get(spec.name), FIELDS.index(spec) - len(FIELDS)
    below = {"0"} if spec.name != "hour" else {"0", *words[-5:-4]}
    restricted = any(word not in "*?" for word in words[place + 1 :])
    if one.crontab or unit is None or restricted or not below.issuperset(words[:place]):
        return "list the values that you mean", ""
    text, note = f"@every {step}{unit}", "all steps are equal"
    return instead(one.parsed, text, one.parsed.zone, note), "for equal steps, "


# -- Days --


def _days(one: _Linted) -> Iterator[LintFinding]:
    masks, day, week = one.masks, one.words[-3], one.words[-1]
    special = masks.last_day or masks.before_last or masks.nearest
    by_week = masks.day_of_week != _ALL_WEEKDAYS or masks.nth
    by_month = masks.day_of_month != _ALL_DAYS or special
    if by_week and by_month and not masks.both_days:
        yield _warn(
            "either-day",
            "both day fields are set, so a day needs to match only one of them: day"
            f" {day} of the month, or weekday {week}",
            *_both(one),
        )
    if by_week and by_month and masks.both_days:
        yield _warn(
            "both-days",
            f"one day field begins with *, so a day must match both fields: {day} and {week}",
            "to match either field, list the days instead of *",
        )
    first = lowest(masks.day_of_month)
    short = [
        name
        for month, name in enumerate(MONTHS, 1)
        if masks.month >> month & 1 and month_length(2001, month) < first
    ]
    if short and not special and not (by_week and not masks.both_days):
        ends = ", except in leap years" if first == 29 else ""
        yield _warn(
            "short-months",
            f"doesn't run in {', '.join(short)}{ends}: day {first} doesn't exist there",
            "for the last day of a month, write 28-31, and test date -d tomorrow +\\%d in the"
            " command"
            if one.crontab
            else "for the last day of a month, write L",
        )


def _both(one: _Linted) -> tuple[Rewrite | str, str]:
    """Return how to write the days that match both fields."""
    if one.crontab:
        schedule = " ".join([*one.words[:-1], "*"])
        return f"to match both: write {schedule}, and test date +\\%u in the command", ""
    text = one.parsed.text
    if not is_hashed(text) and (found := both_days(text, one.parsed.zone)):
        return found, "to match both fields, "
    return "to use only one day field, write * in the other", ""


# -- Changes of the clock --

_ALL_HOURS: Final = (1 << 24) - 1
_MOST_LISTED: Final = 6


def _clock_changes(one: _Linted, after: datetime, dst: DstPolicy) -> Iterator[LintFinding]:
    """Warn of times that a clock change skips or repeats, except for jobs of all hours."""
    parsed, words = one.parsed, one.words
    if parsed.wildcard and one.masks.hour == _ALL_HOURS:
        return
    hint: str | Rewrite = "choose another hour" + ("" if one.crontab else ", or set dst")
    before = ""
    if parsed.wildcard:
        hint = "choose another hour"
        minutes = [str(value) for value in range(60) if one.masks.minute >> value & 1]
        if words[-4][0] != "*" and len(minutes) <= _MOST_LISTED and not is_hashed(parsed.text):
            note = "only on days of a clock change: once after the gap, once in the repeated hour"
            fields = [*words[:-5], ",".join(minutes), *words[-4:]]
            hint, before = one.offer(fields, "choose another hour; or ", note)
    for note in notes(parsed, after, dst):
        yield _warn("clock-change", note, hint, before)


# -- Common schedules --


def _herd(one: _Linted, seed: str, dst: DstPolicy) -> Iterator[LintFinding]:
    masks = one.masks
    if masks.minute != 1 or masks.second != 1:
        return
    when = {24: "at minute 0 of every hour", 1: "at midnight"}.get(masks.hour.bit_count())
    if when and masks.hour & 1 and (moved := spread(one.parsed.text, one.parsed.zone, seed, dst)):
        text = fixed(moved, seed) if one.crontab else moved
        difference = "at another minute, equally often"
        rewrite = Rewrite(text, describe(text, seed), difference=difference)
        yield _warn("herd", f"runs {when}, when many jobs start", rewrite, "to spread the load, ")
