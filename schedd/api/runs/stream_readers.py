"""End streams whose reader's credentials have expired or been revoked, idle streams included.

    stream ─▶ next item ──waits──▶ item
                  ▲ ended: the error with which a call would be rejected
    checking  every TICK: each reader's credentials, by the cached rows
    reading   the rows of all readers' tokens in one query, before they are older than FRESH;
              at once when a token was revoked here

Invariants
- A stream ends within FRESH of a revocation on any member, and within TICK of an expiry.
- All streams together cost one query per FRESH and two wake-ups a second; without streams, or
  without authentication, nothing.
- Only invalid credentials end a stream here. A wait for an item is never interrupted and resumed.
  While PostgreSQL is unavailable, streams end at expiry only.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Final, Literal, TypeVar

from schedd.api.errors import LimitReachedError, UnauthenticatedError
from schedd.core.auth.rights import CallerIdentity
from schedd.core.ids import AccessTokenId
from schedkit.backoff import Backoff
from schedkit.tasks import Loop

T = TypeVar("T")

TICK: Final = 1.0
"""Seconds between two checks of the readers."""
IDLE: Final = 3600.0
"""Seconds between them without readers: the first reader wakes the loops."""


class Readers:
    """The readers of one member.

    `over` returns why an identity isn't valid any more, by the cached rows. `refresh` updates the
    cached rows of these tokens; it returns whether it queried the database.
    """

    def __init__(
        self,
        over: Callable[[CallerIdentity], UnauthenticatedError | None],
        refresh: Callable[[Collection[AccessTokenId]], Awaitable[bool]],
    ) -> None:
        self._over, self._refresh = over, refresh
        self._readers: set[_Reader] = set()
        self._judging = Loop("readers", self._judge, TICK)
        steady = Backoff(initial=TICK, maximum=TICK)
        self._reading = Loop("stream credentials", self._read, TICK, steady)
        self.loops: Final = (self._judging, self._reading)
        """Loops to run while there may be readers."""

    async def until_over(
        self, who: CallerIdentity, items: AsyncIterator[T]
    ) -> AsyncGenerator[T, None]:
        """Return the items until the credentials end, which raises UnauthenticatedError, also
        while no item comes. The caller must close it.
        """
        if who.token is None and who.until is None:
            async for item in items:
                yield item
            return
        if not self._readers:
            for loop in self.loops:
                loop.wake()
        self._readers.add(reader := _Reader(who))
        try:
            while True:
                read = await reader.next(items)
                if read is _END:
                    return
                yield read
        finally:
            self._readers.discard(reader)

    def revoked(self) -> None:
        """Check all readers now, because a token was revoked here."""
        self._reading.wake()

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
    """The reader of one stream. It waits for one item at a time."""

    def __init__(self, who: CallerIdentity) -> None:
        self.who: Final = who
        self._over: UnauthenticatedError | None = None
        self._wait: asyncio.Timeout | None = None

    def end(self, over: UnauthenticatedError) -> None:
        self._over = over
        if self._wait is not None:
            self._wait.reschedule(0.0)

    async def next(self, items: AsyncIterator[T]) -> T | Literal[_End.END]:
        """Return the next item. Raises UnauthenticatedError if the stream was ended."""
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
            self._over = None  # break the reference cycle of error and frame


# Limits of open streams, in total and for each host, so that one host can't use all of them.
#
# An open stream costs memory and regular queries for as long as its reader stays.

MOST_OF_ONE_HOST: Final = 256
MOST: Final = 2_048


class Places:
    """The streams that are open, by host."""

    def __init__(self, most_of_one: int = MOST_OF_ONE_HOST, most: int = MOST) -> None:
        self._most_of_one, self._most = most_of_one, most
        self._taken: Counter[str] = Counter()

    @contextmanager
    def taken(self, peer: str) -> Iterator[None]:
        """Count one stream of this peer (`host:port`) while it is open.

        Raises:
            LimitReachedError: its host, or all hosts together, have too many streams.
        """
        host = peer.rpartition(":")[0] or peer
        if self._taken[host] >= self._most_of_one or self._taken.total() >= self._most:
            raise LimitReachedError(
                "too many streams of watches and logs are open on this member:"
                f" {self._taken[host]:,} by your host (at most {self._most_of_one:,}),"
                f" {self._taken.total():,} by all hosts together (at most {self._most:,})",
                reason="TOO_MANY_STREAMS",
                remedy="close some streams; one stream can watch many runs",
            )
        self._taken[host] += 1
        try:
            yield
        finally:
            self._taken[host] -= 1
            if not self._taken[host]:
                del self._taken[host]
