"""Listens for the heartbeats of one attempt: after so long a silence it says so, once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from schedkit.clock import boottime

LATE: Final = 1.0
"""Seconds: who looks later than that after its time has stood still itself, and heard nothing."""


class HeartbeatTimeout:
    """Of an attempt that begins now. Belongs to the event loop; `beat` may be called anywhere."""

    def __init__(self, timeout: float, silent: Callable[[], object]) -> None:
        """`timeout`: seconds, more than 0."""
        self._timeout = timeout
        self._silent = silent
        self._heard = boottime()
        self._wait(timeout)

    def beat(self) -> None:
        """It goes on."""
        self._heard = boottime()

    def close(self) -> None:
        """It has ended: listen no more."""
        self._timer.cancel()

    def _wait(self, seconds: float) -> None:
        self._look_at = boottime() + seconds
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        now = boottime()
        if now > self._look_at + LATE:
            self._heard = now
        left = self._heard + self._timeout - now
        if left > 0:
            self._wait(left)
        else:
            self._silent()
