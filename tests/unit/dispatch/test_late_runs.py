"""Late runs beside those that are due now: slots, releases, and an owner's part of both."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from schedd.core.ids import ShardId, Token
from schedd.core.jobs.definition import CatchUp, CatchUpPolicy
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import LiveRun
from schedd.core.timers.catch_up_limits import CatchUpLimits
from schedd.dispatch import catch_up_limiter
from support.dispatching import SHELL, World, of
from support.runs import NOW, run, worker


def late(world: World, number: int, *, due: float = 600, **changes: Any) -> LiveRun:
    """Of a job of its own, made just now by catch-up."""
    one = replace(of(number, number), due_at=NOW - timedelta(seconds=due), **changes)
    world.rows.due_at[one.key] = one.due_at
    return one


def numbers(world: World) -> list[int]:
    """Return the dispatched runs, in that order."""
    return [key.run_id.number for key in world.rows.given]


def catching_up(reserved: float, owned: int) -> World:
    """Return a world of jobs with `catch_up: all`, without a limit of the release rate."""
    world = World(limits=CatchUpLimits(release_rate=1e6, reserved=reserved), owned=owned)
    world.definitions.default = replace(SHELL, catch_up=CatchUp(CatchUpPolicy.ALL))
    world.late.room()  # its pace begins empty
    world.seconds += 1.0
    return world


async def test_paced_runs_leave_the_reserved_slots_to_runs_due_now():
    world = catching_up(reserved=0.2, owned=256)
    line = world.attach(worker(slots=10), grant=10)
    world.run_index.put_runs([late(world, number, paced=True) for number in range(1, 51)], NOW)

    await world.run_until_idle()
    assert len(world.handed()) == 8
    assert not any(line.demanded[-1:]), "more slots would be of no use to them"
    assert world.dispatch.placeable() == 0, "nor is that why anybody should fire the slower"

    world.run_index.put_runs([of(99, 99), of(98, 98)], NOW)
    await world.run_until_idle()
    assert set(numbers(world)[8:]) == {98, 99}


async def test_no_paced_run_of_an_unread_shard_takes_a_slot():
    """The owner before has released some: with as many again they would be too many."""
    world = catching_up(reserved=0.2, owned=256)
    world.attach(worker(slots=10), grant=10)
    world.run_index.read -= set(map(ShardId, range(128)))
    world.run_index.put_runs([late(world, number, paced=True) for number in range(1, 51)], NOW)

    await world.run_until_idle()
    assert len(world.handed()) == 4

    world.run_index.were_read(map(ShardId, range(256)))
    await world.run_until_idle()
    assert len(world.handed()) == 8


async def test_late_runs_of_other_jobs_take_whatever_slots_there_are():
    """Most of a herd is late before it is fired: it would take the longer for nothing."""
    world = World(limits=CatchUpLimits(reserved=0.2), owned=64)
    world.attach(worker(slots=10), grant=10)
    world.run_index.put_runs([late(world, number) for number in range(1, 51)], NOW)

    await world.run_until_idle()
    assert len(world.handed()) == 10


@pytest.mark.parametrize(("unread", "together"), [(0, 30), (30, 4), (10, 4)])
async def test_a_round_reads_a_limited_number_of_definitions_of_late_runs_and_takes_all_cached(
    monkeypatch: pytest.MonkeyPatch, unread: int, together: int
) -> None:
    """A herd is late before it is fired, and its definitions were read for that."""
    monkeypatch.setattr(catch_up_limiter, "LOOKED_UP", 4)
    world = World(owned=256)
    world.attach(worker(slots=64), grant=64)
    runs = [late(world, number) for number in range(1, 31)]
    world.definitions.unread = {run.job_id for run in runs[:unread]}
    world.run_index.put_runs(runs, NOW)

    await world.dispatch.step()
    assert len(world.handed()) == together
    await world.run_until_idle()
    assert len(world.handed()) == 30


async def test_a_round_reads_a_limited_number_of_definitions_of_running_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a takeover they may be thousands: until they are read they count as paced ones."""
    monkeypatch.setattr(catch_up_limiter, "LOOKED_UP", 4)
    world = catching_up(reserved=0.2, owned=256)
    world.attach(worker(slots=64), grant=0)
    others = [late(world, number) for number in range(1, 11)]
    running = [replace(one, state=State.RUNNING, token=Token(7), attempt=1) for one in others]
    world.definitions.unread = {run.job_id for run in running}
    world.definitions.jobs = {run.job_id: SHELL for run in running}
    world.run_index.put_runs([*running, late(world, 99, paced=True)], NOW)

    left = []
    for _ in range(4):
        left.append(world.late.room().slots)
        await world.late.load_definitions()
    assert left == [41, 45, 49, 51]


