"""Catch-up limits: how many late runs run at once, and how fast they are released. Pure.

    caught up ──┬─ latest ─────────────────────────────────────────────→ dispatched
                └─ all ──→ paced: at a rate, in slots not reserved ────┘

A run is late if catch-up made it (`LiveRun.late`), and paced if its job has `catch_up: all`. An
owner gets a share of the cluster's rate and slots equal to its share of the shards, so owners need
no coordination: the shares add up to at most the whole.

Invariants
- In any t seconds a pace releases at most rate × (t + `BURST`) runs, or one if that is less. It
  begins empty, so that a takeover doesn't exceed the rate.
- Paced runs together take at most the slots that aren't reserved. But each owner may have one of
  them in progress, or they would wait forever where slots are few.
- A late run isn't ended for waiting here: its row is checked when it is dispatched.
"""

import sys
from typing import Final

from schedkit.records import dataclass

BURST: Final = 1.0
"""Seconds whose releases may come at once."""


@dataclass(frozen=True, slots=True)
class LateLimits:
    """The configured catch-up limits of the whole cluster."""

    release_rate: float = 100.0
    """Late runs of jobs with `catch_up: all` that are dispatched per second."""
    reserved: float = 0.2
    """Share of all slots that paced runs leave free for runs that are due now."""

    def slots(self, slots: int, part: float) -> int:
        """Of all slots those that paced runs may take at an owner of this part of the shards."""
        return int(slots * (1 - self.reserved) * part + _HAIR)


DEFAULTS: Final = LateLimits()

_HAIR: Final = 1e-9
"""So that 80 % of 10 are 8."""


@dataclass(slots=True)
class Room:
    """How much that is late may still go in this round."""

    slots: int = sys.maxsize
    """For those that are paced."""
    releases: int = sys.maxsize
    """Of these."""
    lookups: int = sys.maxsize
    """Of runs whose need isn't known."""
    idle: bool = False
    """No paced run is in progress: one may go, whatever its slots."""

    def fits(self, slots: int, *, paced: bool, known: bool = True) -> bool:
        """Whether one more late run of so many slots may go."""
        if not known and self.lookups <= 0:
            return False
        return not paced or (self.releases > 0 and (self.idle or slots <= self.slots))

    def take(self, slots: int, *, paced: bool, known: bool = True) -> None:
        """It goes."""
        self.lookups -= not known
        self.take_all(1, slots, paced=paced)

    def take_all(self, count: int, slots: int, *, paced: bool) -> None:
        """So many of so many slots each go."""
        if paced:
            self.slots -= count * slots
            self.releases -= count
            self.idle = False

    def most(self, count: int, slots: int, *, paced: bool) -> int:
        """How many of so many that take so many slots each may go."""
        if not paced:
            return count
        return min(count, max(self.slots // slots, int(self.idle), 0), max(0, self.releases))


class Pace:
    """A bucket that fills at a rate and holds what comes in `BURST` seconds, at least one."""

    def __init__(self, at: float) -> None:
        """It begins at this moment, in seconds of any clock that doesn't go back."""
        self._at = at
        self._rate = 0.0
        self._level = 0.0

    def releases(self, rate: float, at: float) -> int:
        """How many may go now. From now on it fills at this rate, a second."""
        most = max(1.0, rate * BURST)
        self._level = min(most, self._level + self._rate * max(0.0, at - self._at))
        self._at, self._rate = max(at, self._at), rate
        return int(self._level + _HAIR)

    def released(self, count: int) -> None:
        """So many went."""
        self._level -= count

    def wait(self) -> float:
        """Seconds from the last look until one may go, if none may."""
        if not self._rate:
            return 1.0
        return max(0.0, (1.0 - self._level) / self._rate)
