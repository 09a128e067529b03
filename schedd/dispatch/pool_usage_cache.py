"""Pools at one owner: how many runs of each may be dispatched in a round. A hint: the assign
statement checks limits on rows. If it found less room, the pool is read again.

    buckets that wait for a pool ──read──→ usage ──→ rooms, less the runs that go
                                   └─ again: a second later, when one of its runs may have ended,
                                      when a start is too old to count, or a run wasn't dispatched
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Final

from schedd.core.runs.pools import PoolKey, PoolRooms, PoolUsage
from schedd.store.owner import OwnerStore
from schedkit.clock import boottime
from schedkit.records import dataclass

LOOK_EVERY: Final = 1.0
"""Seconds after which usage is read again: the limit may have changed."""
REST: Final = 3
"""Minimum pause before a read that is due to ended runs, as a multiple of the last read's time."""
LONGEST_REST: Final = 0.1
"""Upper limit of that pause, in seconds."""


NOWHERE: Final = PoolUsage(limit=0, rate=None, paused=False, running=0, recent=0)
"""Usage of a missing pool; calls never leave a job in one."""


@dataclass(slots=True)
class _Seen:
    usage: PoolUsage
    at: float
    ended: int
    """Number of attempts that had ended here when usage was read."""

    @property
    def free_at(self) -> float:
        left = self.usage.until_free
        return math.inf if left is None else self.at + left.total_seconds()


class PoolUsageCache:
    """Known usage of the pools whose runs wait here."""

    def __init__(
        self, store: OwnerStore, ended: Callable[[], int], *, boot: Callable[[], float] = boottime
    ) -> None:
        """`ended` returns how many attempts have ended here so far."""
        self._store = store
        self._ended = ended
        self._boot = boot
        self._seen: dict[PoolKey, _Seen] = {}
        self._rests_until = 0.0
        self.rooms = PoolRooms()
        """Remaining room by pool; dispatch subtracts from it."""

    async def read_rooms(self, pools: Collection[PoolKey]) -> PoolRooms:
        """Return the room of these pools, and of no others.

        Raises:
            Unavailable: usage can't be read now.
        """
        now, ended = self._boot(), self._ended()
        self.forget([pool for pool in self._seen if pool not in pools])
        stale = [pool for pool in pools if self._is_stale(pool, now, ended)]
        if stale:
            found = await self._store.pools(stale)
            took = self._boot() - now
            self._rests_until = self._boot() + min(LONGEST_REST, REST * took)
            read = {pool: found.get(pool, NOWHERE) for pool in stale}
            self._seen |= {pool: _Seen(one, now, ended) for pool, one in read.items()}
            self.rooms.left |= PoolRooms.from_usage(read).left
        return self.rooms

    def forget(self, pools: Collection[PoolKey]) -> None:
        """Forget these pools: they changed and must be read again."""
        for pool in pools:
            self._seen.pop(pool, None)
            self.rooms.left.pop(pool, None)

    def wait(self) -> float:
        """Return the seconds until a full pool may have room.

        Room appears when a start leaves the rate window, or after a read for ended runs. Infinite
        if neither will happen.
        """
        ended = self._ended()
        full = [
            min(seen.free_at, math.inf if seen.ended == ended else self._rests_until)
            for pool, seen in self._seen.items()
            if not self.rooms.fits(pool)
        ]
        return max(0.0, min(full, default=math.inf) - self._boot())

    def _is_stale(self, pool: PoolKey, now: float, ended: int) -> bool:
        seen = self._seen.get(pool)
        if seen is None or now - seen.at >= LOOK_EVERY:
            return True
        has_ended = ended != seen.ended and now >= self._rests_until
        return not self.rooms.fits(pool) and (now >= seen.free_at or has_ended)
