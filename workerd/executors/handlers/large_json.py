"""Read and write large JSON of others without blocking the event loop.

    small ──→ directly          large ──→ in a thread, step by step ──→ back on the loop

Invariants
- A thread alone isn't enough: C code that reads or writes JSON holds the GIL until it is done.
  Large values are written by Python code, which releases the GIL between steps. JSON that isn't
  needed as values is only validated, which is fast.
"""

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
"""Approximate minimum bytes of a value with its separators."""
_KNOWN: Final = (list, tuple, dict)
_WRITER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)

_threads = Threads("large")


class TooLong(ValueError):
    """A text exceeds its limit."""


async def beside(call: Callable[[], T]) -> T:
    """Return the result of a call in a thread; or in this thread, if the host is out of threads."""
    try:
        future = _threads.submit(call)
    except OSError:
        return call()
    return await future


async def beside_surely(call: Callable[[], T]) -> T:
    """As `beside`, but ignore cancels of this task. It creates no task that could be canceled."""
    try:
        future = _threads.submit(call)
    except OSError:
        return call()
    while not future.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([future])
    return future.result()


def is_json(data: bytes) -> bool:
    """Return whether this is JSON in UTF-8, without building its values. Raises TooDeep: it is
    nested too deeply for a result.
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
    """Return whether the JSON of a value is surely small. Reads only as much as needed."""
    room, found = LARGE, [value]
    while found and room >= 0:
        one = found.pop()
        room -= _OF_A_VALUE
        if isinstance(one, str | bytes):
            room -= str.__len__(one) if isinstance(one, str) else len(one)
        elif type(one) not in _KNOWN and not isinstance(one, int | float | None):
            return False  # a user's type may do anything when it is read
        elif isinstance(one, list | tuple | dict):
            if len(one) * _OF_A_VALUE > room:
                return False
            found += one
            found += one.values() if isinstance(one, dict) else ()
    return room >= 0


def written(value: object, most: int) -> bytes:
    """Return the JSON of a value.

    Raises:
        TooLong: it has more bytes than `most`.
        TooDeep: it is nested too deeply for a result.
        TypeError, ValueError: the value can't be written as JSON.
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
