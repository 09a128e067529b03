"""How long an event loop stands still: a step that is due each tenth of a second, and its delay.

What keeps the loop from it is either work that doesn't yield or a machine that is busy with others;
both make everything else of the process late by as much.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NoReturn

from schedkit.clock import boottime
from schedkit.lately import Lately

EVERY: Final = 0.1


class Pulse:
    """The longest delay of late; `run` measures it for ever."""

    def __init__(self, clock: Callable[[], float] = boottime) -> None:
        self._clock = clock
        self._lately = Lately(max, 0.0, clock())

    @property
    def longest(self) -> float:
        """Seconds, of the last minute or two."""
        return self._lately.of(self._clock())

    async def run(self) -> NoReturn:
        """Measure."""
        while True:
            began = self._clock()
            await asyncio.sleep(EVERY)
            self.seen(self._clock() - began - EVERY)

    def seen(self, delay: float) -> None:
        """A step was late by so many seconds."""
        self._lately.seen(delay, self._clock())
