"""Cluster time: this host's monotonic clock mapped onto the database's. Pure.

    probe:   sent ──→ the database says T ──→ received        offset = T - received
             └──────── round trip ────────┘                   behind by at most the round trip

The best of the last probes is the one with the shortest round trip. The shown time follows it
forward at once, because that is proven. It follows backward a little slower than real time.

Invariants
- The shown time is never ahead of the database's clock, whatever the delay of a probe. So nothing
  that is due starts early. The exception: if the database's clock is set back, the shown time is
  ahead until the clock has caught up.
- The shown time never decreases, for growing times of the monotonic clock.
- If a better probe shows a later time, or the database's clock is set forward, the shown time jumps
  there at once. Backward it slews at 10 %, and at half speed if it is off by more than a second.
- A probe is discarded if it contradicts a newer one by more than the round trips explain: the
  database's clock was set.
- Monotonic times are seconds of CLOCK_BOOTTIME, which continues during a suspend.
"""

from __future__ import annotations

from dataclasses import field
from datetime import UTC, datetime
from typing import Final

from schedkit.records import dataclass

KEPT: Final = 8
"""Number of probes kept, one a second: so few that no clock drifts a millisecond meanwhile."""

FAR: Final = 1.0
"""Seconds. An offset further behind means that the database's clock was set back."""

_DRIFT: Final = 0.005
"""Seconds that two clocks may drift apart while a probe is kept: a generous bound."""

_SLEW: Final = 0.1
_SLEW_BACK_FAR: Final = 0.5


@dataclass(frozen=True, slots=True)
class Sample:
    """A round trip, in seconds. Cluster time minus monotonic time is from `offset` to `offset +
    trip`.
    """

    offset: float
    trip: float

    def agrees(self, other: Sample) -> bool:
        """Return whether one true offset, apart from drift, explains both samples."""
        lower, upper = sorted((self, other), key=lambda sample: sample.offset)
        return upper.offset - lower.offset <= lower.trip + _DRIFT


@dataclass(frozen=True, slots=True)
class ClusterTime:
    """The mapping after some probes. `shown`: the offset shown at the monotonic time `anchor`."""

    samples: tuple[Sample, ...]
    anchor: float
    shown: float
    best: Sample = field(init=False, compare=False)

    def __post_init__(self) -> None:
        best = min(self.samples, key=lambda sample: sample.trip)
        object.__setattr__(self, "best", best)

    def offset(self, at: float) -> float:
        """Return the offset shown at the monotonic time `at`, not before `anchor`."""
        elapsed = max(0.0, at - self.anchor)
        behind = self.best.offset - self.shown
        if behind >= 0:
            return self.best.offset
        rate = _SLEW_BACK_FAR if behind < -FAR else _SLEW
        return self.shown - min(-behind, rate * elapsed)

    def now(self, at: float) -> datetime:
        """Return the cluster time (UTC) at the monotonic time `at`, not before `anchor`."""
        return datetime.fromtimestamp(max(at, self.anchor) + self.offset(at), UTC)

    def observe(self, sent: float, received: float, reported: datetime) -> ClusterTime:
        """Return the mapping after another probe, sent at `sent` and answered at `received`."""
        newest = _sample(sent, received, reported)
        believed = (sample for sample in self.samples if sample.agrees(newest))
        return ClusterTime((*believed, newest)[-KEPT:], received, self.offset(received))


def begin(sent: float, received: float, reported: datetime) -> ClusterTime:
    """Return the mapping after a first probe."""
    sample = _sample(sent, received, reported)
    return ClusterTime((sample,), received, sample.offset)


def _sample(sent: float, received: float, reported: datetime) -> Sample:
    return Sample(reported.timestamp() - received, received - sent)
