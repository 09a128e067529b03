"""The minimum or maximum of recent numbers; pure.

    seen ──→ │ before │ now │     two windows: when the newer is full, the older is dropped

So a number counts for at least one window and at most two, in constant memory.
"""

from collections.abc import Callable
from typing import Final

WINDOW: Final = 60.0
"""Seconds of one window."""


class RollingWindow:
    """The minimum or maximum of numbers, each seen `at` a time in seconds that never goes back.
    `pick`: `min` or `max`. `nothing`: the value without numbers.
    """

    def __init__(self, pick: Callable[[float, float], float], nothing: float, at: float) -> None:
        self._pick, self._nothing = pick, nothing
        self._since = at
        self._now = self._before = nothing

    def add_value(self, number: float, at: float) -> None:
        self._start_window(at)
        self._now = self._pick(self._now, number)

    def value_at(self, at: float) -> float:
        """Return the minimum or maximum at this time."""
        self._start_window(at)
        return self._pick(self._now, self._before)

    def _start_window(self, at: float) -> None:
        passed = at - self._since
        if passed < WINDOW:
            return
        self._before = self._now if passed < 2 * WINDOW else self._nothing
        self._since, self._now = at, self._nothing
