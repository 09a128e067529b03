from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from schedd.core.ids import ShardId
from support.firing import TIMER, Herd, World
from support.runs import NOW


@dataclass
class SlowRows(Herd):
    """Rows whose load answers only when `answered` is set."""

    read: asyncio.Event = field(default_factory=asyncio.Event)
    answered: asyncio.Event = field(default_factory=asyncio.Event)

    async def due_timers(
        self, shards: Collection[ShardId], until: datetime, limit: int, *, latest: bool = False
    ) -> list[bytes]:
        found = await super().due_timers(shards, until, limit, latest=latest)
        self.read.set()
        await self.answered.wait()
        return found


async def test_a_row_that_a_load_left_out_is_taken_by_the_next_load() -> None:
    """A fire read the old row, an edit was committed, a load read the new row, and then the fire
    put the old row into the index. The wake-up of the edit is lost.
    """
    rows = SlowRows(count=1)
    [job] = rows.due
    late, soon = NOW + timedelta(seconds=55), NOW + timedelta(seconds=20)
    old = replace(TIMER, job_id=job, due_at=late, nominal=late)
    new = replace(old, generation=2, due_at=soon, nominal=soon)
    world = World(rows)
    world.near.horizon = timedelta(seconds=60)
    world.clock.time = NOW
    rows.due[job] = old
    rows.answered.set()
    await world.near.step()
    world.clock.time = NOW + timedelta(seconds=3)
    rows.timer, rows.due[job] = old, new
    rows.read.clear()
    rows.answered.clear()
    async with asyncio.TaskGroup() as group:
        group.create_task(world.near.step())
        await rows.read.wait()
        world.fire.changed([job])
        await world.fire._reread()
        rows.answered.set()
    _, kept = world.run_index.timers.get(job) or (None, None)
    assert kept == old
    world.clock.time = NOW + timedelta(seconds=6)
    await world.near.step()
    _, kept = world.run_index.timers.get(job) or (None, None)
    assert kept == new
