"""Loads of the near future: beside firing, without what is held already, and in time."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest

from schedd.core.ids import Epoch, Id, JobId
from schedd.core.timers.packed_timer import LastLoad
from schedd.runtime.definition_texts import CachedDefinition
from schedd.timers import timer_loader
from schedd.timers.fire import BATCH
from schedd.timers.timer_loader import AT_ONCE, LOAD_LIMIT
from schedkit.errors import Unavailable
from support.firing import TIMER, Herd, Rows, World
from support.runs import NOW


async def test_each_timer_of_a_herd_is_read_at_most_twice() -> None:
    """From the horizon on, until all have fired: once new, and perhaps by a full load."""
    rows = Herd(count=20 * BATCH)
    world = World(rows)
    world.clock.time = NOW - timer_loader.HORIZON

    while rows.due:
        while await world.step() == 0.0:
            pass
        world.clock.time += timedelta(seconds=0.5)

    assert rows.calls.count("load") >= 3
    assert rows.rows_read <= 2 * 20 * BATCH


async def test_loaded_timers_arent_loaded_again_for_each_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More is due at one instant than a load brings: as many loads as it takes, and no more."""
    monkeypatch.setattr(timer_loader, "LOAD_LIMIT", 4 * BATCH)
    monkeypatch.setattr(timer_loader, "WHOLE_LIMIT", 8 * BATCH)
    rows = Herd(count=12 * BATCH)
    world = World(rows)

    for _ in range(10):  # before it is due
        world.clock.time = NOW - timedelta(seconds=0.2)
        await world.step()
    assert rows.calls == ["load", "first", "latest"]
    world.clock.time = NOW
    while len(world.run_index.ready) < 12 * BATCH:
        await world.step()

    assert not rows.due
    assert rows.calls.count("first") <= 6


async def test_an_urgent_timer_is_fired_before_a_herd_that_was_due_earlier() -> None:
    """Its definition was read while nothing was due; of what is due, it goes with the first."""
    rows, urgent = Herd(count=4_000), JobId(Id.from_int(2**64))
    rows.due[urgent] = TIMER._replace(job_id=urgent, due_at=NOW + timedelta(seconds=1))
    world = World(rows, urgent=[urgent])
    world.definitions.room = 2 * AT_ONCE
    world.clock.time = NOW - timedelta(seconds=3)
    while await world.step() == 0.0:
        pass
    assert len(world.definitions.read_of) == 2 * AT_ONCE < len(rows.due)

    world.clock.time = NOW + timedelta(seconds=0.9)
    await world.step()
    assert urgent in rows.due
    world.clock.time = NOW + timedelta(seconds=1)
    await world.step()

    assert urgent not in rows.due
    assert rows.batches[1:] == [1]


async def test_an_urgent_timer_is_found_behind_a_herd_larger_than_a_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of what comes after it a load brings the latest, and reads ahead first what they are."""
    monkeypatch.setattr(timer_loader, "WHOLE_LIMIT", 2 * LOAD_LIMIT)
    rows, urgent = Herd(count=3 * LOAD_LIMIT), JobId(Id.from_int(2**64))
    rows.due[urgent] = TIMER._replace(job_id=urgent, due_at=NOW + timedelta(seconds=1))
    world = World(rows, urgent=[urgent])
    world.clock.time = NOW - timedelta(seconds=1)
    while await world.step() == 0.0:
        pass

    world.clock.time = NOW + timedelta(seconds=1)
    await world.step()

    assert urgent not in rows.due
    assert rows.batches == [1]


@pytest.mark.parametrize("whole", [2 * LOAD_LIMIT, 4 * LOAD_LIMIT])
async def test_an_urgent_timer_is_found_though_others_are_always_due(
    monkeypatch: pytest.MonkeyPatch, whole: int
) -> None:
    """The timer comes within the horizon while a herd is fired for minutes."""
    monkeypatch.setattr(timer_loader, "WHOLE_LIMIT", whole)
    rows, urgent = Herd(count=3 * LOAD_LIMIT), JobId(Id.from_int(2**64))
    rows.due[urgent] = TIMER._replace(job_id=urgent, due_at=NOW + timedelta(seconds=1))
    world = World(rows, urgent=[urgent])
    await world.step()
    assert urgent in rows.due

    world.clock.time = NOW + timedelta(seconds=1)
    await world.step()

    assert urgent not in rows.due
    assert rows.batches[1:] == [1]


@dataclass
class SlowToLoad(Herd):
    """Reads its rows at once, and gives them when it may."""

    read: asyncio.Event = field(default_factory=asyncio.Event)
    given: asyncio.Event = field(default_factory=asyncio.Event)

    async def new_timers(
        self,
        shards: Collection[int],
        until: datetime,
        limit: int,
        since: LastLoad | None,
        again: Collection[JobId] = (),
    ) -> tuple[list[bytes], str]:
        found = await super().new_timers(shards, until, limit, since, again)
        self.read.set()
        await self.given.wait()
        return found


async def test_a_timer_fired_during_a_load_isnt_restored_by_its_old_row() -> None:
    """Reading thousands takes a busy machine half a second, and what is urgent hasn't that."""
    rows = SlowToLoad(count=1)
    [timer] = rows.due.values()
    world = World(rows)
    world.run_index.timers.come_up([timer])

    async with asyncio.TaskGroup() as group:
        group.create_task(world.near.step(), name="load")
        await rows.read.wait()
        assert await world.fire.step() == 0.0
        assert not rows.due
        rows.given.set()

    assert world.run_index.timers.next_at() == NOW + timedelta(seconds=5)
    await world.fire.step()
    assert rows.batches == [1]


