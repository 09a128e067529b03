"""The output of a running attempt, for its followers: first the kept output, then each new piece.

A member that reads an assignment in the database may follow it before the owner's assignment has
reached the worker. `Expected` holds the followers of such attempts.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Final

from schedkit.clock import utcnow
from workerd.core.capture import Capture, Mask, Piece
from workerd.core.ids import AssignmentKey
from workerd.logs.attempt_log import Recording

OnPiece = Callable[[Piece], object]

MOST_EXPECTED: Final = 1000
"""Attempts that are followed before they arrive; the oldest is removed for a new one."""


class Tail:
    """The output of an attempt: captured, recorded and followed. Belongs to the event loop."""

    __slots__ = ("_captures", "_followers", "recording")

    def __init__(self, recording: Recording | None = None) -> None:
        """`recording`: records all of it."""
        self.recording = recording
        self._captures: Sequence[Capture] = ()
        self._followers: dict[object, OnPiece] = {}

    def capture(self, secrets: Iterable[bytes] = ()) -> None:
        """Begin to capture stdout and stderr. `secrets`: masked in them."""
        self._captures = [Capture(each, Mask(secrets), self._add_piece) for each in (False, True)]

    def feed(self, stderr: bool, data: bytes, at: datetime) -> None:
        self._captures[stderr].feed(data, at)

    def end(self) -> tuple[Piece, ...]:
        """Return the kept output of both streams, which have ended."""
        for capture in self._captures:
            capture.end(utcnow())
        return self._kept()

    def _kept(self) -> tuple[Piece, ...]:
        """Return the kept output of both streams, in the order of reading."""
        kept = (capture.pieces() for capture in self._captures)
        return tuple(heapq.merge(*kept, key=lambda piece: piece.at))

    def _add_piece(self, piece: Piece) -> None:
        if self.recording is not None:
            self.recording.record_piece(piece)
        for on_piece in self._followers.values():
            on_piece(piece)

    @property
    def full(self) -> bool:
        """Whether the recording is too slow, and reading must stop until there is `room`."""
        return self.recording is not None and self.recording.full

    async def room(self) -> None:
        if self.recording is not None:
            await self.recording.room()

    def follow(self, who: object, on_piece: OnPiece) -> None:
        """Send the kept output and all new pieces to `who`. A second call sends all again."""
        self._followers[who] = on_piece
        for piece in self._kept():
            on_piece(piece)

    def unfollow(self, who: object) -> None:
        self._followers.pop(who, None)

    @property
    def followed(self) -> bool:
        return bool(self._followers)


class Expected:
    """Attempts that are followed before their assignment arrives."""

    def __init__(self) -> None:
        self._tails: OrderedDict[AssignmentKey, Tail] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tails)

    def follow(self, key: AssignmentKey, who: object, on_piece: OnPiece) -> None:
        """Send the output of this attempt to `who` once it arrives."""
        self._tails.setdefault(key, Tail()).follow(who, on_piece)
        if len(self._tails) > MOST_EXPECTED:
            self._tails.popitem(last=False)

    def unfollow(self, key: AssignmentKey, who: object) -> None:
        if (tail := self._tails.get(key)) is not None:
            tail.unfollow(who)
            if not tail.followed:
                del self._tails[key]

    def remove_follower(self, who: object) -> None:
        for key in [*self._tails]:
            self.unfollow(key, who)

    def take_tail(self, key: AssignmentKey) -> Tail | None:
        """Return the tail of an attempt that arrived, with its followers; None without any."""
        return self._tails.pop(key, None)
