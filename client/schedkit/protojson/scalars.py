"""Convert single values of One JSON to text and back.

A reader raises InvalidText with a message for the author of the value; `read` adds the path.
"""

import base64
import binascii
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final, TypeAlias

from google.protobuf.descriptor import EnumDescriptor, EnumValueDescriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from schedkit.protojson.problems import InvalidText, did_you_mean
from schedkit.text import duration, rate
from schedproto.v1.pool_service_pb2 import Rate

NANOS: Final = 1_000_000_000
LONGEST: Final = 315_576_000_000
"""Maximum seconds of google.protobuf.Duration."""
MOST: Final = (1 << 31) - 1
"""Maximum of 32-bit numbers on the wire."""
_SECONDS: Final = re.compile(r"(-?)([0-9]{1,12})(?:\.([0-9]{1,9}))?s")
_INSTANT: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?"
    r"([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_OCTAL: Final = re.compile(r"0o[0-7]{1,20}")
_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]{0,19}")
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")


class PlainScalar(str):
    """A scalar written without quotes, in a language (YAML) where that matters. In a payload, which
    has no schema, an unquoted number, `true`, `false` or `null` is read as such.
    """

    __slots__ = ()


# -- Values as texts --


def instant_text(stamp: Timestamp) -> str:
    """Return RFC 3339 in UTC with milliseconds; smaller fractions are cut off."""
    at = datetime.fromtimestamp(stamp.seconds, UTC).replace(tzinfo=None)
    return f"{at.isoformat()}.{stamp.nanos // 1_000_000:03d}Z"


def duration_text(length: Duration) -> str:
    """Return seconds with as many decimals as needed: `90s`, `0.5s`, `-0.25s`."""
    nanos = length.seconds * NANOS + length.nanos
    whole, part = divmod(abs(nanos), NANOS)
    decimals = f".{part:09d}".rstrip("0") if part else ""
    return f"{'-' * (nanos < 0)}{whole}{decimals}s"


def rate_text(of: Rate) -> str:
    """Return `100/m`, `3/30s`; an invalid rate (a negative time) is shown as it is."""
    try:
        return rate.render(of.count, of.per.ToTimedelta())
    except (ValueError, OverflowError):
        return f"{of.count}/{duration_text(of.per)}"


@cache
def enum_prefix(enum: EnumDescriptor) -> str:
    """Return the prefix of each value's name: `RUN_STATE_` of RunState."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", enum.name).upper() + "_"


def enum_word(enum: EnumDescriptor, number: int) -> str | int | None:
    """Return the bare name; None for UNSPECIFIED. A value newer than this code stays a number."""
    value = enum.values_by_number.get(number)
    if value is None:
        return number
    return bare_name(value) if number else None


def bare_name(value: EnumValueDescriptor) -> str:
    """Return the value's name without its enum's prefix."""
    return value.name.removeprefix(enum_prefix(value.type))


# -- Texts as values --


def read_instant(value: Any) -> Timestamp:
    """Read an RFC 3339 text with its offset, or an aware datetime."""
    if isinstance(value, datetime):
        at = value
    else:
        if not isinstance(value, str) or not _INSTANT.fullmatch(value):
            raise InvalidText(
                f"{shown(value)} isn't a valid time; write RFC 3339 with the offset, "
                "such as 2026-01-31T09:00:00Z"
            )
        try:
            at = datetime.fromisoformat(value.upper())
        except ValueError as error:
            problem = "its offset from UTC is a day or more" if "offset" in str(error) else error
            raise InvalidText(f"{shown(value)} isn't a valid time: {problem}") from None
    if at.tzinfo is None:
        raise InvalidText(
            f"the time {shown(value)} has no time zone: add an offset, for example"
            " 2026-01-31T09:00:00Z"
        )
    stamp = Timestamp()
    try:
        stamp.FromDatetime(at.astimezone(UTC))
    except (ValueError, OverflowError) as error:
        raise InvalidText(f"{shown(value)} isn't a valid time: {error}") from None
    return stamp


def read_duration(value: Any) -> Duration:
    """Read `90s`, `10m`, `1h30m`, `0.5s`, or a timedelta. A bare number is rejected."""
    length = Duration()
    if isinstance(value, timedelta):
        return _bounded(length, value, value)
    if not isinstance(value, str):
        raise InvalidText(
            f"{shown(value)} isn't a valid duration; write a string with a unit, such as 90s"
            " or 1h30m"
        )
    match = _SECONDS.fullmatch(value.strip())
    if match and int(match[2]) <= LONGEST:
        sign, whole, part = match.groups()
        direction = -1 if sign else 1
        length.seconds = direction * int(whole)
        length.nanos = direction * int((part or "").ljust(9, "0"))
        return length
    return _bounded(length, duration.parse(value), value)


def read_rate(value: Any) -> Rate:
    """Read `100/s`, `100/m`, `3/30s`: a whole number per time."""
    if not isinstance(value, str):
        raise InvalidText(
            f"{shown(value)} isn't a valid rate; write a string, such as 100/s or 100/m"
        )
    count, per = rate.parse(value)
    if count.denominator != 1:
        raise InvalidText(
            f"the rate {shown(value)} isn't valid: the count must be a whole number; instead"
            " of 2.5/s, write 5/2s"
        )
    return Rate(
        count=read_integer(int(count), False, 1, MOST), per=_bounded(Duration(), per, value)
    )


def _bounded(length: Duration, span: timedelta, value: Any) -> Duration:
    """Check that the duration is within ten thousand years, the limit of the wire."""
    if abs(span.total_seconds()) > LONGEST:
        raise InvalidText(f"the duration {shown(value)} is too long: give less than 10,000 years")
    length.FromTimedelta(span)
    return length


def read_enum(enum: EnumDescriptor, value: Any) -> int:
    """Return the number of a value from its name, in any case, with or without the prefix."""
    known = {bare_name(one): one.number for one in enum.values if one.number}
    if isinstance(value, str):
        word = value.strip().upper().replace("-", "_")
        for candidate in (word, word.removeprefix(enum_prefix(enum))):
            if candidate in known:
                return known[candidate]
        hint = did_you_mean(value, [name.lower() for name in known])
        choice = ", ".join(name.lower() for name in known)
        problem = f"the value {shown(value)} isn't valid: use one of {choice}"
        raise InvalidText(problem + (f"; {hint}" if hint else ""))
    choice = ", ".join(name.lower() for name in known)
    raise InvalidText(f"the value {shown(value)} isn't valid: use one of {choice}")


def read_bytes(value: Any) -> bytes:
    """Read base64 text, or return bytes unchanged."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except binascii.Error:
            pass
    raise InvalidText(f"the value {shown(value)} isn't valid base64: encode the bytes as base64")


