"""How near a lease has come to being lost: what was left of the trust in it when it was renewed.

    granted ├───────── trust ─────────┤ margin │ etcd may expire it
            ├─ interval ─┤ renewed    ↑
                         ├── slack ───┤          least of the last minute or two

A lease that is renewed in time each time leaves most of its trust; one whose renewals are late, or
fail now and then, comes nearer to none before anything is lost. Nothing is left where it was lost.

Invariant: any thread may note, or read, at any time: a member's lease is kept by one of its own.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from schedkit.clock import boottime
from schedkit.rolling_window import RollingWindow


class Slack:
    """Of one lease after the other. All times are seconds of CLOCK_BOOTTIME."""

    def __init__(self, clock: Callable[[], float] = boottime) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._until: float | None = None
        self._lately = RollingWindow(min, math.inf, clock())
        self.ttl = 0.0
        """Seconds that the lease was granted for; 0: there was none yet."""

    def renewed(self, until: float, ttl: float) -> None:
        """It was granted, or a renewal was answered: it is trusted until then now."""
        self.ttl = ttl
        self._turn(until)

    def ended(self) -> None:
        """It was lost, or given up."""
        self._turn(None)

    def least(self) -> float | None:
        """Seconds; None where there was no lease lately."""
        with self._lock:
            now = self._clock()
            least = min(self._lately.of(now), self._left(now))
        return None if least == math.inf else least

    def _turn(self, until: float | None) -> None:
        with self._lock:
            now = self._clock()
            self._lately.seen(self._left(now), now)
            self._until = until

    def _left(self, now: float) -> float:
        return math.inf if self._until is None else max(0.0, self._until - now)
