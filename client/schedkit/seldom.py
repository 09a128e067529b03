"""A line of a log that anybody can have written: no more than one in a second, with how many there
were.
"""

from __future__ import annotations

from typing import Final

from schedkit.clock import boottime

TELL_EVERY: Final = 1.0
"""Seconds between two lines."""


class Seldom:
    """Lines of one kind."""

    def __init__(self) -> None:
        self._since, self._told_at = 0, -TELL_EVERY

    def due(self) -> int:
        """There is one more: how many since the last line, if it is time for one; 0 if not."""
        self._since += 1
        if boottime() - self._told_at < TELL_EVERY:
            return 0
        since, self._since, self._told_at = self._since, 0, boottime()
        return since
