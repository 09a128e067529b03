"""Limit the concurrent tries of each receiver of notifications, so that none uses all. Pure.

A receiver is slow if its last try took `SLOW` seconds or more, whatever the outcome. It then has
one try at once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from typing import Final

from schedkit.records import dataclass

OF_ONE: Final = 4
"""The most tries in progress to one receiver."""
AT_ONCE: Final = 256
"""The most tries in progress, of all receivers together."""
OF_SLOW: Final = AT_ONCE // 4
"""The most tries in progress to slow receivers."""
SLOW: Final = 5.0
"""The length of a try, in seconds, from which its receiver is slow."""
REMEMBERED: Final = 10_000
"""The most slow receivers that are remembered. Beyond that the oldest is forgotten."""


@dataclass(slots=True)
class Receivers:
    """The tries in progress by receiver, and the slow receivers."""

    load: Counter[str] = field(default_factory=Counter)
    slow: dict[str, None] = field(default_factory=dict)
    """The slow receivers, in the order in which they were found to be slow."""

    @property
    def under_way(self) -> int:
        return self.load.total()

    def has_room(self, to: str) -> bool:
        """Return whether another try to this receiver may start now."""
        if self.under_way >= AT_ONCE:
            return False
        if to not in self.slow:
            return self.load[to] < OF_ONE
        slow = sum(count for other, count in self.load.items() if other in self.slow)
        return not self.load[to] and slow < OF_SLOW

    def begin(self, to: str) -> None:
        self.load[to] += 1

    def end(self, to: str) -> None:
        self.load[to] -= 1
        if self.load[to] <= 0:
            del self.load[to]

    def answered(self, to: str, seconds: float) -> None:
        """Record how long a try took."""
        self.slow.pop(to, None)
        if seconds >= SLOW:
            self.slow[to] = None
            if len(self.slow) > REMEMBERED:
                del self.slow[next(iter(self.slow))]

    def copy(self) -> Receivers:
        """Return a copy, to try choices on."""
        return Receivers(Counter(self.load), self.slow)
