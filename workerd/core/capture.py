"""The first and last 64 KiB of a stream of any length, in memory that doesn't grow with it.

Secrets are masked before anything is kept. Offsets and counts refer to the masked stream.

Invariants
- Pieces never overlap. The bytes between head and tail are counted.
- At most `3 * KEEP` bytes and `2 * MOST_MARKS` times are held, however much flows through.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from datetime import datetime, timedelta
from itertools import pairwise

from schedkit.records import dataclass

# Mask secrets in a stream, however its bytes are split into pieces.
#
#     … password=hunter42hunter42 …  ──→  … password=*** …
#
# The end of the input is held back as far as it may be the beginning of a secret.
#
# Invariants
# - No byte of a secret in the stream is ever returned, also if two secrets overlap.
# - Less is held back than the length of the longest secret.

LEAST = 6
"""Bytes. Shorter values (`true`, `5432`) occur in any output; masking them would reveal them."""
MASK = b"***"


class Mask:
    """The mask of one stream. Without secrets the data is unchanged."""

    def __init__(self, secrets: Iterable[bytes] = ()) -> None:
        self._secrets = sorted({secret for secret in secrets if len(secret) >= LEAST})
        self._held = b""
        self._covered = 0
        """Bytes held back that belong to a masked secret."""

    def feed(self, data: bytes) -> bytes:
        """Add data; return what may be shown by now."""
        if not self._secrets:
            return data
        data = self._held + data
        return self._given(data, self._unfinished_secret_start(data))

    def end(self) -> bytes:
        return self._given(self._held, len(self._held))

    def _given(self, data: bytes, until: int) -> bytes:
        """Return `data` up to `until`, masked. Hold the rest back."""
        shown, at = [], self._covered
        for start, stop in self._found(data):
            if start >= until:
                break
            if start >= at:
                shown += [data[at:start], MASK]
            at = max(at, stop)
        shown.append(data[at : max(at, until)])
        self._held, self._covered = data[until:], max(0, at - until)
        return b"".join(shown)

    def _unfinished_secret_start(self, data: bytes) -> int:
        """Return where a possible unfinished secret begins; the end if there is none."""
        first = len(data)
        for secret in self._secrets:
            at = data.find(secret[:1], max(0, len(data) - len(secret) + 1), first)
            while at >= 0 and not secret.startswith(data[at:]):
                at = data.find(secret[:1], at + 1, first)
            first = at if at >= 0 else first
        return first

    def _found(self, data: bytes) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for secret in self._secrets:
            start = data.find(secret)
            while start >= 0:
                found.append((start, start + len(secret)))
                start = data.find(secret, start + 1)
        return sorted(found)


KEEP = 64 * 1024
MOST_MARKS = 32
"""Times kept for each end of the stream."""
FINEST = timedelta(milliseconds=10)


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of one stream, as the job wrote them, with secrets masked."""

    stderr: bool
    data: bytes
    offset: int
    """Offset of `data` in its stream."""
    at: datetime
    """When its first byte was read."""
    omitted: int = 0
    """Bytes omitted directly before this piece."""


@dataclass(slots=True)
class Marks:
    """Read times by offset. The longer the stream, the greater their distance."""

    _marks: list[tuple[int, datetime]] = field(default_factory=list)
    _apart: timedelta = FINEST

    def note(self, offset: int, at: datetime) -> None:
        """Record that the byte at `offset` was read at `at`."""
        if self._marks and abs(at - self._marks[-1][1]) < self._apart:
            return
        self._marks.append((offset, at))
        if len(self._marks) > MOST_MARKS:
            del self._marks[1::2]
            self._apart *= 2

    def forget(self, before: int) -> None:
        while len(self._marks) > 1 and self._marks[1][0] <= before:
            del self._marks[0]
        if len(self._marks) < MOST_MARKS // 4:
            self._apart = max(FINEST, self._apart / 2)

    def cut(self, begin: int, end: int) -> Iterator[tuple[int, int, datetime]]:
        """Split the range from `begin` to `end` by read time: from, to, time."""
        self.forget(begin)
        edges = [begin, *(offset for offset, _ in self._marks[1:] if offset < end), end]
        for (start, stop), (_, at) in zip(pairwise(edges), self._marks, strict=False):
            yield start, stop, at


@dataclass(slots=True)
class Capture:
    stderr: bool
    mask: Mask = field(default_factory=Mask)
    tell: Callable[[Piece], object] | None = None
    """Called with each piece."""
    total: int = 0
    _head: bytearray = field(default_factory=bytearray)
    _tail: bytearray = field(default_factory=bytearray)
    _headed: Marks = field(default_factory=Marks)
    _tailed: Marks = field(default_factory=Marks)

    def feed(self, data: bytes, at: datetime) -> None:
        self._append_output(self.mask.feed(data), at)

    def end(self, at: datetime) -> None:
        self._append_output(self.mask.end(), at)

    def pieces(self) -> list[Piece]:
        """Return the kept pieces by read time: nothing, the head, or the head and the tail."""
        tail = bytes(self._tail[-KEEP:])
        return [
            *self._pieces(bytes(self._head), 0, self._headed),
            *self._pieces(tail, self.total - len(tail), self._tailed, after=len(self._head)),
        ]

    def _pieces(self, data: bytes, offset: int, marks: Marks, after: int = 0) -> Iterator[Piece]:
        for start, stop, at in marks.cut(offset, offset + len(data)):
            part = data[start - offset : stop - offset]
            yield Piece(self.stderr, part, start, at, omitted=max(0, start - after))
            after = stop

    def _append_output(self, data: bytes, at: datetime) -> None:
        if not data:
            return
        if self.tell is not None:
            self.tell(Piece(self.stderr, data, self.total, at))
        room = KEEP - len(self._head)
        if room > 0:
            self._headed.note(self.total, at)
            self._head += data[:room]
        if rest := data[max(0, room) :]:
            self._tailed.note(self.total + len(data) - len(rest), at)
            self._tail += rest
        self.total += len(data)
        if len(self._tail) > 2 * KEEP:
            del self._tail[:-KEEP]
            self._tailed.forget(self.total - KEEP)
