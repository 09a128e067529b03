"""Dispatch: which runs go and which wait; none is delayed by others or forgotten."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from schedd.core.dispatch.placement import Unable
from schedd.core.dispatch.ready_queue import QueueHead
from schedd.core.ids import JobId
from schedd.core.jobs.definition import Match, Placement, Priority
from schedd.core.runs.lifecycle import State
from schedd.core.runs.pools import PoolKey
from schedd.core.timers.cluster_pauses import NO_PAUSES, Pause, Pauses
from schedd.dispatch.broadcasts import AT_ONCE as BROADCASTS_AT_ONCE
from schedd.dispatch.broadcasts import LOOKS as BROADCASTS_LOOKS
from schedd.dispatch.dispatch import MANY
from schedd.runtime.definition_texts import CachedDefinition
from support.dispatching import SHELL, World, of
from support.runs import NOW, run, worker
from support.wait import WAIT_TIMEOUT


@pytest.mark.slow
async def test_runs_that_no_worker_can_do_block_no_others_and_demand_no_slots():
    world = World()
    line = world.attach(worker(), grant=2)
    strange = replace(SHELL, action="python", handler="on no worker")
    world.definitions.jobs = {run(number).job_id: strange for number in range(1, 3_001)}
    world.run_index.put_runs([of(number, number, waited=60) for number in range(1, 3_001)], NOW)
    world.run_index.put_runs([of(9_000, 9_000)], NOW)

    await world.run_until_idle()

    assert world.handed() == {9_000}
    assert not any(line.demanded[-1:])
    assert len(world.run_index.ready) == 3_000


async def test_a_run_goes_to_a_worker_that_hasnt_refused_its_job_despite_fewer_slots():
    world = World()
    old, new = world.attach(worker(1), grant=3), world.attach(worker(2), grant=1)
    world.workers.unable(worker(1).id, run(1).job_id, Unable(1))
    world.run_index.put_runs([of(1, 1)], NOW)
    await world.run_until_idle()
    assert (len(old.assigned), len(new.assigned)) == (0, 1)
    world.run_index.put_runs([of(1, 2)], NOW)
    await world.run_until_idle()
    assert len(old.assigned) == 1, "there is no other worker"


async def test_a_paused_cluster_demands_no_slots_and_drafts_nothing():
    world = World()
    line = world.attach(worker(), grant=2)
    world.run_index.put_runs([of(1, 1), of(1, 2), of(1, 3)], NOW)
    await world.dispatch.step()
    assert line.demanded[-1], "the third waits for a slot"
    world.cluster_pause.pauses = Pauses(1, (Pause(NOW, "ops"),))
    world.run_index.put_runs([of(1, 4)], NOW)
    line.demanded.clear()
    drafted = len(world.rows.drafts)

    await world.run_until_idle()

    assert len(world.rows.drafts) == drafted
    assert not any(line.demanded[-1:])
    world.cluster_pause.pauses = NO_PAUSES
    world.workers.granted(next(iter(world.workers._attached.values())), 4, received=2)
    await world.run_until_idle()
    assert world.handed() == {1, 2, 3, 4}


@pytest.mark.slow
async def test_a_run_that_a_scan_puts_back_while_definitions_are_read_is_drafted_once(
    monkeypatch: pytest.MonkeyPatch,
):
    """Of two drafts of one run the second would end it, or take a slot for nothing."""
    world = World()
    world.attach(worker(slots=8), grant=8)
    strange = replace(SHELL, action="python", handler="on no worker")
    world.definitions.jobs = {run(2).job_id: strange}
    waiting = [of(1, 1, waited=60), of(2, 2, waited=60)]
    read = world.definitions.newest

    async def scanned(jobs: Collection[JobId]) -> dict[JobId, CachedDefinition]:
        world.run_index.put_runs(waiting, NOW)
        return await read(jobs)

    monkeypatch.setattr(world.definitions, "newest", scanned)
    world.run_index.put_runs(waiting, NOW)
    await world.dispatch.step()
    assert [draft.key for draft in world.rows.drafts] == [waiting[0].key]


async def test_a_run_of_many_slots_demands_all_of_them():
    world = World()
    line = world.attach(worker(slots=4), grant=1)
    world.definitions.default = replace(SHELL, slots=4)
    world.run_index.put_runs([of(1, 1)], NOW)

    await world.run_until_idle()

    assert world.handed() == set()
    assert line.demanded[-1] == [QueueHead(Priority.MEDIUM, NOW, 4, least=4)]


async def test_a_draft_from_an_old_definition_is_made_again_at_once():
    world = World()
    world.attach(worker(), grant=1)
    job = run(1).job_id
    world.rows.generations = {job: 2}
    world.definitions.stale = {job: SHELL}
    world.definitions.jobs = {job: replace(SHELL, generation=2)}
    world.run_index.put_runs([of(1, 1)], NOW)

    await world.run_until_idle()

    assert [draft.terms.generation for draft in world.rows.drafts] == [1, 2]
    assert world.handed() == {1}


async def test_an_unreported_edit_still_reaches_runs_that_no_worker_can_do():
    world = World()
    world.attach(worker(), grant=1)
    job = run(1).job_id
    world.definitions.stale = {job: replace(SHELL, action="python", handler="old")}
    world.definitions.jobs = {job: SHELL}
    world.run_index.put_runs([of(1, 1)], NOW)
    await world.run_until_idle()
    assert world.handed() == set()

    world.dispatch._unsort_at = 0.0
    await world.run_until_idle()
    assert world.handed() == {1}


@pytest.mark.slow
async def test_a_dispatch_round_scans_no_waiting_runs_without_grants():
    world = World()
    world.attach(worker(slots=1), grant=0)
    world.run_index.put_runs([of(number, number) for number in range(1, 5_001)], NOW)
    looked = 0

    class Counting(dict[Any, Any]):
        def values(self) -> Any:
            nonlocal looked
            looked += 1
            return super().values()

    for line in world.run_index.ready._lines.values():
        line.runs = Counting(line.runs)
    for _ in range(10):
        await world.dispatch.step()
    assert looked == 0


@pytest.mark.parametrize(("waiting", "together"), [(MANY, 2), (10, 12)])
async def test_urgent_runs_are_written_without_the_rest_while_many_are_ready(
    waiting: int, together: int
) -> None:
    """The rest takes its time; with little there is no rest to speak of."""
    world = World()
    world.attach(worker(slots=64), grant=64)
    world.run_index.put_runs([of(number, number) for number in range(1, waiting + 1)], NOW)
    urgent = [replace(of(n, n), priority=Priority.HIGH) for n in (9001, 9002)]
    world.run_index.put_runs(urgent, NOW)
    await world.dispatch.step()
    assert len(world.handed()) == together
    assert world.handed() >= {9001, 9002}
    await world.run_until_idle()
    assert len(world.handed()) == min(64, waiting + 2), "and the rest follows at once"


async def test_a_run_beside_free_slots_waits_for_at_most_one_urgent_batch() -> None:
    world = World()
    world.attach(worker(slots=64), grant=64)
    world.run_index.put_runs([of(number, number) for number in range(1, MANY + 1)], NOW)
    for urgent in (9001, 9002):
        world.run_index.put_runs([replace(of(urgent, urgent), priority=Priority.HIGH)], NOW)
        await world.dispatch.step()
        assert urgent in world.handed()
    assert len(world.handed()) > 2


async def test_a_run_whose_handler_no_worker_has_isnt_placeable():
    world = World()
    world.attach(worker(), grant=1)
    strange = replace(SHELL, action="python", handler="on no worker")
    world.definitions.jobs = {run(number).job_id: strange for number in range(1, 11)}
    world.run_index.put_runs([of(number, number, waited=60) for number in range(1, 11)], NOW)
    world.run_index.put_runs([of(number, number) for number in range(11, 14)], NOW)

    await world.run_until_idle()

    assert world.handed() == {11}
    assert (len(world.run_index.ready), world.dispatch.placeable()) == (12, 2)


def test_a_run_deleted_from_the_rows_leaves_the_run_index():
    world = World()
    run_index = world.run_index
    run_index.put_runs([of(1, 1), of(2, 2)], NOW)
    run_index.hold(of(3, 3))
    far = replace(of(4, 4), ready_at=NOW + timedelta(hours=1), state=State.RETRYING)
    run_index.put_runs([far], NOW)

    standing = [*run_index.standing(NOW + timedelta(seconds=10))]

    assert {run.key.run_id.number for run in standing} == {1, 2, 3}
    for one in standing:
        run_index.forget(one.key.run_id, one.job_id)
    assert len(run_index.ready) == 0
    assert run_index.held == []


async def test_a_run_that_a_scan_read_during_its_dispatch_demands_no_slot():
    """A slot granted for a HIGH run that runs already would go to this member's LOW one, before
    the HIGH ones of others.
    """
    world = World()
    line = world.attach(worker(), grant=1)
    high, low = replace(of(1, 1), priority=Priority.HIGH), replace(of(2, 2), priority=Priority.LOW)
    world.run_index.put_runs([high, low], NOW)
    world.rows.meanwhile = lambda: world.run_index.put_runs([high, low], NOW)

    await world.run_until_idle()

    assert world.handed() == {1}
    assert [head.priority for head in line.demanded[-1]] == [Priority.LOW]


async def test_a_slot_granted_for_a_high_run_that_another_worker_took_isnt_used_for_a_low_one():
    """The HIGH run of another member waits for it: this one tells what it has left."""
    world = World()
    first, second = worker(1, name="w1"), worker(2, name="w2")
    world.attach(first, grant=1)
    line = world.attach(second, grant=0)
    high, low = replace(of(1, 1), priority=Priority.HIGH), replace(of(2, 2), priority=Priority.LOW)
    world.run_index.put_runs([high, low], NOW)
    await world.run_until_idle()
    assert world.handed() == {1}

    world.grant(second, 1, before=QueueHead(Priority.HIGH, NOW, 1))
    await world.run_until_idle()

    assert world.handed() == {1}
    assert line.demanded[-1] == [QueueHead(Priority.LOW, NOW, 1)]
    assert len(world.rows.drafts) == 1, "nothing was tried without effect"
    world.grant(second, 1)
    await world.run_until_idle()
    assert world.handed() == {1, 2}


async def test_a_slot_is_used_for_runs_with_priority_over_those_of_other_members():
    world = World()
    one = worker()
    world.attach(one, grant=0)
    aged = replace(of(1, 1, waited=180), priority=Priority.LOW)
    fresh = replace(of(2, 2), priority=Priority.HIGH)
    world.run_index.put_runs([aged, fresh], NOW)
    world.grant(one, 2, before=QueueHead(Priority.HIGH, NOW - timedelta(seconds=20), 9))
    await world.run_until_idle()
    assert world.handed() == {1, 2}


POOL = PoolKey("default/p")


async def test_a_full_pool_blocks_no_others_and_demands_no_slots():
    world = World()
    line = world.attach(worker(), grant=50)
    world.rows.places[POOL] = 2
    pooled = replace(SHELL, pool=POOL)
    world.definitions.jobs = {run(number).job_id: pooled for number in range(1, 3_001)}
    world.run_index.put_runs([of(number, number, waited=60) for number in range(1, 3_001)], NOW)
    world.run_index.put_runs([of(9_000, 9_000)], NOW)

    await world.run_until_idle()

    assert world.handed() == {1, 2, 9_000}
    assert len(world.rows.drafts) == 3, "what has no place isn't tried"
    assert not any(line.demanded[-1:])


async def test_the_end_of_a_run_in_a_full_pool_wakes_dispatch_for_the_next():
    world = World()
    world.attach(worker(), grant=50)
    world.rows.places[POOL] = 1
    world.definitions.default = replace(SHELL, pool=POOL)
    world.run_index.put_runs([of(number, number) for number in (1, 2, 3)], NOW)
    await world.run_until_idle()
    assert world.handed() == {1}
    woken: list[None] = []
    world.run_index.on_room = lambda: woken.append(None)
    world.rows.places[POOL] = 1
    world.run_index.forget(run(1).key.run_id, run(1).job_id)
    assert woken, "no worker grants slots for what has no room, so that nothing else wakes it"
    await world.run_until_idle()
    assert world.handed() == {1, 2}


async def test_a_lower_room_than_expected_is_used_until_the_next_read():
    world = World()
    world.attach(worker(), grant=50)
    world.rows.places[POOL] = 3
    world.definitions.default = replace(SHELL, pool=POOL)
    world.run_index.put_runs([of(1, 1)], NOW)
    await world.run_until_idle()
    world.rows.places[POOL] = 0  # an operator lowered the limit
    world.run_index.put_runs([of(2, 2)], NOW)
    await world.run_until_idle()
    assert world.handed() == {1}
    assert len(world.run_index.ready) == 1
    assert len(world.rows.drafts) <= 2
    world.rows.places[POOL] = 1
    world.seconds += 1
    await world.run_until_idle()
    assert world.handed() == {1, 2}


async def test_a_broadcast_has_a_run_for_each_worker_and_needs_no_slot() -> None:
    world = World()
    world.definitions.jobs[run(1).job_id] = replace(SHELL, placement=Placement.BROADCAST)
    world.attach(worker(1), grant=2)
    world.attach(worker(2), grant=0)
    world.run_index.put_runs([of(1, 1)], NOW)

    await world.run_until_idle()

    assert world.rows.drafts[0].terms.targets == ("w1", "w2")
    assert [one.key.run_id.number for one in world.run_index.broadcasts.values()] == [1]
    assert {run.key.run_id.number for run in world.lines["w1"].assigned} == {101}
    assert [one.target for one in world.run_index.ready] == ["w2"], "it goes to no other"
    assert world.lines["w2"].demanded[-1] != []
    assert not world.lines["w1"].demanded[-1], "w1 has slots that w2's child can't use"


async def test_a_broadcast_waits_for_a_worker_and_skips_workers_that_have_done_it() -> None:
    world = World()
    world.definitions.jobs[run(1).job_id] = replace(SHELL, placement=Placement.BROADCAST)
    world.run_index.put_runs([of(1, 1)], NOW)
    await world.run_until_idle()
    assert (world.rows.drafts, len(world.run_index.ready)) == ([], 1)

    world.attach(worker(1), grant=1)
    world.attach(worker(2), grant=1)
    world.rows.done_on = frozenset({"w1"})
    world.dispatch._broadcasts._try_at = 0.0
    await world.run_until_idle()

    assert world.rows.drafts[0].terms.targets == ("w2",)
    assert {run.key.run_id.number for run in world.lines["w2"].assigned} == {101}


async def test_broadcasts_without_a_worker_hide_no_others() -> None:
    world = World()
    many = BROADCASTS_AT_ONCE * BROADCASTS_LOOKS + 100
    alone = replace(SHELL, placement=Placement.BROADCAST)
    for job in range(1, 4):
        asks = (Match("gpu", (f"a{job}",)),)
        world.definitions.jobs[run(job).job_id] = replace(alone, require=asks)
    world.definitions.jobs[run(4).job_id] = alone
    world.attach(worker(1), grant=1)
    world.run_index.put_runs([of(1 + n % 3, n, waited=90) for n in range(many)], NOW)
    world.run_index.put_runs([of(4, many, waited=0)], NOW)

    await world.run_until_idle()
    if not world.rows.drafts:  # it has its turn in the round after that
        world.dispatch._broadcasts._try_at = 0.0
        await world.run_until_idle()

    assert [draft.key.run_id.number for draft in world.rows.drafts if draft.terms.targets] == [many]
    assert len([one for one in world.run_index.ready if one.target is None]) == many


async def test_slots_that_no_run_waits_for_wake_no_owner() -> None:
    """Each of a thousand idle workers reports a slot with each of its runs."""
    world = World()
    world.dispatch.slots_freed()
    assert not await world.dispatch.loop.waker.wait(0.01)
    world.run_index.put_runs([of(1, 1)], NOW)
    world.dispatch.slots_freed()
    assert await world.dispatch.loop.waker.wait(WAIT_TIMEOUT)
