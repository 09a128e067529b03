"""Assign (P3.5, P3.6): tokens under the lock, overlap judged on rows, one attempt at a time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection

from schedd.core.ids import IncarnationId, RunId, ShardId, Token, new_id
from schedd.core.jobs.definition import Overlap, Priority
from schedd.core.runs.deadlines import DeadlineExpiry
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import SMALL_PAYLOAD, DispatchedBatch, LiveRun, Loss, Trigger
from schedd.core.runs.records import JobRecord, TimerEdit, Unstarted
from schedd.core.runs.run_records import RunFilter, RunRecord
from schedd.core.timers.pre_dispatch import start_not_before
from schedkit.clock import utcnow
from support.store import (
    INCARNATION,
    MINUTE,
    START,
    Member,
    World,
    draft,
    firing,
    manual_run,
    new_run,
    ok,
    report,
    wait_for_waiter,
)

pytestmark = pytest.mark.usefixtures("partition")


async def fired(me: Member, job: JobRecord, count: int = 1) -> list[LiveRun]:
    """The job's first `count` runs, a minute apart."""
    runs = []
    for n in range(count):
        runs += (await me.fire(firing(job, at=START + n * MINUTE))).runs
    return runs


async def retrying(me: Member, run: LiveRun, **changes) -> LiveRun:
    """The run after a failed attempt."""
    [assigned] = await me.assigned(draft(run))
    await me.store.results.accept([report(assigned, state=State.RETRYING, retry_at=START)])
    [waiting] = await me.store.owner.live_runs([run.shard], [State.RETRYING])
    return waiting


async def test_an_assigned_run_is_running_under_its_token(world: World) -> None:
    me = await world.member()
    [run] = await fired(me, await world.job(shard=6))
    asked = datetime.now(UTC)

    [assigned] = (await me.assign(draft(run))).assigned

    row = await world.run_row(run.key.run_id)
    assert (row["state"], row["token"], row["worker"]) == (
        "RUNNING",
        assigned.run.token,
        "worker-1",
    )
    assert assigned.run.token >> 32 == me.epochs[ShardId(6)]
    assert (assigned.run.attempt, row["assignments"], assigned.payload) == (1, 1, None)
    assert assigned.run.incarnation == INCARNATION
    assert assigned.run.start_by is not None
    assert timedelta(seconds=4) < assigned.run.start_by - asked < timedelta(seconds=7)
    assert await me.store.owner.live_runs([run.shard], [State.RUNNING]) == [assigned.run]


async def soon_due(world: World, me: Member, job: JobRecord | None = None) -> LiveRun:
    """A run that was made a while before it is due."""
    at = datetime.now(UTC) + timedelta(seconds=20)
    job = job or await world.job(due=at)
    if job.due_at != at:
        await world.sql("UPDATE timers SET due_at = %s, nominal = %s RETURNING 1", at, at)
    [run] = (await me.fire(firing(job, at=at))).runs
    return run


async def test_a_pre_dispatched_run_has_its_start_limit_from_its_due_time(
    world: World,
) -> None:
    """P4.7."""
    me = await world.member(horizon=timedelta(seconds=30))
    run = await soon_due(world, me)
    [assigned] = (await me.assign(draft(run))).assigned
    assert start_not_before(assigned.run) == run.due_at
    [row] = await me.store.owner.live_runs([run.shard], [State.RUNNING])
    assert start_not_before(row) == run.due_at


async def test_a_run_that_isnt_due_is_blocked_and_not_skipped_while_another_runs(
    world: World,
) -> None:
    """P3.5: it may be gone by then."""
    me = await world.member(horizon=timedelta(seconds=30))
    job = await world.job()
    [before] = await fired(me, job)
    [running] = await me.assigned(draft(before))
    run = await soon_due(world, me, job)

    answer = await me.assign(draft(run))
    assert (answer.assigned, answer.ended, answer.held) == ([], [], [run.key])
    await me.store.results.accept([report(running)])
    [pre_dispatched] = (await me.assign(draft(run))).assigned
    assert start_not_before(pre_dispatched.run) == run.due_at


async def test_no_run_is_pre_dispatched_while_an_earlier_run_of_its_job_waits(
    world: World,
) -> None:
    """P3.6: that one would be skipped for it when it is due."""
    me = await world.member(horizon=timedelta(seconds=30))
    job = await world.job()
    [earlier] = await fired(me, job)
    run = await soon_due(world, me, job)

    answer = await me.assign(draft(run))
    assert (answer.assigned, answer.ended, answer.held) == ([], [], [run.key])
    [assigned] = (await me.assign(draft(earlier))).assigned
    await me.store.results.accept([report(assigned.run)])
    [pre_dispatched] = (await me.assign(draft(run))).assigned
    assert start_not_before(pre_dispatched.run) == run.due_at


