"""How much of what callers sent a member holds at a time: past that, requests wait to be read.

    call ─→ a turn, in the order of coming ─→ its request is read, and weighed ─→ … ─→ its answer
              └─ too much is in hand: it waits, its request on the wire, until its caller's deadline

While the database is away or slow calls hold what they were sent. Eight thousand of 4 MiB each may
come; so their number bounds nothing.

Invariants
- A request counts from before it is read until its call has ended, however that ends.
- Who reads takes `WHILE_READ`, for what it will weigh isn't known; who sends slowly has that for
  `SOON` alone, and little afterwards. So many that send slowly may have taken in more than `MOST`,
  and who comes behind them waits a little: it is for honest callers of a slow database.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

MOST: Final = 64 * 1024 * 1024
"""Bytes, as on the wire."""
WHILE_READ: Final = 1024 * 1024
WHILE_SLOW: Final = 16 * 1024
SOON: Final = 0.5
"""Seconds."""


class Turn:
    """One call's part of it."""

    __slots__ = ("_in_hand", "_slow", "size")

    def __init__(self, in_hand: RequestMemory) -> None:
        self._in_hand = in_hand
        self.size = WHILE_READ
        self._slow = asyncio.get_running_loop().call_later(SOON, self.weighs, WHILE_SLOW)

    def weighs(self, size: int) -> None:
        """Its request is read, and has so many bytes; 0: its call has ended."""
        self._slow.cancel()
        self._in_hand.change(size - self.size)
        self.size = size


class RequestMemory:
    """The requests that calls hold, by their bytes."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self.taken = 0
        self._waiting: dict[asyncio.Future[None], None] = {}

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Turn]:
        """Around a call, from before its request is read."""
        await self._room()
        turn = Turn(self)
        try:
            yield turn
        finally:
            turn.weighs(0)

    def change(self, size: int) -> None:
        """So much more is in hand, or less; then others are let in."""
        self.taken += size
        while self._waiting and self.taken < self._most:
            first = next(iter(self._waiting))
            del self._waiting[first]
            if not first.done():
                self.taken += WHILE_READ
                first.set_result(None)

    async def _room(self) -> None:
        """Return when there is room, which is then taken for what is about to be read."""
        if not self._waiting and self.taken < self._most:
            self.taken += WHILE_READ
            return
        mine = asyncio.get_running_loop().create_future()
        self._waiting[mine] = None
        try:
            await mine
        except asyncio.CancelledError:
            self._waiting.pop(mine, None)
            if mine.done() and not mine.cancelled():  # it was let in at that very moment
                self.change(-WHILE_READ)
            raise
