"""A scan reads which live runs may have changed since a moment, and which are as they were."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from schedd.core.ids import RunId, ShardId
from schedd.core.jobs.definition import Overlap
from schedd.core.runs.change_stream import ChangedRuns, Cursor
from schedd.core.runs.lifecycle import LIVE
from schedd.core.runs.model import LiveRun, RunKey
from schedd.core.runs.records import JobRecord, TimerEdit, Unstarted
from schedkit.clock import utcnow
from support.store import Member, World, draft, firing, job_record, ok, to_slot

HERE = ShardId(3)
STATES = [*LIVE]


async def create_runs(world: World, me: Member, count: int = 1, shard: int = HERE) -> list[LiveRun]:
    jobs = [await world.job(shard=shard, due=utcnow()) for _ in range(count)]
    return [run for job in jobs for run in (await me.fire(firing(job))).runs]


async def changed(me: Member, since: Cursor) -> ChangedRuns:
    until = utcnow() + timedelta(seconds=15)
    found = await me.store.owner.changed_runs([HERE], STATES, until, since, until)
    assert found is not None
    return found


def ids(*runs: LiveRun) -> set[RunId]:
    return {run.key.run_id for run in runs}


def written(*runs: LiveRun) -> set[bytes]:
    return {run.key.run_id for run in runs}


async def test_runs_created_before_a_moment_are_unchanged_and_later_ones_changed(
    world: World,
) -> None:
    me = await world.member()
    [before] = await create_runs(world, me)
    await create_runs(world, me, shard=4)
    moment = await me.store.owner.moment()
    [since] = await create_runs(world, me)

    found = await changed(me, moment)
    assert (found.changed, found.untouched, found.same) == ((), written(since), written(before))
    found = await changed(me, await me.store.owner.moment())
    assert (set(found.changed), found.same) == (set(), written(before, since))


async def test_a_running_run_is_named_with_its_token_unless_it_is_being_cancelled(
    world: World,
) -> None:
    """Under one token nothing else changes that its owner doesn't know."""
    me = await world.member()
    runs, waits = await create_runs(world, me, 2)
    moment = await me.store.owner.moment()
    [assigned] = await me.assigned(draft(runs))
    named = {assigned.key.run_id + assigned.token.to_bytes(8)}
    for since in (moment, await me.store.owner.moment()):
        found = await changed(me, since)
        assert (set(found.changed), found.same, found.running) == (set(), written(waits), named)
    moment = await me.store.owner.moment()
    await me.store.users.cancel_run(runs.key.run_id, ok("cancel"))
    found = await changed(me, moment)
    assert (set(found.changed), found.same, found.running) == (ids(runs), written(waits), set())


async def test_a_running_run_is_named_though_its_timer_has_advanced(world: World) -> None:
    """The statement that fires it as RUNNING writes both rows. Of a running run, its owner needs
    nothing of the timer.
    """
    me = await world.member()
    record = await world.job(shard=HERE, due=utcnow())
    moment = await me.store.owner.moment()
    [run] = (await me.fire_running(to_slot(record))).runs
    found = await changed(me, moment)
    named = {run.key.run_id + run.token.to_bytes(8)}
    assert (set(found.changed), found.same, found.running) == (set(), set(), named)


async def test_a_run_of_an_edited_job_has_changed(world: World) -> None:
    """Its row says nothing of that; the line of its job, which is read beside it, does."""
    me = await world.member()
    record = await me.store.users.create_job(job_record(shard=HERE), None, ok("create"))
    assert isinstance(record, JobRecord)
    [run] = (await me.fire(firing(record))).runs
    moment = await me.store.owner.moment()
    job = record.definition
    await me.store.users.update_job(job.job_id, 1, job, TimerEdit(), ok("update"))
    found = await changed(me, moment)
    assert (set(found.changed), found.same) == (ids(run), set())


async def test_a_written_run_is_read_in_full(world: World) -> None:
    me = await world.member()
    returned, late = await create_runs(world, me, 2)
    moment = await me.store.owner.moment()
    [assigned] = await me.assigned(draft(returned))
    await me.store.owner.give_back(
        me.claim(HERE), [Unstarted(assigned.key, assigned.shard, assigned.token)]
    )
    await world.sql("UPDATE runs SET late_notified = true WHERE run_id = %s", late.key.run_id)

    found = await changed(me, moment)

    assert (set(found.changed), found.untouched) == (ids(returned, late), frozenset())


async def test_a_paused_run_is_neither_changed_nor_unchanged(world: World) -> None:
    me = await world.member()
    [run] = await create_runs(world, me)
    moment = await me.store.owner.moment()
    await me.store.users.pause_job(run.job_id, "", "ann", ok("pause"))
    found = await changed(me, moment)
    assert (found.changed, found.same) == ((), frozenset())


