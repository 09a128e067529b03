"""Pools: jobs of a namespace that share a concurrency limit and a rate limit
(docs/semantics/pools-and-limits.md). Pure.

One owner dispatches all jobs of a pool, by the hash of its name. The dispatch statement checks both
limits on rows, under the lock of the pool's shard (`store/dispatch/pool_limits.py`); an owner's
state in memory is a hint.

Invariants
- While the start of an attempt is unknown, it counts as starting now, at the latest at its start
  limit. An attempt that never started doesn't count. A lost one counts as started at the limit.
- A run counts in the pool in which it was dispatched, also if its job has changed pools since.
"""

import sys
from collections.abc import Mapping
from dataclasses import field
from datetime import datetime, timedelta
from typing import Final, NewType

from schedd.core.ids import RunId
from schedkit.records import dataclass

PoolKey = NewType("PoolKey", str)
"""`namespace/name`."""

NO_POOL: Final = PoolKey("")

MOST_AT_ONCE: Final = 10_000
"""The highest limit, and the highest count of a rate: each batch counts that many rows."""
LEAST_PER: Final = timedelta(seconds=1)
MOST_PER: Final = timedelta(days=1)


def pool_key(namespace: str, name: str) -> PoolKey:
    """Return the key of a pool; NO_POOL for an empty name."""
    return PoolKey(f"{namespace}/{name}") if name else NO_POOL


@dataclass(frozen=True, slots=True)
class StartRate:
    """At most `count` starts in any period of `per`."""

    count: int
    per: timedelta


@dataclass(frozen=True, slots=True)
class PoolRecord:
    namespace: str
    name: str
    limit: int | None
    rate: StartRate | None
    version: int
    paused: bool
    pause_note: str
    paused_by: str
    updated_at: datetime
    updated_by: str


@dataclass(frozen=True, slots=True)
class PoolUse:
    jobs: int
    """Jobs, without submitted runs."""
    running: int
    """Attempts in progress."""
    waiting: int
    """Waiting runs, including those in backoff."""
    recent: int
    """Starts that count for the rate."""


@dataclass(frozen=True, slots=True)
class PoolUser:
    """A user of a pool, which prevents its deletion: a job's name, or a live submitted run."""

    job: str = ""
    run: RunId | None = None

    def __str__(self) -> str:
        return self.job if self.run is None else f"submitted run {self.run}"


@dataclass(frozen=True, slots=True)
class PoolUsage:
    """The usage of a pool against its limits. `recent`: starts that count for the rate;
    `until_free`: the time until the next start stops counting, if the rate is used up.
    """

    limit: int | None
    rate: int | None
    paused: bool
    running: int
    recent: int
    until_free: timedelta | None = None

    @property
    def room(self) -> int:
        """How many more runs may start now."""
        if self.paused:
            return 0
        places = sys.maxsize if self.limit is None else self.limit - self.running
        starts = sys.maxsize if self.rate is None else self.rate - self.recent
        return max(0, min(places, starts))

    @property
    def why_full(self) -> str:
        """The reason why the pool is full, as text. Only valid if `room` is 0."""
        if self.paused:
            return "it is paused"
        if self.limit is not None and self.running >= self.limit:
            return f"{self.running} of its runs are under way, and its limit is {self.limit}"
        return f"{self.recent} of its runs started within the time of its rate, which is as many"


@dataclass(slots=True)
class PoolRooms:
    """How many runs of each pool this dispatch round may still dispatch; 0 if it wasn't read."""

    left: dict[PoolKey, int] = field(default_factory=dict)

    @classmethod
    def from_usage(cls, usages: Mapping[PoolKey, PoolUsage]) -> "PoolRooms":
        return cls({pool: usage.room for pool, usage in usages.items()})

    def copy(self) -> "PoolRooms":
        """Return a copy, to try choices on."""
        return PoolRooms(dict(self.left))

    def fits(self, pool: PoolKey) -> bool:
        return not pool or self.left.get(pool, 0) > 0

    def most(self, count: int, pool: PoolKey) -> int:
        """Return how many of `count` runs of the pool fit."""
        return count if not pool else min(count, max(0, self.left.get(pool, 0)))

    def use_room(self, pool: PoolKey, count: int = 1) -> None:
        if pool:
            self.left[pool] = self.left.get(pool, 0) - count
