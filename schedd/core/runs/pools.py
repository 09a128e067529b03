"""Pools: jobs of a namespace that share a concurrency limit and a rate limit. Pure.

    all jobs of a pool ──hash of its name──→ one shard ──→ one owner dispatches them
    limit   attempts of the whole pool in progress; a run in backoff takes no place
    rate    attempts that started in any period of `per`: a place is free again when `per` has
            passed since the start

The dispatch statement checks both on rows, under the lock of the pool's shard
(`store/dispatch/pool_places.py`); an owner's state in memory is a hint.

Invariants
- While the start of an attempt isn't known, it counts as starting now, but not after its start
  limit. An attempt that never started doesn't count; a lost one counts as started at the limit.
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
"""Of a limit, and of a rate in its time: that many rows are counted for each batch."""
LEAST_PER: Final = timedelta(seconds=1)
MOST_PER: Final = timedelta(days=1)


def pool_key(namespace: str, name: str) -> PoolKey:
    """Of a job's pool; of no name: none."""
    return PoolKey(f"{namespace}/{name}") if name else NO_POOL


@dataclass(frozen=True, slots=True)
class StartRate:
    """So many starts in any time of this length."""

    count: int
    per: timedelta


@dataclass(frozen=True, slots=True)
class PoolRecord:
    """A pool as it was set."""

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
    """What is in it. `jobs`: those that were submitted left out. `waiting`: runs, back-offs too."""

    jobs: int
    running: int
    waiting: int
    recent: int


@dataclass(frozen=True, slots=True)
class PoolUser:
    """Who keeps a pool: a job, by its name, or a submitted run that hasn't ended."""

    job: str = ""
    run: RunId | None = None

    def __str__(self) -> str:
        return self.job if self.run is None else f"submitted run {self.run}"


@dataclass(frozen=True, slots=True)
class PoolUsage:
    """How full a pool is. `recent`: starts that count for the rate; `until_free`: when the oldest
    of those that fill the rate counts no more, from now.
    """

    limit: int | None
    rate: int | None
    paused: bool
    running: int
    recent: int
    until_free: timedelta | None = None

    @property
    def room(self) -> int:
        """How many more may go now."""
        if self.paused:
            return 0
        places = sys.maxsize if self.limit is None else self.limit - self.running
        starts = sys.maxsize if self.rate is None else self.rate - self.recent
        return max(0, min(places, starts))

    @property
    def why_full(self) -> str:
        """In words, of one without room."""
        if self.paused:
            return "it is paused"
        if self.limit is not None and self.running >= self.limit:
            return f"{self.running} of its runs are under way, and its limit is {self.limit}"
        return f"{self.recent} of its runs started within the time of its rate, which is as many"


@dataclass(slots=True)
class Rooms:
    """The runs of each pool that may still go in this round; 0 for a pool that wasn't read."""

    left: dict[PoolKey, int] = field(default_factory=dict)

    @classmethod
    def of(cls, standings: Mapping[PoolKey, PoolUsage]) -> "Rooms":
        """As they stand."""
        return cls({pool: standing.room for pool, standing in standings.items()})

    def copy(self) -> "Rooms":
        """To reckon with."""
        return Rooms(dict(self.left))

    def fits(self, pool: PoolKey) -> bool:
        """Whether one more run of it may go."""
        return not pool or self.left.get(pool, 0) > 0

    def most(self, count: int, pool: PoolKey) -> int:
        """How many of so many runs of it may go."""
        return count if not pool else min(count, max(0, self.left.get(pool, 0)))

    def take(self, pool: PoolKey, count: int = 1) -> None:
        """So many go."""
        if pool:
            self.left[pool] = self.left.get(pool, 0) - count
