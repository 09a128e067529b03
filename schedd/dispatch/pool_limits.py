"""Pools at one owner: how many runs of each may be dispatched in a round. A hint: the assign
statement checks limits on rows. If it found less room, the pool is read again.

    lines that wait for a pool ──look──→ standings ──→ rooms, less by what goes
                                   └─ again: a second later, when one of its runs may have ended,
                                      when a start counts no more, or what was to go didn't
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Final

from schedd.core.runs.pools import PoolKey, PoolUsage, Rooms
from schedd.store.owner import OwnerStore
from schedkit.clock import boottime
from schedkit.records import dataclass

LOOK_EVERY: Final = 1.0
"""Seconds after which a standing is read again: its limit may have been changed."""
REST: Final = 3
"""Times as long as a read took, until the next that is due for an end: so much time is left."""
LONGEST_REST: Final = 0.1
"""Seconds."""


NOWHERE: Final = PoolUsage(limit=0, rate=None, paused=False, running=0, recent=0)
"""Stands for a missing pool; calls never leave a job in one."""


@dataclass(slots=True)
class _Seen:
    standing: PoolUsage
    at: float
    ended: int
    """How many attempts had ended here by then."""

    @property
    def free_at(self) -> float:
        left = self.standing.until_free
        return math.inf if left is None else self.at + left.total_seconds()


class PoolLimits:
    """Known usage of the pools whose runs wait here."""

    def __init__(
        self,
        store: OwnerStore,
        ended: Callable[[], int],
        *,
        boot: Callable[[], float] = boottime,
    ) -> None:
        """`ended`: how many attempts have ended here so far."""
        self._store = store
        self._ended = ended
        self._boot = boot
        self._seen: dict[PoolKey, _Seen] = {}
        self._rests_until = 0.0
        self.rooms = Rooms()
        """How much room is left; dispatch takes it from here."""

    async def look(self, pools: Collection[PoolKey]) -> Rooms:
        """How much room these have, and no others.

        Raises:
            Unavailable: it can't be read now.
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
            self.rooms.left |= Rooms.of(read).left
        return self.rooms

    def forget(self, pools: Collection[PoolKey]) -> None:
        """Forget these pools: they changed and must be read again."""
        for pool in pools:
            self._seen.pop(pool, None)
            self.rooms.left.pop(pool, None)

    def wait(self) -> float:
        """Seconds until one that is full may have room because time has passed, or until one is
        looked at of whose runs some have ended; infinite: none.
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
