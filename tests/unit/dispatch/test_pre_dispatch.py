"""Pre-dispatch: runs that workers start by timer, and runs that wait until they are due."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from schedd.core.dispatch.batch_size import LEAST
from schedd.core.dispatch.ready_queue import QueueHead
from schedd.core.ids import Epoch, JobId, ShardId, Token, scheduled_run_id
from schedd.core.jobs.definition import Overlap, Priority
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import LiveRun, RunKey
from schedd.core.schedule.compiled_schedule import EverySchedule
from schedd.core.timers.pre_dispatch import Lookahead
from schedd.dispatch import dispatch
from schedd.runtime.definition_texts import CachedDefinition
from schedkit.errors import OutcomeUnknown, Unavailable
from support.dispatching import SHELL, World, of
from support.runs import NOW, run, running, worker

AHEAD = Lookahead(timedelta(seconds=3), timedelta(seconds=2))
JOB = JobId(run(1).job_id)


def second(number: float) -> timedelta:
    return timedelta(seconds=number)


def due(number: int, after: float, **changes: Any) -> LiveRun:
    at = NOW + second(after)
    return run(number, due_at=at, ready_at=at, **{"generation": 1, **changes})


def world_with(grant: int = 4) -> World:
    world = World(ahead=AHEAD)
    world.attach(worker(slots=8), grant=grant)
    return world


async def at(world: World, after: float) -> set[int]:
    """Return what has been dispatched so many seconds later."""
    world.clock.time = NOW + second(after)
    await world.run_until_idle()
    return world.handed()


async def test_a_run_is_pre_dispatched_at_its_lookahead_and_not_sooner():
    world = world_with()
    world.run_index.put_runs([due(1, 3)], NOW)
    assert await world.dispatch.step() == pytest.approx(1.0)
    assert await at(world, 0.999) == set()
    assert await at(world, 1) == {1}
    assert await at(world, 3) == {1}
    assert len(world.rows.drafts) == 1, "it stood on the board once"


async def test_no_run_is_pre_dispatched_where_pre_dispatch_is_off():
    world = World()
    world.attach(worker(), grant=4)
    world.run_index.put_runs([due(1, 1)], NOW)
    assert await at(world, 0.999) == set()
    assert await at(world, 1) == {1}


async def test_ready_runs_of_any_class_are_dispatched_first():
    world = world_with(grant=2)
    urgent = [due(number, 1, priority=Priority.HIGH) for number in (1, 2)]
    world.run_index.put_runs([*urgent, run(3, priority=Priority.LOW)], NOW)
    assert await at(world, 0) == {3, 1}


async def test_a_run_that_got_no_slot_early_is_dispatched_when_due_in_its_class():
    world = world_with(grant=0)
    line = world.lines["w1"]
    world.run_index.put_runs([due(1, 1, priority=Priority.HIGH)], NOW)
    assert await at(world, 0) == set()
    assert line.demanded[-1] == [QueueHead(Priority.LOW, NOW + second(1), 1)]
    await at(world, 1)
    assert line.demanded[-1] == [QueueHead(Priority.HIGH, NOW + second(1), 1)]
    world.grant(worker(slots=8), 1)
    assert await at(world, 1.1) == {1}


@pytest.mark.parametrize(
    "changes",
    [{"overlap": Overlap.BUFFER_ONE}, {"overlap": Overlap.CANCEL_OTHER}, {"slots": 9}],
    ids=str,
)
async def test_a_run_that_may_not_go_early_waits_until_it_is_due(changes: dict[str, Any]):
    world = world_with()
    world.definitions.default = replace(SHELL, **changes)
    world.run_index.put_runs([due(1, 1)], NOW)
    await at(world, 0.5)
    assert world.rows.drafts == []
    await at(world, 1)
    assert len(world.run_index.ready) + len(world.rows.drafts) == 1


async def test_a_run_blocked_before_its_due_time_is_judged_again_when_due():
    """Nothing is skipped early: what runs now may have ended by then."""
    world = world_with()
    world.definitions.default = replace(SHELL, overlap=Overlap.SKIP)
    world.rows.limits = {JOB: 1}
    world.rows.admitted = {JOB: 1}
    world.run_index.put_runs([due(1, 1)], NOW)
    assert await at(world, 0) == set()
    assert len(world.rows.drafts) == 1
    assert await at(world, 0.5) == set()
    assert len(world.rows.drafts) == 1, "it isn't asked for again and again"
    world.rows.admitted = {JOB: 0}
    assert await at(world, 1) == {1}


async def test_an_early_run_that_the_database_took_too_long_for_is_tried_again():
    world = world_with()
    world.rows.fails = [OutcomeUnknown("no answer to COMMIT")]
    world.run_index.put_runs([due(1, 1)], NOW)
    with pytest.raises(OutcomeUnknown):
        await world.dispatch.step()
    assert len(world.run_index.ready) == 0, "it isn't due yet"
    assert run(1).key.run_id in world.run_index.early


async def test_a_run_that_ends_or_starts_elsewhere_isnt_pre_dispatched():
    world = world_with(grant=0)
    world.run_index.put_runs([due(1, 1), due(2, 1), due(3, 1)], NOW)
    await at(world, 0)
    world.run_index.put_runs([due(1, 1, state=State.CANCELLED)], NOW)
    world.run_index.put_runs([replace(running(2, worker()), token=Token(5))], NOW)
    world.grant(worker(slots=8), 4)
    assert await at(world, 0.1) == {3}


async def test_a_run_of_a_dropped_shard_isnt_pre_dispatched():
    world = world_with(grant=0)
    world.run_index.put_runs([due(1, 1)], NOW)
    await at(world, 0)
    world.run_index.ownership.drop({ShardId(0)})
    world.run_index.ownership.gain({ShardId(0): Epoch(6)})
    world.grant(worker(slots=8), 4)
    assert await at(world, 0.5) == set()


async def test_a_run_of_a_time_removed_by_an_edit_is_passed_on_at_its_due_time():
    """P3.18: not before, for another edit may bring its instant back."""
    world = world_with()
    every = EverySchedule(second(10))
    world.definitions.default = replace(SHELL, generation=2, schedule=every)
    world.definitions.edited_at = NOW + second(0.5)
    world.rows.generations = {JOB: 2}
    instant = NOW + second(1)
    one = due(1, 1, generation=1)
    one = replace(one, key=RunKey(instant, scheduled_run_id(one.job_id, instant)))
    world.run_index.put_runs([one], NOW)
    assert await at(world, 0.6) == set()
    assert world.passed == []
    assert await at(world, 1) == set()
    assert world.passed == [one]


async def test_hundreds_of_runs_are_pre_dispatched_in_batches():
    world = World(ahead=AHEAD)
    world.attach(worker(slots=10_000), grant=10_000)
    world.run_index.put_runs([due(number, 1) for number in range(1, 601)], NOW)
    await world.run_until_idle()
    assert len(world.handed()) == 600
    assert of(1, 1).key.run_id not in world.run_index.early


async def test_slow_batches_of_pre_dispatch_shrink(monkeypatch: pytest.MonkeyPatch):
    """Otherwise a statement that the database can't do in time would be retried for ever."""
    seconds = iter(range(10_000))
    monkeypatch.setattr(dispatch, "boottime", lambda: float(next(seconds)))
    world = world_with(grant=10_000)
    world.run_index.put_runs([due(number, 1) for number in range(1, 601)], NOW)
    await world.dispatch.step()
    pre_dispatched = len(world.rows.drafts)
    await world.dispatch.step()
    assert len(world.rows.drafts) - pre_dispatched <= LEAST