async def test_a_returned_predispatched_run_blocks_no_other_and_is_evaluated_again(
    world: World,
) -> None:
    """P4.7: else a trigger in a pause would be skipped for what waits for its end."""
    me = await world.member(horizon=timedelta(seconds=30))
    job = await world.job()
    run = await soon_due(world, me, job)
    [pre_dispatched] = await me.assigned(draft(run))
    await me.store.results.refuse(
        [Unstarted(run.key, run.shard, pre_dispatched.token, pre_dispatched.incarnation)]
    )
    record = await me.store.users.insert_run(
        job.definition.job_id,
        manual_run(),
        Trigger.MANUAL,
        Priority.MEDIUM,
        None,
        None,
        ok("trigger"),
    )
    assert isinstance(record, RunRecord)
    triggered = record.run

    [assigned] = (await me.assign(draft(triggered))).assigned
    answer = await me.assign(draft(run))
    assert (answer.assigned, answer.ended, answer.held) == ([], [], [run.key])
    await me.store.results.accept([report(assigned.run)])
    [again] = (await me.assign(draft(run))).assigned
    assert again.run.token > pre_dispatched.token
    earlier = await world.sql("SELECT token FROM attempts WHERE run_id = %s", run.key.run_id)
    assert earlier == [(pre_dispatched.token,)]


async def test_a_lost_pre_dispatched_run_waits_until_it_is_due(world: World) -> None:
    """P4.7: as a run that is lost goes again at once, and a retry has no instant to wait for."""
    me = await world.member(horizon=timedelta(seconds=30))
    run = await soon_due(world, me)
    [pre_dispatched] = await me.assigned(draft(run))
    loss = Loss(
        run.key, run.shard, pre_dispatched.token, pre_dispatched.incarnation, State.RETRYING, None
    )  # type: ignore[arg-type] # it has one
    assert await me.store.owner.rescue(me.claim(0), [loss]) == [run.key]
    [waits] = await me.store.owner.live_runs([run.shard], [State.RETRYING])
    assert waits.ready_at == run.due_at


async def test_lists_show_a_pre_dispatched_run_as_pending_until_it_is_due(world: World) -> None:
    me = await world.member(horizon=timedelta(seconds=30))
    run = await soon_due(world, me)
    await me.assigned(draft(run))

    async def seen(*states: State) -> list[State]:
        found, _ = await me.store.users.list_runs("default", None, 9, RunFilter(states=states))
        return [one.state for one in found]

    assert (await seen(State.PENDING), await seen(State.RUNNING)) == ([State.PENDING], [])
    assert await seen(State.PENDING, State.RUNNING) == await seen() == [State.PENDING]
    await world.sql("UPDATE runs SET ready_at = now() RETURNING 1")
    assert (await seen(State.PENDING), await seen(State.RUNNING)) == ([], [State.RUNNING])


async def test_runs_that_have_started_are_the_holders_of_a_workers_slots(world: World) -> None:
    me = await world.member()
    runs = [await fired(me, await world.job()) for _ in range(2)]
    [(run,), _] = runs
    assert await me.assigned(draft(run), draft(runs[1][0]))
    assert await me.store.users.slot_holders(["worker-1"]) == []
    now = utcnow()
    await world.sql(
        "UPDATE runs SET started_at = %s WHERE run_id = %s RETURNING 1", now, run.key.run_id
    )
    [holder] = await me.store.users.slot_holders(["worker-1", "worker-2"])
    assert (holder.worker, holder.namespace, holder.runs) == ("worker-1", "default", 1)
    assert holder.since == now
    assert await me.store.users.slot_holders(["worker-2"]) == []


async def test_a_pre_dispatched_run_is_counted_as_waiting(world: World) -> None:
    me = await world.member(horizon=timedelta(seconds=30))
    await me.assigned(draft(await soon_due(world, me)))
    counted = await me.store.users.counts()
    assert (counted.pending, counted.running) == (1, 0)
    await world.sql("UPDATE runs SET ready_at = now() RETURNING 1")
    counted = await me.store.users.counts()
    assert (counted.pending, counted.running) == (0, 1)


async def test_a_job_runs_next_when_its_early_run_is_due(world: World) -> None:
    me = await world.member(horizon=timedelta(seconds=30))
    run = await soon_due(world, me)
    record = await me.store.users.get_job("default", str(run.job_id))
    assert record is not None
    assert (record.early, record.due_at) == ((run.due_at,), run.due_at + MINUTE)


