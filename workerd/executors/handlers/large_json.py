"""JSON of others that is large is read and written beside the loop, never in one go.

    small ──→ at once          large ──→ in a thread, step by step ──→ back on the loop

Invariants
- A thread alone is no help: C code that reads or writes JSON has the interpreter to itself until
  it is done, whichever thread it is in. What is large is written by Python's own steps, between
  which the loop has its turn, and what need not be read is only looked through, which is quick.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from schedkit.text.json_text import TooDeep, check_levels
from workerd.executors.handlers.threads import Threads

T = TypeVar("T")

LARGE: Final = 64 * 1024
"""Bytes of JSON."""
_OF_A_VALUE: Final = 4
"""Bytes that one has at least, counting what stands around it; about."""
_KNOWN: Final = (list, tuple, dict)
_WRITER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)

_threads = Threads("large")


class TooLong(ValueError):
    """A text has more bytes than it may have."""


async def beside(call: Callable[[], T]) -> T:
    """What it gives, from a thread; or from here, where the host has no room for one more."""
    try:
        future = _threads.submit(call)
    except OSError:
        return call()
    return await future


async def beside_surely(call: Callable[[], T]) -> T:
    """The same, whatever cancels this task meanwhile. It creates no task that could be canceled."""
    try:
        future = _threads.submit(call)
    except OSError:
        return call()
    while not future.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([future])
    return future.result()


def is_json(data: bytes) -> bool:
    """Return whether it is JSON, in UTF-8, as a field of a message takes it. Makes nothing of it.

    Raises:
        TooDeep: it may be JSON, and is nested too deeply for a result.
    """
    try:
        data.decode()
        msgspec.json.decode(data, type=msgspec.Raw)
    except RecursionError:
        raise TooDeep from None
    except ValueError:
        return False
    check_levels(data)
    return True


def light(value: object) -> bool:
    """Whether its JSON is surely small. It looks at no more than that takes."""
    room, found = LARGE, [value]
    while found and room >= 0:
        one = found.pop()
        room -= _OF_A_VALUE
        if isinstance(one, str | bytes):
            room -= str.__len__(one) if isinstance(one, str) else len(one)
        elif type(one) not in _KNOWN and not isinstance(one, int | float | None):
            return False  # who knows what it does when it is looked at
        elif isinstance(one, list | tuple | dict):
            if len(one) * _OF_A_VALUE > room:
                return False
            found += one
            found += one.values() if isinstance(one, dict) else ()
    return room >= 0


def written(value: object, most: int) -> bytes:
    """Its JSON.

    Raises:
        TooLong: it has more bytes than `most`.
        TooDeep: it is nested too deeply for a result.
        TypeError, ValueError: it has none.
    """
    try:
        text = _WRITER.encode(value).encode() if light(value) else _by_steps(value, most)
    except RecursionError:
        raise TooDeep from None
    if len(text) > most:
        raise TooLong
    check_levels(text)
    return text


def _by_steps(value: object, most: int) -> bytes:
    text = bytearray()
    for piece in _WRITER.iterencode(value):
        text += piece.encode()
        if len(text) > most:
            raise TooLong
    return bytes(text)
