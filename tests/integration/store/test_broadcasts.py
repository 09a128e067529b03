"""Broadcasts (P3.22): they begin with their children and end once, under any owner."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection

from schedd.core.cluster.partition import shard_of_pool
from schedd.core.dispatch.placement import Need
from schedd.core.ids import NO_TOKEN, ShardId, child_run_id
from schedd.core.jobs.definition import Overlap, Priority
from schedd.core.runs.broadcast import ClosedBroadcasts, Closing, targets
from schedd.core.runs.deadlines import DeadlineExpiry
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import Draft, LiveRun, Loss, RunKey, Trigger
from schedd.core.runs.pools import pool_key
from schedd.core.runs.records import Assignments, JobRecord, Unstarted
from schedd.core.runs.redrive import RedriveLine
from schedd.core.runs.run_records import RunFilter, RunRecord
from schedd.store.cluster.fence import BY_INDEX
from schedd.store.dispatch import broadcasts
from schedd.store.statements.keys import key_arguments
from support.runs import worker
from support.store import (
    START,
    Member,
    World,
    draft,
    firing,
    incarnation,
    manual_run,
    ok,
    report,
)

WORKERS = ("w1", "w2", "w3")


def beginning(run: LiveRun, *workers: str, **changes: object) -> Draft:
    """Return the draft that begins this broadcast on these workers."""
    return draft(run, worker="", incarnation=None, targets=workers or WORKERS, **changes)


def hand(child: LiveRun, **changes: object) -> Draft:
    return draft(child, worker=child.target, **changes)


async def fired(world: World, me: Member, **changes: object) -> tuple[JobRecord, LiveRun]:
    job = await world.job(**changes)  # type: ignore[arg-type]
    [run] = (await me.fire(firing(job))).runs
    return job, run


async def begun(me: Member, run: LiveRun, *workers: str) -> tuple[LiveRun, dict[str, LiveRun]]:
    """The broadcast, and its children by their workers."""
    answer = await me.assign(beginning(run, *workers))
    return family(answer)


def family(answer: Assignments) -> tuple[LiveRun, dict[str, LiveRun]]:
    [parent] = [one for one in answer.begun if one.parent is None]
    return parent, {str(one.target): one for one in answer.begun if one.parent is not None}


def closing(run: LiveRun, **changes: object) -> Closing:
    return replace(Closing(run.key, run.job_id, run.shard), **changes)  # type: ignore[arg-type]


async def closed(me: Member, *runs: LiveRun) -> ClosedBroadcasts:
    return await me.store.owner.close(
        me.claim(*{run.shard for run in runs}), [closing(run) for run in runs]
    )


async def done(me: Member, child: LiveRun, state: State = State.SUCCEEDED) -> None:
    [run] = await me.assigned(hand(child))
    reason = None if state is State.SUCCEEDED else Reason.EXIT_CODE
    await me.store.results.accept([report(run, state=state, reason=reason)])


async def test_a_broadcast_begins_with_all_children_in_the_transaction_of_its_token(
    world: World,
) -> None:
    """P3.22"""
    me = await world.member()
    _, run = await fired(world, me)

    parent, children = await begun(me, run)

    assert (parent.key, parent.state, parent.children) == (run.key, State.RUNNING, 3)
    assert parent.token > NO_TOKEN
    assert (parent.worker, parent.incarnation, parent.start_by) == (None, None, None)
    assert parent.started_at is not None
    assert {name: one.key for name, one in children.items()} == {
        name: RunKey(run.key.scheduled_at, child_run_id(run.key.run_id, name)) for name in WORKERS
    }
    for one in children.values():
        assert (one.state, one.parent, one.token) == (State.PENDING, run.key.run_id, NO_TOKEN)
        assert await world.is_live(one.key.run_id)
    found = await me.store.owner.live_runs([run.shard], [State.PENDING, State.RUNNING])
    assert {one.key for one in found} == {one.key for one in (parent, *children.values())}, (
        "a new owner finds all of them"
    )


async def test_a_broadcast_requested_twice_begins_once(world: World) -> None:
    """P3.22"""
    me = await world.member()
    _, run = await fired(world, me)
    await begun(me, run)

    again = await me.assign(beginning(run, "w1", "w4"))

    assert (again.begun, again.waiting) == ([], [run.key])
    assert await world.sql("SELECT count(*) FROM runs WHERE parent IS NOT NULL") == [(3,)]


async def test_an_owner_that_was_replaced_begins_and_ends_nothing(world: World) -> None:
    """P3.22"""
    stale = await world.member()
    _, first = await fired(world, stale)
    _, second = await fired(world, stale)
    parent, children = await begun(stale, first, "w1")
    await done(stale, children["w1"])
    old = dict(stale.epochs)
    await stale.take()  # another taking, of its own: the epochs that it knew are over
    stale.epochs, fresh = old, dict(stale.epochs)

    answer = await stale.assign(beginning(second))
    assert (answer.begun, answer.assigned) == ([], [])
    assert answer.lost == {second.shard}
    assert (await closed(stale, parent)).ended == []
    assert (await world.run_row(parent.key.run_id))["state"] == "RUNNING"
    assert (await world.run_row(second.key.run_id))["state"] == "PENDING"

    stale.epochs = fresh
    [ended] = (await closed(stale, parent)).ended
    assert ended.state is State.SUCCEEDED


async def test_a_broadcast_ends_once_with_its_last_child(world: World) -> None:
    """P3.22"""
    me = await world.member()
    _, run = await fired(world, me)
    parent, children = await begun(me, run, "w1", "w2")
    await done(me, children["w1"])

    assert await me.store.owner.over([parent.key]) == []
    assert (await closed(me, parent)).ended == [], "w2's hasn't ended"
    await done(me, children["w2"])
    assert await me.store.owner.over([parent.key]) == [parent.key]
    both = await asyncio.gather(closed(me, parent), closed(me, parent))

    assert [one.state for each in both for one in each.ended] == [State.SUCCEEDED]
    row = await world.run_row(run.key.run_id)
    assert (row["state"], row["error"]) == ("SUCCEEDED", "")
    assert not await world.is_live(run.key.run_id)
    assert (await closed(me, parent)).ended == []


MANY_ENDED = """
INSERT INTO runs (scheduled_at, run_id, job_id, due_at, shard, priority, trigger, state, ready_at,
    parent, target)
