"""Firing as RUNNING: which due timers get free slots, and what follows a slot that is missing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from schedd.core.dispatch.placement import Need, job_need
from schedd.core.dispatch.priority_order import last_rank
from schedd.core.ids import Id, JobId, RunId, ShardId
from schedd.core.jobs.definition import (
    CatchUp,
    CatchUpPolicy,
    Delivery,
    Overlap,
    Placement,
    Priority,
)
from schedd.core.jobs.labels import Match
from schedd.core.runs.deadlines import START_WITHIN
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import Timer
from schedd.core.runs.pools import PoolKey
from schedd.core.timers.cluster_pauses import Pauses
from schedd.core.timers.pre_dispatch import Lookahead
from schedd.dispatch.held_timers import HOLD, QUIET
from schedd.timers.fire import BATCH, ENOUGH
from schedkit.errors import OutcomeUnknown
from support.firing import TIMER, Herd, World
from support.runs import NOW, run, worker

AHEAD = Lookahead(timedelta(seconds=2), timedelta(seconds=1))
LATER = QUIET.total_seconds() + 0.01


def job(number: int) -> JobId:
    return JobId(Id.from_int(number))


@dataclass
class Stored(Herd):
    """Timers whose rows are read again one by one."""

    async def timers(self, jobs: Collection[JobId]) -> list[Timer]:
        self.calls.append("reread")
        return [self.due[job] for job in jobs if job in self.due]


def herd(count: int, *, due: float = 0.0, **changes: Any) -> Herd:
    """So many timers, due so many seconds from now."""
    rows = Stored(count=count, **changes)
    at = NOW + timedelta(seconds=due)
    rows.due = {job: replace(one, due_at=at, nominal=at) for job, one in rows.due.items()}
    return rows


def need(world: World) -> Need:
    """The need of all jobs."""
    return job_need(world.definitions._made(job(0)).definition)


def pending(rows: Herd) -> int:
    return rows.calls.count("fire")


async def test_due_timers_take_free_slots_and_are_pushed_to_their_worker() -> None:
    rows = herd(3)
    world = World(rows)
    line = world.attach(worker(), slots=4)

    await world.after(0)

    assert {one.job_id for one in rows.sent} == {job(0), job(1), job(2)}
    assert pending(rows) == 0
    assert {sent.key.run_id for sent in line.assigned} == {one.key.run_id for one in rows.sent}
    assert len({sent.token for sent in line.assigned}) == 3
    assert len(world.run_index.running) == 3
    assert not world.run_index.held_timers
    attached = world.workers.attached(worker().id)
    assert attached is not None
    assert (attached.pushed, attached.under_way) == (3, 0)


async def test_without_a_worker_timers_are_fired_as_pending_at_once() -> None:
    rows = herd(3)
    world = World(rows)
    await world.after(0)
    assert (rows.sent, len(world.run_index.ready)) == ([], 3)


async def test_a_timer_without_a_slot_waits_for_the_next_one() -> None:
    rows = herd(3)
    world = World(rows)
    line = world.attach(worker(), slots=1)
    await world.after(0)
    assert len(line.assigned) == 1

    world.grant(worker(), 1, received=1)
    await world.after(0.1)
    world.grant(worker(), 1, received=2)
    await world.after(0.1)

    assert len(line.assigned) == 3
    assert pending(rows) == 0


async def test_due_timers_are_fired_as_pending_when_no_slot_becomes_free() -> None:
    rows = herd(3)
    world = World(rows)
    line = world.attach(worker(), slots=1)
    await world.after(0)
    await world.after(QUIET.total_seconds() / 2)
    assert pending(rows) == 0

    await world.after(LATER)

    assert (len(line.assigned), len(world.run_index.ready)) == (1, 2)
    assert not world.run_index.held_timers


async def test_timers_are_held_for_a_limited_time_though_slots_become_free() -> None:
    rows = herd(30)
    world = World(rows)
    line = world.attach(worker(), slots=1)
    await world.after(0)
    passed = 0.0
    while passed < HOLD.total_seconds():
        assert pending(rows) == 0
        world.grant(worker(), 1, received=len(line.assigned))
        await world.after(0.2)
        passed += 0.2
    await world.after(0.2)
    assert len(line.assigned) + len(world.run_index.ready) == 30
    assert len(world.run_index.ready) > 0


@pytest.mark.parametrize(("slots", "sent"), [(2, 0), (3, 1), (9, 3)])
async def test_slots_that_waiting_runs_need_are_left_to_them(slots: int, sent: int) -> None:
    """Also slots for runs that wait to be pre-dispatched."""
    rows = herd(3)
    world = World(rows)
    line = world.attach(worker(slots=9), slots=slots)
    world.run_index.ready.add([run(501)], need(world))
    world.run_index.early.add(run(502, ready_at=NOW + timedelta(seconds=1)), need(world))

    await world.after(0)

    assert len(line.assigned) == sent
    assert len(world.run_index.held_timers) == 3 - sent


async def test_due_timers_that_have_priority_over_a_ready_run_are_ordered_by_the_queue() -> None:
    """While no slot is free. Timers that follow all ready runs are held."""
    rows = herd(3)
    world = World(rows, urgent={job(1)})
    world.attach(worker(), slots=0)
    waits = run(501, priority=Priority.MEDIUM, ready_at=NOW - timedelta(seconds=1))
    world.run_index.ready.add([waits], need(world))

    await world.after(0)

    assert [one.job_id for one in world.run_index.ready] == [waits.job_id, job(1)]
    assert len(world.run_index.held_timers) == 2


async def test_timers_that_follow_enough_ready_runs_are_held_without_free_slots() -> None:
    rows = herd(3)
    world = World(rows)
    world.placeable = lambda: ENOUGH
    world.attach(worker(), slots=0)
    await world.after(0)
    await world.after(LATER)
    assert pending(rows) == 0
    await world.after(HOLD.total_seconds())
    assert len(world.run_index.ready) == 3


async def test_no_slot_is_taken_while_a_waiting_run_needs_several_of_one_worker() -> None:
    rows = herd(2)
    world = World(rows)
    line = world.attach(worker(slots=9), slots=9)
    world.run_index.ready.add([run(501)], replace(need(world), slots=3))
    await world.after(0)
    assert line.assigned == []


async def test_runs_that_no_free_slot_could_serve_hold_up_no_timer() -> None:
    rows = herd(2)
    world = World(rows)
    world.placeable = lambda: 0
    line = world.attach(worker(), slots=4)
    world.run_index.ready.add([run(501)], replace(need(world), action="http"))
    await world.after(0)
    assert len(line.assigned) == 2


async def test_a_timer_is_fired_as_running_by_the_lookahead_before_its_due_time() -> None:
    """P4.7: the run's start limit counts from its due time."""
    rows = herd(2, due=3)
    world = World(rows, ahead=AHEAD)
    line = world.attach(worker(), slots=4)
    await world.after(0)
    await world.after(1.5)
    assert (rows.sent, pending(rows)) == ([], 0)

    await world.after(0.51)

    assert len(line.assigned) == 2
    due = NOW + timedelta(seconds=3)
    assert {sent.start_by for sent in line.assigned} == {due + START_WITHIN}