def read_string(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidText(
            f"the value must be a string, not {shown(value)}; put the value into quotes"
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidText(
            "the string contains an unpaired surrogate, which isn't valid Unicode: correct the"
            " string"
        ) from None
    return str(value)


def read_bool(value: Any, strings: bool) -> bool:
    """Return a boolean. With `strings`, only the words `true` and `false` are accepted as text."""
    if isinstance(value, bool):
        return value
    if strings and value in ("true", "false"):
        return bool(value == "true")
    raise InvalidText(f"the value must be true or false, not {shown(value)}")


def read_integer(value: Any, strings: bool, low: int, high: int) -> int:
    if strings and isinstance(value, str) and _INTEGER.fullmatch(value):
        value = int(value)
    elif strings and isinstance(value, str) and _OCTAL.fullmatch(value):
        value = int(value, 8)  # octal, as in YAML and in permissions
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidText(f"the value must be a whole number, not {shown(value)}")
    if not low <= value <= high:
        raise InvalidText(f"the value must be from {low} to {high}, not {value}")
    return value


def read_float(value: Any, strings: bool) -> float:
    if strings and isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidText(f"the value must be a number, not {shown(value)}")
    return float(value)


def read_token(value: Any) -> int:
    """Return a fencing token from a decimal string, or from a number."""
    return read_integer(value, True, 0, (1 << 63) - 1)


def shown(value: Any) -> str:
    """Return a value as its author wrote it, cut to fit a message."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "…"


Reader: TypeAlias = Callable[[Any, bool], Any]


def _integers(bits: int, signed: bool) -> Reader:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return lambda value, strings: read_integer(value, strings, low, high)


READERS: Final[dict[int, Reader]] = {
    FieldDescriptor.TYPE_STRING: lambda value, _: read_string(value),
    FieldDescriptor.TYPE_BYTES: lambda value, _: read_bytes(value),
    FieldDescriptor.TYPE_BOOL: read_bool,
    FieldDescriptor.TYPE_DOUBLE: read_float,
    FieldDescriptor.TYPE_FLOAT: read_float,
    FieldDescriptor.TYPE_INT32: _integers(32, signed=True),
    FieldDescriptor.TYPE_INT64: _integers(64, signed=True),
    FieldDescriptor.TYPE_UINT32: _integers(32, signed=False),
    FieldDescriptor.TYPE_UINT64: _integers(64, signed=False),
}
"""Readers of scalars by type: (value, whether scalars are strings)."""
