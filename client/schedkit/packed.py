"""Runs in hand as bytes, one after the other (`Held` in `worker_service.proto`).

A worker may have twenty thousand, and tells each member of all of them every few seconds: as
messages that took a member a second of its loop.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

_KEY: Final = struct.Struct("!16sq")
_START: Final = struct.Struct("!16sqq")
KEY_SIZE: Final = _KEY.size
"""Bytes of a run's id and its fencing token."""


def pack_key(run: bytes, token: int) -> bytes:
    """A run's id of 16 bytes, and the token of an assignment."""
    return _KEY.pack(run, token)


def pack_start(run: bytes, token: int, since: int) -> bytes:
    """The same, and when it started: microseconds since 1970."""
    return _START.pack(run, token, since)


def keys(packed: bytes) -> Iterator[tuple[bytes, int]]:
    """Ids and tokens.

    Raises:
        ValueError: at once; these bytes aren't whole keys.
    """
    _check(packed, _KEY)
    return _KEY.iter_unpack(packed)


def starts(packed: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Ids, tokens, and when they started.

    Raises:
        ValueError: at once; as above.
    """
    _check(packed, _START)
    return _START.iter_unpack(packed)


def _check(packed: bytes, of: struct.Struct) -> None:
    if len(packed) % of.size:
        raise ValueError(f"{len(packed)} bytes aren't whole pieces of {of.size}")
