"""Fire as RUNNING (P3.4, P3.6): the statement that advances a timer dispatches its run."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection

from schedd.core.ids import ShardId, token_of
from schedd.core.jobs.definition import Overlap, Priority
from schedd.core.runs.deadlines import START_WITHIN
from schedd.core.runs.lifecycle import State
from schedd.core.runs.records import TimerEdit, Unstarted
from schedd.core.timers.pre_dispatch import start_not_before
from schedd.store.jobs import job_pauses
from support.store import (
    INCARNATION,
    MINUTE,
    START,
    World,
    draft,
    firing,
    new_run,
    ok,
    report,
    to_slot,
    wait_for_waiter,
)

ROWS = """
SELECT state, token, attempt, assignments, worker, incarnation, assigned_at IS NOT NULL,
    start_by - GREATEST(assigned_at, due_at), generation, ready_at = due_at, trigger
FROM runs ORDER BY due_at, token
"""


async def test_a_timer_with_a_slot_advances_and_its_run_is_dispatched(world: World) -> None:
    me = await world.member()
    job = await world.job(shard=5)

    fired = await me.fire_running(to_slot(job))

    [run] = fired.runs
    assert (fired.refused, fired.lost, fired.broken) == ([], frozenset(), [])
    assert (run.state, run.incarnation, run.attempt) == (State.RUNNING, INCARNATION, 1)
    [timer] = await me.store.owner.timers([job.definition.job_id])
    assert (timer.due_at, timer.nominal) == (START + MINUTE, START + MINUTE)
    assert await me.store.owner.live_runs([ShardId(5)], [State.RUNNING]) == [run]
    assert await world.sql(ROWS) == [
        (
            *("RUNNING", run.token, 1, 1, "worker-1", INCARNATION, True),
            *(START_WITHIN, 1, True, "SCHEDULE"),
        )
    ]


async def test_its_row_is_that_of_a_run_that_was_fired_and_then_dispatched(world: World) -> None:
    me = await world.member()
    one, other = await world.job(shard=2), await world.job(shard=2)

    await me.fire_running(to_slot(one))
    await me.assigned(draft((await me.fire(firing(other))).runs[0]))

    varies = {"run_id", "job_id", "token", "created_at", "assigned_at", "start_by"}
    first, second = [
        {name: value for name, value in row.items() if name not in varies}
        for [row] in await world.sql("SELECT to_jsonb(r) FROM runs r")
    ]
    assert first == second
    assert await world.sql("SELECT count(*) FROM live") == [(2,)]


async def test_a_run_fired_before_it_is_due_is_pre_dispatched(world: World) -> None:
    """P4.7: its start limit is counted from its due time."""
    me = await world.member(horizon=timedelta(seconds=30))
    due = datetime.now(UTC) + timedelta(seconds=20)
    job = await world.job(due=due)

    [run] = (await me.fire_running(to_slot(job))).runs

    assert run.start_by == due + START_WITHIN
    assert start_not_before(run) == due
    assert await me.store.owner.live_runs([ShardId(0)], [State.RUNNING]) == [run]


async def test_the_row_of_a_late_run_is_that_of_one_that_was_fired_and_then_dispatched(
    world: World,
) -> None:
    """Its start limit is counted from the dispatch, and it is ready since catch-up made it."""
    me = await world.member()
    one, other = await world.job(shard=2), await world.job(shard=2)
    late = datetime.now(UTC) - timedelta(seconds=1)
    made = replace(firing(other).runs[0], ready_at=late)

    [run] = (await me.fire_running(to_slot(one, late=late))).runs
    await me.assigned(draft((await me.fire(firing(other, runs=(made,)))).runs[0]))

    assert (run.late, run.due_at, run.ready_at) == (True, START, late)
    assert start_not_before(run) is None
    assert run in await me.store.owner.live_runs([ShardId(2)], [State.RUNNING])
    varies = {"run_id", "job_id", "token", "created_at", "assigned_at", "start_by"}
    first, second = [
        {name: value for name, value in row.items() if name not in varies}
        for [row] in await world.sql("SELECT to_jsonb(r) FROM runs r")
    ]
    assert first == second


async def test_a_late_run_beside_another_of_its_job_waits_as_a_late_one(world: World) -> None:
    """P3.6"""
    me = await world.member(horizon=timedelta(days=9_999))
    job = await world.job()
    await me.fire_running(to_slot(job))
    late = datetime.now(UTC) - timedelta(seconds=1)

    [run] = (await me.fire_running(to_slot(job, at=START + MINUTE, late=late))).runs

    assert (run.state, run.late, run.ready_at) == (State.PENDING, True, late)
    assert await me.store.owner.live_runs([ShardId(0)], [State.PENDING]) == [run]


async def test_tokens_are_drawn_after_the_lock_and_grow(world: World) -> None:
    """P1.2: a shard that was lost draws none."""
    me = await world.member()
    kept, lost = await world.job(shard=2), await world.job(shard=4)
    claim = me.claim(2, 4)
    await me.store.membership.release(me.claim(4))
    drawn: list[ShardId] = []

    def next_token(shard: ShardId):
        drawn.append(shard)
        return token_of(claim.epochs[shard], len(drawn))

    firings = [to_slot(kept), to_slot(lost)]
    fired = await me.store.owner.fire_running(claim, firings, next_token)

    assert drawn == [2]
    assert [(run.job_id, run.token) for run in fired.runs] == [
        (kept.definition.job_id, token_of(claim.epochs[ShardId(2)], 1))
    ]
    assert fired.lost == {4}


async def test_a_batch_of_an_owner_that_was_replaced_writes_nothing(world: World) -> None:
    """P1.1: the shard was taken over before the statement."""
    me = await world.member()
    job = await world.job()
    old = me.claim(0)
    await me.take(0)

    fired = await me.store.owner.fire_running(old, [to_slot(job)], me.tokens(old))

    assert (fired.runs, fired.refused, fired.lost) == ([], [], frozenset({0}))
    assert await world.sql("SELECT count(*) FROM runs") == [(0,)]


async def test_beside_another_live_run_of_its_job_a_run_is_fired_as_pending(world: World) -> None:
    """P3.6: whichever member inserted the other one, and whether it runs or waits."""
    me = await world.member(horizon=timedelta(days=9_999))
    alone, runs, waits, ended = [await world.job(shard=2) for _ in range(4)]
    [running] = (await me.fire_running(to_slot(runs))).runs
    await me.fire(firing(waits))
    [gone] = (await me.fire_running(to_slot(ended))).runs
    await me.store.results.accept([report(gone)])

    fired = await me.fire_running(
        to_slot(alone), *(to_slot(job, at=START + MINUTE) for job in (runs, waits, ended))
    )

    states = {run.job_id: (run.state, run.token > 0) for run in fired.runs}
    assert states == {
        alone.definition.job_id: (State.RUNNING, True),
        runs.definition.job_id: (State.PENDING, False),
        waits.definition.job_id: (State.PENDING, False),
        ended.definition.job_id: (State.RUNNING, True),
    }
    assert fired.refused == []
    pending = [run for run in fired.runs if run.state is State.PENDING]
    found = await me.store.owner.live_runs([ShardId(2)], [State.PENDING])
    assert all(run in found for run in pending)
    await me.store.results.accept([report(running)])
    [later] = await me.assigned(
        *(draft(run) for run in pending if run.job_id == runs.definition.job_id)
    )
    assert later.attempt == 1


async def test_a_policy_that_counts_no_other_run_dispatches_beside_them(world: World) -> None:
    me = await world.member()
    job = await world.job()
    unlimited = {"overlap": Overlap.ALLOW, "overlap_limit": 0}

    [first] = (await me.fire_running(to_slot(job, **unlimited))).runs
    [second] = (await me.fire_running(to_slot(job, at=START + MINUTE, **unlimited))).runs

    assert [first.state, second.state] == [State.RUNNING] * 2
    assert second.token > first.token


async def test_fired_twice_a_timer_advances_once(world: World) -> None:
    """P3.4: as after a COMMIT in doubt, the timer stands at another time by then."""
    me = await world.member()
    job = await world.job()

    first = await me.fire_running(to_slot(job))
    again = await me.fire_running(to_slot(job))

    assert len(first.runs) == 1
    assert (again.runs, again.refused) == ([], [job.definition.job_id])
    assert await world.sql("SELECT count(*), max(token) FROM runs") == [(1, first.runs[0].token)]


@pytest.mark.parametrize("was", ["PENDING", "RUNNING", "SUCCEEDED"])
async def test_an_existing_run_of_the_time_doesnt_change_and_isnt_sent(
    world: World, was: str
) -> None:
    """P3.4, P7.1: the timer advances past it."""
    me = await world.member()
    job = await world.job()
    [run] = (await me.fire(firing(job))).runs
    if was != "PENDING":
        [run] = await me.assigned(draft(run))
    if was == "SUCCEEDED":
        await me.store.results.accept([report(run)])
    await world.sql("UPDATE timers SET due_at = %s, nominal = %s", START, START)
    before = await world.sql("SELECT to_jsonb(r) FROM runs r")

    fired = await me.fire_running(to_slot(job))

    assert (fired.runs, fired.refused, fired.broken) == ([], [], [])
    assert await world.sql("SELECT to_jsonb(r) FROM runs r") == before
    assert await world.sql("SELECT due_at FROM timers") == [(START + MINUTE,)]
    assert await world.sql("SELECT count(*) FROM live") == [(int(was != "SUCCEEDED"),)]


async def test_an_edited_paused_moved_or_counted_timer_dispatches_nothing(world: World) -> None:
    """P3.4, P3.5: what changed between the owner's look and its step."""
    me = await world.member()
    jobs = edited, paused, moved, deleted, counted = [await world.job() for _ in range(5)]
    good = await world.job()
    steps = [to_slot(job) for job in (*jobs, good)]
    await me.store.users.update_job(
        edited.definition.job_id, 1, edited.definition, TimerEdit(), ok("update")
    )
    await world.sql("UPDATE timers SET paused = true WHERE job_id = %s", paused.definition.job_id)
    await world.sql("UPDATE timers SET shard = 9 WHERE job_id = %s", moved.definition.job_id)
    await world.sql("UPDATE timers SET fired = 1 WHERE job_id = %s", counted.definition.job_id)
    await me.store.users.delete_job(deleted.definition.job_id, ok("delete"))

    fired = await me.fire_running(*steps)

    assert [run.job_id for run in fired.runs] == [good.definition.job_id]
    assert set(fired.refused) == {job.definition.job_id for job in jobs}
    assert await world.sql("SELECT count(*) FROM runs") == [(1,)]


