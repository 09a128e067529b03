"""Rewrites of expressions that are rejected or surprising, each verified before it is shown.

    text ──foreign reader──▶ times of day, days of two years, years ╮
      ╰──candidate in our notation ──parse──▶ masks                 ┴─ equal? ─▶ Rewrite

A hint is a claim about fire times, so the engine checks it. If the fire times of a candidate differ
from the reading within two years, it is dropped, or shown with the difference in words.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Final

from schedd.core.schedule.cron import foreign
from schedd.core.schedule.cron.descriptions import describe_parsed
from schedd.core.schedule.cron.errors import CronError, Rewrite
from schedd.core.schedule.cron.expression import CronExpression
from schedd.core.schedule.cron.expression import parse as parse_plainly
from schedd.core.schedule.cron.foreign import Dialect, ForeignReading, UnknownExpression
from schedd.core.schedule.cron.masks import EPOCH_DAY
from schedd.core.schedule.zones import UnknownZone
from schedd.core.schedule.zones import zone as zone_of
from schedkit.records import replace

_FROM: Final = date(2027, 1, 1)
"""First day of the two years over which rewrites are compared; one is a leap year."""
_DAYS: Final = 731
_LONGEST: Final = foreign.LONGEST


def parse(expression: str, *, zone: str = "UTC", seed: str) -> CronExpression:
    """Parse an expression of docs/semantics/cron-expressions.md. A `CRON_TZ=` prefix has priority
    over `zone`. `H` is hashed from `seed`, "namespace/job". Raises CronError, with the rewrite if
    there is one.
    """
    try:
        return parse_plainly(expression, zone=zone, seed=seed)
    except CronError as error:
        found = _first_proposal(expression, zone)
        if found is None:
            raise
        problem, hint, rewrite = found
        rewrites = () if rewrite is None else (rewrite,)
        hint = hint or (error.hint if rewrite is None else str(rewrite))
        raise CronError(error.field, problem or error.problem, hint, rewrites) from None


Proposal = tuple[str, str, Rewrite | None]
"""A clearer problem or "", what to do or "" (the rewrite), and the rewrite."""


@lru_cache(maxsize=1024)
def _first_proposal(expression: str, zone: str) -> Proposal | None:
    prefix, body = split_zone(expression.strip())
    if not body or len(expression) > _LONGEST:
        return None
    return next((one for propose in _PROPOSALS for one in propose(prefix, body, zone)), None)


def verified(reading: ForeignReading, prefix: str = "", zone: str = "UTC") -> Rewrite | None:
    """Return the reading in our notation; None if the fire times of two years differ."""
    text = prefix + reading.ours
    try:
        parsed = parse_plainly(text, zone=zone, seed="")
    except CronError:
        return None
    masks = parsed.masks
    years = _span_of(reading.years)
    if masks is None or years == ():
        return None
    times = (masks.second, masks.minute, masks.hour)
    meant = (reading.seconds, reading.minutes, reading.hours)
    if times != tuple(sum(1 << value for value in values) for values in meant):
        return None
    starts = [_FROM] if years is None else [_FROM, date(years[0], 1, 1), date(years[-1], 1, 1)]
    for start in starts:
        first = max(start - timedelta(days=31), date(1970, 1, 1))
        for number in range(_DAYS + 62):
            at = first + timedelta(days=number)
            if masks.matches_day(at.toordinal() - EPOCH_DAY) != reading.day(at):
                return None
    described = describe_parsed(parsed)
    if years is None:
        return Rewrite(text, described)
    begin = _instant(parsed.zone, datetime(years[0], 1, 1, tzinfo=UTC))
    end = _instant(parsed.zone, datetime(years[-1], 12, 31, 23, 59, 59, tzinfo=UTC))
    return Rewrite(text, described, start=begin, end=end)


def _span_of(years: frozenset[int] | None) -> tuple[int, ...] | None:
    """Return the first and the last year; None: all years. Empty: a year between is missing."""
    if years is None:
        return None
    first, last = min(years), max(years)
    return (first, last) if len(years) == last - first + 1 else ()


def _instant(zone: str, local: datetime) -> str:
    """Return when the clock of the zone shows this time. The time's own zone is ignored."""
    found = zone_of(zone)
    instants = found.instants(local)
    at = instants[0] if instants else local
    return at.astimezone(found.info).isoformat().replace("+00:00", "Z")


