"""How many at once: as many as are done in a moment.

A batch isn't interrupted: what is urgent and comes meanwhile waits for all of it. How long that is
depends on the machine and on who else works there, so each batch is timed, and the next is as
large as this one would have had to be.

Invariants
- Never more than `most`, never fewer than `least`: each batch has its price, however small.
- One that wasn't filled and was quick tells nothing of what a full one takes; a few that took long
  waited for something else.
"""

from typing import Final

MOMENT: Final = 0.1
"""Seconds that a batch should take. Urgent work waits for at most two batches, one that fires and
one that dispatches, and must still begin within a second on a busy processor. With 30,000 runs due
at once, 0.1 s instead of 0.2 s halved that wait and didn't lower the runs per second.
"""
LEAST: Final = 50
GROWTH: Final = 2
"""By so much it may grow from one batch to the next; shrink it may at once."""


class BatchSize:
    """The size of the next batch of one loop."""

    def __init__(self, most: int, least: int = LEAST, moment: float = MOMENT) -> None:
        self._most = most
        self._least = min(least, most)
        self._moment = moment
        self.now = self._least

    def took(self, count: int, seconds: float) -> None:
        """A batch of so many took so long."""
        if count < self._least or (count < self.now and seconds <= self._moment):
            return
        fits = self._most if seconds <= 0 else int(count * self._moment / seconds)
        self.now = max(self._least, min(self._most, GROWTH * self.now, fits))