async def test_without_pre_dispatch_timers_get_slots_when_they_are_due() -> None:
    rows = herd(2, due=1)
    world = World(rows, ahead=Lookahead(timedelta(seconds=2)))
    line = world.attach(worker(), slots=4)
    await world.after(0.9)
    assert line.assigned == []
    await world.after(0.1)
    assert len(line.assigned) == 2


async def test_a_herd_too_large_for_the_lookahead_is_fired_sooner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("schedd.dispatch.held_timers.HERD", 3)
    rows = herd(5, due=2)
    world = World(rows, ahead=AHEAD)
    line = world.attach(worker(slots=9), slots=9)
    await world.after(0)
    assert len(line.assigned) == 5


async def test_due_timers_go_before_others_and_urgent_ones_before_less_urgent_ones() -> None:
    rows = herd(6)
    soon = NOW + timedelta(seconds=0.5)
    for number in (0, 1, 4):
        rows.due[job(number)] = replace(rows.due[job(number)], due_at=soon, nominal=soon)
    world = World(rows, urgent={job(n) for n in (4, 5)}, ahead=AHEAD)
    world.definitions.read_of |= {job(n) for n in range(6)}
    world.attach(worker(slots=9), slots=5)

    await world.after(0)

    order = [one.job_id for one in rows.sent]
    assert order[0] == job(5)
    assert {*order[1:3]} == {job(2), job(3)}
    assert {*order[3:]} < {job(0), job(1), job(4)}


