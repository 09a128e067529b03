"""The output of a running attempt, for its followers: first the kept output, then each new piece.

A member that reads an assignment in the database may follow it before the owner's assignment has
reached the worker. `Expected` holds the followers of such attempts.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from workerd.core.capture import Piece
from workerd.core.ids import AssignmentKey
from workerd.logs.attempt_log import Recording

OnPiece = Callable[[Piece], object]

MOST_EXPECTED: Final = 1000
"""Attempts that are followed before they arrive; the oldest is removed for a new one."""


class Tail:
    """The output of an attempt. Belongs to the event loop."""

    __slots__ = ("_followers", "_kept", "recording")

    def __init__(self, recording: Recording | None = None) -> None:
        """`recording`: records all of it."""
        self.recording = recording
        self._kept: Callable[[], Sequence[Piece]] = tuple
        self._followers: dict[object, OnPiece] = {}

    def begins(self, kept: Callable[[], Sequence[Piece]]) -> None:
        self._kept = kept

    def add_piece(self, piece: Piece) -> None:
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
