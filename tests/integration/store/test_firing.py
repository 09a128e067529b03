"""Fire (P3.4): one statement inserts from the timers that advanced, and from no other."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection

from schedd.core.ids import ShardId
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.records import TimerEdit
from schedd.core.timers.packed_timer import EARLIEST, LastLoad, unpacked
from schedd.store.jobs import job_pauses, jobs
from schedkit.errors import Fault
from support.store import (
    MINUTE,
    START,
    World,
    draft,
    firing,
    job_record,
    new_run,
    ok,
    wait_for_waiter,
)


async def test_a_firing_advances_its_timer_and_inserts_its_run(world: World) -> None:
    me = await world.member()
    job = await world.job(shard=5)

    fired = await me.fire(firing(job))

    [run] = fired.runs
    assert (fired.refused, fired.lost) == ([], frozenset())
    [timer] = await me.store.owner.timers([job.definition.job_id])
    assert (timer.due_at, timer.nominal) == (START + MINUTE, START + MINUTE)
    assert await me.store.owner.live_runs([ShardId(5)], [State.PENDING]) == [run]


async def test_a_row_marks_its_run_as_late_until_it_was_dispatched(world: World) -> None:
    """The next owner of the shard runs it after what is due now."""
    me = await world.member()
    job = await world.job(shard=5)
    made = START + 3 * MINUTE
    late = [new_run(job, START + n * MINUTE, ready_at=made, paced=True) for n in (0, 1)]
    on_time = new_run(job, START + 2 * MINUTE)

    fired = await me.fire(firing(job, runs=(*late, on_time), next_due_at=START + 4 * MINUTE))

    assert [(run.late, run.paced) for run in fired.runs] == [(True, True)] * 2 + [(False, False)]
    found = await me.store.owner.live_runs([ShardId(5)], [State.PENDING])
    assert sorted((run.due_at, run.ready_at, run.late) for run in found) == [
        (START, made, True),
        (START + MINUTE, made, True),
        (START + 2 * MINUTE, START + 2 * MINUTE, False),
    ]
    [assigned] = await me.assigned(draft(fired.runs[0]))
    assert (assigned.due_at, assigned.ready_at, assigned.late) == (START, made, True)


async def test_fire_twice_advances_once(world: World) -> None:
    """P3.4: the timer stands at another instant by then."""
    me = await world.member()
    job = await world.job()
    step = firing(job)

    first = await me.fire(step)
    again = await me.fire(step)

    assert len(first.runs) == 1
    assert (again.runs, again.refused) == ([], [job.definition.job_id])
    assert await world.sql("SELECT count(*) FROM runs") == [(1,)]


async def test_a_step_ahead_of_the_databases_clock_is_refused(world: World) -> None:
    """P3.4: an owner whose clock runs ahead fires nothing before its time."""
    me = await world.member(horizon=timedelta(seconds=5))
    soon = datetime.now(UTC) + timedelta(seconds=60)
    job = await world.job(due=soon)

    fired = await me.fire(firing(job))

    assert (fired.runs, fired.refused) == ([], [job.definition.job_id])
    assert await world.sql("SELECT count(*) FROM runs") == [(0,)]


async def test_a_step_within_the_horizon_is_made_early(world: World) -> None:
    me = await world.member(horizon=timedelta(seconds=30))
    job = await world.job(due=datetime.now(UTC) + timedelta(seconds=20))

    assert len((await me.fire(firing(job))).runs) == 1


async def test_an_edited_paused_or_moved_timer_leaves_no_run(world: World) -> None:
    """P3.4: what changed between the owner's look and its step."""
    me = await world.member()
    edited, paused, moved, deleted = [await world.job() for _ in range(4)]
    steps = [firing(job) for job in (edited, paused, moved, deleted)]
    await me.store.users.update_job(
        edited.definition.job_id, 1, edited.definition, TimerEdit(), ok("update")
    )
    await world.sql("UPDATE timers SET paused = true WHERE job_id = %s", paused.definition.job_id)
    await world.sql("UPDATE timers SET shard = 9 WHERE job_id = %s", moved.definition.job_id)
    await me.store.users.delete_job(deleted.definition.job_id, ok("delete"))

    fired = await me.fire(*steps)

    assert fired.runs == []
    assert set(fired.refused) == {step.job_id for step in steps}
    assert await world.sql("SELECT count(*) FROM runs") == [(0,)]