async def test_a_run_of_a_time_removed_by_an_edit_is_skipped_and_returns_its_quota(
    world: World,
) -> None:
    me = await world.member()
    job = await world.job()
    step = firing(job, runs=(new_run(job, START),), counted=1, next_due_at=None)
    [run] = (await me.fire(step)).runs
    ended = wait_expiry(run, state=State.SKIPPED, reason=Reason.EDITED, counted=True)
    assert await me.store.owner.end_waiting(me.claim(0), [ended]) == [run.key]
    row = await world.run_row(run.key.run_id)
    assert (row["state"], row["reason"], row["fired_by"]) == ("SKIPPED", "EDITED", me.tenure)
    assert await world.sql("SELECT fired FROM timers") == [(0,)]
    assert not await world.is_live(run.key.run_id)


async def test_tokens_are_drawn_after_the_shard_rows_are_locked(world: World) -> None:
    """P1.2: another transaction holds the shard; no caller may have drawn a token while waiting for
    it.
    """
    me = await world.member()
    user = await world.member(take=False)
    [run] = await fired(me, await world.job())
    drawn: list[ShardId] = []
    held = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hold(connection):
        connection.exec_driver_sql("SELECT 1 FROM shards WHERE id = 0 FOR NO KEY UPDATE")
        loop.call_soon_threadsafe(held.set)
        wait_for_waiter(connection)
        return list(drawn)

    def next_token(shard: ShardId) -> Token:
        drawn.append(shard)
        return me.tokens(me.claim(shard))(shard)

    holding = asyncio.create_task(user.store.database.call(hold), name="hold")
    await held.wait()
    answer = await me.store.owner.assign(me.claim(0), [draft(run)], next_token)

    assert await holding == []
    assert len(answer.assigned) == len(drawn) == 1


async def test_a_batch_of_a_released_owner_assigns_nothing_and_draws_no_token(
    world: World,
) -> None:
    me = await world.member()
    [run] = await fired(me, await world.job())
    claim = me.claim(0)
    await me.store.membership.release(claim)

    def never(shard: ShardId) -> Token:
        raise AssertionError(f"a token was drawn for shard {shard}")

    answer = await me.store.owner.assign(claim, [draft(run)], never)

    assert (answer.assigned, answer.lost) == ([], {0})
    assert (await world.run_row(run.key.run_id))["state"] == "PENDING"


async def test_a_draft_of_another_generation_waits(world: World) -> None:
    """P3.5: an attempt is made from the definition of now, not from the one that fired its run."""
    me = await world.member()
    job = await world.job()
    [run] = await fired(me, job)
    await me.store.users.update_job(
        job.definition.job_id, 1, job.definition, TimerEdit(), ok("update")
    )

    old = await me.assign(draft(run, generation=1))
    [new] = await me.assigned(draft(run, generation=2))

    assert (old.assigned, old.waiting) == ([], [run.key])
    assert new.generation == (await world.run_row(run.key.run_id))["generation"] == 2


async def test_a_draft_of_a_job_that_moved_or_was_deleted_waits(world: World) -> None:
    """P3.5: the timer is joined, so memory that is out of date hands nothing out."""
    me = await world.member()
    moved, deleted = await world.job(), await world.job()
    runs = [*await fired(me, moved), *await fired(me, deleted)]
    await world.sql("UPDATE timers SET shard = 9 WHERE job_id = %s", moved.definition.job_id)
    await world.sql("DELETE FROM timers WHERE job_id = %s", deleted.definition.job_id)

    answer = await me.assign(*map(draft, runs))

    assert answer.assigned == []
    assert set(answer.waiting) == {run.key for run in runs}


async def test_a_running_run_isnt_assigned_again(world: World) -> None:
    """P3.5: only a waiting run is dispatched."""
    me = await world.member()
    [run] = await fired(me, await world.job())
    [first] = await me.assigned(draft(run))

    again = await me.assign(draft(run))

    assert (again.assigned, again.waiting) == ([], [run.key])
    assert (await world.run_row(run.key.run_id))["token"] == first.token


async def test_overlap_skip_ends_the_next_run_while_one_is_admitted(world: World) -> None:
    me = await world.member()
    first, second = await fired(me, await world.job(), 2)
    await me.assigned(draft(first))

    answer = await me.assign(draft(second))

    assert (answer.assigned, answer.ended, answer.waiting) == ([], [second.key], [])
    row = await world.run_row(second.key.run_id)
    assert (row["state"], row["reason"], row["fired_by"]) == ("SKIPPED", "OVERLAP", me.tenure)
    assert row["finished_at"] is not None
    assert not await world.is_live(second.key.run_id)


