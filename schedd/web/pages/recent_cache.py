"""A cache with a TTL for expensive reads, with single flight.

    asked ──▶ cached? ──▶ the answer
                └─ no ──▶ being read? ──▶ wait for that
                            └─ no ──▶ read

An unavailable database fails all waiting readers. Any other error fails only the reader that read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, NamedTuple, TypeVar

from schedd.api.errors import OutOfTouch
from schedkit.clock import boottime
from schedkit.errors import Unavailable

Found = TypeVar("Found")


class _Known(NamedTuple):
    """An answer, and its expiry."""

    answer: Any
    until: float


class _UnderWay:
    """A read in progress, which other readers wait for."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.away: Unavailable | OutOfTouch | None = None
        """The error for all waiting readers."""


class Recent:
    """The cached answers, by key. Concurrent readers of a key share one read."""

    def __init__(self, clock: Callable[[], float] = boottime) -> None:
        self._clock = clock
        self._known: dict[Hashable, _Known] = {}
        self._under_way: dict[Hashable, _UnderWay] = {}

    async def of(
        self, asked: Hashable, good_for: float, reading: Callable[[], Awaitable[Found]]
    ) -> Found:
        """Return the cached answer, up to `good_for` seconds old, or read a new one."""
        while (known := self._good(asked)) is None:
            if (under_way := self._under_way.get(asked)) is None:
                return await self._read(asked, good_for, reading)
            await under_way.over.wait()
            if under_way.away is not None:
                raise under_way.away
        answer: Found = known.answer
        return answer

    def _good(self, asked: Hashable) -> _Known | None:
        now = self._clock()
        self._known = {key: one for key, one in self._known.items() if one.until > now}
        return self._known.get(asked)

    async def _read(
        self, asked: Hashable, good_for: float, reading: Callable[[], Awaitable[Found]]
    ) -> Found:
        under_way = self._under_way[asked] = _UnderWay()
        try:
            found = await reading()
            self._known[asked] = _Known(found, self._clock() + good_for)
        except (Unavailable, OutOfTouch) as error:
            under_way.away = error
            raise
        finally:  # after any other error, waiting readers read themselves
            del self._under_way[asked]
            under_way.over.set()
        return found
