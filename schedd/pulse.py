"""How long an event loop stands still: a step that is due each tenth of a second, and its delay.

What keeps the loop from it is either work that doesn't yield or a machine that is busy with others;
both make everything else of the process late by as much.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NoReturn

from schedkit.clock import boottime

EVERY: Final = 0.1
REMEMBERED: Final = 60.0
"""Seconds after which what was seen is forgotten, at the earliest; at the latest twice as many."""


class Pulse:
    """The longest delay of late; `run` measures it for ever."""

    def __init__(self, clock: Callable[[], float] = boottime) -> None:
        self._clock = clock
        self._since = clock()
        self._now = self._before = 0.0

    @property
    def longest(self) -> float:
        """Seconds."""
        return max(self._now, self._before)

    async def run(self) -> NoReturn:
        """Measure."""
        while True:
            began = self._clock()
            await asyncio.sleep(EVERY)
            self.seen(self._clock() - began - EVERY)

    def seen(self, delay: float) -> None:
        """A step was late by so many seconds."""
        if self._clock() - self._since >= REMEMBERED:
            self._since, self._before, self._now = self._clock(), self._now, 0.0
        self._now = max(self._now, delay)