async def test_overlap_of_two_runs_in_one_statement_admits_one(world: World) -> None:
    """P3.6: the statement counts what it admits itself."""
    me = await world.member()
    first, second, third = await fired(me, await world.job(), 3)

    answer = await me.assign(draft(second), draft(first), draft(third))

    assert [each.run.key for each in answer.assigned] == [second.key]
    assert set(answer.ended) == {first.key, third.key}


async def test_an_ended_run_gives_its_place_to_the_next(world: World) -> None:
    me = await world.member()
    first, second = await fired(me, await world.job(), 2)
    [running] = await me.assigned(draft(first))
    await me.store.results.accept([report(running)])

    assert len(await me.assigned(draft(second))) == 1


async def test_a_run_over_the_overlap_limit_is_blocked(world: World) -> None:
    me = await world.member()
    runs = await fired(me, await world.job(), 4)

    answer = await me.assign(*(draft(run, overlap_limit=2, overlap=Overlap.ALLOW) for run in runs))

    assert [each.run.key for each in answer.assigned] == [run.key for run in runs[:2]]
    assert answer.held == [run.key for run in runs[2:]]
    more = await me.assign(draft(runs[2], overlap_limit=3, overlap=Overlap.ALLOW))
    assert len(more.assigned) == 1


async def test_allow_has_no_limit(world: World) -> None:
    me = await world.member()
    runs = await fired(me, await world.job(), 4)

    assert len(await me.assigned(*(draft(run, overlap_limit=0) for run in runs))) == 4


async def test_an_admitted_run_isnt_asked_again(world: World) -> None:
    """P3.6: admitted under a wider policy, both retry under a narrow one and don't block each
    other.
    """
    me = await world.member()
    runs = await fired(me, await world.job(), 2)
    running = await me.assigned(*(draft(run, overlap_limit=2) for run in runs))
    await me.store.results.accept(
        [report(run, state=State.RETRYING, retry_at=START) for run in running]
    )

    waiting = await me.store.owner.live_runs([ShardId(0)], [State.RETRYING])
    answer = await me.assign(*map(draft, waiting))

    assert len(answer.assigned) == 2


async def test_a_retrying_run_blocks_a_new_run_of_its_job(world: World) -> None:
    """P3.6: a run is admitted from its first token to its end, not only while it runs."""
    me = await world.member()
    job = await world.job()
    first, second = await fired(me, job, 2)
    waiting = await retrying(me, first)

    answer = await me.assign(draft(second), draft(waiting))

    assert [each.run.key for each in answer.assigned] == [first.key]
    assert answer.ended == [second.key]


async def test_a_triggered_run_may_end_as_skipped_too(world: World) -> None:
    me = await world.member()
    job = await world.job()
    [first] = await fired(me, job)
    await me.assigned(draft(first))
    made = await me.store.users.insert_run(
        job.definition.job_id,
        manual_run(),
        Trigger.MANUAL,
        Priority.HIGH,
        None,
        None,
        ok("trigger"),
    )
    assert made is not None

    answer = await me.assign(draft(made.run))

    assert answer.ended == [made.run.key]


async def test_the_attempt_before_moves_to_attempts(world: World) -> None:
    me = await world.member()
    [run] = await fired(me, await world.job())
    [first] = await me.assigned(draft(run))
    await me.store.results.accept(
        [
            report(
                first,
                state=State.RETRYING,
                reason=Reason.EXIT_CODE,
                exit_code=3,
                error="boom",
                retry_at=START + MINUTE,
            )
        ]
    )
    [waiting] = await me.store.owner.live_runs([run.shard], [State.RETRYING])
    assert waiting.ready_at == START + MINUTE

    [second] = await me.assigned(draft(waiting, worker="worker-2"))

    earlier, latest = await me.store.users.attempts(run.key.run_id)
    assert (earlier.attempt, earlier.token, earlier.worker) == (1, first.token, "worker-1")
    assert (earlier.state, earlier.reason, earlier.exit_code, earlier.error) == (
        State.FAILED,
        "EXIT_CODE",
        3,
        "boom",
    )
    assert (latest.attempt, latest.token, latest.worker) == (2, second.token, "worker-2")
    assert (latest.state, latest.exit_code, latest.error) == (State.RUNNING, None, "")
    assert second.token > first.token


async def test_a_token_that_isnt_greater_assigns_nothing(world: World) -> None:
    """P3.5: the tokens of a run only grow, or a straggler's result could count again."""
    me = await world.member()
    [run] = await fired(me, await world.job())
    waiting = await retrying(me, run)

    answer = await me.store.owner.assign(me.claim(0), [draft(waiting)], lambda _: waiting.token)

    assert (answer.assigned, answer.waiting) == ([], [run.key])


