"""The least, or the most, of what was seen lately; pure.

    seen ──→ │ before │ now │     two windows: when the newer is full, the older is forgotten

So what was seen counts for one window at least, and for two at most, and costs two numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

WINDOW: Final = 60.0
"""Seconds."""


class RollingWindow:
    """Of numbers, each seen `at` a time in seconds that never goes back. `pick`: `min` or `max`;
    `nothing`: what it makes of none.
    """

    def __init__(self, pick: Callable[[float, float], float], nothing: float, at: float) -> None:
        self._pick, self._nothing = pick, nothing
        self._since = at
        self._now = self._before = nothing

    def seen(self, number: float, at: float) -> None:
        """It counts from now on."""
        self._turn(at)
        self._now = self._pick(self._now, number)

    def of(self, at: float) -> float:
        """What counts at this time."""
        self._turn(at)
        return self._pick(self._now, self._before)

    def _turn(self, at: float) -> None:
        passed = at - self._since
        if passed < WINDOW:
            return
        self._before = self._now if passed < 2 * WINDOW else self._nothing
        self._since, self._now = at, self._nothing
