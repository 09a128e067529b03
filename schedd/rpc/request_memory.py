"""Limit the memory that requests of a member take. Past the limit, new requests wait to be read.

    call ─→ admitted in order of arrival ─→ its request is read, and its size counted ─→ its answer
              └─ limit reached: the request stays on the wire until the caller's deadline

Without the limit, 8,000 calls with 4 MiB each may wait for an unavailable or slow database.

Invariants
- A request counts from before it is read until its call has ended.
- A request that is being read counts as `WHILE_READ`, because its size isn't known yet. After
  `SOON` it counts as `WHILE_SLOW`. So many slow senders together may exceed `MOST` a little.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

MOST: Final = 64 * 1024 * 1024
"""Bytes on the wire."""
WHILE_READ: Final = 1024 * 1024
WHILE_SLOW: Final = 16 * 1024
SOON: Final = 0.5
"""Seconds."""


class Turn:
    """The memory of one call."""

    __slots__ = ("_memory", "_slow", "size")

    def __init__(self, memory: RequestMemory) -> None:
        self._memory = memory
        self.size = WHILE_READ
        self._slow = asyncio.get_running_loop().call_later(SOON, self.weighs, WHILE_SLOW)

    def weighs(self, size: int) -> None:
        """Set the size of its request, in bytes; 0: the call has ended."""
        self._slow.cancel()
        self._memory.change(size - self.size)
        self.size = size


class RequestMemory:
    """The bytes of all requests in progress."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self.taken = 0
        self._waiting: dict[asyncio.Future[None], None] = {}

    @asynccontextmanager
    async def admit_call(self) -> AsyncIterator[Turn]:
        """Admit a call, from before its request is read."""
        await self._room()
        turn = Turn(self)
        try:
            yield turn
        finally:
            turn.weighs(0)

    def change(self, size: int) -> None:
        """Add to the bytes taken, or subtract; then admit waiting calls."""
        self.taken += size
        while self._waiting and self.taken < self._most:
            first = next(iter(self._waiting))
            del self._waiting[first]
            if not first.done():
                self.taken += WHILE_READ
                first.set_result(None)

    async def _room(self) -> None:
        """Wait for room, and take it for the request that will be read."""
        if not self._waiting and self.taken < self._most:
            self.taken += WHILE_READ
            return
        mine = asyncio.get_running_loop().create_future()
        self._waiting[mine] = None
        try:
            await mine
        except asyncio.CancelledError:
            self._waiting.pop(mine, None)
            if mine.done() and not mine.cancelled():  # admitted at the same moment
                self.change(-WHILE_READ)
            raise
