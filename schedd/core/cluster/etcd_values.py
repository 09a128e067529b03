"""Read the values of etcd keys. Anybody with access to etcd can write any bytes there.

Invariant: a decoder returns a value within its bounds or raises Unreadable. Its caller then takes
the key as absent, and names it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar
from uuid import UUID

T = TypeVar("T")

LARGEST: Final = 256 * 1024
"""Bytes of a value that is read. A map of 256 shards over 256 members has 16 KiB."""
LONGEST: Final = 1024
"""Characters of a text."""
_NAMED: Final = 20
"""Keys that a list names."""


class InvalidValue(ValueError):
    """The value of a key isn't valid."""


def read(key: str, value: bytes, what: str, decode: Callable[[bytes], T]) -> T:
    """Return what `decode` makes of the value.

    Raises:
        Unreadable: it isn't a valid `what`.
    """
    try:
        if len(value) > LARGEST:
            raise ValueError(f"{len(value)} bytes, at most {LARGEST} are read")
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
            f"{shown(key)}: not a valid {what}: {type(error).__name__}: {why}"
        ) from None


def parsed(value: bytes) -> Mapping[str, object]:
    """Return the JSON object that the bytes hold."""
    found = json.loads(value)
    if not isinstance(found, dict):
        raise TypeError(f"{type(found).__name__} instead of an object")
    return found


def text(value: object) -> str:
    """Return a text that every part of schedd can store, send and log."""
    if not isinstance(value, str) or len(value) > LONGEST or not (value + " ").isprintable():
        raise ValueError(f"{value!r:.60} isn't a printable text of at most {LONGEST} characters")
    return value


def number(value: object, low: int, high: int) -> int:
    """Return a whole number within these bounds, both included."""
    if not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{value!r:.60} isn't a whole number from {low} to {high}")
    return value


def flag(value: object) -> bool:
    """Return true or false."""
    if not isinstance(value, bool):
        raise TypeError(f"{value!r:.60} isn't true or false")
    return value


def uuid(value: object) -> UUID:
    """Return the id that a text names."""
    return UUID(text(value))


def shown(key: str) -> str:
    """Return a key as people may read it: of one line, without bytes that aren't UTF-8."""
    readable = key.encode(errors="surrogateescape").decode(errors="backslashreplace")
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in readable)[:LONGEST]


def named(keys: Iterable[str]) -> str:
    """Return the keys as a list for people; of many, the first."""
    all_ = [shown(key) for key in keys]
    more = f" and {len(all_) - _NAMED} more" if len(all_) > _NAMED else ""
    return ", ".join(all_[:_NAMED]) + more
