"""Fair shares of a batch's total for its takers.

    4 of 500 timers may make 2,000 runs:  1 1 1 … 1 │ 376 376 376 376

Invariants
- Each taker gets at least 1 and at most an equal share of the rest. Unused parts go to later
  takers, so takers with the largest needs come last.
"""

from typing import Final

LEAST: Final = 1


class FairShares:
    """Shares of one batch. Call `next` for each taker, then `took` with the amount it used."""

    def __init__(self, total: int, takers: int, most: int) -> None:
        """`takers` share `total`; `most` is the maximum for each."""
        self._left = total
        self._takers = takers
        self._most = most

    def next(self, without: int = 0) -> int:
        """Return the maximum for the next taker. `without`: takers before it that take nothing."""
        self._takers -= without
        share = self._left // max(1, self._takers)
        self._takers -= 1
        return max(LEAST, min(self._most, share))

    def record_use(self, count: int) -> None:
        """Record how much the taker used."""
        self._left -= count
