"""The room an owner knows of its pools between two statements, and when it reads again."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from schedd.core.runs.pools import PoolKey, PoolUsage
from schedd.dispatch.pool_usage_cache import PoolUsageCache
from schedd.store.owner import OwnerStore
from support.fake_of import fake_of

A, B = PoolKey("default/a"), PoolKey("default/b")
FREE = PoolUsage(limit=3, rate=None, paused=False, running=1, recent=0)
FULL = replace(FREE, running=3)


@fake_of(OwnerStore)
@dataclass
class Rows:
    """How full the pools are, and which were asked for."""

    standings: dict[PoolKey, PoolUsage]
    asked: list[set[PoolKey]] = field(default_factory=list)
    now: float = 100.0
    ended: int = 0
    takes: float = 0.0

    async def pools(self, pools: Collection[PoolKey]) -> dict[PoolKey, PoolUsage]:
        self.asked.append({*pools})
        self.now += self.takes
        return {pool: self.standings[pool] for pool in pools if pool in self.standings}

    def known(self) -> PoolUsageCache:
        store: Any = self
        return PoolUsageCache(store, lambda: self.ended, boot=lambda: self.now)


async def test_a_pool_is_read_once_a_second_while_it_has_room() -> None:
    rows = Rows({A: FREE, B: FREE})
    pools = rows.known()
    rooms = await pools.read_rooms({A})
    rooms.use_room(A)
    rows.ended += 1
    assert (await pools.read_rooms({A, B})).left == {A: 1, B: 2}
    rows.now += 1
    await pools.read_rooms({A, B})
    assert rows.asked == [{A}, {B}, {A, B}]


async def test_a_full_pool_is_read_again_after_an_attempt_ends() -> None:
    rows = Rows({A: FULL})
    pools = rows.known()
    assert not (await pools.read_rooms({A})).fits(A)
    await pools.read_rooms({A})
    rows.ended, rows.standings[A] = 1, FREE
    assert (await pools.read_rooms({A})).fits(A)
    assert len(rows.asked) == 2


async def test_reads_of_ended_runs_pause_for_as_long_as_they_take() -> None:
    """A thousand full pools, of which some run ends each moment, would have nothing else done."""
    rows = Rows({A: FULL}, takes=0.02)
    pools = rows.known()
    await pools.read_rooms({A})
    rows.ended = 1
    assert abs(pools.wait() - 0.06) < 1e-6
    await pools.read_rooms({A})
    assert len(rows.asked) == 1
    rows.now += 0.0601
    assert pools.wait() == 0.0
    await pools.read_rooms({A})
    assert len(rows.asked) == 2
    rows.takes = 5.0
    rows.now += 0.07
    rows.ended = 2
    await pools.read_rooms({A})
    rows.ended = 3
    assert abs(pools.wait() - 0.1) < 1e-6


async def test_a_pool_with_a_used_up_rate_is_read_when_a_start_no_longer_counts() -> None:
    used = PoolUsage(None, 9, paused=False, running=0, recent=9, until_free=timedelta(seconds=0.3))
    rows = Rows({A: used})
    pools = rows.known()
    await pools.read_rooms({A})
    assert abs(pools.wait() - 0.3) < 1e-6
    rows.now += 0.2
    await pools.read_rooms({A})
    rows.now += 0.1001
    assert pools.wait() == 0.0
    await pools.read_rooms({A})
    assert len(rows.asked) == 2


async def test_a_missing_pool_has_no_room_and_a_pool_found_full_is_read_again() -> None:
    rows = Rows({B: FREE})
    pools = rows.known()
    assert (await pools.read_rooms({A, B})).left == {A: 0, B: 2}
    pools.forget({B})
    await pools.read_rooms({A, B})
    assert rows.asked == [{A, B}, {B}]
