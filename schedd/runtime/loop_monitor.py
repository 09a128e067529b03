"""Measure how long the event loop is blocked: the delay of a step that is due each 0.1 s.

Work of this process blocks the loop, or a machine that is busy with other processes. Both delay
everything else in the process. The process's CPU time during the delay tells them apart. It
includes other threads, because they hold the interpreter.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final, NoReturn

from schedkit.clock import boottime
from schedkit.lease_margin import RollingWindow

EVERY: Final = 0.1


class LoopMonitor:
    """Longest recent delay; `run` measures until cancelled."""

    def __init__(self, clock: Callable[[], float] = boottime) -> None:
        self._clock = clock
        self._lately = RollingWindow(max, 0.0, clock())
        self._by_own_work = RollingWindow(max, 0.0, clock())

    @property
    def longest(self) -> float:
        """Longest delay of the last minute or two, in seconds."""
        return self._lately.value_at(self._clock())

    @property
    def longest_by_own_work(self) -> float:
        """Longest CPU time of this process in a delay of the last minute or two, in seconds."""
        return self._by_own_work.value_at(self._clock())

    async def run(self) -> NoReturn:
        while True:
            began, spent = self._clock(), time.process_time()
            await asyncio.sleep(EVERY)
            self.record_step(self._clock() - began - EVERY, time.process_time() - spent)

    def record_step(self, delay: float, spent: float) -> None:
        """Record that a step was late by `delay` seconds, and the CPU time since the last step."""
        self._lately.add_value(delay, self._clock())
        self._by_own_work.add_value(min(delay, spent), self._clock())