async def test_a_ready_run_doesnt_wait_for_pre_dispatches_under_way():
    world = world_with()

    def takes_a_while() -> None:
        world.clock.time = NOW + second(0.4)

    world.rows.meanwhile = takes_a_while
    world.run_index.put_runs([due(1, 1), due(2, 0.5, state=State.RETRYING)], NOW)
    assert await world.dispatch.step() == pytest.approx(0.1)


async def test_a_pre_dispatched_run_that_a_scan_puts_back_isnt_dispatched_again():
    world = world_with()
    one = due(1, 1)
    world.run_index.put_runs([one], NOW)
    world.rows.meanwhile = lambda: world.run_index.put_runs([one], NOW)
    assert await at(world, 0) == {1}
    await at(world, 1)
    assert len(world.rows.drafts) == 1


async def test_a_pre_dispatch_that_failed_without_a_database_is_retried(
    monkeypatch: pytest.MonkeyPatch,
):
    world = world_with()

    async def away(jobs: object) -> dict[JobId, CachedDefinition]:
        raise Unavailable("no database")

    world.run_index.put_runs([due(1, 1)], NOW)
    with monkeypatch.context() as patched:
        patched.setattr(world.definitions, "newest", away)
        with pytest.raises(Unavailable):
            await world.dispatch.step()
    assert await at(world, 0.5) == {1}


async def test_a_blocked_run_is_pre_dispatched_once_the_other_run_ends():
    world = world_with()
    world.definitions.default = replace(SHELL, overlap=Overlap.SKIP)
    world.rows.limits, world.rows.admitted = {JOB: 1}, {JOB: 1}
    world.run_index.put_runs([replace(running(9, worker()), job_id=JOB)], NOW)
    world.run_index.put_runs([due(1, 1)], NOW)
    assert await at(world, 0.2) == set()
    world.run_index.put_runs([due(1, 1)], NOW)  # a scan
    await at(world, 0.3)
    assert len(world.rows.drafts) == 1
    world.rows.admitted = {JOB: 0}
    assert world.run_index.forget(run(9).key.run_id, JOB) == 1, "the dispatcher is to look"
    assert await at(world, 0.4) == {1}
    assert not world.run_index._kept


async def test_a_run_whose_blocker_ended_meanwhile_is_pre_dispatched_at_once():
    world = world_with()
    world.definitions.default = replace(SHELL, overlap=Overlap.SKIP)
    world.rows.limits, world.rows.admitted = {JOB: 1}, {JOB: 1}
    world.run_index.put_runs([replace(running(9, worker()), job_id=JOB)], NOW)
    world.run_index.put_runs([due(1, 1)], NOW)

    def ends() -> None:
        """After the statement has seen it run."""
        world.rows.meanwhile = lambda: None
        world.rows.admitted = {JOB: 0}
        world.run_index.forget(run(9).key.run_id, JOB)

    world.rows.meanwhile = ends
    assert await at(world, 0.2) == {1}
    assert not world.run_index._kept


async def test_a_herd_too_large_for_the_lookahead_is_pre_dispatched_sooner(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("schedd.dispatch.run_index.HERD", 3)
    world = world_with(grant=8)
    world.run_index.put_runs([due(number, 3) for number in range(1, 6)], NOW)
    assert await at(world, 0) == {4, 5}
    assert await at(world, 1) == {1, 2, 3, 4, 5}
