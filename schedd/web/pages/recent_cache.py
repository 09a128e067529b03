"""What was read a moment ago and is good for a while: looks that cost more than pages may each.

    asked ──▶ good still? ──▶ the answer
                └─ no ──▶ being read? ──▶ wait for that
                            └─ no ──▶ read

A database that is away is so for all who wait; what is wrong for one of them is not for the others.
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
    """An answer, and until when it is good."""

    answer: Any
    until: float


class _UnderWay:
    """A reading, which others wait for."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.away: Unavailable | OutOfTouch | None = None
        """Why nobody is told anything now."""


class Recent:
    """The last answers, by what was asked. Of those who ask for the same at once one reads."""

    def __init__(self, clock: Callable[[], float] = boottime) -> None:
        self._clock = clock
        self._known: dict[Hashable, _Known] = {}
        self._under_way: dict[Hashable, _UnderWay] = {}

    async def of(
        self, asked: Hashable, good_for: float, reading: Callable[[], Awaitable[Found]]
    ) -> Found:
        """The last answer, if it is no older than `good_for` seconds; else a new one."""
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
        finally:  # who waits reads for itself, where this one left or was refused
            del self._under_way[asked]
            under_way.over.set()
        return found
