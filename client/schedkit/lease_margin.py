"""Measure how close a lease came to its loss: the trust that remained at each renewal.

    granted ├───────── trust ─────────┤ reserve │ etcd may expire it
            ├─ interval ─┤ renewed    ↑
                         ├─ margin ───┤          least of the last minute or two

A lease that is always renewed in time keeps most of its trust. Late or failed renewals lower the
margin before the lease is lost. At a loss the margin is 0.

Invariant: any thread may record or read at any time. A member's lease is kept by its own thread.
"""

import math
import threading
from collections.abc import Callable
from typing import Final

from schedkit.clock import boottime

# The minimum or maximum of recent numbers; pure.
#
#     seen ──→ │ before │ now │     two windows: when the newer is full, the older is dropped
#
# So a number counts for at least one window and at most two, in constant memory.

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


class LeaseMargin:
    """The margin of successive leases. All times are seconds of CLOCK_BOOTTIME."""

    def __init__(self, clock: Callable[[], float] = boottime) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._until: float | None = None
        self._lately = RollingWindow(min, math.inf, clock())
        self.ttl = 0.0
        """The TTL of the lease in seconds; 0: there was no lease yet."""

    def renewed(self, until: float, ttl: float) -> None:
        """Record that the lease was granted or renewed, and is trusted until then."""
        self.ttl = ttl
        self._renew_until(until)

    def lease_ended(self) -> None:
        """Record that the lease was lost or given up."""
        self._renew_until(None)

    def least(self) -> float | None:
        """Return the least margin of the last minute or two, in seconds; None without a lease."""
        with self._lock:
            now = self._clock()
            least = min(self._lately.value_at(now), self._remaining_seconds(now))
        return None if least == math.inf else least

    def _renew_until(self, until: float | None) -> None:
        with self._lock:
            now = self._clock()
            self._lately.add_value(self._remaining_seconds(now), now)
            self._until = until

    def _remaining_seconds(self, now: float) -> float:
        return math.inf if self._until is None else max(0.0, self._until - now)