SELECT scheduled_at, gen_random_uuid(), job_id, due_at, shard, priority, trigger, 'SUCCEEDED',
    ready_at, run_id, 'x' || n
FROM runs, generate_series(1, 2000) n WHERE run_id = %s
"""


async def test_a_scan_of_a_broadcast_reads_remaining_children_and_not_ended_ones(
    world: World,
) -> None:
    me = await world.member()
    _, run = await fired(world, me)
    parent, _ = await begun(me, run)
    await world.sql(MANY_ENDED, parent.key.run_id)

    def explained(connection: Connection) -> Any:
        connection.exec_driver_sql(f"SELECT {BY_INDEX}")
        statement = "EXPLAIN (ANALYZE, FORMAT JSON) " + broadcasts.OVER
        return connection.exec_driver_sql(statement, key_arguments([parent.key])).scalar_one()

    [plan] = await me.store.database.call(explained)
    assert 0 < most_rows(plan["Plan"]) < 100


def most_rows(plan: dict[str, Any]) -> float:
    """The most that one node of the plan read, and gave or left out."""
    read = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
    below = [most_rows(one) for one in plan.get("Plans", ())]
    return float(max([read * plan["Actual Loops"], *below]))


async def test_failed_children_are_counted_and_named_and_count_as_one_failure(world: World) -> None:
    """The parent is what history, failures in a row and dead letters go by."""
    me = await world.member()
    job, run = await fired(world, me)
    parent, children = await begun(me, run)
    await done(me, children["w1"])
    await done(me, children["w3"], State.FAILED)
    claim = me.claim(run.shard)
    away = children["w2"]
    ending = DeadlineExpiry(away.key, away.job_id, away.shard, State.FAILED, Reason.WORKER_LOST)
    assert await me.store.owner.end_waiting(claim, [ending]) == [away.key]

    [ended] = (await me.store.owner.close(claim, [closing(parent, pause_after=2)])).ended

    assert ended.state is State.FAILED
    row = await world.run_row(run.key.run_id)
    assert row["reason"] == "CHILDREN_FAILED"
    assert row["error"] == "2 of 3 didn't succeed: w2 (WORKER_LOST), w3 (EXIT_CODE)"
    assert await world.sql("SELECT run_id FROM dead_letters") == [(run.key.run_id,)]
    assert await world.sql("SELECT job_id, failures FROM failing") == [(job.definition.job_id, 1)]


async def test_a_canceled_broadcast_cancels_its_children(world: World) -> None:
    """P3.22"""
    me = await world.member()
    _, run = await fired(world, me)
    parent, children = await begun(me, run)
    [running] = await me.assigned(hand(children["w1"]))
    await done(me, children["w2"])
    marked = await me.store.users.cancel_run(parent.key.run_id, ok("cancel"))
    assert marked is not None
    assert (marked.run.state, marked.run.cancelling) == (State.RUNNING, True)

    assert await me.store.owner.over([parent.key]) == [parent.key]
    closing = await closed(me, parent)

    assert [one.key for one in closing.cancelled] == [running.key]
    assert closing.cancelled[0].cancelling
    assert closing.waited == [(children["w3"].key, run.job_id, Reason.BY_USER)]
    assert closing.ended == [], "w1's still runs"
    assert await me.store.owner.over([parent.key]) == [], "all of them were handled"
    await me.store.results.accept([report(running, state=State.FAILED, reason=Reason.SIGNAL)])
    [ended] = (await closed(me, parent)).ended
    row = await world.run_row(parent.key.run_id)
    assert (ended.state, row["reason"]) == (State.CANCELLED, "BY_USER")
    assert row["error"].startswith("2 of 3 didn't succeed: w1 (BY_USER), w3 (BY_USER)")
    states = "SELECT target, state FROM runs WHERE parent IS NOT NULL ORDER BY target"
    assert await world.sql(states) == [
        ("w1", "CANCELLED"),
        ("w2", "SUCCEEDED"),
        ("w3", "CANCELLED"),
    ]
    assert await world.sql("SELECT 1 FROM live") == []


async def test_overlap_counts_the_parent_alone(world: World) -> None:
    me = await world.member()
    job, run = await fired(world, me)
    parent, children = await begun(me, run, "w1")
    await done(me, children["w1"])
    [second] = (await me.fire(firing(job, at=START + timedelta(minutes=1)))).runs

    assert (await me.assign(beginning(second))).ended == [second.key], "the first hasn't ended"
    await closed(me, parent)
    [third] = (await me.fire(firing(job, at=START + timedelta(minutes=2)))).runs
    _, waiting = await begun(me, third, "w1", "w2")
    await me.assigned(*(hand(one) for one in waiting.values()))


async def test_children_take_turns_in_their_pool_and_the_parent_none(world: World) -> None:
    """The limit is of what runs."""
    me = await world.member()
    pool, here = pool_key("default", "disks"), shard_of_pool("default", "disks")
    await me.store.pools.set("default", "disks", 2, None, 0, "ann", ok("set"))
    _, run = await fired(world, me, shard=here, pool="disks")
    answer = await me.assign(beginning(run, pool=pool))
    _, children = family(answer)

    drafts = [hand(one, pool=pool) for one in children.values()]
    handed = await me.assign(*drafts)

    assert (len(handed.assigned), len(handed.full)) == (2, 1)
    await me.store.results.accept([report(handed.assigned[0].run)])
    [last] = (await me.assign(*(one for one in drafts if one.key in handed.full))).assigned
    assert last.run.key == handed.full[0]


async def test_waiting_runs_of_a_paused_job_wait_and_none_is_skipped(
    world: World,
) -> None:
    me = await world.member()
    job, run = await fired(world, me)
    _, children = await begun(me, run, "w1")
    await world.sql("UPDATE timers SET paused = true")
    assert (await me.assign(hand(children["w1"]))).waiting == [children["w1"].key]
    assert await me.store.owner.live_runs([job.shard], [State.PENDING]) == []
    await world.sql("UPDATE timers SET paused = false")
    await me.assigned(hand(children["w1"]))


@pytest.mark.parametrize("ends", ["lost", "given back"])
async def test_a_returned_child_keeps_its_target_worker(world: World, ends: str) -> None:
    """P3.22"""
    me = await world.member()
    _, run = await fired(world, me)
    _, children = await begun(me, run, "w1")
    [given] = await me.assigned(hand(children["w1"]))
    claim = me.claim(run.shard)
    assert given.incarnation is not None
    if ends == "lost":
        loss = Loss(given.key, given.shard, given.token, given.incarnation, State.RETRYING, None)
        await me.store.owner.rescue(claim, [loss])
    else:
        await me.store.owner.give_back(claim, [Unstarted(given.key, given.shard, given.token)])

    waits = await me.store.owner.live_runs([run.shard], [State.PENDING, State.RETRYING])

    assert [(one.key, one.target, one.parent) for one in waits] == [
        (given.key, "w1", run.key.run_id)
    ]


async def test_a_retried_broadcast_skips_workers_that_succeeded_before(world: World) -> None:
    """However often: what succeeded in any of the runs before stays done."""
    me = await world.member()
    job, run = await fired(world, me)
    parent, children = await begun(me, run)
    for name, state in (("w1", State.SUCCEEDED), ("w2", State.FAILED), ("w3", State.FAILED)):
        await done(me, children[name], state)
    await closed(me, parent)
    assert await me.store.owner.done([run.key]) == {}

    again = await retried(me, job, run)
    assert await me.store.owner.done([again.key]) == {again.key.run_id: {"w1"}}
    parent, children = await begun(me, again, "w2", "w3")
    await done(me, children["w2"])
    await done(me, children["w3"], State.FAILED)
    await closed(me, parent)

    third = await retried(me, job, again)
    assert await me.store.owner.done([third.key]) == {third.key.run_id: {"w1", "w2"}}


async def retried(me: Member, job: JobRecord, run: LiveRun) -> LiveRun:
    line = RedriveLine(job.definition.generation, None, None)
    made = await me.store.dead_letters.once_more(run.key.run_id, None, line, "ann", ok("retry"))
    assert isinstance(made, RunRecord)
    [found] = await me.store.owner.live_runs([job.shard], [State.PENDING])
    assert found.key == made.run.key
    return found


async def test_broadcast_targets_omit_lost_and_drained_workers(world: World) -> None:
    me = await world.member()
    made = [await me.store.workers.register(incarnation(worker=name)) for name in (*WORKERS, "w4")]
    here, lost, drained, _ = made
    await me.store.workers.lose([lost.id], None)
    await me.store.workers.drain(
        drained.worker, "ann", "", lambda _before, _after: ok("drain", "worker/w3")
    )

    found = await me.store.owner.there([one.id for one in (here, lost, drained)])

    assert found == [here]


async def test_children_are_listed_by_their_parent_or_worker_alone(world: World) -> None:
    me = await world.member()
    job, run = await fired(world, me)
    _, children = await begun(me, run)
    await me.assigned(hand(children["w2"]))

    async def listed(**more: Any) -> set[RunKey]:
        wanted = RunFilter(str(job.definition.job_id), **more)
        rows, _ = await me.store.users.list_runs("default", None, 50, wanted)
        return {row.run.key for row in rows}

    assert await listed() == {run.key}
    assert await listed(parent=run.key.run_id) == {one.key for one in children.values()}
    assert await listed(worker="w2") == {children["w2"].key}
    assert await me.store.users.attempts(run.key.run_id) == []


async def test_a_payload_of_a_trigger_is_each_childs(world: World) -> None:
    me = await world.member()
    job = await world.job(due=None)
    await me.store.users.insert_run(
        job.definition.job_id,
        manual_run(),
        Trigger.MANUAL,
        Priority.HIGH,
        b"given",
        None,
        ok("trigger"),
    )
    [run] = await me.store.owner.live_runs([ShardId(0)], [State.PENDING])
    _, children = await begun(me, run, "w1")
    answer = await me.assign(hand(children["w1"], overlap=Overlap.SKIP))
    assert [(one.payload, one.run.priority) for one in answer.assigned] == [
        (b"given", Priority.HIGH)
    ]


async def test_a_deleted_jobs_broadcast_ends_with_its_running_children(world: World) -> None:
    me = await world.member()
    job, run = await fired(world, me)
    parent, children = await begun(me, run, "w1", "w2")
    [running] = await me.assigned(hand(children["w1"]))
    await me.store.users.delete_job(job.definition.job_id, ok("delete"))
    assert (await world.run_row(children["w2"].key.run_id))["state"] == "CANCELLED"
    assert (await closed(me, parent)).ended == []
    await me.store.results.accept([report(running, finished_at=datetime.now(UTC))])

    [ended] = (await closed(me, parent)).ended

    assert ended.state is State.CANCELLED
    assert (await world.run_row(run.key.run_id))["reason"] == "DELETED"


async def test_a_broadcast_is_one_run_to_its_chain(world: World) -> None:
    me = await world.member()
    job, run = await fired(world, me)
    after = await world.job(name="after")
    await world.sql(
        "INSERT INTO chain_edges (child, parent) VALUES (%s, %s) RETURNING 1",
        *(after.definition.job_id, job.definition.job_id),
    )
    parent, children = await begun(me, run, "w1")
    await done(me, children["w1"])
    assert await world.sql("SELECT run_id FROM chain_arrivals") == []
    await closed(me, parent)
    assert await world.sql("SELECT run_id, state FROM chain_arrivals") == [
        (parent.key.run_id, "SUCCEEDED")
    ]


async def test_a_broadcast_omits_workers_with_certificates_for_other_namespaces(
    world: World,
) -> None:
    me = await world.member()
    own = replace(worker(), namespaces=frozenset({"billing"}))
    await me.store.workers.register(own)
    there = await me.store.owner.there([own.id])
    assert targets(Need("shell", each=True, namespace="default"), there) == ()
    assert targets(Need("shell", each=True, namespace="billing"), there) == (own.worker,)

    stored = await me.store.workers.register(replace(own, namespaces=None, slots=99))
    assert (stored.namespaces, stored.slots) == (None, own.slots), "its newest stream says for whom"
