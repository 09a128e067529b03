"""What one attempt writes while it runs, for those who follow it: what is kept by now, then each
piece as it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from workerd.core.capture import Piece
from workerd.recording import Recording

Hear = Callable[[Piece], object]


def _nothing() -> Sequence[Piece]:
    return ()


class Tail:
    """Of an attempt; belongs to the event loop."""

    __slots__ = ("_followers", "_kept", "recording")

    def __init__(self, recording: Recording | None = None) -> None:
        """`recording`: takes all of it."""
        self.recording = recording
        self._kept: Callable[[], Sequence[Piece]] = _nothing
        self._followers: dict[object, Hear] = {}

    def begins(self, kept: Callable[[], Sequence[Piece]]) -> None:
        """It has output; `kept` gives what is kept of it so far."""
        self._kept = kept

    def came(self, piece: Piece) -> None:
        """It wrote this."""
        if self.recording is not None:
            self.recording.came(piece)
        for hear in self._followers.values():
            hear(piece)

    @property
    def full(self) -> bool:
        """Whether its recording can't keep up: nothing more should be read before `room`."""
        return self.recording is not None and self.recording.full

    async def room(self) -> None:
        """Return when more may be read, soon."""
        if self.recording is not None:
            await self.recording.room()

    def follow(self, who: object, hear: Hear) -> None:
        """Tell `who` all that is kept, and what comes. Asked again, all of it again."""
        self._followers[who] = hear
        for piece in self._kept():
            hear(piece)

    def unfollow(self, who: object) -> None:
        """Nothing more for `who`."""
        self._followers.pop(who, None)
