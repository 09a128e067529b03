"""Batch sizes by measured duration: a batch should take `MOMENT` seconds.

A batch isn't interrupted, so urgent work that arrives meanwhile waits for all of it. Its duration
depends on the machine and its load. So each batch is timed, and sets the size of the next.

Invariants
- A batch has at most `most` and at least `least` items: each batch has a fixed cost.
- A quick batch that wasn't full says nothing about a full one. A slow batch with fewer than `least`
  items waited for something else.
"""

from typing import Final

MOMENT: Final = 0.1
"""Seconds that a batch should take. Urgent work waits for at most two batches, one that fires
and one that dispatches, and must still begin within a second on a busy processor. With 30,000 runs
due at once, 0.1 s instead of 0.2 s halved that wait and didn't lower the runs per second.
"""
LEAST: Final = 50
GROWTH: Final = 2
"""Largest growth factor from one batch to the next. Shrinking isn't limited."""


class BatchSize:
    """Size of the next batch of one loop."""

    def __init__(self, most: int, least: int = LEAST, moment: float = MOMENT) -> None:
        self._most = most
        self._least = min(least, most)
        self._moment = moment
        self.now = self._least

    def record_batch(self, count: int, seconds: float) -> None:
        if count < self._least or (count < self.now and seconds <= self._moment):
            return
        fits = self._most if seconds <= 0 else int(count * self._moment / seconds)
        self.now = max(self._least, min(self._most, GROWTH * self.now, fits))
