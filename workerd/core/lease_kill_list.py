"""Which programs a keeper kills because their worker's lease is lost, and when.

    trust ends ── SLACK ── the keeper has seen it: doomed ── kill_after ── due ── killed: settled
        └─ the worker, if it can, asks them to end ── kill_after ── it kills them

Invariants
- What is doomed stays so, though the lease be refreshed later: its worker has lost it too.
- A worker that lives comes first: it looks more often than `SLACK`.
- The keeper is done `SLACK` and a look of its own after the worker would be, which is less than the
  margin by which trust ends before the lease.

Times are seconds of the boot clock.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import field

from schedkit.records import dataclass

SLACK = 0.5
"""Seconds that a worker has to see the end of trust by itself; it looks twice within."""


@dataclass(frozen=True, slots=True)
class Mortal:
    """A program whose job says `on_lease_lost: kill`."""

    session: int
    """Number of its first process, which leads its session."""
    start: int
    """That process's start time."""
    kill_after: float
    run: str
    token: int
    slot: str = ""
    """Name of its cgroup in the worker's tree; empty: it has none."""


@dataclass(slots=True)
class Doom:
    """What is to be killed by one keeper."""

    _due: dict[Mortal, float] = field(default_factory=dict)

    def passed(self, until: float, mortals: Collection[Mortal]) -> None:
        """Trust ended at `until`, and these ran on."""
        for each in mortals:
            self._due.setdefault(each, until + SLACK + each.kill_after)

    def due(self, at: float) -> list[Mortal]:
        """Those to kill by now."""
        return [each for each, when in self._due.items() if when <= at]

    def keep(self, mortals: Collection[Mortal]) -> None:
        """All others have ended: their worker says so."""
        self._due = {each: when for each, when in self._due.items() if each in mortals}

    def settled(self, mortal: Mortal) -> None:
        """Nothing of it lives; it is listed until its worker can say so."""
        self._due[mortal] = math.inf