async def test_a_pause_during_a_fire_prevents_runs_of_the_job(world: World) -> None:
    """The pause holds the shard's row when the fire comes; the fire waits and finds it paused."""
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
    fired = await me.fire(firing(job))
    await pause

    assert (fired.runs, fired.refused) == ([], [job.definition.job_id])


async def test_merged_rows_select_from_the_timers_that_advanced_too(world: World) -> None:
    """P3.4: else an instant could be accounted for twice, by a merged row and by its run."""
    me = await world.member()
    good, stale = await world.job(), await world.job()

    def with_merged(job, **changes):
        merged = new_run(
            job,
            START,
            state=State.COALESCED,
            reason=Reason.WINDOW,
            count=4,
            scheduled_until=START + 3 * MINUTE,
        )
        run = new_run(job, START + 4 * MINUTE)
        return firing(job, runs=(merged, run), next_due_at=START + 5 * MINUTE, **changes)

    fired = await me.fire(with_merged(good), with_merged(stale, generation=9))

    assert [run.key.scheduled_at for run in fired.runs] == [START + 4 * MINUTE]
    rows = await world.sql("SELECT job_id, state, count, reason FROM runs ORDER BY scheduled_at")
    assert rows == [
        (good.definition.job_id, "COALESCED", 4, "WINDOW"),
        (good.definition.job_id, "PENDING", 1, None),
    ]
    assert await world.sql("SELECT count(*) FROM live") == [(1,)]


async def test_an_existing_run_of_a_time_is_left_unchanged(world: World) -> None:
    """P7.1: after an edit the timer may come by an instant whose run was inserted early."""
    me = await world.member()
    job = await world.job()
    await me.fire(firing(job))
    await world.sql("UPDATE timers SET due_at = %s, nominal = %s", START, START)

    fired = await me.fire(firing(job))

    assert (fired.runs, fired.refused, fired.broken) == ([], [], [])
    assert await world.sql("SELECT count(*) FROM runs") == [(1,)]
    assert await world.sql("SELECT count(*) FROM live") == [(1,)]


async def test_a_batch_of_a_released_owner_writes_nothing(world: World) -> None:
    """P1.1: a batch that slept until its shard was let go comes too late."""
    me = await world.member()
    job = await world.job()
    claim = me.claim(0)
    await me.store.membership.release(claim)

    fired = await me.store.owner.fire(claim, [firing(job)])

    assert (fired.runs, fired.refused, fired.lost) == ([], [], frozenset({0}))
    assert await world.sql("SELECT count(*) FROM runs") == [(0,)]


async def test_a_batch_writes_for_the_shards_that_are_still_its_own_alone(world: World) -> None:
    """P1.1: the lock's answer says for which."""
    me = await world.member()
    kept, lost = await world.job(shard=2), await world.job(shard=4)
    claim = me.claim(2, 4)
    await me.store.membership.release(me.claim(4))

    fired = await me.store.owner.fire(claim, [firing(kept), firing(lost)])

    assert [run.job_id for run in fired.runs] == [kept.definition.job_id]
    assert fired.lost == {4}


async def test_an_old_epoch_of_the_same_owner_writes_nothing(world: World) -> None:
    """P1.1: what was sent before a taking doesn't count after it, the owner's own included."""
    me = await world.member()
    job = await world.job()
    old = me.claim(0)
    await me.take(0)

    fired = await me.store.owner.fire(old, [firing(job)])

    assert (fired.runs, fired.lost) == ([], frozenset({0}))


async def test_after_a_change_of_timeline_no_claim_holds(world: World) -> None:
    """P1.1: neither as it was taken nor as the row has it: the server is on another one."""
    me = await world.member()
    job = await world.job()
    await world.sql("UPDATE shards SET timeline = timeline + 1")
    claim = me.claim(0)

    as_taken = await me.store.owner.fire(claim, [firing(job)])
    as_stored = await me.store.owner.fire(
        replace(claim, timeline=claim.timeline + 1), [firing(job)]
    )

    assert as_taken.lost == as_stored.lost == {0}
    assert await world.sql("SELECT count(*) FROM runs") == [(0,)]


