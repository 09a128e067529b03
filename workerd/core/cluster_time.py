"""The members' time on this host: two readings, each erring to its safe side, and a likely one.

    sent (boot) ──→ cluster time read ──→ received (boot)

Whenever the reading was made, it was between the two; so at boot time b the cluster's time is at
least `cluster + (b - received)` and at most `cluster + (b - sent)`.

Invariants
- `not_before` is judged by the lower bound, of the stream that the assignment came by: an error
  of the measurement never starts anything early.
- Readings that contradict a newer one are forgotten: the clock was set, and what they bounded is
  another. What is armed by them waits for its instant anew (`Work.rearm`).
- `start_by` is judged by the upper bound, on one clock for the whole worker that never goes back:
  what a heartbeat has said was past stays past, whatever later measurements say.
- What has happened is dated by the middle of the two: for people, nothing is judged by it. The
  start of what was armed is dated at its instant at the earliest, which surely had come.
- The tightest of the last 8 round trips counts; older ones would have drifted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import field
from math import inf
from typing import Final

from schedkit.records import dataclass

KEPT = 8
TOLERATED = 1.0
"""Seconds of uncertainty; more would take too much from the 5 s of a `start_by`."""
_DRIFT: Final = 0.005
"""Seconds that two clocks may drift apart while a reading is kept, generously."""


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

    @property
    def offset(self) -> float:
        """From boot to cluster seconds at the least; `width` more at the most."""
        return self.cluster - self.received

    def agrees(self, other: RoundTrip) -> bool:
        """Whether one true offset (but for drift) explains both."""
        lower, upper = sorted((self, other), key=lambda trip: trip.offset)
        return upper.offset - lower.offset <= lower.width + _DRIFT


@dataclass(slots=True)
class MemberTime:
    """The time of one member, as heard over one stream."""

    _trips: deque[RoundTrip] = field(default_factory=lambda: deque(maxlen=KEPT))
    _best: RoundTrip | None = None
    width: float = inf
    """The uncertainty in seconds; infinite without a reading."""

    def observe(self, trip: RoundTrip) -> bool:
        """Take in one more reading; whether it contradicts earlier ones, which are forgotten."""
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
        """Boot time from which on the cluster's time is surely at or past `instant`."""
        return instant - self._bounds.offset

    def latest(self, boot: float) -> float:
        """The most that the cluster's time can be at boot time `boot`."""
        best = self._bounds
        return boot + best.cluster - best.sent

    def likely(self, boot: float) -> float:
        """What the cluster's time is at boot time `boot`, give or take half of `width`."""
        return self.latest(boot) - self.width / 2

    @property
    def _bounds(self) -> RoundTrip:
        if self._best is None:
            raise ValueError("no reading of cluster time yet")
        return self._best


@dataclass(slots=True)
class JudgingClock:
    """By which `start_by` is judged. One for the worker, fed by the round trips of all streams."""

    _time: MemberTime = field(default_factory=MemberTime)
    _last: float = float("-inf")

    def observe(self, trip: RoundTrip) -> None:
        """Take in one more reading, of any member."""
        self._time.observe(trip)

    @property
    def known(self) -> bool:
        """Whether it is good enough to start anything by."""
        return self._time.width <= TOLERATED

    def read(self, boot: float) -> float:
        """Seconds of the Unix epoch on cluster time at boot time `boot`; never less than before.

        Raises:
            ValueError: no reading has been taken in.
        """
        self._last = max(self._last, self._time.latest(boot))
        return self._last

    def date(self, boot: float) -> float | None:
        """By which to date what happens at boot time `boot`, as nearly as it can be told; None
        while the cluster's time isn't known.
        """
        return self._time.likely(boot) if self.known else None