def _readings(body: str, *dialects: Dialect) -> Iterator[ForeignReading]:
    """Yield the meaning of an expression in each of these dialects that can read it."""
    for dialect in dialects:
        with suppress(UnknownExpression):
            yield foreign.read_fields(body, dialect)


# -- Expressions that can be read, and may mean another thing --


def if_meant(expression: str, dialects: Sequence[Dialect], zone: str) -> Rewrite | None:
    """Return a valid expression as the first of these dialects reads it; None: as ours."""
    prefix, body = split_zone(expression.strip())
    here = parse_plainly(expression, zone=zone, seed="")
    for reading in _readings(body, *dialects):
        rewrite = verified(reading, prefix, zone)
        if rewrite is not None and (rewrite.start or not same(here, rewrite.text, zone)):
            return rewrite
    return None


def both_days(expression: str, zone: str) -> Rewrite | None:
    """Rewrite an expression for days that match both day fields: `0 9 1-7 * 1` is `0 9 * * 1#1`."""
    prefix, body = split_zone(expression.strip())
    words = body.split()
    for reading in _readings(body, foreign.BOTH_DAYS, foreign.BOTH_DAYS_SECONDS):
        masks = parse_plainly(expression, zone=zone, seed="").masks
        assert masks is not None, "it has day fields"
        weeks = [week for week in range(1, 5) if masks.day_of_month >> (week * 7 - 6) & 127 == 127]
        days = [day for day in range(7) if masks.day_of_week >> day & 1]
        named = ",".join(f"{day}#{week}" for day in days for week in weeks)
        if named:
            ours = " ".join([*words[:-3], "*", words[-2], named])
            return verified(replace(reading, ours=ours), prefix, zone)
    return None


def same(expression: CronExpression, text: str, zone: str) -> bool:
    """Return whether a text has the fire times of an expression, changes of the clock included."""
    other = parse_plainly(text, zone=zone, seed="")
    return replace(expression, text="") == replace(other, text="")


def instead(expression: CronExpression, text: str, zone: str, note: str = "") -> Rewrite:
    """Return the rewrite to `text`, with the difference in words if the fire times differ."""
    other = parse_plainly(text, zone=zone, seed="")
    if same(expression, text, zone):
        return Rewrite(text, describe_parsed(other))
    difference = note or f"not {describe_parsed(expression)}"
    return Rewrite(text, describe_parsed(other), difference=difference)


# -- What people paste: each proposal yields at most one rewrite --


def split_zone(text: str) -> tuple[str, str]:
    """Return a `CRON_TZ=…` with a space, and the rest."""
    found = re.match(r"CRON_TZ=\S+\s+", text, re.IGNORECASE)
    return (found[0], text[found.end() :]) if found else ("", text)


_TYPOGRAPHY: Final = {
    **dict.fromkeys(map(ord, "‐‑‒–—−﹣－"), "-"),
    **dict.fromkeys(map(ord, "∗＊﹡✱"), "*"),
    **dict.fromkeys(map(ord, "⁄∕／"), "/"),
    **dict.fromkeys(map(ord, "，‚"), ","),
    **dict.fromkeys(map(ord, "？"), "?"),
    **dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff\u00ad"), ""),
    **dict.fromkeys(map(ord, "“”„‟«»‘’‚‛`\"'"), ""),
}


