"""The cron dialect: translate what people write to plain terms with only one reading.

    "CRON_TZ=Europe/Riga H 2 * * mon-fri"
        → zone, six fields of plain numeric terms ("7", "1-5", "*/10") and special terms

Cron parsers differ in details: equal and wrapping ranges, `59/15`, Sunday as 7, names, `L`, `W`,
`#`, `H`, macros. This module decides all of them. The parser gets terms with only one reading, so a
new version of it can't change a fire time unnoticed.

Invariants
- A term that leaves this module is in range, never wraps, and isn't a range of one value.
- `H` depends only on the seed and the field (SHA-256), so it never changes.
- A rejected expression gets the rewrite in the message.
"""

import hashlib
import re
from functools import lru_cache
from typing import Final

from schedd.core.schedule.cron.errors import CronError
from schedkit.records import dataclass


@dataclass(frozen=True, slots=True)
class FieldTerms:
    """A translated field.

    `plain`: a comma list of `*`, `*/n`, `a`, `a-b`, `a-b/n`; empty if all terms are special.
    `special`: `l`, `l-3` and `15w` (day of month), `5#2` and `l5` (day of week).
    `star`: whether the field as written begins with `*` (or is `?`).
    """

    plain: str
    special: tuple[str, ...]
    star: bool


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """A field's name, its values, the names of its values, and the values that `H` chooses from."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()
    hash_high: int = 0

    def value_of(self, text: str) -> int:
        """Return the number of a value. Raises CronError."""
        if text.isascii() and text.isdigit():
            value = int(text) if len(text) < 5 else 99999
            if not self.low <= value <= self.high:
                problem = f"the value {text} is out of range in this field of the cron expression"
                raise CronError(self.name, problem, f"use {self.range_text}")
            return value
        if text in self.names:
            return self.names.index(text) + self.low
        for name in self.names:
            if text.startswith(name):
                problem = f"the value {text!r} isn't valid in this field of the cron expression"
                raise CronError(self.name, problem, f"write the name as {name}")
        problem = f"the value {text!r} isn't valid in this field of the cron expression"
        raise CronError(self.name, problem, f"use {self.range_text}")

    @property
    def range_text(self) -> str:
        names = f", or {self.names[0]}-{self.names[-1]}" if self.names else ""
        sunday = ", 0 and 7 are Sunday" if self is DAY_OF_WEEK else ""
        return f"{self.low}-{self.high}{names}{sunday}"


SECOND = FieldSpec("second", 0, 59, hash_high=59)
MINUTE = FieldSpec("minute", 0, 59, hash_high=59)
HOUR = FieldSpec("hour", 0, 23, hash_high=23)
# `H` ends at 28, so that a monthly job runs in each month.
DAY_OF_MONTH = FieldSpec("day of month", 1, 31, hash_high=28)
MONTH = FieldSpec(
    "month",
    1,
    12,
    ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
    hash_high=12,
)
DAY_OF_WEEK = FieldSpec(
    "day of week", 0, 7, ("sun", "mon", "tue", "wed", "thu", "fri", "sat"), hash_high=6
)
FIELDS: Final = (SECOND, MINUTE, HOUR, DAY_OF_MONTH, MONTH, DAY_OF_WEEK)

DIALECT: Final = 1
"""Version of the meaning of expressions, stored beside each of them."""

_LONGEST: Final = 1024


MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


@dataclass(frozen=True, slots=True)
class Translation:
    """A translated expression: either `every` (seconds, of `@every`) or six fields."""

    zone: str | None
    every: int = 0
    fields: tuple[FieldTerms, ...] = ()


_HASHED: Final = re.compile(r"(?:^|[\s,])h(?:$|[\s,(/])", re.IGNORECASE)


def is_hashed(expression: str) -> bool:
    """Return whether the meaning of the expression depends on the seed."""
    return _HASHED.search(expression) is not None


def translate(expression: str, seed: str) -> Translation:
    """Translate an expression; `H` is hashed from `seed`. Raises CronError."""
    if len(expression) > _LONGEST:
        problem = f"the cron expression has {len(expression)} characters"
        raise CronError("expression", problem, f"write at most {_LONGEST} characters")
    zone, body = _split_zone(expression.strip())
    body = body.lower()
    if body.startswith("@"):
        if body.split()[0] == "@every":
            return Translation(zone, every=_every(body.split()[1:]))
        body = _macro(body)
    words = body.split()
    _check_count(words)
    if len(words) == 5:
        words.insert(0, "0")
    fields = tuple(
        _field(spec, word, seed if "h" in word else "")
        for spec, word in zip(FIELDS, words, strict=True)
    )
    return Translation(zone, fields=fields)


def _split_zone(text: str) -> tuple[str | None, str]:
    if text[:3].upper() == "TZ=":
        raise CronError("time_zone", "TZ= isn't supported", "write CRON_TZ= instead")
    if text[:8].upper() != "CRON_TZ=":
        return None, text
    name, _, body = text[8:].partition(" ")
    if not name:
        raise CronError(
            "time_zone", "CRON_TZ= has no time zone", "write for example CRON_TZ=Europe/Berlin"
        )
    return name, body.strip()


_DURATION: Final = re.compile(r"(?:(\d{1,6})d)?(?:(\d{1,7})h)?(?:(\d{1,9})m)?(?:(\d{1,10})s)?")


def _every(words: list[str]) -> int:
    """Return the duration after `@every`, in seconds."""
    if len(words) != 1 or not words[0]:
        raise CronError(
            "expression", "@every needs exactly one duration", "write for example @every 1h30m"
        )
    found = _DURATION.fullmatch(words[0])
    if found is None:
        hint = "write whole days, hours, minutes and seconds, such as @every 1h30m or @every 5s"
        raise CronError("expression", f"the duration {words[0]!r} of @every isn't valid", hint)
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if total < 1:
        raise CronError("expression", "@every must be at least 1s", "write for example @every 90s")
    return total


def _macro(body: str) -> str:
    if body == "@reboot":
        hint = "create the job with on_demand, and trigger it when the host boots"
        raise CronError("expression", "@reboot isn't supported: a cluster doesn't boot", hint)
    if body not in MACROS:
        problem = f"{body!r} isn't a known macro of cron expressions"
        raise CronError("expression", problem, "use " + " ".join((*MACROS, "@every 90s")))
    return MACROS[body]


def _check_count(words: list[str]) -> None:
    if not words:
        problem = "the cron expression is empty"
        raise CronError("expression", problem, "write five fields, for example 30 2 * * *")
    if len(words) == 7 or (len(words) == 6 and re.match(r"\d{4}", words[-1])):
        raise CronError(
            "year", "a year field isn't supported", "set start and end of the job instead"
        )
    if len(words) not in (5, 6):
        problem = f"the expression has {len(words)} field{'s' if len(words) > 1 else ''}"
        hint = "write five: minute hour day-of-month month day-of-week; or six: seconds first"
        raise CronError("expression", problem, hint)


_VALUE = r"(\d+|[a-z]+)"
_RANGE: Final = re.compile(rf"{_VALUE}(?:-{_VALUE})?(?:/(\d+))?", re.ASCII)
_STAR: Final = re.compile(r"\*(?:/(\d+))?", re.ASCII)
_HASH: Final = re.compile(rf"h(?:\({_VALUE}-{_VALUE}\))?(?:/(\d+))?", re.ASCII)
_NEAREST: Final = re.compile(r"(?:(\d+)w|w(\d+))", re.ASCII)
_BEFORE_LAST: Final = re.compile(r"l-(\d{1,4})", re.ASCII)
_NTH: Final = re.compile(rf"{_VALUE}#(\d+)", re.ASCII)
_LAST: Final = re.compile(rf"(?:(\d|{'|'.join(DAY_OF_WEEK.names)})l|l(\d))", re.ASCII)


@lru_cache(maxsize=4096)
def _field(spec: FieldSpec, text: str, seed: str) -> FieldTerms:
    if text == "?":
        return FieldTerms("*", (), star=True)
    plain: list[str] = []
    special: list[str] = []
    for term in text.split(","):
        if not term:
            raise CronError(
                spec.name, f"the list {text!r} has an empty entry", "remove the extra comma"
            )
        read_special = {DAY_OF_MONTH: _special_day, DAY_OF_WEEK: _special_weekday}.get(spec)
        found = read_special(term) if read_special else None
        if found is None:
            plain.append(_plain(spec, term, seed))
        else:
            special.append(found)
    return FieldTerms(",".join(plain), tuple(special), star=text.startswith("*"))


def _special_day(term: str) -> str | None:
    if term == "l":
        return "l"
    if term in ("lw", "wl"):
        return "31w"  # the weekday nearest to the end of the month, within the month
    if found := _NEAREST.fullmatch(term):
        return f"{DAY_OF_MONTH.value_of(found[1] or found[2])}w"
    if found := _BEFORE_LAST.fullmatch(term):
        before = int(found[1])
        if before > 30:
            problem = f"the day {term.upper()} never matches: no month has so many days"
            raise CronError(DAY_OF_MONTH.name, problem, "use L-1 to L-30")
        return f"l-{before}" if before else "l"
    if term.startswith("l-") or term.endswith("-l"):
        problem = f"the form {term.upper()!r} isn't supported in the day-of-month field"
        raise CronError(DAY_OF_MONTH.name, problem, "use a form such as L, L-3, LW or 15W")
    return None


def _special_weekday(term: str) -> str | None:
    if term == "l":
        problem = "the letter L must follow a day of the week in the day-of-week field"
        hint = "write for example 5L, the last Friday of the month"
        raise CronError(DAY_OF_WEEK.name, problem, hint)
    if found := _LAST.fullmatch(term):
        return f"l{DAY_OF_WEEK.value_of(found[1] or found[2]) % 7}"
    if found := _NTH.fullmatch(term):
        if not 1 <= int(found[2]) <= 5:
            problem = f"the number of the week in {term!r} is out of range"
            hint = "use 1 to 5 after #, such as MON#1 for the first Monday"
            raise CronError(DAY_OF_WEEK.name, problem, hint)
        return f"{DAY_OF_WEEK.value_of(found[1]) % 7}#{found[2]}"
    return None


def _plain(spec: FieldSpec, term: str, seed: str) -> str:
    if found := _STAR.fullmatch(term):
        _step(spec, term, found[1])
        return term
    if found := _HASH.fullmatch(term):
        return _hashed(spec, term, found, seed)
    found = _RANGE.fullmatch(term)
    if found is None:
        problem = f"{term!r} isn't valid in this field of the cron expression"
        raise CronError(spec.name, problem, f"use {spec.range_text}")
    low, step = spec.value_of(found[1]), _step(spec, term, found[3])
    if found[2] is None:
        # A weekday with a step counts up to Saturday.
        high = low if found[3] is None else max(low, 6 if spec is DAY_OF_WEEK else spec.high)
    else:
        high = spec.value_of(found[2])
    if high < low:
        problem = f"the range {term} isn't valid: its end is before its start"
        raise CronError(spec.name, problem, "write the values as a list, such as FRI,SAT,SUN,MON")
    return _canonical(spec, low, high, step)


def _step(spec: FieldSpec, term: str, step: str | None) -> int:
    if step is None:
        return 1
    if len(step) > 4 or int(step) == 0:
        problem = f"the step of {term!r} is out of range in this field of the cron expression"
        raise CronError(spec.name, problem, "use a step from 1 to 9999")
    return int(step)


def _canonical(spec: FieldSpec, low: int, high: int, step: int) -> str:
    """Return the same values in the one form that every parser reads alike."""
    if spec is DAY_OF_WEEK:
        return ",".join(str(value) for value in sorted({v % 7 for v in range(low, high + 1, step)}))
    if low + step > high:
        return str(low)
    return f"{low}-{high}" + (f"/{step}" if step > 1 else "")


def _hashed(spec: FieldSpec, term: str, found: re.Match[str], seed: str) -> str:
    low, high = spec.low, spec.hash_high
    if found[1] is not None:
        low, high = spec.value_of(found[1]), spec.value_of(found[2])
    if high < low:
        problem = f"the range of {term.upper()} isn't valid: its end is before its start"
        raise CronError(spec.name, problem, "begin the range with the lower value")
    if found[3] is None:
        chosen = low + _hash(spec, seed, high - low + 1)
        return _canonical(spec, chosen, chosen, 1)
    step = _step(spec, term, found[3])
    first = low + _hash(spec, seed, min(step, high - low + 1))
    return _canonical(spec, first, high, step)


def _hash(spec: FieldSpec, seed: str, size: int) -> int:
    digest = hashlib.sha256(f"{seed}\0{spec.name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % size
