"""A scan reads which live runs were written since a moment, and which assignments have changed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from schedd.core.ids import ShardId, Token
from schedd.core.jobs.definition import Overlap
from schedd.core.runs.change_stream import Cursor, WrittenRuns
from schedd.core.runs.lifecycle import LIVE
from schedd.core.runs.model import LiveKey, LiveRun, RunKey
from schedd.core.runs.records import Unstarted
from schedkit.clock import utcnow
from support.store import Member, World, draft, firing, ok

HERE = ShardId(3)
STATES = [*LIVE]


async def create_runs(world: World, me: Member, count: int = 1, shard: int = HERE) -> list[LiveRun]:
    jobs = [await world.job(shard=shard, due=utcnow()) for _ in range(count)]
    return [run for job in jobs for run in (await me.fire(firing(job))).runs]


async def written(me: Member, since: Cursor) -> WrittenRuns:
    found = await me.store.owner.written_runs([HERE], since)
    assert found is not None
    return found


def keys(*runs: LiveRun) -> set[LiveKey]:
    return {run.live_key for run in runs}


async def test_runs_created_since_a_moment_are_found(world: World) -> None:
    me = await world.member()
    await create_runs(world, me)
    await create_runs(world, me, shard=4)
    moment = await me.store.owner.moment()
    [since] = await create_runs(world, me)
    found = await written(me, moment)
    assert set(found.keys) == keys(since)
    assert (await written(me, found.cursor)).keys == []


async def test_a_run_of_a_job_that_moved_to_another_shard_is_found_there(world: World) -> None:
    me = await world.member()
    [run] = await create_runs(world, me, shard=4)
    moment = await me.store.owner.moment()
    await world.sql("UPDATE live SET shard = %s WHERE run_id = %s", HERE, run.key.run_id)
    assert set((await written(me, moment)).keys) == keys(replace(run, shard=HERE))


async def test_an_assignment_is_found_that_its_row_doesnt_have_or_that_is_being_canceled(
    world: World,
) -> None:
    me = await world.member()
    waiting = await create_runs(world, me, 5)
    stays, ends, returns, cancelled, other = await me.assigned(*map(draft, waiting))
    await world.sql("DELETE FROM runs WHERE run_id = %s", ends.key.run_id)
    unstarted = Unstarted(returns.key, returns.shard, returns.token)
    await me.store.owner.give_back(me.claim(HERE), [unstarted])
    await me.store.users.cancel_run(cancelled.key.run_id, ok("cancel"))
    other = replace(other, token=Token(other.token + 1))

    known = [(run.key, run.token) for run in (stays, ends, returns, cancelled, other)]
    found = await me.store.owner.changed_assignments(known)
    assert sorted(found) == sorted(run.key.run_id for run in (ends, returns, cancelled, other))


async def test_a_run_of_a_paused_job_isnt_read(world: World) -> None:
    me = await world.member()
    [run] = await create_runs(world, me)
    await me.store.users.pause_job(run.job_id, "", "ann", ok("pause"))
    assert await me.store.owner.runs_by_key([run.live_key], utcnow()) == []
    assert await me.store.owner.live_keys([HERE]) == [run.live_key]


async def test_only_the_requested_runs_are_read(world: World) -> None:
    me = await world.member()
    one, _, elsewhere = *(await create_runs(world, me, 2)), *(await create_runs(world, me, shard=4))
    asked = [one.live_key, elsewhere.live_key._replace(shard=HERE)]
    assert await me.store.owner.runs_by_key(asked, utcnow()) == [one]


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
        assert await me.store.owner.written_runs([HERE], other) is None


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
    assert keys(*found) == keys(retry, run)