async def test_a_pause_during_the_statement_prevents_the_dispatch(world: World) -> None:
    """The pause holds the shard's row; the statement waits, and finds the timer paused."""
    me = await world.member()
    user = await world.member(take=False)
    job = await world.job()
    paused = asyncio.Event()
    loop = asyncio.get_running_loop()

    def pause_slowly(connection: Connection) -> None:
        job_pauses.pause_job(connection, job.definition.job_id, "", "ann", ok("pause"))
        loop.call_soon_threadsafe(paused.set)
        wait_for_waiter(connection)

    pause = asyncio.create_task(user.store.database.call(pause_slowly), name="pause")
    await paused.wait()
    fired = await me.fire_running(to_slot(job))
    await pause

    assert (fired.runs, fired.refused) == ([], [job.definition.job_id])


async def test_a_step_of_a_paused_cluster_or_from_before_its_last_switch_dispatches_nothing(
    world: World,
) -> None:
    """P3.11"""
    me = await world.member()
    job = await world.job()

    fired = await me.fire_running(to_slot(job), switched=7)
    assert (fired.runs, fired.refused) == ([], [job.definition.job_id])
    await world.sql("UPDATE cluster SET paused = true")
    fired = await me.fire_running(to_slot(job))
    assert (fired.runs, fired.refused) == ([], [job.definition.job_id])


