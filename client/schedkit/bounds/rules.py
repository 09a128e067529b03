"""Rules for the fields of messages, and the check of a message against them.

    table: message ─→ field ─→ rule      `Bounds(table).violations(message)` ─→ (path, problem) …

Every text, number, duration, list and map of every message that enters a process has a row in a
table (`tables` and, for user calls, `schedd.api.request_bounds`). Flags, enums, times and messages
need none (`rule_of_type`). A test walks the descriptors and fails on a field without a rule.

Invariants
- A message without violations has values that the process can compute with. Enums have names,
  timestamps and durations are within their rules. Texts, bytes, lists and maps don't exceed their
  sizes, and no text has a NUL character.
- The cost of a check depends on the fields that are set. Rules are resolved once for each type of
  message.
- No decision depends on an `Informative` field. If it is out of bounds, it is cleared (`tidy`), and
  the rest of its message is used.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from math import isfinite
from typing import Any, Final, TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from schedkit.records import dataclass

Violation: TypeAlias = tuple[str, str]
"""The path of a field, and the problem with its value."""

Found: TypeAlias = list[Violation]
Check: TypeAlias = Callable[[Any, str, Found], None]
"""Appends the problems of a value to `Found`, with the path of its field."""

INT32: Final = (1 << 31) - 1
INT64: Final = (1 << 63) - 1
UINT32: Final = (1 << 32) - 1
UINT64: Final = (1 << 64) - 1
MOST_FOUND: Final = 20
"""Violations of a list that are reported."""
_NANOS: Final = 999_999_999
_SHOWN: Final = 60


class Kind(Enum):
    """Rules that follow from the type of a field."""

    FLAG = "true or false"
    CHOICE = "a value of the enum"
    OPEN = "as CHOICE, but a number without a name is read as unspecified"
    TIME = "a timestamp from FIRST_TIME up to END_OF_TIME"
    PART = "a message, checked by its own table"
    ITEM = "a message that its reader checks, so that an invalid item is set aside alone"


FLAG: Final = Kind.FLAG
CHOICE: Final = Kind.CHOICE
OPEN: Final = Kind.OPEN
TIME: Final = Kind.TIME
"""Any time: given by a user, computed from a schedule, or read from a clock."""
PART: Final = Kind.PART
ITEM: Final = Kind.ITEM


@dataclass(frozen=True, slots=True)
class Text:
    """Text of at most so many characters. `pattern` must match all of it. NUL needs `nul`."""

    most: int
    pattern: re.Pattern[str] | None = None
    means: str = ""
    """Description of the pattern, for the message."""
    nul: bool = False
    """Whether NUL is allowed. Output of programs may contain it."""

    def check(self, value: str, path: str, found: Found) -> None:
        if len(value) > self.most:
            found.append((path, _too_long(value, "characters", self.most)))
        elif "\0" in value and not self.nul:
            found.append((path, "holds a NUL character"))
        elif self.pattern is not None and not self.pattern.fullmatch(value):
            found.append((path, f"{value[:_SHOWN]!r} isn't {self.means}"))


@dataclass(frozen=True, slots=True)
class Octets:
    """Bytes of limited length. The minimum applies only if there are any."""

    most: int
    least: int = 0

    def check(self, value: bytes, path: str, found: Found) -> None:
        size, least, most = len(value), self.least, self.most
        if not least <= size <= most:
            must = f"{most:,}" if least == most else f"{least:,} to {most:,}"
            found.append((path, f"has {size:,} bytes, must have {must}"))


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number; a whole one if its field is."""

    low: float
    high: float

    def check(self, value: float, path: str, found: Found) -> None:
        if not (self.low <= value <= self.high and isfinite(value)):
            window = f"must be from {self.low:,} to {self.high:,}"
            found.append((path, f"{value} is out of range: {window}"))


@dataclass(frozen=True, slots=True)
class NumberColumn:
    """A list of whole numbers, checked by its smallest and its largest one."""

    each: Number
    most: int
    """Maximum entries."""

    def check(self, values: Any, path: str, found: Found) -> None:
        if len(values) > self.most:
            found.append((path, _too_long(values, "entries", self.most)))
            return
        before = len(found)
        self.each.check(min(values), path, found)
        if len(found) == before:
            self.each.check(max(values), path, found)


