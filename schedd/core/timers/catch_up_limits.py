"""Catch-up limits: how many late runs run at once, and how fast they are released
(docs/semantics/catch-up.md). Pure.

A run is late if catch-up made it (`LiveRun.late`), and paced if its job has `catch_up: all`. An
owner gets a share of the cluster's rate and slots equal to its share of the shards, so owners need
no coordination: the shares add up to at most the whole.

Invariants
- In any t seconds a `CatchUpPace` releases at most rate × (t + `BURST`) runs, but at least one.
  It starts empty, so that a takeover doesn't exceed the rate.
- Each owner may always have one paced run in progress: with few slots the runs would wait forever
  otherwise.
"""

import sys
from typing import Final

from schedkit.records import dataclass

BURST: Final = 1.0
"""The burst, in seconds: releases of this time may happen at once."""


@dataclass(frozen=True, slots=True)
class CatchUpLimits:
    """The configured catch-up limits of the whole cluster."""

    release_rate: float = 100.0
    """Late runs of jobs with `catch_up: all` that are dispatched per second."""
    reserved: float = 0.2
    """Share of all slots that paced runs leave free for runs that are due now."""

    def slots(self, slots: int, part: float) -> int:
        """Return how many of all `slots` an owner's paced runs may take. `part`: the owner's share
        of the shards.
        """
        return int(slots * (1 - self.reserved) * part + _HAIR)


DEFAULTS: Final = CatchUpLimits()

_HAIR: Final = 1e-9
"""A guard against rounding errors: 80 % of 10 are 8."""


@dataclass(slots=True)
class CatchUpRoom:
    """The late runs that this dispatch round may still dispatch."""

    slots: int = sys.maxsize
    """Slots that paced runs may still take."""
    releases: int = sys.maxsize
    """Paced runs that may still be released."""
    lookups: int = sys.maxsize
    """Runs with an unread definition that may still be dispatched: each one costs a read."""
    idle: bool = False
    """Whether no paced run is in progress. Then one may be dispatched, whatever its slots."""

    def fits(self, slots: int, *, paced: bool, known: bool = True) -> bool:
        """Return whether one more late run fits. `known`: its definition was read."""
        if not known and self.lookups <= 0:
            return False
        return not paced or (self.releases > 0 and (self.idle or slots <= self.slots))

    def use_room(self, slots: int, *, paced: bool, known: bool = True) -> None:
        """Count the dispatch of one late run."""
        self.lookups -= not known
        self.take_all(1, slots, paced=paced)

    def take_all(self, count: int, slots: int, *, paced: bool) -> None:
        if paced:
            self.slots -= count * slots
            self.releases -= count
            self.idle = False

    def most(self, count: int, slots: int, *, paced: bool) -> int:
        """Return how many of `count` late runs with `slots` each fit."""
        if not paced:
            return count
        return min(count, max(self.slots // slots, int(self.idle), 0), max(0, self.releases))


class CatchUpPace:
    """A token bucket. Its capacity is the releases of `BURST` seconds, at least one."""

    def __init__(self, at: float) -> None:
        """Create an empty bucket. `at`: now, in seconds of a monotonic clock."""
        self._at = at
        self._rate = 0.0
        self._level = 0.0

    def releases(self, rate: float, at: float) -> int:
        """Return how many runs may be released now, and set the rate per second from now on."""
        most = max(1.0, rate * BURST)
        self._level = min(most, self._level + self._rate * max(0.0, at - self._at))
        self._at, self._rate = max(at, self._at), rate
        return int(self._level + _HAIR)

    def released(self, count: int) -> None:
        self._level -= count

    def wait(self) -> float:
        """Return the seconds from the last call of `releases` until a run may be released."""
        if not self._rate:
            return 1.0
        return max(0.0, (1.0 - self._level) / self._rate)
