"""Decode the values of etcd keys. Anybody with access to etcd can write any bytes there.

Invariant: a decoder returns a value within its bounds or raises InvalidValue. Its caller then
treats the key as absent, and logs it.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from schedd.core.ids import Id

T = TypeVar("T")

LARGEST: Final = 256 * 1024
"""Maximum bytes of a value. A map of 256 shards over 256 members has 16 KiB."""
LONGEST: Final = 1024
_NAMED: Final = 20


class InvalidValue(ValueError):
    """The value of a key isn't valid."""


def encoded(value: Mapping[str, object]) -> bytes:
    """Return the value of a key: a JSON object, whose ids are text. Equal ones have equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode()


def read(key: str, value: bytes, what: str, decode: Callable[[bytes], T]) -> T:
    """Decode the value. Unknown fields are ignored. Raises InvalidValue: not a valid `what`."""
    try:
        if len(value) > LARGEST:
            raise ValueError(
                f"the etcd value has {len(value)} bytes, but at most {LARGEST} are allowed"
            )
        return decode(value)
    except (
        ArithmeticError,  # int() of 1e999
        AttributeError,
        KeyError,
        RecursionError,  # JSON of many levels
        TypeError,
        ValueError,
    ) as error:
        why = str(error).encode(errors="replace").decode()[:200]
        raise InvalidValue(
            f"the value of etcd key {shown(key)} isn't a valid {what}: {type(error).__name__}:"
            f" {why}; see `schedctl cluster doctor`"
        ) from None


def parsed(value: bytes) -> Mapping[str, object]:
    found = json.loads(value)
    if not isinstance(found, dict):
        raise TypeError(f"the value is a {type(found).__name__} instead of an object")
    return found


def text(value: object) -> str:
    """Return a text that every part of schedd can store, send and log."""
    if not isinstance(value, str) or len(value) > LONGEST or not (value + " ").isprintable():
        raise ValueError(
            f"the text {value!r:.60} in the etcd value isn't valid: it must be printable, with"
            f" at most {LONGEST} characters"
        )
    return value


def number(value: object, low: int, high: int) -> int:
    """Return a whole number from `low` to `high`, both included."""
    if not isinstance(value, int) or not low <= value <= high:
        raise ValueError(
            f"the number {value!r:.60} in the etcd value isn't valid: it must be whole, from"
            f" {low} to {high}"
        )
    return value


def flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r:.60} isn't true or false")
    return value


def uuid(value: object) -> Id:
    return Id.parse(text(value))


def shown(key: str) -> str:
    """Return a key for messages: one line, without bytes that aren't UTF-8."""
    readable = key.encode(errors="surrogateescape").decode(errors="backslashreplace")
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in readable)[:LONGEST]


def named(keys: Iterable[str]) -> str:
    """Return the first keys as a list for messages."""
    all_ = [shown(key) for key in keys]
    more = f" and {len(all_) - _NAMED} more" if len(all_) > _NAMED else ""
    return ", ".join(all_[:_NAMED]) + more