@dataclass(frozen=True, slots=True)
class Span:
    """A duration."""

    low: timedelta
    high: timedelta

    def check(self, value: Any, path: str, found: Found) -> None:
        seconds, nanos = value.seconds, value.nanos
        low, high = int(self.low.total_seconds()), int(self.high.total_seconds())
        if abs(nanos) > _NANOS or seconds * nanos < 0:
            found.append((path, "isn't a duration: its nanoseconds don't fit"))
        elif not low <= seconds <= high or (seconds == 0 and nanos < 0 <= low):
            window = f"must be from {_length(self.low)} to {_length(self.high)}"
            found.append((path, f"{seconds:,} s is out of range: {window}"))


Single: TypeAlias = Text | Octets | Number | Span | Kind


@dataclass(frozen=True, slots=True)
class Many:
    """A list."""

    each: Single
    most: int


@dataclass(frozen=True, slots=True)
class Pairs:
    """A map."""

    key: Single
    value: Single
    most: int


@dataclass(frozen=True, slots=True)
class Needed:
    """A field that must be set."""

    rule: Single | Many


@dataclass(frozen=True, slots=True)
class Informative:
    """A field that only people read. No decision depends on it."""

    rule: Single | Many


Rule: TypeAlias = Single | Many | NumberColumn | Pairs | Needed | Informative
Table: TypeAlias = Mapping[str, Mapping[str, Rule]]
"""Full name of a message → name of a field → rule."""

FIRST_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)
END_OF_TIME: Final = datetime(2200, 1, 1, tzinfo=UTC)
_END: Final = int(END_OF_TIME.timestamp())
MICROSECONDS: Final = (0, _END * 1_000_000 - 1)
"""The first and last time within `TIME`, in microseconds since 1970."""
LONGEST: Final = timedelta(days=3653)
"""Ten years. Adding it to any `TIME`, or subtracting it, gives a valid date."""
SPAN: Final = Span(-LONGEST, LONGEST)
"""A duration, also negative. The call checks its sign and size further."""
LENGTH: Final = Span(timedelta(0), LONGEST)
"""A duration that is never negative."""

ID: Final = Text(
    36,
    re.compile(r"[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}"),
    "an id (UUID)",
)
ID_BYTES: Final = Octets(16, 16)
NAME: Final = Text(1_000)
"""A name or id that a user gives. The call's own error says how it is spelled, or where to list it.
"""
WORD: Final = Text(255)
"""A name or version sent by a process of schedd."""
NOTE: Final = Text(4_000)
"""A note or reason of a user. The call's own error states the maximum length."""
SAID: Final = Text(4_096, nul=True)
"""An error or explanation sent by a worker."""
WORDS: Final = Text(1024 * 1024)
"""A part of a definition. The whole definition has its own limit."""

TOKEN: Final = Number(0, INT64 - (1 << 32))
"""A fencing token (`epoch << 32 | sequence`). The maximum leaves room for the next epoch."""
COUNT: Final = Number(0, INT32)
COUNT64: Final = Number(0, INT64)
GREATEST_SLOTS: Final = 20_000
SLOTS: Final = Number(0, GREATEST_SLOTS)
SERIAL: Final = Number(0, INT64 - 1)


def rule_of_type(field: FieldDescriptor) -> Rule | None:
    """Return the rule of a single field that needs no row, because its type limits it."""
    if field.is_repeated:
        return None
    if field.type == FieldDescriptor.TYPE_BOOL:
        return FLAG
    if field.enum_type is not None:
        return CHOICE
    if (of := field.message_type) is None or of.full_name == "google.protobuf.Duration":
        return None
    return TIME if of.full_name == "google.protobuf.Timestamp" else PART


