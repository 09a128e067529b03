"""What was read a moment ago and is good for a while: looks that cost more than pages may each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Any, NamedTuple, TypeVar

from schedkit.clock import boottime

Found = TypeVar("Found")


class _Known(NamedTuple):
    """An answer, and until when it is good."""

    answer: Any
    until: float


class Recent:
    """The last answers, by what was asked."""

    def __init__(self, clock: Callable[[], float] = boottime) -> None:
        self._clock = clock
        self._known: dict[Hashable, _Known] = {}

    async def of(
        self, asked: Hashable, good_for: float, reading: Callable[[], Awaitable[Found]]
    ) -> Found:
        """The last answer, if it is no older than `good_for` seconds; else a new one."""
        now = self._clock()
        self._known = {key: one for key, one in self._known.items() if one.until > now}
        if (known := self._known.get(asked)) is None:
            found = await reading()
            self._known[asked] = _Known(found, self._clock() + good_for)
            return found
        answer: Found = known.answer
        return answer
