"""Where the frames of a stream end, without knowing what they say.

A frame is what its protocol makes of the bytes first: a frame of HTTP/2, a message of PostgreSQL. A
connection that is cut inside one has sent bytes whose rest stays unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

Sizer: TypeAlias = Callable[[bytes], int]
"""The length of the frame that begins so, or 0 as long as that isn't known. Asked with one byte
more each time, and once for each frame past that, so it may keep what it knows of the stream."""

PREFACE = 24
ENCRYPTED = (80877103, 80877104)
"""A client of PostgreSQL asks with these whether it may speak in cipher; a byte is the answer."""


class Frames:
    """Direction of one connection, from its first byte on."""

    def __init__(self, protocol: str, *, up: bool) -> None:
        """`protocol`: a name in `PROTOCOLS`. `up`: what the client says."""
        self._size = PROTOCOLS[protocol](up)
        self._head = bytearray()
        self._lacking = 0

    def ends(self, piece: bytes) -> set[int]:
        """The places in the next piece of the stream at which no frame is under way."""
        found, at = set[int](), 0
        while at < len(piece):
            step = min(self._lacking, len(piece) - at)
            self._lacking -= step
            if not step:
                self._head.append(piece[at])
                step = 1
                if size := self._size(bytes(self._head)):
                    self._lacking = size - len(self._head)
                    self._head.clear()
            at += step
            if not self._lacking and not self._head:
                found.add(at)
        return found


def http2(up: bool) -> Sizer:
    """Three bytes of length in a header of nine; what a client says begins with a preface."""
    begun = not up

    def size(head: bytes) -> int:
        nonlocal begun
        if not begun:
            begun = True
            return PREFACE
        return 9 + int.from_bytes(head[:3], "big") if len(head) == 9 else 0

    return size


def postgres(up: bool) -> Sizer:
    """A byte of type and four of length; but what a client says first has no type."""
    typed = False

    def size(head: bytes) -> int:
        nonlocal typed
        if typed:
            return 1 + int.from_bytes(head[1:5], "big") if len(head) == 5 else 0
        if up:
            if len(head) < 8:
                return 0
            typed = int.from_bytes(head[4:8], "big") not in ENCRYPTED
            return int.from_bytes(head[:4], "big")
        typed = head not in (b"N", b"S")
        return 0 if typed else 1

    return size


PROTOCOLS: Mapping[str, Callable[[bool], Sizer]] = {"http2": http2, "postgres": postgres}