async def test_a_step_ahead_of_the_databases_clock_dispatches_nothing(world: World) -> None:
    """P3.4"""
    me = await world.member(horizon=timedelta(seconds=5))
    job = await world.job(due=datetime.now(UTC) + timedelta(seconds=60))

    fired = await me.fire_running(to_slot(job))

    assert (fired.runs, fired.refused) == ([], [job.definition.job_id])


async def test_a_run_that_never_started_returns_as_if_it_was_never_dispatched(
    world: World,
) -> None:
    """P4.3, P4.7: a crash between COMMIT and push; the next owner returns it unstarted."""
    me = await world.member(horizon=timedelta(seconds=30))
    job = await world.job(due=datetime.now(UTC) + timedelta(seconds=20))
    [run] = (await me.fire_running(to_slot(job))).runs
    await me.take(0)

    [found] = await me.store.owner.live_runs([ShardId(0)], [State.RUNNING])
    [back] = await me.store.owner.give_back(
        me.claim(0), [Unstarted(found.key, found.shard, found.token)]
    )

    assert (back.state, back.attempt, back.ready_at) == (State.PENDING, 0, run.due_at)
    [again] = await me.assigned(draft(back))
    assert (again.attempt, again.token > run.token) == (1, True)


async def test_timers_with_different_steps_and_workers_go_in_one_statement(world: World) -> None:
    me = await world.member(horizon=timedelta(days=9_999))
    jobs = [await world.job(shard=2 * n, due=START + n * MINUTE) for n in range(6)]
    to = [to_slot(job, worker=f"worker-{n % 2}") for n, job in enumerate(jobs)]

    fired = await me.fire_running(*to)

    assert [run.job_id for run in fired.runs] == [job.definition.job_id for job in jobs]
    rows = await world.sql(
        "SELECT r.job_id, r.scheduled_at, r.due_at, r.shard, r.worker, r.token, t.due_at"
        " FROM runs r JOIN timers t USING (job_id) ORDER BY r.due_at"
    )
    assert rows == [
        (run.job_id, at, at, 2 * n, f"worker-{n % 2}", run.token, at + MINUTE)
        for n, run in enumerate(fired.runs)
        for at in [START + n * MINUTE]
    ]