async def test_one_run_twice_in_a_batch_is_assigned_once(world: World) -> None:
    me = await world.member()
    [run] = await fired(me, await world.job())

    answer = await me.assign(draft(run), draft(run))

    assert len(answer.assigned) == 1
    assert (answer.ended, answer.waiting) == ([], [])


async def test_one_broken_draft_is_set_aside_and_the_others_are_assigned(world: World) -> None:
    """P3.10: what the database refuses must not hold up what came with it."""
    me = await world.member()
    runs = [(await fired(me, await world.job()))[0] for _ in range(5)]
    drafts = [draft(run) for run in runs]
    drafts[2] = draft(runs[2], generation=2**40)

    answer = await me.assign(*drafts)

    assert answer.broken == [runs[2].key]
    assert len(answer.assigned) == 4


async def test_a_run_that_never_started_returns_to_its_previous_state(world: World) -> None:
    """P4.3, P6.8: no attempt is spent, and it is no loss."""
    me = await world.member()
    fresh = (await fired(me, await world.job()))[0]
    retried = await retrying(me, (await fired(me, await world.job()))[0])
    running = await me.assigned(draft(fresh), draft(retried))

    back = await me.store.owner.give_back(
        me.claim(0), [Unstarted(run.key, run.shard, run.token) for run in running]
    )

    by_key = {run.key: run for run in back}
    assert (by_key[fresh.key].state, by_key[fresh.key].attempt) == (State.PENDING, 0)
    assert (by_key[retried.key].state, by_key[retried.key].attempt) == (State.RETRYING, 1)
    assert by_key[fresh.key].losses == 0


@pytest.mark.parametrize("change", ["token", "state", "owner"])
async def test_give_back_compares_token_state_and_owner(world: World, change: str) -> None:
    """P4.3: a run that was dispatched again, has ended or has another owner isn't given back."""
    me = await world.member()
    [run] = await fired(me, await world.job())
    [running] = await me.assigned(draft(run))
    unstarted = Unstarted(run.key, run.shard, running.token)
    claim = me.claim(0)
    if change == "token":
        unstarted = Unstarted(run.key, run.shard, Token(running.token - 1))
    elif change == "state":
        await me.store.results.accept([report(running)])
    else:
        await me.store.membership.release(claim)
    before = await world.run_row(run.key.run_id)

    assert await me.store.owner.give_back(claim, [unstarted]) == []
    assert await world.run_row(run.key.run_id) == before


async def test_an_assignment_of_a_job_that_moved_is_given_back_by_its_new_owner_alone(
    world: World,
) -> None:
    me = await world.member()
    [run] = await fired(me, await world.job())
    [running] = await me.assigned(draft(run))
    await world.sql("UPDATE runs SET shard = 9")

    back = await me.store.owner.give_back(
        me.claim(0), [Unstarted(run.key, run.shard, running.token)]
    )

    assert back == []
    assert (await world.run_row(run.key.run_id))["state"] == "RUNNING"


async def test_a_refusal_needs_no_claim_but_the_token(world: World) -> None:
    me = await world.member()
    other = await world.member(take=False)
    [run] = await fired(me, await world.job())
    [running] = await me.assigned(draft(run))
    stale = Unstarted(run.key, run.shard, Token(running.token - 1))

    assert await other.store.results.refuse([stale]) == []
    assert await other.store.results.refuse([Unstarted(run.key, run.shard, running.token)]) == [
        run.key
    ]
    assert (await world.run_row(run.key.run_id))["state"] == "PENDING"


async def test_a_refusal_by_another_incarnation_returns_no_run(
    world: World,
) -> None:
    """P4.2: the next life of a worker can't say what became of a run in the one before."""
    me = await world.member()
    [run] = await fired(me, await world.job())
    [running] = await me.assigned(draft(run))
    later_life = IncarnationId(new_id())

    for sender, back in ((later_life, []), (running.incarnation, [run.key])):
        refused = Unstarted(run.key, run.shard, running.token, sender)
        assert await me.store.results.refuse([refused]) == back


async def test_one_broken_row_is_set_aside_and_the_others_are_given_back(world: World) -> None:
    """P3.10: what the database refuses must not hold up what came with it."""
    me = await world.member()
    runs = [(await fired(me, await world.job()))[0] for _ in range(5)]
    handed = await me.assigned(*map(draft, runs))
    unstarted = [Unstarted(run.key, run.shard, run.token) for run in handed]
    unstarted[1] = replace(unstarted[1], token=Token(2**70))
    unstarted[3] = replace(unstarted[3], token=Token(2**70))

    back = await me.store.owner.give_back(me.claim(0), unstarted[:3])
    refused = await me.store.results.refuse(unstarted[3:])

    assert {run.key for run in back} == {runs[0].key, runs[2].key}
    assert refused == [runs[4].key]


