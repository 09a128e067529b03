"""How long an event loop stands still: a step that is due each tenth of a second, and its delay.

Either work of the process keeps the loop from it, or a machine that is busy with other processes.
Both make everything else of the process late by as much. The processor time that the process spent
meanwhile tells them apart: work of other threads counts, too, because they hold the interpreter.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, NoReturn

from schedkit.clock import boottime
from schedkit.rolling_window import RollingWindow

EVERY: Final = 0.1


class LoopMonitor:
    """The longest delay of late; `run` measures it for ever."""

    def __init__(self, clock: Callable[[], float] = boottime) -> None:
        self._clock = clock
        self._lately = RollingWindow(max, 0.0, clock())
        self._by_own_work = RollingWindow(max, 0.0, clock())

    @property
    def longest(self) -> float:
        """Seconds, of the last minute or two."""
        return self._lately.of(self._clock())

    @property
    def longest_by_own_work(self) -> float:
        """Seconds of such a delay in which this process computed, of the last minute or two."""
        return self._by_own_work.of(self._clock())

    async def run(self) -> NoReturn:
        """Measure."""
        while True:
            began, spent = self._clock(), time.process_time()
            await asyncio.sleep(EVERY)
            self.seen(self._clock() - began - EVERY, time.process_time() - spent)

    def seen(self, delay: float, spent: float) -> None:
        """Record that a step was late by `delay` seconds, and the processor time since the last."""
        self._lately.seen(delay, self._clock())
        self._by_own_work.seen(min(delay, spent), self._clock())
