"""Until when this worker may trust its lease.

    sent ──────── answered "refreshed" ─────────────── trusted until ──── lease may end
     └──────────────────────── ttl - safety ───────────────┘ └─ safety ─┘

Invariants
- Trust runs from the SENDING of the last heartbeat that was answered "refreshed in etcd". The
  lease was refreshed after that, so it expires later than this worker assumes.
- Without such an answer there is no trust.

Times are seconds of the boot clock.
"""

import math
from collections.abc import Collection
from typing import NamedTuple


class WorkerLeaseTrust:
    def __init__(self, ttl: float = 0.0, sent: float | None = None) -> None:
        self.ttl = ttl
        self.sent = sent
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


# The programs that a keeper kills because their worker's lease is lost, and when.
#
#     trust ends ── SLACK ── the keeper lists the program ── kill_after ── due ── killed
#         └─ the worker, if it responds, sends SIGTERM ── kill_after ── SIGKILL
#
# Invariants
# - A listed program stays listed even if the lease is refreshed later: the worker also ends its
#   run.
# - A responsive worker acts first: it checks more often than `SLACK`.
# - The keeper finishes `SLACK` and one of its own checks after the worker would. That is less than
#   the margin by which trust ends before the lease.
#
# - Standard library without `dataclasses`: the keeper imports this module, and must start soon.
#
# Times are seconds of the boot clock.

SLACK = 0.5
"""Seconds that a worker has to notice the end of trust; it checks twice within."""


class KillEntry(NamedTuple):
    """A program whose job says `on_lease_lost: kill`."""

    session: int
    """PID of the program's first process, the leader of its session."""
    start: int
    """Start time of the session's leader."""
    kill_after: float
    run: str
    token: int
    slot: str = ""
    """Name of its cgroup in the worker's tree; empty if it has none."""


class LeaseKillList:
    def __init__(self) -> None:
        self._due: dict[KillEntry, float] = {}

    def passed(self, until: float, mortals: Collection[KillEntry]) -> None:
        """List these programs: trust ended at `until`, and they are still running."""
        for each in mortals:
            self._due.setdefault(each, until + SLACK + each.kill_after)

    def due(self, at: float) -> list[KillEntry]:
        return [each for each, when in self._due.items() if when <= at]

    def retain_only(self, mortals: Collection[KillEntry]) -> None:
        """Keep only these: the worker reports that the others have ended."""
        self._due = {each: when for each, when in self._due.items() if each in mortals}

    def killed(self, mortal: KillEntry) -> None:
        """Record that the program was killed. It stays listed until its worker removes it."""
        self._due[mortal] = math.inf