async def test_a_round_checks_late_and_paced_runs_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a herd that is partly late 100,000 are under way: each round would take half a second."""
    world = catching_up(reserved=0.2, owned=256)
    world.attach(worker(slots=500), grant=0)
    paced, unpaced = late(world, 1), late(world, 2)
    world.definitions.jobs = {paced.job_id: world.definitions.default, unpaced.job_id: SHELL}
    others = [of(number, number) for number in range(3, 300)]
    under_way = [
        replace(one, state=State.RUNNING, token=Token(7), attempt=1)
        for one in [paced, unpaced, *others]
    ]
    world.run_index.put_runs([*under_way, late(world, 999, paced=True)], NOW)
    await world.late.load_definitions()

    asked: list[LiveRun] = []
    paces = world.definitions.paces
    monkeypatch.setattr(world.definitions, "paces", lambda one: asked.append(one) or paces(one))
    assert world.late.room().slots == 399
    assert {one.key for one in asked} == {paced.key, unpaced.key}

    asked.clear()
    assert world.late.room().slots == 399
    assert [one.key for one in asked] == [paced.key], "what isn't paced was looked at once"


async def test_a_paced_run_that_has_reported_leaves_its_slot_to_the_next():
    """To store its result takes its time; the worker has the slot again already."""
    world = catching_up(reserved=0.2, owned=256)
    one = worker(slots=10)
    world.attach(one, grant=10)
    world.run_index.put_runs([late(world, number, paced=True) for number in range(1, 51)], NOW)
    await world.run_until_idle()
    for done in list(world.run_index.running.values())[:3]:
        world.run_index.report([done.key.run_id], [done.token])

    attached = world.workers.attached(one.id)
    assert attached is not None
    world.workers.granted(attached, 5, received=8)
    await world.run_until_idle()
    assert len(world.handed()) == 11


async def test_an_owner_takes_of_the_slots_for_paced_runs_its_part_of_the_shards():
    world = catching_up(reserved=0.2, owned=128)
    world.attach(worker(slots=10), grant=10)
    world.run_index.put_runs([late(world, number, paced=True) for number in range(1, 51)], NOW)

    await world.run_until_idle()
    assert len(world.handed()) == 4


async def test_a_run_that_is_due_now_has_priority_over_late_runs():
    world = World(owned=256)
    world.attach(worker(slots=100), grant=3)
    world.run_index.put_runs([late(world, number) for number in range(1, 51)], NOW)
    world.run_index.put_runs([of(99, 99), of(98, 98)], NOW)

    await world.run_until_idle()
    assert set(numbers(world)[:2]) == {98, 99}
    assert len(numbers(world)) == 3


@pytest.mark.parametrize("known", [True, False])
async def test_late_runs_of_jobs_that_catch_up_with_all_are_released_at_the_rate_oldest_first(
    known: bool,
):
    """`known`: whether their owner knows what they are. An owner that has taken their shard over
    looks it up.
    """
    world = World(limits=CatchUpLimits(release_rate=10.0, reserved=0.0), owned=256)
    world.attach(worker(slots=1_000), grant=1_000)
    world.definitions.default = replace(SHELL, catch_up=CatchUp(CatchUpPolicy.ALL))
    runs = [late(world, number, due=1_000 - number, paced=known) for number in range(1, 101)]
    world.run_index.put_runs(reversed(runs), NOW)

    await world.run_until_idle()
    assert numbers(world) == []
    for second in range(1, 11):
        for _ in range(4):
            world.seconds += 0.25
            wait = await pause_at_rest(world)
        assert len(numbers(world)) == 10 * second
    assert wait <= 1.0
    if known:
        assert numbers(world) == list(range(1, 101))
    assert len(world.run_index.ready) == 0


async def test_a_run_that_waits_for_a_release_is_judged_at_its_release():
    world = World(limits=CatchUpLimits(release_rate=4.0), owned=256)
    world.attach(worker(slots=100), grant=100)
    world.definitions.default = replace(SHELL, catch_up=CatchUp(CatchUpPolicy.ALL))
    world.run_index.put_runs([late(world, 1, paced=True)], NOW)
    assert await pause_at_rest(world) == pytest.approx(0.25)


async def test_late_runs_of_other_jobs_wait_for_no_release():
    world = World(limits=CatchUpLimits(release_rate=1.0, reserved=0.0), owned=256)
    world.attach(worker(slots=100), grant=100)
    world.run_index.put_runs([late(world, number) for number in range(1, 51)], NOW)

    await world.run_until_idle()
    assert len(world.handed()) == 50


async def test_an_unused_release_isnt_lost():
    """Another run of its job is in its way: the next one may go instead."""
    world = World(limits=CatchUpLimits(release_rate=1.0), owned=256)
    world.attach(worker(slots=100), grant=100)
    world.definitions.default = replace(SHELL, catch_up=CatchUp(CatchUpPolicy.ALL))
    world.rows.limits = {run(1).job_id: 0}
    first, second = (late(world, number, due=9 - number, paced=True) for number in (1, 2))
    world.run_index.put_runs([first, second], NOW)
    await world.run_until_idle()

    world.seconds += 1.0
    await world.run_until_idle()
    assert world.run_index.held == [first.job_id]
    assert world.handed() == {2}


async def test_a_wide_paced_run_starts_where_paced_slots_never_suffice():
    world = catching_up(reserved=0.2, owned=64)
    world.attach(worker(slots=8), grant=8)
    world.definitions.default = replace(world.definitions.default, slots=4)
    world.run_index.put_runs([late(world, number, paced=True) for number in (1, 2)], NOW)

    await world.run_until_idle()
    assert len(world.handed()) == 1


async def pause_at_rest(world: World) -> float:
    """The pause until its next round."""
    for _ in range(100):
        if (wait := await world.dispatch.step()) > 0:
            return wait
    raise AssertionError("it never comes to rest")
