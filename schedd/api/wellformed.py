"""What the wire lets through and nobody can mean: refused before a call looks at its request.

A protobuf message may hold any number as an enum's value, and instants and durations that no
calendar has. Here each of them becomes a violation with its path, so that behind this door every
enum has a name and every instant and duration can be reckoned with.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain, islice
from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from schedd.api.bounds import MISSING
from schedd.api.errors import Violation, refuse

LONGEST: Final = timedelta(days=3653)
"""No duration in a request is longer, either way: ten years from any sane instant is an instant."""

MOST_TOLD: Final = 20
"""Violations that are told: whoever sends a thousand wrong fields can't use a thousand lines."""

LATEST: Final = datetime(9900, 1, 1, tzinfo=UTC)
"""Instants that are reckoned from lie before it, so that their sum with `LONGEST` exists."""

LONGEST_KEY: Final = 255
"""Characters of an idempotency key: it stands in an index."""

_FIRST_SECOND: Final = -62_135_596_800
_LAST_SECOND: Final = 253_402_300_799
_NANOS: Final = 999_999_999
_RECKONED_FROM: Final = frozenset({"at", "start", "after"})


def check_wellformed(request: Message) -> None:
    """Raise InvalidArgument with everything in the request that can't be meant."""
    told = chain(_missing(request), _violations(request, ""))
    refuse([*islice(told, MOST_TOLD)], "INVALID_FIELD")


def _missing(request: Message) -> Iterator[Violation]:
    given = {field.full_name for field, _ in request.ListFields()}
    for field in request.DESCRIPTOR.fields:
        if field.full_name in MISSING and field.full_name not in given:
            yield Violation(field.name, MISSING[field.full_name])


def _violations(message: Message, path: str) -> Iterator[Violation]:
    for field, value in message.ListFields():
        here = f"{path}.{field.name}" if path else field.name
        if field.enum_type is not None:
            known = field.enum_type.values_by_number
            for number in value if field.is_repeated else (value,):
                if number not in known:
                    yield Violation(here, f"{number} is no {field.enum_type.name}")
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for inner in value if field.is_repeated else (value,):
                yield from _inner(inner, field.name, here)
        elif field.type == field.TYPE_STRING and any(
            "\0" in text for text in (value if field.is_repeated else (value,))
        ):
            yield Violation(here, "holds a NUL character")
        elif field.message_type is not None:
            if any(
                "\0" in part for pair in value.items() for part in pair if isinstance(part, str)
            ):
                yield Violation(here, "holds a NUL character")
        elif field.name == "idempotency_key" and len(value) > LONGEST_KEY:
            yield Violation(here, f"has {len(value):,} characters, at most {LONGEST_KEY}")


def _inner(message: Message, name: str, path: str) -> Iterator[Violation]:
    if isinstance(message, Timestamp):
        yield from _instant(message, name, path)
    elif isinstance(message, Duration):
        yield from _duration(message, path)
    else:
        yield from _violations(message, path)


def _instant(stamp: Timestamp, name: str, path: str) -> Iterator[Violation]:
    if not (_FIRST_SECOND <= stamp.seconds <= _LAST_SECOND and 0 <= stamp.nanos <= _NANOS):
        yield Violation(path, "is no instant of the years 1 to 9999")
    elif name in _RECKONED_FROM and stamp.seconds >= LATEST.timestamp():
        yield Violation(path, f"is too far ahead: at most the year {LATEST.year - 1}")


def _duration(length: Duration, path: str) -> Iterator[Violation]:
    if abs(length.nanos) > _NANOS or length.seconds * length.nanos < 0:
        yield Violation(path, "is no duration: its nanoseconds don't fit")
    elif abs(length.seconds) > LONGEST.total_seconds():
        yield Violation(path, f"is longer than {LONGEST.days:,} days")