async def test_timers_that_share_a_step_keep_the_priority_of_their_own_jobs() -> None:
    """Their definitions weren't read when the batch was formed."""
    rows = herd(3)
    world = World(rows, urgent={job(1)})
    world.attach(worker(), slots=4)
    await world.after(0)
    priorities = {one.job_id: one.priority for one in rows.sent}
    assert priorities == {
        job(0): Priority.MEDIUM,
        job(1): Priority.HIGH,
        job(2): Priority.MEDIUM,
    }


async def test_an_urgent_timer_waits_for_one_batch_of_held_timers_at_most() -> None:
    rows = herd(3_000)
    world = World(rows, urgent={job(5_000)})
    world.definitions.read_of.add(job(5_000))
    world.attach(worker(slots=9_000), slots=0)
    await world.after(0)
    assert len(world.run_index.held_timers) == 3_000

    rows.due[job(5_000)] = replace(TIMER, job_id=job(5_000))
    world.fire.changed([job(5_000)])
    world.grant(worker(), 9_000)
    await world.after(0.01)

    assert [one.job_id for one in rows.sent].index(job(5_000)) <= BATCH
    assert len(rows.sent) == 3_001


async def test_of_timers_of_equal_priority_the_soonest_due_gets_the_slot() -> None:
    rows = herd(8)
    for number in range(8):
        at = NOW + timedelta(seconds=4, milliseconds=-number)
        rows.due[job(number)] = replace(rows.due[job(number)], due_at=at, nominal=at)
    world = World(rows)
    world.clock.time += timedelta(seconds=4)
    world.attach(worker(), slots=3)
    await world.after(0)
    assert [one.job_id for one in rows.sent] == [job(7), job(6), job(5)]


@pytest.mark.parametrize(
    "changes",
    [
        {"overlap": Overlap.BUFFER_ALL},
        {"overlap": Overlap.CANCEL_OTHER},
        {"overlap": Overlap.ALLOW, "pause_after_failures": 3},
        {"placement": Placement.PACK},
        {"placement": Placement.STICKY},
        {"prefer": (Match("zone", ("a",)),)},
        {"pool": PoolKey("p")},
        {"max_runs": 5},
        {"start_deadline": timedelta(seconds=30)},
        {"run_timeout": timedelta(seconds=30)},
        {"delivery": Delivery.AT_MOST_ONCE},
        {"generation": 2},
    ],
    ids=str,
)
async def test_a_job_with_limits_or_a_choice_of_workers_is_dispatched_from_the_ready_queue(
    changes: dict[str, Any],
) -> None:
    rows = herd(1)
    world = World(rows)
    world.attach(worker(), slots=4)
    world.definitions.changes = changes
    await world.after(0)
    assert (rows.sent, pending(rows)) == ([], 1)


async def test_a_late_timer_is_dispatched_within_the_limits_of_catching_up() -> None:
    rows = herd(1, due=-30)
    world = World(rows)
    world.definitions.catch_up = CatchUp(CatchUpPolicy.LATEST)
    world.attach(worker(), slots=4)
    await world.after(0)
    assert (rows.sent, pending(rows)) == ([], 1)


async def test_a_run_beside_another_of_its_job_waits_in_the_ready_queue() -> None:
    """P3.6"""
    rows = herd(2, beside={job(1)})
    world = World(rows)
    line = world.attach(worker(), slots=4)

    await world.after(0)

    assert [sent.job_id for sent in line.assigned] == [job(0)]
    assert [waits.job_id for waits in world.run_index.ready] == [job(1)]
    attached = world.workers.attached(worker().id)
    assert attached is not None
    assert (attached.pushed, attached.under_way) == (1, 0)


async def test_nothing_is_pushed_while_the_commit_is_in_doubt() -> None:
    """P1.4: the rows say what happened; a scan finds the run, and it never started."""
    rows = herd(2, fails=[OutcomeUnknown("no answer")])
    world = World(rows)
    line = world.attach(worker(), slots=4)
    with pytest.raises(OutcomeUnknown):
        await world.after(0)
    assert line.assigned == []
    assert len(world.run_index.running) == 0
    attached = world.workers.attached(worker().id)
    assert attached is not None
    assert attached.available == 4

    await world.after(0)

    assert "reread" in rows.calls
    assert not world.run_index.timers
    assert line.assigned == []


