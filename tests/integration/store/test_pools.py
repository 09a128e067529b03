"""Pools (P3.21): a limit and a rate judged on rows as attempts are dispatched."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from schedd.core.cluster.partition import shard_of, shard_of_pool
from schedd.core.ids import ShardId
from schedd.core.jobs.definition import Overlap, Priority
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import Draft, LiveRun, Loss, Trigger
from schedd.core.runs.pools import NO_POOL, PoolKey, PoolRecord, PoolUser, StartRate, pool_key
from schedd.core.runs.records import JobRecord, StoreConflict, TimerEdit, Unstarted
from support.store import Member, World, draft, manual_run, ok, report

NAME = "reports"
POOL = pool_key("default", NAME)
HERE = shard_of_pool("default", NAME)
PER = timedelta(minutes=1)


async def pool(
    me: Member, limit: int | None = None, rate: StartRate | None = None, name: str = NAME
) -> PoolRecord:
    made = await me.store.pools.set("default", name, limit, rate, 0, "ann", ok("set"))
    assert isinstance(made, PoolRecord)
    return made


async def runs_of(me: Member, job: JobRecord, count: int) -> list[LiveRun]:
    for _ in range(count):
        await me.store.users.insert_run(
            job.definition.job_id,
            manual_run(),
            Trigger.MANUAL,
            Priority.MEDIUM,
            None,
            None,
            ok("trigger"),
        )
    found = await me.store.owner.live_runs([job.shard], [State.PENDING])
    return [run for run in found if run.job_id == job.definition.job_id]


def drafts(
    runs: list[LiveRun], in_pool: PoolKey = POOL, start_by_after: timedelta | None = None
) -> list[Draft]:
    """`start_by_after`: how long each may be in starting."""
    made = [draft(run, pool=in_pool, overlap=Overlap.ALLOW, overlap_limit=0) for run in runs]
    return (
        made
        if start_by_after is None
        else [replace(one, terms=replace(one.terms, start_by_after=start_by_after)) for one in made]
    )


def lost(run: LiveRun) -> Loss:
    assert run.incarnation is not None
    return Loss(run.key, run.shard, run.token, run.incarnation, State.RETRYING, None)


async def test_no_more_runs_start_than_the_limit_allows_whichever_owner_asks(world: World) -> None:
    """P3.21: the statement counts, not who drafts."""
    me = await world.member()
    await pool(me, limit=3)
    first = await world.job(shard=HERE, due=None, pool=NAME)
    second = await world.job(shard=HERE, due=None, pool=NAME)
    runs = [*await runs_of(me, first, 2), *await runs_of(me, second, 3)]

    answer = await me.assign(*drafts(runs))

    assert [each.run.key for each in answer.assigned] == [run.key for run in runs[:3]]
    assert answer.full == [run.key for run in runs[3:]]
    assert (await me.assign(*drafts(runs[3:]))).assigned == []


@pytest.mark.parametrize("ends", ["succeeded", "backs off", "lost", "given back"])
async def test_a_pool_slot_is_free_after_any_end_of_an_attempt(world: World, ends: str) -> None:
    """P3.21: a turn that stayed open would take its place for ever."""
    me = await world.member()
    await pool(me, limit=1)
    job = await world.job(shard=HERE, due=None, pool=NAME)
    first, second = await runs_of(me, job, 2)
    [given] = await me.assigned(*drafts([first]))
    assert (await me.assign(*drafts([second]))).full == [second.key]
    if ends == "given back":
        claim = me.claim(HERE)
        await me.store.owner.give_back(claim, [Unstarted(given.key, HERE, given.token)])
    elif ends == "lost":
        loss = lost(given)
        assert await me.store.owner.rescue(me.claim(HERE), [loss]) == [given.key]
    else:
        state = State.SUCCEEDED if ends == "succeeded" else State.RETRYING
        later = datetime.now(UTC) + PER
        done = report(given, state=state, retry_at=later if state is State.RETRYING else None)
        await me.store.results.accept([done])

    await me.assigned(*drafts([second]))


async def test_a_run_counts_where_it_was_dispatched_though_its_job_has_moved(world: World) -> None:
    """P3.2: a move takes nothing from the pool that the run was dispatched in."""
    me = await world.member()
    await pool(me, limit=1)
    await pool(me, limit=1, name="other")
    job = await world.job(shard=HERE, due=None, pool=NAME)
    beside = await world.job(shard=HERE, due=None, pool=NAME)
    [run] = await runs_of(me, job, 1)
    [waits] = await runs_of(me, beside, 1)
    [given] = await me.assigned(*drafts([run]))
    moved = await edited(me, job, pool="other")
    assert moved.shard == shard_of_pool("default", "other")

    assert (await me.assign(*drafts([waits]))).full == [waits.key]
    await me.store.results.accept([report(given)])
    await me.assigned(*drafts([waits]))


async def test_a_rate_counts_starts_in_any_window_and_not_runs_that_never_started(
    world: World,
) -> None:
    """P3.21: by times of dispatch, a late start would make one too many in its minute."""
    me = await world.member()
    await pool(me, rate=StartRate(2, PER))
    job = await world.job(shard=HERE, due=None, pool=NAME)
    runs = await runs_of(me, job, 5)
    [back] = await me.assigned(*drafts(runs[:1]))
    await me.store.owner.give_back(me.claim(HERE), [Unstarted(back.key, HERE, back.token)])
    first, second = await me.assigned(*drafts(runs[1:3]))
    await me.store.results.accept([report(first), report(second)])
    assert (await me.assign(*drafts(runs[3:4]))).full == [runs[3].key]

    now = datetime.now(UTC)
    await world.sql(
        "UPDATE pool_turns SET assigned_at = %s, start_by = %s, counted_at = %s WHERE run_id = %s",
        *(now - PER - timedelta(seconds=3), now - PER + timedelta(seconds=2)),
        *(now - PER + timedelta(seconds=1), first.key.run_id),
    )
    assert (await me.assign(*drafts(runs[3:4]))).full == [runs[3].key], "it started late"
    usage = (await me.store.owner.pools([POOL]))[POOL]
    assert usage.until_free is not None
    assert timedelta(0) < usage.until_free < timedelta(seconds=1.1)
    await world.sql(
        "UPDATE pool_turns SET counted_at = %s WHERE run_id = %s",
        *(now - PER - timedelta(milliseconds=50), first.key.run_id),
    )
    [_] = await me.assigned(*drafts(runs[3:4]))
    assert (await me.assign(*drafts(runs[4:]))).full == [runs[4].key]


async def test_runs_of_a_paused_pool_wait_and_runs_without_a_pool_start(world: World) -> None:
    """P3.21: a pause is judged as a full pool is."""
    me = await world.member()
    await pool(me, limit=9)
    await me.store.pools.pause("default", NAME, True, "moving", "ann", ok("pause"))
    job = await world.job(shard=HERE, due=None, pool=NAME)
    free = await world.job(shard=HERE, due=None)
    [waits], [goes] = await runs_of(me, job, 1), await runs_of(me, free, 1)
    answer = await me.assign(*drafts([waits]), *drafts([goes], NO_POOL))
    assert [each.run.key for each in answer.assigned] == [goes.key]
    assert answer.full == [waits.key]
    await me.store.pools.pause("default", NAME, False, "", "ann", ok("resume"))
    await me.assigned(*drafts([waits]))


async def test_a_change_of_a_pool_waits_for_assignments_in_progress(world: World) -> None:
    """P3.21: else a lower limit is `ok` while a batch under the old one is about to commit."""
    me, user = await world.member(), await world.member(take=False)
    await pool(me, limit=9)
    held, free = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def hold(connection):
        connection.exec_driver_sql(f"SELECT 1 FROM shards WHERE id = {HERE} FOR NO KEY UPDATE")
        loop.call_soon_threadsafe(held.set)
        asyncio.run_coroutine_threadsafe(free.wait(), loop).result()

    holding = asyncio.create_task(me.store.database.call(hold))
    await held.wait()
    changing = asyncio.create_task(pool(user, limit=1))
    done, _ = await asyncio.wait([changing], timeout=0.2)
    assert not done
    free.set()
    await holding
    assert (await changing).limit == 1


async def started(world: World, me: Member, job: JobRecord, *, ago: timedelta) -> None:
    """A run of it that started, and ended, so long ago."""
    [run] = await runs_of(me, job, 1)
    [given] = await me.assigned(*drafts([run]))
    await me.store.results.accept([report(given)])
    await world.sql(
        "UPDATE pool_turns SET assigned_at = assigned_at - %s, start_by = start_by - %s,"
        " counted_at = assigned_at - %s, ended = true WHERE run_id = %s",
        *(ago, ago, ago, run.key.run_id),
    )


@pytest.mark.parametrize(("rate", "stay"), [(StartRate(1, timedelta(seconds=1)), 2), (None, 1)])
async def test_pool_turns_are_deleted_when_no_limit_needs_them(
    world: World, rate: StartRate | None, stay: int
) -> None:
    me = await world.member()
    await pool(me, limit=2, rate=rate)
    job = await world.job(shard=HERE, due=None, pool=NAME)
    for minutes in (5, 4, 3, 2, 1):
        await started(world, me, job, ago=timedelta(minutes=minutes))
    [run] = await runs_of(me, job, 1)
    await me.assigned(*drafts([run]))
    assert await world.sql("SELECT count(*) FROM pool_turns") == [(stay,)]


async def test_a_rate_of_a_longer_time_counts_what_started_under_the_shorter_one(
    world: World,
) -> None:
    """P3.21: what the rate of before had forgotten would start once more."""
    me = await world.member()
    await pool(me, rate=StartRate(2, timedelta(seconds=1)))
    job = await world.job(shard=HERE, due=None, pool=NAME)
    for minutes in (50, 40, 30):
        await started(world, me, job, ago=timedelta(minutes=minutes))
    await pool(me, rate=StartRate(2, timedelta(minutes=45)))
    [run] = await runs_of(me, job, 1)
    assert (await me.assign(*drafts([run]))).full == [run.key]
    await pool(me, rate=StartRate(2, timedelta(minutes=35)))
    await me.assigned(*drafts([run]))


async def test_running_runs_count_again_in_a_recreated_pool(world: World) -> None:
    """P3.21: the job moved out of it, so nothing kept the pool; its run continues."""
    me = await world.member()
    await pool(me, limit=1)
    job = await world.job(shard=HERE, due=None, pool=NAME)
    ended, runs = await runs_of(me, job, 2)
    [given] = await me.assigned(*drafts([ended]))
    await me.store.results.accept([report(given)])
    [given] = await me.assigned(*drafts([runs]))
    await edited(me, job, pool="")
    assert await me.store.pools.delete("default", NAME, ok("delete"), 5) is True
    await me.store.keep_house()
    assert await world.sql("SELECT token FROM pool_turns") == [(given.token,)]
    await pool(me, limit=1)
    other = await world.job(shard=HERE, due=None, pool=NAME)
    await me.take(HERE)
    [waits] = await runs_of(me, other, 1)
    assert (await me.assign(*drafts([waits]))).full == [waits.key]
    await me.store.results.accept([report(given)])
    await me.assigned(*drafts([waits]))


async def test_pool_turns_of_a_deleted_pool_are_deleted_after_its_runs_end(
    world: World,
) -> None:
    me = await world.member()
    await pool(me, limit=1)
    job = await world.job(shard=HERE, due=None, pool=NAME)
    [run] = await runs_of(me, job, 1)
    [given] = await me.assigned(*drafts([run]))
    await edited(me, job, pool="")
    assert await me.store.pools.delete("default", NAME, ok("delete"), 5) is True
    await me.store.results.accept([report(given)])
    await me.store.keep_house()
    assert await world.sql("SELECT count(*) FROM pool_turns") == [(0,)]


async def test_a_pause_revokes_assignments_of_the_pool_in_whichever_shard_its_job_is(
    world: World,
) -> None:
    """P3.21: runs that were dispatched elsewhere continue in their old pool."""
    me = await world.member()
    await pool(me, limit=9)
    await pool(me, limit=9, name="other")
    there = shard_of_pool("default", "other")
    leaves = await world.job(shard=HERE, due=None, pool=NAME)
    comes = await world.job(shard=there, due=None, pool="other")
    other = pool_key("default", "other")
    [left] = await me.assigned(*drafts(await runs_of(me, leaves, 1), start_by_after=PER))
    [came] = await me.assigned(*drafts(await runs_of(me, comes, 1), other, start_by_after=PER))
    [gone] = await me.assigned(*drafts(await runs_of(me, leaves, 1), start_by_after=PER))
    await me.store.owner.rescue(me.claim(HERE), [lost(gone)])
    await me.assign(*drafts(await runs_of(me, leaves, 1)))  # the next dispatch ends the turns
    await edited(me, leaves, pool="other")
    await edited(me, comes, pool=NAME)
    now = datetime.now(UTC)
    asked = await me.store.users.unstarted_attempts(None, now, ("default", NAME))
    ids = {(run.key.run_id, run.token) for run in asked}
    assert {(left.key.run_id, left.token), (gone.key.run_id, gone.token)} <= ids
    assert came.key.run_id not in {run_id for run_id, _ in ids}


# -- Moving --


async def edited(me: Member, job: JobRecord, *, pool: str) -> JobRecord:
    changed = replace(job.definition, generation=job.definition.generation + 1, pool=pool)
    moved = await me.store.users.update_job(
        job.definition.job_id, job.definition.generation, changed, TimerEdit(), ok("update")
    )
    assert isinstance(moved, JobRecord), moved
    return moved


async def test_a_job_moves_with_all_rows_of_its_shard(world: World) -> None:
    """P3.2: a run of it continues under a greater token."""
    me = await world.member()
    await pool(me, limit=3)
    job = await world.job(shard=5)
    waiting = await runs_of(me, job, 2)
    [given] = await me.assigned(*drafts(waiting[:1], NO_POOL))
    before = {row.id: row.epoch for row in await me.store.membership.read_shards()}

    moved = await edited(me, job, pool=NAME)

    assert moved.shard == HERE
    for run in (given, waiting[1]):
        row = await world.run_row(run.key.run_id)
        assert row["shard"] == HERE
    shards = {shard for [shard] in await world.sql("SELECT shard FROM live")}
    assert shards == {HERE}
    after = {row.id: row.epoch for row in await me.store.membership.read_shards()}
    assert after[HERE] > max(before[HERE], before[ShardId(5)])
    assert after[ShardId(5)] == before[ShardId(5)]
    stale = await me.assign(*drafts(waiting[1:]))
    assert stale.assigned == []
    await me.take(HERE)
    again = drafts([replace(waiting[1], shard=HERE, generation=2)])
    [went] = await me.assigned(*again)
    assert went.token > given.token


async def test_a_job_taken_out_of_its_pool_goes_to_the_shard_of_its_id(world: World) -> None:
    me = await world.member()
    await pool(me, limit=3)
    job = await world.job(shard=HERE, pool=NAME)
    assert (await edited(me, job, pool="")).shard == shard_of(job.definition.job_id)


# -- Whose pool it is --


async def test_a_job_needs_an_existing_pool(world: World) -> None:
    """P3.21: else its runs would wait for a pool that no caller can look up."""
    me = await world.member()
    record = replace((await world.job()).definition, pool="none")
    job = await world.job()
    answer = await me.store.users.update_job(
        job.definition.job_id,
        1,
        replace(record, job_id=job.definition.job_id, generation=2, name=job.definition.name),
        TimerEdit(),
        ok("update"),
    )
    assert isinstance(answer, StoreConflict)
    assert answer.what == "pool"
    assert (
        await world.sql("SELECT generation FROM jobs WHERE job_id = %s", job.definition.job_id)
    ) == [(1,)]


async def test_a_pool_is_deleted_once_nothing_uses_it(world: World) -> None:
    me = await world.member()
    await pool(me, limit=3)
    job = await world.job(shard=HERE, pool=NAME, name="etl")
    assert await me.store.pools.delete("default", NAME, ok("delete"), 5) == [PoolUser("etl")]
    await edited(me, job, pool="")
    assert await me.store.pools.delete("default", NAME, ok("delete"), 5) is True
    assert await me.store.pools.delete("default", NAME, ok("delete"), 5) is False