def _typography(prefix: str, body: str, zone: str) -> Iterator[Proposal]:
    text = prefix + body
    plain = text.translate(_TYPOGRAPHY).strip().rstrip(";")
    if plain == text:
        return
    try:
        parsed = parse(plain, zone=zone, seed="")
    except CronError as error:
        if error.rewrites:
            yield "", str(error.rewrites[0]), error.rewrites[0]
        return
    if any(quote in text for quote in "\"'`"):
        problem = "has quotes"
    else:
        odd = next(letter for letter in text if ord(letter) in _TYPOGRAPHY or letter == ";")
        problem = f"has the character {odd!r} (U+{ord(odd):04X})"
    yield problem, "", Rewrite(plain, describe_parsed(parsed))


def _wrapped_in_aws(prefix: str, body: str, zone: str) -> Iterator[Proposal]:
    """Rewrite `cron(…)`, `rate(…)` and `at(…)` of EventBridge."""
    found = re.fullmatch(r"(cron|rate|at)\s*\((.*)\)", body, re.IGNORECASE | re.DOTALL)
    if found is None:
        return
    kind, inner = found[1].lower(), found[2].strip()
    if kind == "at":
        yield "at(…) is an AWS expression", f"write at: {inner} and time_zone", None
        return
    if kind == "rate":
        rate = re.fullmatch(r"(\d{1,6})\s+(minute|hour|day)s?", inner, re.IGNORECASE | re.ASCII)
        if rate and int(rate[1]):
            text = f"@every {int(rate[1])}{rate[2][0].lower()}"
            difference = "AWS counts from the rule's creation, @every from 1970-01-01T00:00Z"
            described = describe_parsed(parse_plainly(text, zone=zone, seed=""))
            problem = "rate(…) is an AWS expression"
            yield problem, "", Rewrite(text, described, difference=difference)
        return
    for reading in _readings(inner, foreign.AWS):
        yield from _foreign(reading, prefix, zone, "cron(…) is an AWS expression")


def _foreign(reading: ForeignReading, prefix: str, zone: str, problem: str) -> Iterator[Proposal]:
    rewrite = verified(reading, prefix, zone)
    if rewrite is not None:
        yield problem, "", rewrite
        return
    if reading.years and _span_of(reading.years) == ():
        listed = ", ".join(map(str, sorted(reading.years)[:5]))
        yield (
            "a year field isn't supported",
            f"the years {listed} aren't consecutive: create one job, with start and end, per range",
            None,
        )


def _zone_last(prefix: str, body: str, zone: str) -> Iterator[Proposal]:
    """Rewrite a zone at the end: `0 4 * * 1-5 Europe/Paris`."""
    *words, last = body.split()
    if prefix or not re.fullmatch(r"[A-Za-z_]+(/[A-Za-z_+\-\d]+)+|UTC", last):
        return
    try:
        zone_of(last)
        rewrite = _plain_rewrite(f"CRON_TZ={last} {' '.join(words)}", zone)
    except UnknownZone as unknown:
        yield "the expression ends with a time zone", unknown.hint, None
        return
    if rewrite is not None:
        problem = "the expression ends with a time zone, which isn't supported"
        yield problem, f"{rewrite}; or time_zone: {last}", rewrite


def _zone_first(prefix: str, body: str, zone: str) -> Iterator[Proposal]:
    """Rewrite a zone at the start: `TZ=Europe/Paris 0 4 * * *`."""
    del prefix
    found = re.match(r"TZ=(\S+)\s+", body, re.IGNORECASE)
    if found and (rewrite := _plain_rewrite(f"CRON_TZ={found[1]} {body[found.end() :]}", zone)):
        yield "", str(rewrite), rewrite


def _plain_rewrite(text: str, zone: str) -> Rewrite | None:
    """Return the rewrite to this text; None: it isn't valid."""
    try:
        return Rewrite(text, describe_parsed(parse_plainly(text, zone=zone, seed="")))
    except CronError:
        return None


_PROGRAM: Final = re.compile(r"[/~.]|[a-z_][a-z0-9_.-]*$|[\[\"'$]", re.IGNORECASE)