async def test_a_run_given_back_after_a_cancel_or_a_delete_is_cancelled(world: World) -> None:
    me = await world.member()
    cancelled, deleted = await world.job(), await world.job()
    runs = [*await fired(me, cancelled), *await fired(me, deleted)]
    running = await me.assigned(*map(draft, runs))
    await me.store.users.cancel_run(running[0].key.run_id, ok("cancel"))
    await me.store.users.delete_job(deleted.definition.job_id, ok("delete"))

    await me.store.owner.give_back(
        me.claim(0), [Unstarted(run.key, run.shard, run.token) for run in running]
    )

    rows = [await world.run_row(run.key.run_id) for run in running]
    assert [(row["state"], row["reason"]) for row in rows] == [
        ("CANCELLED", "BY_USER"),
        ("CANCELLED", "DELETED"),
    ]
    assert await world.sql("SELECT count(*) FROM live") == [(0,)]


def wait_expiry(run: LiveRun, **changes: Any) -> DeadlineExpiry:
    """Return the expiry of a run that waited too long for its first start."""
    end = DeadlineExpiry(run.key, run.job_id, run.shard, State.MISSED, Reason.START_DEADLINE)
    return replace(end, **changes)


async def test_waiting_runs_end_as_requested_if_they_still_wait(world: World) -> None:
    me = await world.member()
    job = await world.job()
    missed, running, retried = [
        (await fired(me, each))[0] for each in (job, await world.job(), await world.job())
    ]
    await me.assigned(draft(running))
    retried = await retrying(me, retried)

    ended = await me.store.owner.end_waiting(
        me.claim(0),
        [
            wait_expiry(missed),
            wait_expiry(running),
            wait_expiry(
                retried, state=State.FAILED, reason=Reason.RUN_TIMEOUT, fingerprint="f" * 16
            ),
        ],
    )

    assert set(ended) == {missed.key, retried.key}
    row = await world.run_row(missed.key.run_id)
    assert (row["state"], row["reason"]) == ("MISSED", "START_DEADLINE")
    assert row["fired_by"] == me.tenure
    assert await world.sql("SELECT count(*) FROM live") == [(1,)]
    assert await world.sql("SELECT run_id FROM dead_letters") == [(retried.key.run_id,)]


async def test_a_run_that_waited_too_long_returns_its_quota_and_failures_are_counted(
    world: World,
) -> None:
    me = await world.member()
    job = await world.job()
    [run] = (
        await me.fire(firing(job, runs=(new_run(job, START),), counted=1, next_due_at=None))
    ).runs
    assert await world.sql("SELECT fired, due_at IS NULL FROM timers") == [(1, True)]
    await me.store.owner.end_waiting(me.claim(0), [wait_expiry(run, counted=True)])
    assert await world.sql("SELECT fired, due_at IS NULL FROM timers") == [(0, False)]

    other = await world.job()
    [waits] = await fired(me, other)
    failed = wait_expiry(waits, state=State.FAILED, reason=Reason.RUN_TIMEOUT, pause_after=3)
    await me.store.owner.end_waiting(me.claim(0), [failed])
    assert await world.sql("SELECT failures, most FROM failing") == [(1, 3)]


async def test_a_definition_that_was_edited_meanwhile_ends_no_run(world: World) -> None:
    """P3.5, of ends: the new one may give it more time."""
    me = await world.member()
    job = await world.job()
    [run] = await fired(me, job)
    users = me.store.users
    await users.update_job(job.definition.job_id, 1, job.definition, TimerEdit(), ok("edit"))
    assert await me.store.owner.end_waiting(me.claim(0), [wait_expiry(run)]) == []
    ended = await me.store.owner.end_waiting(me.claim(0), [wait_expiry(run, generation=2)])
    assert ended == [run.key]


