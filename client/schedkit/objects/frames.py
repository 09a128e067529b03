"""Many messages in one object: each with its length, four bytes, before it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_HEAD: Final = 4
MOST: Final = 4 << 20
"""Bytes of a message: what is longer isn't one of ours."""


def framed(message: bytes) -> bytes:
    """As it stands in the object."""
    return len(message).to_bytes(_HEAD, "big") + message


class Unframed:
    """Takes the object's bytes as they come, gives the messages that are whole by then."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Those that end in `data`. Raises ValueError where these are no messages."""
        self._held += data
        at = 0
        while len(self._held) - at >= _HEAD:
            size = int.from_bytes(self._held[at : at + _HEAD], "big")
            if size > MOST:
                raise ValueError(f"a message of {size} bytes")
            if len(self._held) - at - _HEAD < size:
                break
            yield bytes(self._held[at + _HEAD : at + _HEAD + size])
            at += _HEAD + size
        del self._held[:at]