async def test_a_timer_read_during_a_load_is_newer_than_that_of_the_load() -> None:
    rows = SlowToLoad(count=1)
    [job] = rows.due
    world = World(rows)

    async with asyncio.TaskGroup() as group:
        group.create_task(world.near.step(), name="load")
        await rows.read.wait()
        rows.timer = TIMER._replace(job_id=job, due_at=NOW + timedelta(seconds=2))
        world.fire.changed([job])
        await world.fire.step()
        rows.given.set()

    assert world.run_index.timers.next_at() == NOW + timedelta(seconds=2)


async def test_a_timer_of_a_lost_and_retaken_shard_keeps_its_latest_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The timer didn't fire: taken for fired, it would wait for the next load, and be missed."""
    rows = Rows()
    world = World(rows)
    await world.near.step()
    reads, shard = world.definitions.at_generations, TIMER.shard

    async def meanwhile(wanted: dict[JobId, int]) -> dict[JobId, CachedDefinition]:
        world.run_index.ownership.drop([shard])
        return await reads(wanted)

    monkeypatch.setattr(world.definitions, "at_generations", meanwhile)
    fires = world.fire._transactor.by_lane

    async def taken_again(*of: Any) -> list[Any]:
        answers = await fires(*of)
        world.run_index.ownership.gain({shard: Epoch(6)})
        await world.near.step()
        return answers

    monkeypatch.setattr(world.fire._transactor, "by_lane", taken_again)
    await world.fire.step()

    assert "fire" not in rows.calls
    assert world.run_index.timers.next_at() == NOW