def _crontab_line(prefix: str, body: str, zone: str) -> Iterator[Proposal]:
    """Rewrite a line of a crontab, with user and command: `30 2 * * * root /bin/x`."""
    words = body.split()
    if words[0].startswith("@") and len(words) > 1 and words[0].lower() != "@every":
        schedule, rest = words[0], words[1:]
    elif len(words) > 5 and _PROGRAM.match(words[5]) and not _is_field(words[5]):
        schedule, rest = " ".join(words[:5]), words[5:]
    else:
        return
    rewrite = _plain_rewrite(prefix + schedule, zone)
    if rewrite is not None:
        command = " ".join(rest)
        shown = command if len(command) <= 60 else f"{command[:59]}…"
        yield (
            f"the expression is a line of a crontab: {shown!r} isn't part of the schedule",
            f"{rewrite}, and the command in shell; to check a crontab: schedctl cron lint -f FILE",
            rewrite,
        )


def _is_field(word: str) -> bool:
    named = {*foreign.MONTHS, *foreign.WEEKDAYS}
    return word.upper() in ("L", "LW") or all(
        part[:3].lower() in named for part in re.split(r"[,/-]", word) if part.isalpha()
    )


def _dialect(dialect: Dialect, prefix: str, body: str, zone: str) -> Iterator[Proposal]:
    for reading in _readings(body, dialect):
        yield from _foreign(reading, prefix, zone, _looks_like(dialect, body))


def _looks_like(dialect: Dialect, body: str) -> str:
    if dialect.exclusive_days:
        numbered = re.search(r"\d", body.split()[dialect.fields.split().index("W")])
        sunday = "; in this format, day 1 is Sunday" if numbered else ""
        last = "the last field is a year" if "Y" in dialect.fields else "the first field is seconds"
        return f"the expression looks like {dialect.name}: {last}{sunday}"
    return f"a year field isn't supported: the expression looks like {dialect.name}"


def _year_or_seconds(prefix: str, body: str, zone: str) -> Iterator[Proposal]:
    """Rewrite six fields, or seven: seconds first and a year last."""
    words = body.split()
    if len(words) == 7:
        dialect = foreign.QUARTZ if "?" in body else foreign.SECONDS_AND_YEAR
        yield from _dialect(dialect, prefix, body, zone)
    if len(words) != 6:
        return
    if re.search(r"\d{4}", words[5]) or words[5] in "*?":
        dialect = foreign.AWS if "?" in words[2:5] else foreign.WITH_YEAR
        for problem, hint, rewrite in _dialect(dialect, prefix, body, zone):
            yield f"in six fields, the first is seconds; {problem}", hint, rewrite
    yield from _dialect(foreign.QUARTZ_SHORT, prefix, body, zone)


def _wrapping(prefix: str, body: str, zone: str) -> Iterator[Proposal]:
    for reading in _readings(body, foreign.WRAPPING, foreign.WRAPPING_SECONDS):
        if rewrite := verified(reading, prefix, zone):
            yield "", str(rewrite), rewrite


def _slips(prefix: str, body: str, zone: str) -> Iterator[Proposal]:
    """Rewrite `*5` to `*/5`, and `$` to the last day of the month."""
    words = body.split()
    for number, word in enumerate(words):
        better, problem = word, ""
        if re.fullmatch(r"\*\d{1,4}", word, re.ASCII):
            better = f"*/{word[1:]}"
            problem = f"{word} isn't valid in this field of the cron expression"
        elif word == "$" and number == len(words) - 3:
            better, problem = "L", "$ isn't a day"
        if better == word:
            continue
        text = " ".join([*words[:number], better, *words[number + 1 :]])
        if rewrite := _plain_rewrite(prefix + text, zone):
            yield problem, f"if you mean this, {rewrite}", rewrite


_PROPOSALS: Final[Sequence[Callable[[str, str, str], Iterator[Proposal]]]] = (
    _typography,
    _wrapped_in_aws,
    _zone_first,
    _zone_last,
    _year_or_seconds,
    _crontab_line,
    _wrapping,
    _slips,
)
