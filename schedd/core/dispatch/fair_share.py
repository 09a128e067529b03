"""How much each of a batch may take of what all of it may.

    4 of 500 timers may make 2,000 runs:  1 1 1 … 1 │ 376 376 376 376

Invariants
- Each may take something, and no more than an equal share of what those before it have left: who
  needs little leaves the rest to those behind it. So those that need most come last.
"""

from typing import Final

LEAST: Final = 1


class Shares:
    """Of one batch: `total` for so many takers, each of which asks `next` and then tells `took`."""

    def __init__(self, total: int, takers: int, most: int) -> None:
        """`most`: for each."""
        self._left = total
        self._takers = takers
        self._most = most

    def next(self) -> int:
        """What the next may take."""
        share = self._left // max(1, self._takers)
        self._takers -= 1
        return max(LEAST, min(self._most, share))

    def took(self, count: int) -> None:
        """It took so much."""
        self._left -= count
