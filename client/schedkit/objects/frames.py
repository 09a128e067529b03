"""Several messages in one object, each preceded by its length in four bytes."""

from collections.abc import Iterator
from typing import Final

_HEAD: Final = 4
MOST: Final = 4 << 20
"""Maximum bytes of a message; our own messages are never longer."""


def framed(message: bytes) -> bytes:
    return len(message).to_bytes(_HEAD, "big") + message


class Unframed:
    """Splits an object's bytes into messages, piece by piece."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add bytes; yield the complete messages. Raises ValueError if they aren't messages."""
        self._held += data
        at = 0
        while len(self._held) - at >= _HEAD:
            size = int.from_bytes(self._held[at : at + _HEAD], "big")
            if size > MOST:
                raise ValueError(f"a message has {size:,} bytes; at most {MOST:,} are allowed")
            if len(self._held) - at - _HEAD < size:
                break
            yield bytes(self._held[at + _HEAD : at + _HEAD + size])
            at += _HEAD + size
        del self._held[:at]
