"""Cluster time on this host: a lower bound, an upper bound, and a likely value.

    sent (boot) ──→ cluster time read ──→ received (boot)

The reading was made between `sent` and `received`. So at boot time b the cluster's time is at
least `cluster + (b - received)` and at most `cluster + (b - sent)`.

Invariants
- `not_before` is compared with the lower bound, of the stream that brought the assignment: an
  error of measurement never starts a run early.
- Readings that contradict a newer one are dropped: the clock was set. Runs that were pre-dispatched
  by the dropped readings get new timers (`HeldRuns.rearm`).
- `start_by` is compared with the upper bound, on one clock of the worker that never goes back: a
  time that a heartbeat reported as past stays past.
- Events are dated by the middle of the two bounds, for people only. The start of a pre-dispatched
  run is never dated before its due time.
- The tightest of the last 8 round trips counts; older ones have drifted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import field
from math import inf
from typing import Final

from schedkit.records import dataclass

KEPT = 8
TOLERATED = 1.0
"""Seconds of uncertainty; more would use too much of the 5 s of a `start_by`."""
_DRIFT: Final = 0.005
"""Seconds that two clocks may drift apart while a reading is kept."""


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """A reading of a member's time: boot seconds before and after it, and the Unix time read."""

    sent: float
    received: float
    cluster: float

    @property
    def width(self) -> float:
        """The uncertainty in seconds."""
        return self.received - self.sent

    @property
    def offset(self) -> float:
        """Least offset from boot time to cluster time; the greatest is `width` more."""
        return self.cluster - self.received

    def agrees(self, other: RoundTrip) -> bool:
        """Return whether one true offset (with drift) explains both readings."""
        lower, upper = sorted((self, other), key=lambda trip: trip.offset)
        return upper.offset - lower.offset <= lower.width + _DRIFT


@dataclass(slots=True)
class MemberTime:
    _trips: deque[RoundTrip] = field(default_factory=lambda: deque(maxlen=KEPT))
    _best: RoundTrip | None = None
    width: float = inf
    """The uncertainty in seconds; infinite without a reading."""

    def observe(self, trip: RoundTrip) -> bool:
        """Add a reading. Return whether it contradicts earlier ones, which are dropped."""
        believed = [each for each in self._trips if each.agrees(trip)]
        contradicts = len(believed) < len(self._trips)
        if contradicts:
            self._trips.clear()
            self._trips.extend(believed)
        self._trips.append(trip)
        self._best = min(self._trips, key=lambda each: each.width)
        self.width = self._best.width
        return contradicts

    def surely_reached(self, instant: float) -> float:
        """Return the boot time from which cluster time is surely at or past `instant`."""
        return instant - self._bounds.offset

    def latest(self, boot: float) -> float:
        best = self._bounds
        return boot + best.cluster - best.sent

    def likely(self, boot: float) -> float:
        """Return the likely cluster time at boot time `boot`, within half of `width`."""
        return self.latest(boot) - self.width / 2

    @property
    def _bounds(self) -> RoundTrip:
        if self._best is None:
            raise ValueError(
                "cluster time is unknown: no member has sent it yet; check that the worker"
                " reaches a member"
            )
        return self._best


@dataclass(slots=True)
class JudgingClock(MemberTime):
    """The worker's clock for `start_by`, fed by the round trips of all streams."""

    _last: float = float("-inf")

    @property
    def known(self) -> bool:
        """Whether the clock is precise enough to start runs."""
        return self.width <= TOLERATED

    def read(self, boot: float) -> float:
        """Return cluster time at boot time `boot`, as Unix time; never less than before. Raises
        ValueError: there is no reading yet.
        """
        self._last = max(self._last, self.latest(boot))
        return self._last

    def date(self, boot: float) -> float | None:
        """Return the likely cluster time at boot time `boot`, to date events; None while cluster
        time is unknown.
        """
        return self.likely(boot) if self.known else None