async def test_due_timers_are_ordered_by_due_time_from_minus_infinity(world: World) -> None:
    """P3.9: a creation may commit behind any watermark."""
    me = await world.member()
    late = await world.job(due=START + MINUTE)
    ancient = await world.job(due=START - timedelta(days=900))
    await world.job(due=datetime.now(UTC) + timedelta(hours=1))
    await world.job(shard=1)

    due = unpacked(await me.store.owner.due_timers([ShardId(0)], datetime.now(UTC), 10))
    latest = await me.store.owner.due_timers([ShardId(0)], datetime.now(UTC), 1, latest=True)

    assert [timer.job_id for timer in due] == [
        ancient.definition.job_id,
        late.definition.job_id,
    ]
    assert unpacked(latest) == due[-1:]
    assert due == await me.store.owner.timers([timer.job_id for timer in due])


async def test_a_load_returns_only_rows_that_the_last_one_didnt_see(world: World) -> None:
    """P3.9: among them one of a transaction that began before the last load, and ended after it."""
    me = await world.member()
    now = datetime.now(UTC)
    seen, again, edited, paused = [await world.job(due=now) for _ in range(4)]
    entering = await world.job(due=now + MINUTE)
    slow, aborted = job_record(due=now), job_record(due=now)
    with world.store.database._engine.connect() as writer:
        with writer.begin():
            jobs.create_job(writer, slow, None, ok("create"))
            rows, oldest = await me.store.owner.new_timers([ShardId(0)], now, 10, None)
        with writer.begin() as transaction:
            jobs.create_job(writer, aborted, None, ok("create"))
            transaction.rollback()
    last = LastLoad(oldest, now)
    new = await world.job(due=now)
    await world.sql("UPDATE timers SET generation = 2 WHERE job_id = %s", edited.definition.job_id)
    await world.sql("UPDATE timers SET paused = true WHERE job_id = %s", paused.definition.job_id)

    until, ids = now + MINUTE, [again.definition.job_id, paused.definition.job_id]
    more, _ = await me.store.owner.new_timers([ShardId(0)], until, 10, last, ids)

    assert len(rows) == 4
    assert {timer.job_id for timer in unpacked(more)} == {
        job.definition.job_id for job in (again, edited, entering, slow, new)
    }
    assert seen.definition.job_id in {timer.job_id for timer in unpacked(rows)}


async def test_due_timers_outside_the_range_of_python_are_read(world: World) -> None:
    me = await world.member()
    await world.job(due=START)
    await world.sql("UPDATE timers SET due_at = '-infinity', nominal = '0044-03-15 BC'")
    await world.job(due=START)
    await world.sql("UPDATE timers SET nominal = NULL WHERE due_at > '-infinity'")

    rows, _ = await me.store.owner.new_timers([ShardId(0)], datetime.now(UTC), 10, None)

    timers = unpacked(rows)
    assert [(t.due_at, t.nominal) for t in timers] == [(EARLIEST, EARLIEST), (START, None)]


async def test_one_broken_row_is_set_aside_and_the_others_fire(world: World) -> None:
    """P3.10: what the database refuses must not hold up what came with it."""
    me = await world.member()
    jobs = [await world.job() for _ in range(7)]
    steps = [firing(job) for job in jobs]
    broken = replace(steps[3].runs[0], count=2**40)
    steps[3] = replace(steps[3], runs=(broken,))

    fired = await me.fire(*steps)

    assert fired.broken == [jobs[3].definition.job_id]
    assert len(fired.runs) == 6


async def test_a_transaction_holds_shards_of_one_lane_only(world: World) -> None:
    me = await world.member()
    jobs = [await world.job(shard=0), await world.job(shard=1)]
    with pytest.raises(Fault, match="several lanes"):
        await me.fire(*map(firing, jobs))


async def test_a_late_run_has_the_time_of_its_creation_as_created_at(world: World) -> None:
    """By that its deadlines are counted: else it were over them as soon as it is there."""
    me = await world.member()
    job = await world.job()
    late = new_run(job, START, ready_at=START + 9 * MINUTE)
    [made] = (await me.fire(firing(job, runs=(late,)))).runs
    assert made.created_at == START + 9 * MINUTE
    [on_time] = (await me.fire(firing(await world.job()))).runs
    assert on_time.created_at == on_time.due_at
