"""Until when this worker may trust its lease.

    sent ──────── answered "refreshed" ─────────────── trusted until ──── lease may end
     └──────────────────────── ttl - safety ───────────────┘ └─ safety ─┘

Invariants
- Trust runs from the SENDING of the last heartbeat that was answered "refreshed in etcd". The
  lease was refreshed after that, so it expires later than this worker assumes.
- Without such an answer there is no trust.

Times are seconds of the boot clock.
"""

from schedkit.records import dataclass


@dataclass(slots=True)
class WorkerLeaseTrust:
    ttl: float = 0.0
    sent: float | None = None
    """When the last heartbeat with such an answer was sent."""

    @property
    def until(self) -> float:
        """The time after which no run may be accepted or started."""
        if self.sent is None:
            return float("-inf")
        return self.sent + self.ttl - max(1.0, self.ttl / 5)

    def holds(self, at: float) -> bool:
        """Return whether the lease surely lasts at `at`."""
        return at < self.until

    def refreshed(self, sent: float) -> None:
        """Record that a heartbeat sent at `sent` refreshed the lease. Any order is fine."""
        self.sent = sent if self.sent is None else max(self.sent, sent)

    def since(self, at: float) -> float:
        """Return the seconds since the last such heartbeat; the TTL without one, so members act."""
        return self.ttl if self.sent is None else at - self.sent
