"""The first and last 64 KiB of a stream of any length, in memory that doesn't grow with it.

Secrets are masked before anything is kept: offsets and counts are those of the masked stream.

Invariants
- `head` and `tail` never overlap; what lies between them is counted, never guessed.
- At most `3 * KEEP` bytes are held, however much flows through.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from workerd.core.masking import Mask

KEEP = 64 * 1024


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of one stream as the job wrote them, but for secrets."""

    stderr: bool
    data: bytes
    offset: int
    """Where `data` begins in its stream."""
    at: datetime
    """When its first byte was read."""
    omitted: int = 0
    """Bytes left out just before it."""


@dataclass(slots=True)
class Capture:
    """One stream, being read."""

    stderr: bool
    mask: Mask = field(default_factory=Mask)
    tell: Callable[[Piece], object] | None = None
    """Told of each piece that comes."""
    total: int = 0
    _head: bytearray = field(default_factory=bytearray)
    _tail: bytearray = field(default_factory=bytearray)
    _began: datetime | None = None
    _tailed: datetime | None = None

    def feed(self, data: bytes, at: datetime) -> None:
        """Take in what was read at `at`."""
        self._keep(self.mask.feed(data), at)

    def end(self, at: datetime) -> None:
        """Nothing more of it is wanted."""
        self._keep(self.mask.end(), at)

    def pieces(self) -> list[Piece]:
        """What is kept: nothing, the head, or the head and the tail."""
        if self._began is None:
            return []
        kept = [Piece(self.stderr, bytes(self._head), 0, self._began)]
        if self._tailed is not None:
            tail = bytes(self._tail[-KEEP:])
            offset = self.total - len(tail)
            omitted = offset - len(self._head)
            kept.append(Piece(self.stderr, tail, offset, self._tailed, omitted))
        return kept

    def _keep(self, data: bytes, at: datetime) -> None:
        if not data:
            return
        if self._began is None:
            self._began = at
        if self.tell is not None:
            self.tell(Piece(self.stderr, data, self.total, at))
        self.total += len(data)
        room = KEEP - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tailed = at
            self._tail += data
            if len(self._tail) > 2 * KEEP:
                del self._tail[:-KEEP]
