"""The programs that a keeper kills because their worker's lease is lost, and when.

    trust ends ── SLACK ── the keeper lists the program ── kill_after ── due ── killed
        └─ the worker, if it responds, sends SIGTERM ── kill_after ── SIGKILL

Invariants
- A listed program stays listed even if the lease is refreshed later: the worker also ends its run.
- A responsive worker acts first: it checks more often than `SLACK`.
- The keeper finishes `SLACK` and one of its own checks after the worker would. That is less than
  the margin by which trust ends before the lease.

Times are seconds of the boot clock.
"""

import math
from collections.abc import Collection
from dataclasses import field

from schedkit.records import dataclass

SLACK = 0.5
"""Seconds that a worker has to notice the end of trust; it checks twice within."""


@dataclass(frozen=True, slots=True)
class KillEntry:
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


@dataclass(slots=True)
class LeaseKillList:
    """The programs that one keeper will kill."""

    _due: dict[KillEntry, float] = field(default_factory=dict)

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
