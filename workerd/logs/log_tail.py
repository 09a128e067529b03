"""What one attempt writes while it runs, for those who follow it: what is kept by now, then each
piece as it is read.

A member reads in the database that a run was handed out, and its owner's assignment may reach the
worker later than what that member asks: `Expected` has who follows attempts that haven't come.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from workerd.core.capture import Piece
from workerd.core.ids import AssignmentKey
from workerd.logs.attempt_log import Recording

Hear = Callable[[Piece], object]

MOST_EXPECTED: Final = 1000
"""Attempts that are followed before they come; the longest expected is given up for one more."""


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

    @property
    def followed(self) -> bool:
        """Whether anybody does."""
        return bool(self._followers)


class Expected:
    """Attempts that somebody follows already."""

    def __init__(self) -> None:
        self._tails: OrderedDict[AssignmentKey, Tail] = OrderedDict()

    def __len__(self) -> int:
        """How many."""
        return len(self._tails)

    def follow(self, key: AssignmentKey, who: object, hear: Hear) -> None:
        """Tell `who` what this attempt writes, when it comes."""
        self._tails.setdefault(key, Tail()).follow(who, hear)
        if len(self._tails) > MOST_EXPECTED:
            self._tails.popitem(last=False)

    def unfollow(self, key: AssignmentKey, who: object) -> None:
        """Nothing more for `who`."""
        if (tail := self._tails.get(key)) is not None:
            tail.unfollow(who)
            if not tail.followed:
                del self._tails[key]

    def gone(self, who: object) -> None:
        """`who` follows nothing any more."""
        for key in [*self._tails]:
            self.unfollow(key, who)

    def came(self, key: AssignmentKey) -> Tail:
        """This attempt is here: its tail, with those who follow it."""
        return self._tails.pop(key, None) or Tail()