async def test_a_paused_run_does_not_end_at_its_deadline(world: World) -> None:
    me = await world.member()
    job = await world.job()
    [run] = await fired(me, job)
    users, id_ = me.store.users, job.definition.job_id
    asked = await users.insert_run(
        id_, manual_run(), Trigger.MANUAL, Priority.MEDIUM, None, None, ok("trigger")
    )
    assert isinstance(asked, RunRecord)
    await users.pause_job(id_, "", "ann", ok("pause"))
    both = [wait_expiry(run, generation=2), wait_expiry(asked.run, generation=2)]
    await me.store.pauses.pause("ann", "", lambda _before, _after: ok("pause", "cluster"))
    assert await me.store.owner.end_waiting(me.claim(0), both) == []
    await me.store.pauses.resume(False, None, lambda _before, _after: ok("resume", "cluster"))
    ended = await me.store.owner.end_waiting(me.claim(0), both)
    assert ended == [asked.run.key], "a triggered run continues in a pause of the job"


async def test_a_run_that_began_and_was_given_back_isnt_missed(world: World) -> None:
    me = await world.member()
    [run] = await fired(me, await world.job())
    await world.sql("UPDATE runs SET losses = 1 RETURNING 1")
    assert await me.store.owner.end_waiting(me.claim(0), [wait_expiry(run)]) == []


async def test_waiting_runs_of_a_lost_shard_dont_end(world: World) -> None:
    me = await world.member()
    [run] = await fired(me, await world.job())
    claim = me.claim(0)
    await me.store.membership.release(claim)

    ended = await me.store.owner.end_waiting(claim, [wait_expiry(run)])

    assert ended == []


async def test_live_runs_carry_the_shard_their_job_is_in(world: World) -> None:
    me = await world.member()
    job = await world.job(shard=200)
    await me.fire(firing(job, runs=(new_run(job, START), new_run(job, START + MINUTE / 2))))

    live = await me.store.owner.live_runs([ShardId(200), ShardId(3)], list(State))

    assert [run.shard for run in live] == [200, 200]


async def test_of_a_batch_only_the_draft_of_an_old_generation_waits(world: World) -> None:
    me = await world.member()
    jobs = [await world.job(shard=6) for _ in range(4)]
    runs = [run for job in jobs for run in await fired(me, job)]
    old = draft(runs[2], generation=7)

    outcome = await me.assign(draft(runs[0]), draft(runs[1]), old, draft(runs[3]))

    assert {each.run.key for each in outcome.assigned} == {runs[n].key for n in (0, 1, 3)}
    assert outcome.waiting == [runs[2].key]
    stored = await me.store.owner.live_runs([ShardId(6)], [State.RUNNING])
    assert sorted(stored, key=_id) == sorted([each.run for each in outcome.assigned], key=_id)


async def test_a_batch_in_one_partition_is_dispatched_by_the_statement_for_plain_drafts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = await world.member()
    jobs = [await world.job(shard=6) for _ in range(3)]
    runs = [run for job in jobs for run in await fired(me, job)]
    monkeypatch.setattr("schedd.store.dispatch.assign.statement", None)

    outcome = await me.assign(*map(draft, runs))

    assert {each.run.key for each in outcome.assigned} == {run.key for run in runs}


async def test_a_run_with_a_policy_of_its_own_starts_before_the_runs_behind_it(
    world: World,
) -> None:
    me = await world.member()
    first, second = await fired(me, await world.job(shard=6), 2)
    await world.sql("UPDATE runs SET overlap = 'SKIP' WHERE run_id = %s", first.key.run_id)
    own = draft(replace(first, overlap=Overlap.SKIP), overlap=Overlap.ALLOW, overlap_limit=0)
    behind = draft(second, overlap=Overlap.ALLOW, overlap_limit=0)

    outcome = await me.assign(own, behind)

    assert [each.run.key for each in outcome.assigned] == [first.key]
    assert outcome.ended == []


async def test_runs_of_a_batch_are_locked_in_their_order_whatever_their_kind(world: World) -> None:
    """P1.6: a plain draft and another one in a batch; another session locks both in order."""
    me = await world.member()
    job = await world.job(shard=6)
    early = await retrying(me, (await fired(me, job))[0])
    late_job = await world.job(shard=6, due=START + MINUTE)
    [late] = (await me.fire(firing(late_job, at=START + MINUTE))).runs
    keys = sorted([early.key, late.key], key=lambda key: (key.scheduled_at, key.run_id))
    locked, loop = asyncio.Event(), asyncio.get_running_loop()

    def lock(connection: Connection) -> None:
        for key in keys:
            connection.exec_driver_sql(
                "SELECT FROM runs WHERE scheduled_at = %s AND run_id = %s FOR UPDATE",
                (key.scheduled_at, key.run_id),
            )
            if key == keys[0]:
                loop.call_soon_threadsafe(locked.set)
                wait_for_waiter(connection)

    other = asyncio.create_task(me.store.database.call(lock))
    await locked.wait()
    outcome = await me.assign(draft(early, overlap=Overlap.ALLOW, overlap_limit=0), draft(late))
    await other

    assert {each.run.key for each in outcome.assigned} == {early.key, late.key}
    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    assert await world.sql(deadlocks) == [(0,)]