async def test_runs_that_share_a_step_have_the_priorities_of_their_jobs(world: World) -> None:
    me = await world.member()
    one, other = to_slot(await world.job()), to_slot(await world.job())
    batch = replace(one.batch, priority=Priority.HIGH)
    urgent = other._replace(batch=batch)

    runs = (await me.fire_running(one, urgent)).runs

    assert [run.priority for run in runs] == [Priority.MEDIUM, Priority.HIGH]
    rows = dict(await world.sql("SELECT run_id, priority FROM runs"))
    assert rows == {run.key.run_id: run.priority.value for run in runs}


async def test_a_schedule_that_ends_leaves_its_timer_without_a_due_time(world: World) -> None:
    me = await world.member()
    jobs = [await world.job(), await world.job()]
    ends = to_slot(jobs[0])
    last = firing(jobs[0], next_due_at=None, next_nominal=None)
    ends = ends._replace(batch=replace(ends.batch, step=last))

    fired = await me.fire_running(ends, to_slot(jobs[1]))

    assert len(fired.runs) == 2
    rows = dict(await world.sql("SELECT job_id, due_at FROM timers"))
    assert rows == {
        jobs[0].definition.job_id: None,
        jobs[1].definition.job_id: START + MINUTE,
    }


async def test_a_triggered_run_of_the_same_moment_is_judged_beside_it(world: World) -> None:
    """P3.6: it wasn't committed when the statement looked for other runs of the job."""
    me = await world.member()
    job = await world.job()
    [run] = (await me.fire_running(to_slot(job))).runs
    later = new_run(job, START + timedelta(seconds=1))
    [other] = (await me.fire(firing(job, at=START + MINUTE, runs=(later,)))).runs

    answer = await me.assign(draft(other))

    assert answer.assigned == []
    assert answer.ended == [other.key]
    await me.store.results.accept([report(run)])
