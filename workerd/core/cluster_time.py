"""The members' time, bounded from both sides, on this host's boot clock.

    sent (boot) ──→ cluster time read ──→ received (boot)

Whenever the reading was made, it was between the two; so at boot time b the cluster's time is at
least `cluster + (b - received)` and at most `cluster + (b - sent)`.

Invariants
- "Not before" is judged by the lower bound, "start by" by the upper: an error of the measurement
  never starts anything early, nor too late.
- Bounds are turned into boot time once, when an assignment is received: that clock never goes
  back, whatever later measurements say.
- The tightest of the last 8 round trips counts; older ones would have drifted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

KEPT = 8


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """One reading: boot seconds around it, seconds of the Unix epoch in it."""

    sent: float
    received: float
    cluster: float

    @property
    def width(self) -> float:
        """The uncertainty in seconds."""
        return self.received - self.sent


@dataclass(slots=True)
class ClusterTime:
    """The time of one member, as heard over one stream."""

    _trips: deque[RoundTrip] = field(default_factory=lambda: deque(maxlen=KEPT))
    _best: RoundTrip | None = None

    def observe(self, trip: RoundTrip) -> None:
        """Take in one more reading."""
        self._trips.append(trip)
        self._best = min(self._trips, key=lambda each: each.width)

    def surely_reached(self, instant: float) -> float:
        """Boot time from which on the cluster's time is surely at or past `instant`."""
        return instant - (self._bounds.cluster - self._bounds.received)

    def surely_within(self, instant: float) -> float:
        """Boot time until which the cluster's time is surely not past `instant`."""
        return instant - (self._bounds.cluster - self._bounds.sent)

    def surely_at(self, boot: float) -> float:
        """Cluster time that is surely reached at boot time `boot`: what a heartbeat is stamped
        with. Past an assignment's `start_by` by this measure, it is too late by every other.
        """
        return self._bounds.cluster + boot - self._bounds.received

    def at(self, boot: float) -> float:
        """The likeliest cluster time at boot time `boot`, in seconds of the epoch."""
        return self._bounds.cluster + boot - (self._bounds.sent + self._bounds.received) / 2

    @property
    def _bounds(self) -> RoundTrip:
        if self._best is None:
            raise ValueError("no reading of cluster time yet")
        return self._best