async def test_plain_drafts_lock_their_rows_by_their_keys_in_any_given_order(world: World) -> None:
    """P1.6: the rows behind one that is locked elsewhere aren't locked yet."""
    me = await world.member()
    runs = [run for _ in range(4) for run in await fired(me, await world.job(shard=6))]
    runs.sort(key=lambda run: (run.key.scheduled_at, run.key.run_id))
    locked, loop = asyncio.Event(), asyncio.get_running_loop()

    def lock(connection: Connection) -> None:
        one, *behind = [(run.key.scheduled_at, run.key.run_id) for run in runs]
        find = "WHERE scheduled_at = %s AND run_id = %s"
        connection.exec_driver_sql(f"SELECT FROM runs {find} FOR UPDATE", one)
        loop.call_soon_threadsafe(locked.set)
        wait_for_waiter(connection)
        for each in behind:
            connection.exec_driver_sql(f"SELECT 1 FROM runs {find} FOR UPDATE NOWAIT", each).one()

    other = asyncio.create_task(me.store.database.call(lock))
    await locked.wait()
    outcome = await me.assign(*(draft(runs[n]) for n in (2, 3, 1, 0)))
    await other

    assert {each.run.key for each in outcome.assigned} == {run.key for run in runs}


async def test_a_batch_with_a_job_that_runs_already_dispatches_the_others(world: World) -> None:
    me = await world.member()
    busy, free = await world.job(shard=6), await world.job(shard=6)
    first, second = await fired(me, busy, 2)
    [other] = await fired(me, free)
    await me.assigned(draft(first))

    outcome = await me.assign(draft(second), draft(other))

    assert [each.run.key for each in outcome.assigned] == [other.key]
    assert outcome.ended == [second.key]


async def test_a_batch_of_two_days_is_dispatched(world: World) -> None:
    me = await world.member()
    job, other = await world.job(shard=6), await world.job(shard=6)
    [run] = await fired(me, job)
    tomorrow = START + timedelta(days=1)
    await world.sql("UPDATE timers SET due_at = %s WHERE shard = 6", tomorrow)
    [late] = (await me.fire(firing(other, at=tomorrow))).runs

    outcome = await me.assign(draft(run), draft(late))

    assert {each.run.key for each in outcome.assigned} == {run.key, late.key}


async def test_each_run_of_a_batch_has_its_own_payload_whatever_its_size(world: World) -> None:
    me = await world.member()
    large = SMALL_PAYLOAD + 1
    given = [None, b"a", b"b" * SMALL_PAYLOAD, b"c" * large, b"", b"d" * 200_000, None, b"e"]
    jobs = [await world.job(shard=6) for _ in given]
    runs = [run for job in jobs for run in await fired(me, job)]
    for run, payload in zip(runs, given, strict=True):
        await world.sql("UPDATE runs SET payload = %s WHERE run_id = %s", payload, run.key.run_id)

    outcome = await me.assign(*map(draft, runs))

    payloads = {each.run.key: each.payload for each in outcome.assigned}
    assert payloads == {run.key: payload for run, payload in zip(runs, given, strict=True)}


async def test_small_payloads_share_a_batch_wherever_they_are_read(world: World) -> None:
    me = await world.member()
    runs = [run for _ in range(40) for run in await fired(me, await world.job(shard=6))]
    own = b"x" * SMALL_PAYLOAD
    await world.sql("UPDATE runs SET payload = %s", own)
    large = b"y" * (SMALL_PAYLOAD + 1)
    await world.sql("UPDATE runs SET payload = %s WHERE run_id = %s", large, runs[7].key.run_id)
    terms = draft(runs[0]).terms
    expected = {run.key: large if run is runs[7] else own for run in runs}

    async def batches(of: list[LiveRun]) -> list[DispatchedBatch]:
        outcome = await me.assign(*(replace(draft(run), terms=terms) for run in of))
        assert {each.run.key: each.payload for each in outcome.assigned} == expected
        return outcome.batches

    first = await batches(runs)
    assert sorted(len(batch.runs) for batch in first) == [1, 39]

    dispatched = [one.run for batch in first for one in batch.single()]
    unstarted = [Unstarted(run.key, run.shard, run.token) for run in dispatched]
    again = await me.store.owner.give_back(me.claim(6), unstarted)
    assert sorted(len(batch.runs) for batch in await batches(again)) == [1, 39]


def _id(run: LiveRun) -> RunId:
    return run.key.run_id
