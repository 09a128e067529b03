"""A cache with a TTL for expensive reads, with single flight.

An unavailable database fails all waiting readers. Any other error fails only the reader that read.
"""

from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from schedd.api.errors import MemberUnavailableError
from schedkit.clock import boottime
from schedkit.errors import Unavailable
from schedkit.single_flight import RUNNING, SingleFlight

Found = TypeVar("Found")


class _Known(NamedTuple):
    """An answer, and its expiry."""

    answer: Any
    until: float


class Recent:
    """The cached answers, by key. Concurrent readers of a key share one read."""

    def __init__(self, clock: Callable[[], float] = boottime) -> None:
        self._clock = clock
        self._known: dict[Hashable, _Known] = {}
        self._reads: SingleFlight[Hashable, _Known] = SingleFlight(
            "expensive read", shares=(Unavailable, MemberUnavailableError)
        )

    async def get_or_read(
        self, asked: Hashable, good_for: float, reading: Callable[[], Awaitable[Found]]
    ) -> Found:
        """Return the cached answer, up to `good_for` seconds old, or read a new one."""
        now = self._clock()
        self._known = {key: one for key, one in self._known.items() if one.until > now}
        known = self._known.get(asked)
        if known is None:
            read = partial(self._read, asked, good_for, reading)
            known = await self._reads.get(asked, read, since=RUNNING)
        answer: Found = known.answer
        return answer

    async def _read(
        self, asked: Hashable, good_for: float, reading: Callable[[], Awaitable[Found]]
    ) -> _Known:
        found = await reading()
        known = self._known[asked] = _Known(found, self._clock() + good_for)
        return known