async def test_only_the_requested_runs_are_read(world: World) -> None:
    me = await world.member()
    one, _, elsewhere = *(await create_runs(world, me, 2)), *(await create_runs(world, me, shard=4))
    asked = [one.key.run_id, elsewhere.key.run_id]
    assert await me.store.owner.live_runs([HERE], STATES, of=asked) == [one]


async def test_runs_of_one_kind_are_read_as_each_alone(world: World) -> None:
    me = await world.member()
    waiting = await create_runs(world, me, 3)
    given, dispatched = await create_runs(world, me, 2)
    [assigned] = await me.assigned(draft(dispatched))
    await world.sql("UPDATE runs SET overlap = 'ALLOW' WHERE run_id = %s", given.key.run_id)
    read = {run.key: run for run in await me.store.owner.live_runs([HERE], STATES)}
    expected = [*waiting, replace(given, overlap=Overlap.ALLOW), assigned]
    assert read == {run.key: run for run in expected}
    assert all(run.created_at is not None and run.line_generation == 1 for run in read.values())


async def test_a_run_with_an_unknown_word_hides_no_others(world: World) -> None:
    me = await world.member()
    broken, *others = await create_runs(world, me, 3)
    await world.sql("UPDATE runs SET overlap = 'LATER' WHERE run_id = %s", broken.key.run_id)
    read = await me.store.owner.live_runs([HERE], STATES)
    assert {run.key for run in read} == {run.key for run in others}


async def test_another_database_has_no_known_changes(world: World) -> None:
    """For example a server that was restored from a copy, or a standby that took over."""
    me = await world.member()
    now = await me.store.owner.moment()
    for other in replace(now, timeline=now.timeline + 1), replace(now, transaction=1 << 40):
        found = await me.store.owner.changed_runs([HERE], STATES, utcnow(), other, utcnow())
        assert found is None


async def test_unchanged_runs_that_become_ready_beyond_the_last_scan_are_named(
    world: World,
) -> None:
    me = await world.member()
    before, after = await create_runs(world, me, 2)
    at = before.ready_at + timedelta(minutes=1)
    await world.sql("UPDATE runs SET ready_at = %s WHERE run_id = %s", at, after.key.run_id)
    moment, until = await me.store.owner.moment(), at + timedelta(seconds=1)
    for read_until, soon in (at - timedelta(seconds=1), written(after)), (at, set()):
        found = await me.store.owner.changed_runs([HERE], STATES, until, moment, read_until)
        assert found is not None
        assert (found.same, found.soon) == (written(before, after), soon)


async def test_the_next_waiting_runs_of_many_are_read_in_the_order_of_their_keys(
    world: World,
) -> None:
    me = await world.member()
    now = utcnow()
    times = [now - timedelta(seconds=second) for second in (50, 40, 40, 30, 20, 10)]
    jobs = [await world.job(shard=HERE, due=at) for at in times]
    runs = [run for job in jobs for run in (await me.fire(firing(job))).runs]
    keys = sorted(run.key for run in runs)
    elsewhere = await create_runs(world, me, shard=4)

    end = await me.store.owner.end_of_next([HERE], keys[1], 3, now)
    assert end == keys[4]
    found = await me.store.owner.next_runs([HERE], keys[1].scheduled_at, keys[4], now)
    assert sorted(run.key for run in found) == keys[1:4]
    assert found == [run for run in await me.store.owner.live_runs([HERE], STATES) if run in found]

    assert await me.store.owner.end_of_next([HERE], keys[1], 5, now) is None
    earlier = keys[4].scheduled_at
    assert await me.store.owner.end_of_next([HERE], keys[1], 3, earlier) == keys[4]
    assert await me.store.owner.end_of_next([HERE], keys[1], 4, earlier) is None
    assert await me.store.owner.end_of_next([HERE, 4], elsewhere[0].key, 0, utcnow())


async def test_a_retry_is_read_with_the_runs_that_became_ready_when_it_did(world: World) -> None:
    me = await world.member()
    now = utcnow()
    old = await world.job(shard=HERE, due=now - timedelta(hours=1))
    new = await world.job(shard=HERE, due=now)
    [retry] = (await me.fire(firing(old))).runs
    [run] = (await me.fire(firing(new))).runs
    await world.sql("UPDATE runs SET ready_at = %s WHERE run_id = %s", now, retry.key.run_id)
    end = RunKey(run.key.scheduled_at + timedelta(seconds=1), run.key.run_id)
    since = now - timedelta(minutes=1)
    found = await me.store.owner.next_runs([HERE], since, end, utcnow())
    assert ids(*found) == ids(retry, run)