async def test_nothing_is_fired_as_running_once_trust_has_passed() -> None:
    """P1.7"""
    rows = herd(2)
    world = World(rows, trusted=False)
    line = world.attach(worker(), slots=4)
    with pytest.raises(Exception, match="lease"):
        await world.after(0)
    assert (rows.sent, line.assigned) == ([], [])


async def test_a_timer_that_was_edited_is_read_again_and_not_pushed() -> None:
    """P3.4"""
    rows = herd(2, edited={job(1)})
    world = World(rows)
    line = world.attach(worker(), slots=4)
    await world.step()
    await world.step()
    await world.step()
    assert [sent.job_id for sent in line.assigned] == [job(0)]
    assert "reread" in rows.calls


async def test_a_held_timer_that_was_edited_or_whose_shard_was_lost_gets_no_slot() -> None:
    rows = herd(3)
    world = World(rows)
    line = world.attach(worker(), slots=0)
    await world.after(0)
    assert len(world.run_index.held_timers) == 3
    gone = rows.due.pop(job(1))
    world.fire.changed([gone.job_id])
    await world.after(0)

    world.run_index.ownership.drop({ShardId(0)})
    world.grant(worker(), 4)
    await world.after(0.1)

    assert (line.assigned, rows.sent) == ([], [])


async def test_a_held_timer_whose_row_changed_goes_by_its_new_row() -> None:
    rows = herd(1)
    world = World(rows)
    line = world.attach(worker(), slots=0)
    await world.after(0)
    rows.due[job(0)] = replace(rows.due[job(0)], generation=2)
    world.definitions.changes = {"generation": 2}
    world.fire.changed([job(0)])
    await world.after(0)

    world.grant(worker(), 1)
    await world.after(0.01)

    assert [one.timer.generation for one in rows.sent] == [2]
    assert len(line.assigned) == 1


async def test_after_a_pause_of_the_cluster_held_timers_are_planned_again() -> None:
    """P3.11: a step is computed with the pauses of its time."""
    rows = herd(2)
    world = World(rows)
    line = world.attach(worker(), slots=0)
    await world.after(0)
    rows.switched = 2
    world.cluster_pause.pauses = Pauses(switched=2)

    world.grant(worker(), 4)
    await world.after(0.01)

    assert len(line.assigned) == 2
    assert not world.run_index.held_timers


async def test_slots_for_ranks_above_another_members_head_are_given_singly() -> None:
    """Of a worker that two members compete for."""
    rows = herd(2)
    world = World(rows)
    line = world.attach(worker(), slots=0)
    world.grant(worker(), 4, last=last_rank(Priority.MEDIUM, NOW))
    await world.after(0)
    assert len(line.assigned) == 2

    behind = herd(2)
    world = World(behind)
    line = world.attach(worker(), slots=0)
    world.grant(worker(), 4, last=last_rank(Priority.HIGH, NOW))
    await world.after(0)
    await world.after(LATER)
    assert line.assigned == []
    assert len(world.run_index.ready) == 2


async def test_held_timers_ask_workers_for_slots() -> None:
    rows = herd(3)
    world = World(rows)
    world.attach(worker(), slots=0)
    await world.after(0)
    [head] = world.run_index.held_timers.heads(NOW, lambda _need: True)
    assert (head.priority, head.waiting_since, head.slots, head.least) == (
        *(Priority.MEDIUM, NOW),
        *(3, 1),
    )


async def test_a_run_that_cant_be_pushed_is_given_back() -> None:
    """Its worker is attached nowhere by the time of the COMMIT."""
    rows = herd(1)
    world = World(rows)
    world.attach(worker(), slots=4)
    given: list[RunId] = []

    async def give_back(claim: object, unstarted: list[Any]) -> list[Any]:
        given.extend(one.key.run_id for one in unstarted)
        return [replace(world.run_index.running[given[0]], state=State.PENDING)]

    rows.give_back = give_back  # type: ignore[attr-defined]
    attached = world.workers.attached(worker().id)
    assert attached is not None
    rows.meanwhile = lambda: world.workers.detach(attached)
    await world.after(0)
    assert given == [rows.sent[0].key.run_id]
    assert len(world.run_index.ready) == 1