class Bounds:
    """Checks messages against a table."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._checks: dict[str, tuple[dict[int, Check], dict[int, str]]] = {}

    def violations(self, message: Message, path: str = "") -> Found:
        """Return the violations of a message. `path`: its place in a larger message."""
        found: Found = []
        self._check(message, f"{path}." if path else "", found)
        return found

    def tidy(self, message: Message, path: str = "") -> tuple[Found, Found]:
        """Clear `Informative` fields that are out of their bounds.

        Returns:
            The violations of the other fields, and those of the cleared fields.
        """
        left: Found = []
        cleared: Found = []
        for found in self.violations(message, path):
            names = found[0].removeprefix(f"{path}.").split(".")
            (cleared if self._clear(message, names) else left).append(found)
        return left, cleared

    def _clear(self, message: Message, names: list[str]) -> bool:
        """Clear the `Informative` field on this path. Return False if there is none."""
        for name in names:
            descriptor = message.DESCRIPTOR
            if isinstance(self.table.get(descriptor.full_name, {}).get(name), Informative):
                message.ClearField(name)
                return True
            inner = getattr(message, name)
            if not isinstance(inner, Message):
                return False
            message = inner
        return False

    def _check(self, message: Message, prefix: str, found: Found) -> None:
        descriptor: Any = message.DESCRIPTOR
        checks, needed = self._checks.get(descriptor.full_name) or self._resolved(descriptor)
        listed = message.ListFields()
        for field, value in listed:
            check = checks.get(field.number)
            if check is not None:
                check(value, prefix + field.name, found)
        if needed:
            given = {field.number for field, _ in listed}
            found += [
                (prefix + name, "is missing") for at, name in needed.items() if at not in given
            ]

    def _resolved(self, descriptor: Descriptor) -> tuple[dict[int, Check], dict[int, str]]:
        rows = self.table.get(descriptor.full_name, {})
        checks: dict[int, Check] = {}
        needed: dict[int, str] = {}
        for field in descriptor.fields:
            rule = rows.get(field.name) or rule_of_type(field)
            assert rule is not None, f"{field.full_name} has no row"
            if isinstance(rule, Needed):
                needed[field.number] = field.name
            if isinstance(rule, Needed | Informative):
                rule = rule.rule
            if (check := self._check_of(rule, field)) is not None:
                checks[field.number] = check
        self._checks[descriptor.full_name] = checks, needed
        return checks, needed

    def _check_of(self, rule: Rule, field: FieldDescriptor) -> Check | None:
        match rule:
            case Kind.FLAG | Kind.OPEN | Kind.ITEM:
                return None
            case Kind.CHOICE:
                return _choice(field)
            case Kind.TIME:
                return _check_time
            case Kind.PART:
                return lambda value, path, found: self._check(value, f"{path}.", found)
            case Many(each, most):
                return _list(self._check_of(each, field), most)
            case Pairs(key, value, most):
                entry = field.message_type
                assert entry is not None, f"{field.full_name} is a map"
                inner = entry.fields_by_name
                checks = self._check_of(key, inner["key"]), self._check_of(value, inner["value"])
                return _map(*checks, most)
            case Needed() | Informative():
                raise AssertionError(
                    "unreachable: this kind of rule is replaced before it is compiled"
                )
        return rule.check


def _check_time(value: Any, path: str, found: Found) -> None:
    if not (0 <= value.seconds < _END and 0 <= value.nanos <= _NANOS):
        window = f"must be from {FIRST_TIME:%Y-%m-%d} up to {END_OF_TIME:%Y-%m-%d}"
        found.append((path, f"{_shown(value.seconds)} is out of range: {window}"))


def _shown(seconds: int) -> str:
    """Format a timestamp for people, if it is within the calendar's range."""
    try:
        at = FIRST_TIME + timedelta(seconds=seconds)
    except OverflowError:
        return f"{seconds} s"
    return at.isoformat().replace("+00:00", "Z")


def _length(span: timedelta) -> str:
    return f"{span.days:,} days" if span.days else f"{span.total_seconds():g} s"


def _too_long(value: Any, units: str, most: int) -> str:
    return f"has {len(value):,} {units}; at most {most:,} are allowed"


def _choice(field: FieldDescriptor) -> Check:
    assert field.enum_type is not None, f"{field.full_name} is an enum"
    known, name = field.enum_type.values_by_number, field.enum_type.name

    def check(value: int, path: str, found: Found) -> None:
        if value not in known:
            found.append((path, f"{value} isn't a value of {name}"))

    return check


def _list(each: Check | None, most: int) -> Check:
    def check(values: Any, path: str, found: Found) -> None:
        if len(values) > most:
            found.append((path, _too_long(values, "entries", most)))
        elif each is not None:
            for value in values:
                each(value, path, found)
                if len(found) >= MOST_FOUND:
                    return

    return check


def _map(key: Check | None, value: Check | None, most: int) -> Check:
    def check(pairs: Any, path: str, found: Found) -> None:
        if len(pairs) > most:
            found.append((path, _too_long(pairs, "entries", most)))
            return
        for name in pairs:
            if key is not None:
                key(name, path, found)
            if value is not None:
                value(pairs[name], path, found)
            if len(found) >= MOST_FOUND:
                return

    return check


def problem(found: Found) -> str:
    """Return the first violation and the number of further ones, as one sentence."""
    (path, what), more = found[0], len(found) - 1
    return f"{path}: {what}" + (f" (and {more} more)" if more else "")
