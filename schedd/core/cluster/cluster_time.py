"""Cluster time: this host's monotonic clock mapped onto the database's. Pure.

    probe:   sent ──→ the database says T ──→ received        offset = T - received
             └──────── round trip ────────┘                   behind by at most the round trip

The best of the last probes is the one with the shortest round trip. What is shown follows it ahead
at once, for that is proven, and back a little slower than real time.

Invariants
- What is shown isn't ahead of the database's clock, however slow a probe was and wherever in its
  round trip it was answered: nothing that is due by it starts early. Only a clock that is set back
  is behind it, while it is waited for.
- What is shown never goes backwards (before a later instant of the monotonic clock).
- What is due is due: when a better probe shows that it is later, or the database's clock was set
  ahead, we are there at once. Back we slew at 10 %, and by more than a second at half speed.
- Probes that contradict a newer one beyond what their round trips explain are forgotten: the
  database's clock was set.
- Monotonic instants are seconds of CLOCK_BOOTTIME: it runs through a suspend.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from schedkit.records import dataclass

KEPT: Final = 8
"""Probes looked at, one a second: short enough that no clock drifts a millisecond meanwhile."""

FAR: Final = 1.0
"""Seconds behind which the database's clock was set back, rather than measured better."""

_DRIFT: Final = 0.005
"""Seconds that two clocks may drift apart while a probe is kept, generously."""

_SLEW: Final = 0.1
_SLEW_BACK_FAR: Final = 0.5


@dataclass(frozen=True, slots=True)
class Sample:
    """One round trip: monotonic to cluster seconds is `offset` at the least, and `offset + trip`
    at the most.
    """

    offset: float
    trip: float

    def agrees(self, other: Sample) -> bool:
        """Whether one true offset (but for drift) explains both."""
        lower, upper = sorted((self, other), key=lambda sample: sample.offset)
        return upper.offset - lower.offset <= lower.trip + _DRIFT


@dataclass(frozen=True, slots=True)
class ClusterTime:
    """The mapping after some probes. `shown` is the offset that was shown at `anchor`."""

    samples: tuple[Sample, ...]
    anchor: float
    shown: float

    @property
    def best(self) -> Sample:
        """The sample that is followed."""
        return min(self.samples, key=lambda sample: sample.trip)

    @property
    def uncertainty(self) -> float:
        """How far the offset followed may be behind the database's, in seconds."""
        return self.best.trip

    def offset(self, at: float) -> float:
        """The offset shown at the monotonic instant `at`, not before `anchor`."""
        elapsed = max(0.0, at - self.anchor)
        behind = self.best.offset - self.shown
        if behind >= 0:
            return self.best.offset
        rate = _SLEW_BACK_FAR if behind < -FAR else _SLEW
        return self.shown - min(-behind, rate * elapsed)

    def now(self, at: float) -> datetime:
        """Cluster time (UTC) at the monotonic instant `at`, not before `anchor`."""
        return datetime.fromtimestamp(max(at, self.anchor) + self.offset(at), UTC)

    def observe(self, sent: float, received: float, reported: datetime) -> ClusterTime:
        """The mapping after one more probe, which left at `sent` and was back at `received`."""
        newest = _sample(sent, received, reported)
        believed = (sample for sample in self.samples if sample.agrees(newest))
        return ClusterTime((*believed, newest)[-KEPT:], received, self.offset(received))


def begin(sent: float, received: float, reported: datetime) -> ClusterTime:
    """The mapping after a first probe."""
    sample = _sample(sent, received, reported)
    return ClusterTime((sample,), received, sample.offset)


def _sample(sent: float, received: float, reported: datetime) -> Sample:
    return Sample(reported.timestamp() - received, received - sent)
