"""Who reads a stream, until what they were known by is over: also where nothing happens on it.

    stream ─▶ next item ──waits──▶ item
                  ▲ ended: what a call would be refused with
    judging   each TICK: of each reader, by what is in memory
    reading   the rows of all their tokens in one look at the database, before one is FRESH old;
              at once when a token was revoked here

Invariants
- A stream ends within FRESH of a revocation on any member, and within TICK of an expiry.
- However many streams there are, they cost one look at the database in a while, and two wake-ups
  a second; where nobody reads, or nobody is asked who they are, nothing.
- Only the end of what its reader was known by ends a stream, and then no item of it is wanted: a
  wait is never given up to be taken up again. While the database is away none ends but by expiry.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection
from enum import Enum
from typing import Final, Literal, TypeVar

from schedd.api.errors import Unauthenticated
from schedd.core.ids import AccessTokenId
from schedd.core.jobs.rights import Identity
from schedkit.backoff import Backoff
from schedkit.tasks import Loop

T = TypeVar("T")

TICK: Final = 1.0
"""Seconds between two looks at who is still known."""
IDLE: Final = 3600.0
"""Seconds between them where nobody reads: the first reader wakes them."""


class Readers:
    """Those of one member.

    `over`: why somebody isn't known any more, by what is in memory. `refresh`: has that be new
    enough for these tokens; whether it had to look.
    """

    def __init__(
        self,
        over: Callable[[Identity], Unauthenticated | None],
        refresh: Callable[[Collection[AccessTokenId]], Awaitable[bool]],
    ) -> None:
        self._over, self._refresh = over, refresh
        self._readers: set[_Reader] = set()
        self._judging = Loop("readers", self._judge, TICK)
        steady = Backoff(initial=TICK, maximum=TICK)
        self._reading = Loop("tokens of readers", self._read, TICK, steady)
        self.loops: Final = (self._judging, self._reading)
        """To be run as long as there may be any."""

    async def until_over(self, who: Identity, items: AsyncIterator[T]) -> AsyncGenerator[T, None]:
        """These; raises Unauthenticated as soon as what their reader was known by is over."""
        if who.token is None and who.until is None:
            async for item in items:
                yield item
            return
        reader = self._come(_Reader(who))
        try:
            while True:
                read = await reader.next(items)
                if read is _END:
                    return
                yield read
        finally:
            self._readers.discard(reader)

    def revoked(self) -> None:
        """A token was, here: nobody waits for the next look."""
        self._reading.wake()

    def _come(self, reader: _Reader) -> _Reader:
        if not self._readers:
            for loop in self.loops:
                loop.wake()
        self._readers.add(reader)
        return reader

    async def _judge(self) -> float:
        for reader in [*self._readers]:
            if (over := self._over(reader.who)) is not None:
                self._readers.discard(reader)
                reader.end(over)
        return self._pause()

    async def _read(self) -> float:
        tokens = {one.who.token for one in self._readers if one.who.token is not None}
        if tokens and await self._refresh(tokens):
            self._judging.wake()
        return self._pause()

    def _pause(self) -> float:
        return TICK if self._readers else IDLE


class _End(Enum):
    END = "end"


_END: Final = _End.END


class _Reader:
    """One stream's. It waits for one item at a time."""

    def __init__(self, who: Identity) -> None:
        self.who: Final = who
        self._over: Unauthenticated | None = None
        self._wait: asyncio.Timeout | None = None

    def end(self, over: Unauthenticated) -> None:
        """It reads no more."""
        self._over = over
        if self._wait is not None:
            self._wait.reschedule(0.0)

    async def next(self, items: AsyncIterator[T]) -> T | Literal[_End.END]:
        """The next of these. Raises Unauthenticated: it has ended."""
        if self._over is None:
            self._wait = wait = asyncio.timeout(None)
            try:
                async with wait:
                    return await anext(items, _END)
            except TimeoutError:
                if not wait.expired():
                    raise
            finally:
                self._wait = None
        assert self._over is not None
        try:
            raise self._over from None
        finally:
            self._over = None  # which would hold this frame, and this frame it, with the stream
