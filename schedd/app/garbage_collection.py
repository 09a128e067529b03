"""Garbage in cycles: looked for when little is held, and seldom while much is.

Everything stands still while the interpreter looks through all objects it knows, and it would look
each time that they have grown by a quarter. An owner of 33,000 runs has half a million: 0.15 s of a
processor each few seconds, ten times that on a machine that is busy with others, for a handful of
objects a time. What is held here is freed by counting; cycles come from failures, and can wait.

Invariants
- The young are looked through once there are `YOUNG` more of them: most cycles never grow old.
- The old are looked through each minute while they are `FEW`, and at the latest after `AT_LATEST`.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from typing import Final

from schedkit.clock import boottime
from schedkit.tasks import Loop

EVERY: Final = 60.0
YOUNG: Final = 20_000
"""Objects. A run makes some thirty: at the interpreter's own 700 they were looked through for each
twenty runs, for a tenth of the loop's time.
"""
FEW: Final = 100_000
"""Objects that are looked through in some 30 ms."""
AT_LATEST: Final = 900.0
"""Seconds. A herd is over by then; an owner of very much stands still four times an hour."""
NEVER: Final = 2**31 - 1


class Sweeper:
    """Looks through the old objects in the interpreter's place."""

    def __init__(self, clock: Callable[[], float] = boottime) -> None:
        self._clock = clock
        self._swept = -math.inf
        self.loop = Loop("garbage", self.step, interval=EVERY)

    def take_over(self) -> None:
        """From now on nobody else looks through the old; what was made by now is never looked at
        again, for it stays.
        """
        _, middle, _ = gc.get_threshold()
        gc.set_threshold(YOUNG, middle, NEVER)
        gc.freeze()
        self._swept = self._clock()

    async def step(self) -> None:
        """Look, if it is time."""
        now = self._clock()
        if now - self._swept >= AT_LATEST or len(gc.get_objects(generation=2)) <= FEW:
            gc.collect()
            self._swept = now
