"""Limit the concurrent tries of each receiver of notifications, so that none uses all. Pure.

    receiver that answers ─→ a few at once, of all places
    slow receiver         ─→ one at once; all slow ones together use a part of the places

A receiver is slow if its last try took long, whatever the outcome: one that rejects at once blocks
no other. Its next answer in time ends that.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from typing import Final

from schedkit.records import dataclass

OF_ONE: Final = 4
AT_ONCE: Final = 256
"""Tries under way, of all receivers together."""
OF_SLOW: Final = AT_ONCE // 4
"""Of them to those that are known to be slow."""
SLOW: Final = 5.0
"""Seconds of a try after which its receiver is."""
REMEMBERED: Final = 10_000
"""The most slow receivers that are remembered; beyond that the oldest is forgotten."""


@dataclass(slots=True)
class Receivers:
    """What is under way to whom."""

    load: Counter[str] = field(default_factory=Counter)
    slow: dict[str, None] = field(default_factory=dict)
    """In the order in which they were found to be."""

    @property
    def under_way(self) -> int:
        """To all of them."""
        return self.load.total()

    def has_room(self, to: str) -> bool:
        """Whether one more may go there now."""
        if self.under_way >= AT_ONCE:
            return False
        if to not in self.slow:
            return self.load[to] < OF_ONE
        slow = sum(count for other, count in self.load.items() if other in self.slow)
        return not self.load[to] and slow < OF_SLOW

    def begin(self, to: str) -> None:
        """One goes there."""
        self.load[to] += 1

    def end(self, to: str) -> None:
        """Count the end of a try."""
        self.load[to] -= 1
        if self.load[to] <= 0:
            del self.load[to]

    def answered(self, to: str, seconds: float) -> None:
        """A try there took so long."""
        self.slow.pop(to, None)
        if seconds >= SLOW:
            self.slow[to] = None
            if len(self.slow) > REMEMBERED:
                del self.slow[next(iter(self.slow))]

    def copy(self) -> Receivers:
        """To reckon with."""
        return Receivers(Counter(self.load), self.slow)