async def test_an_unreadable_timer_delays_no_load(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows()
    world = World(rows)
    world.clock.time = NOW - timedelta(seconds=3)

    async def away(_: object) -> dict[JobId, CachedDefinition]:
        raise Unavailable("no database")

    monkeypatch.setattr(world.definitions, "newest", away)
    assert await world.near.step() > 0
    assert world.run_index.timers.next_at() == NOW


async def test_a_failed_load_is_retried_at_the_next_step() -> None:
    rows = Rows()
    world = World(rows)
    loads = rows.new_timers

    async def away(*_: object, **__: object) -> tuple[list[bytes], str]:
        raise Unavailable("no database")

    rows.new_timers = away  # type: ignore[method-assign]  # it is away
    with pytest.raises(Unavailable):
        await world.near.step()
    rows.new_timers = loads  # type: ignore[method-assign]
    await world.near.step()

    assert rows.calls == ["load"]


async def test_a_timer_that_left_the_index_is_loaded_again_though_its_row_is_the_same() -> None:
    rows = Herd(count=2)
    [lost, _] = rows.due
    world = World(rows)
    world.clock.time = NOW - timedelta(seconds=5)
    await world.near.step()
    world.run_index.timers.discard(lost)

    world.clock.time += timer_loader.LOAD_EVERY
    await world.near.step()

    assert len(world.run_index.timers) == 2


async def test_a_timer_that_differs_from_its_row_is_corrected_within_a_minute() -> None:
    rows = Rows()
    world = World(rows)
    world.clock.time = NOW - timedelta(seconds=5)
    await world.near.step()
    world.run_index.timers.come_up([TIMER._replace(due_at=NOW + timedelta(seconds=60))])

    world.clock.time += timer_loader.FULL_EVERY
    await world.near.step()

    assert [*world.run_index.timers.values()] == [TIMER]


async def test_a_slow_load_is_made_less_often_but_in_time_for_all_its_timers() -> None:
    rows = Herd(count=3)
    world = World(rows)
    world.clock.time = NOW - timedelta(seconds=60)
    slow = rows.new_timers

    async def new_timers(*given: Any) -> tuple[list[bytes], str]:
        world.clock.time += timedelta(seconds=1.1)
        return await slow(*given)

    rows.new_timers = new_timers  # type: ignore[method-assign]  # a slower one
    began = world.clock.time
    pauses = []
    while world.clock.time < NOW - timer_loader.HORIZON:
        pause = await world.step()
        pauses.append(pause)
        world.clock.time += timedelta(seconds=max(pause, 0.001))

    assert 4.3 <= (world.clock.time - began).total_seconds() / rows.calls.count("load") <= 5.2


async def test_a_row_that_a_load_left_out_is_taken_by_the_next_load() -> None:
    """A fire read the old row, an edit was committed, a load read the new row, and then the fire
    put the old row into the index. The wake-up of the edit is lost.
    """
    rows = SlowToLoad(count=1)
    [job] = rows.due
    late, soon = NOW + timedelta(seconds=55), NOW + timedelta(seconds=20)
    old = TIMER._replace(job_id=job, due_at=late, nominal=late)
    new = old._replace(generation=2, due_at=soon, nominal=soon)
    world = World(rows)
    world.near.horizon = timedelta(seconds=60)
    world.clock.time = NOW
    rows.due[job] = old
    rows.given.set()
    await world.near.step()
    world.clock.time = NOW + timedelta(seconds=3)
    rows.timer, rows.due[job] = old, new
    rows.read.clear()
    rows.given.clear()
    async with asyncio.TaskGroup() as group:
        group.create_task(world.near.step())
        await rows.read.wait()
        world.fire.changed([job])
        await world.fire._reread()
        rows.given.set()
    _, kept = world.run_index.timers.get(job) or (None, None)
    assert kept == old
    world.clock.time = NOW + timedelta(seconds=6)
    await world.near.step()
    _, kept = world.run_index.timers.get(job) or (None, None)
    assert kept == new


async def test_a_load_reads_only_timers_that_are_new_since_the_last_load() -> None:
    rows = Herd(count=100)
    world = World(rows)
    world.clock.time = NOW - timer_loader.HORIZON
    await world.near.step()
    later = NOW + timedelta(seconds=2)
    new, edited, entering = (JobId(Id.from_int(number)) for number in (1_000, 1, 1_001))
    rows.due[new] = TIMER._replace(job_id=new)
    rows.due[edited] = TIMER._replace(job_id=edited, generation=2)
    rows.due[entering] = TIMER._replace(job_id=entering, due_at=later)
    before, rows.rows_read = rows.rows_read, 0

    world.clock.time += timer_loader.LOAD_EVERY
    await world.near.step()

    assert (before, rows.rows_read) == (100, 3)
    assert {one.job_id: one for one in world.run_index.timers.values()} == rows.due


async def test_all_due_timers_are_read_again_while_memory_is_nearly_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timer_loader, "WHOLE_LIMIT", 2 * LOAD_LIMIT)
    rows = Herd(count=2 * LOAD_LIMIT - 1)
    world = World(rows)
    world.clock.time = NOW - timedelta(seconds=5)
    await world.near.step()
    world.clock.time += timer_loader.FULL_EVERY

    await world.near.step()

    assert rows.calls == ["load", "load"]
    assert rows.rows_read == 2 * len(rows.due)


async def test_a_timer_beyond_the_horizon_is_read_when_it_is_within() -> None:
    """Memory forgets it when it is read again, because a load will find it in time."""
    rows = Herd(count=1)
    [job] = rows.due
    world = World(rows)
    world.clock.time = NOW - timer_loader.HORIZON
    await world.near.step()
    world.clock.time -= timedelta(seconds=4)  # the cluster's time is corrected
    rows.timer = rows.due[job]
    world.fire.changed([job])
    await world.fire.step()
    assert job in world.run_index.timers

    rows.timer = rows.due[job] = rows.timer._replace(
        due_at=NOW + timedelta(seconds=1), generation=2
    )
    world.fire.changed([job])
    await world.fire.step()
    assert job not in world.run_index.timers
    world.clock.time = NOW - timedelta(seconds=7)
    await world.near.step()

    assert job in world.run_index.timers


async def test_gained_shards_and_the_end_of_a_pause_read_all_due_timers() -> None:
    """Rows that this owner has seen may have been forgotten since."""
    rows = Herd(count=10)
    world = World(rows)
    world.clock.time = NOW - timedelta(seconds=5)
    await world.near.step()
    world.run_index.ownership.drop([TIMER.shard])
    world.run_index.timers.drop_shards([TIMER.shard])
    await world.near.step()
    world.run_index.ownership.gain({TIMER.shard: Epoch(6)})

    await world.near.step()

    assert len(world.run_index.timers) == 10


async def test_a_load_that_failed_after_a_change_of_shards_is_repeated_in_full() -> None:
    rows = SlowToLoad(count=2)
    world = World(rows)
    world.clock.time = NOW - timedelta(seconds=5)

    async with asyncio.TaskGroup() as group:
        group.create_task(world.near.step())
        await rows.read.wait()
        world.run_index.ownership.drop([TIMER.shard])
        world.run_index.ownership.gain({TIMER.shard: Epoch(6)})
        rows.given.set()
    world.run_index.timers.clear_where([*rows.due])
    await world.near.step()

    assert len(world.run_index.timers) == 2
    assert rows.rows_read == 4
