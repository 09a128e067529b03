"""Pools: the remaining room, and the runs in the queue that may use it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schedd.core.runs.pools import NO_POOL, PoolKey, PoolRooms, PoolUsage, pool_key

P = PoolKey("default/p")
OPEN = PoolUsage(limit=None, rate=None, paused=False, running=0, recent=0)


@pytest.mark.parametrize(
    ("usage", "room"),
    [
        (replace(OPEN, limit=3, running=1), 2),
        (replace(OPEN, limit=3, running=5), 0),
        (replace(OPEN, rate=100, recent=98), 2),
        (replace(OPEN, limit=3, running=2, rate=100, recent=0), 1),
        (replace(OPEN, limit=3, rate=100, recent=100), 0),
        (replace(OPEN, limit=3, paused=True), 0),
    ],
)
def test_the_room_is_the_lower_of_limit_and_rate(usage: PoolUsage, room: int) -> None:
    assert usage.room == room


def test_an_unnamed_pool_is_none_and_has_room() -> None:
    assert pool_key("default", "") == NO_POOL
    assert PoolRooms().fits(NO_POOL)
    assert not PoolRooms().fits(P)
