"""Until when this worker may believe that its lease lives.

    sent ──────── answered "refreshed" ─────────────── trusted until ──── lease may end
     └──────────────────────── ttl - margin ───────────────┘ └─ margin ─┘

Invariants
- Trust runs from the SENDING of the last heartbeat that was answered "refreshed in etcd": the
  lease was refreshed later than that, so it ends later than this worker thinks.
- Without such an answer there is no trust at all.

Times are seconds of the boot clock.
"""

from __future__ import annotations

from schedkit.records import dataclass


@dataclass(slots=True)
class WorkerLeaseTrust:
    """The lease of one incarnation, as the worker sees it."""

    ttl: float = 0.0
    sent: float | None = None
    """When the last heartbeat so answered was sent."""

    @property
    def until(self) -> float:
        """The instant past which nothing may be taken or started."""
        if self.sent is None:
            return float("-inf")
        return self.sent + self.ttl - max(1.0, self.ttl / 5)

    def holds(self, at: float) -> bool:
        """Whether the lease is surely alive at `at`."""
        return at < self.until

    def refreshed(self, sent: float) -> None:
        """A heartbeat sent at `sent` was answered "refreshed"; answers may come out of order."""
        self.sent = sent if self.sent is None else max(self.sent, sent)

    def since(self, at: float) -> float:
        """Seconds since that heartbeat; never refreshed is a whole TTL, so any member acts."""
        return self.ttl if self.sent is None else at - self.sent
