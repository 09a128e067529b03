"""Changes of runs since a moment, read from their rows: nothing more, nothing less."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import Connection

from schedd.core.ids import RunId, new_id
from schedd.core.jobs.definition import Priority
from schedd.core.runs.change_stream import Cursor, Scope
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import LiveRun, Trigger
from schedd.core.runs.records import JobRecord
from schedd.core.runs.run_records import RunRecord
from schedd.store.runs import change_stream
from schedd.store.runs.change_stream import ChangeStore
from support.store import MINUTE, START, Member, World, draft, firing, manual_run, ok, report

EVERYTHING = Scope("default")
MANY = 50


async def fired(world: World, me: Member, **changes) -> LiveRun:
    [run] = (await me.fire(firing(await world.job(**changes)))).runs
    return run


async def triggered(world: World, me: Member, job: JobRecord, at: datetime) -> LiveRun:
    made = await me.store.users.insert_run(
        job.definition.job_id,
        manual_run(at),
        Trigger.MANUAL,
        Priority.MEDIUM,
        None,
        None,
        ok("trigger"),
    )
    assert isinstance(made, RunRecord)
    return made.run


def change_store(world: World, most: int = MANY) -> ChangeStore:
    return ChangeStore(world.store.database, most)


async def test_each_write_of_a_run_is_a_change_since_the_time_before_it(
    world: World,
) -> None:
    me = await world.member()
    store = change_store(world)
    await fired(world, me)
    began = await store.now()
    assert (await store.since(began, None)).runs == ()

    run = await fired(world, me)
    made = await store.now()
    assert (await store.since(began, None)).runs == (run.key.run_id,)

    [assigned] = await me.assigned(draft(run))
    dispatched = await store.now()
    assert (await store.since(made, None)).runs == (run.key.run_id,)

    await me.store.results.accept([report(assigned)])
    ended = await store.now()
    assert (await store.since(dispatched, None)).runs == (run.key.run_id,)
    assert (await store.since(began, None)).runs == (run.key.run_id,)

    assert (await store.since(ended, None)).runs == ()


async def test_a_late_result_with_past_times_is_a_change(
    world: World,
) -> None:
    """Of a worker that was away: nothing in the row but its transaction says that it is news."""
    me = await world.member()
    run = await fired(world, me)
    [assigned] = await me.assigned(draft(run))
    store = change_store(world)
    began = await store.now()
    late = replace(report(assigned), finished_at=START - timedelta(days=1))

    await me.store.results.accept([late])

    assert (await store.since(began, None)).runs == (run.key.run_id,)


async def test_a_transaction_that_was_open_then_is_not_missed(world: World) -> None:
    me = await world.member()
    run = await fired(world, me)
    store = change_store(world)

    def body(connection: Connection) -> Cursor:
        connection.exec_driver_sql(
            "UPDATE runs SET error = 'noted' WHERE run_id = %s", (run.key.run_id,)
        )
        return change_stream._now(connection)[0]

    began = await world.store.database.call(body)

    assert (await store.since(began, None)).runs == (run.key.run_id,)


async def test_only_runs_of_the_given_jobs_are_read(world: World) -> None:
    me = await world.member()
    store = change_store(world)
    began = await store.now()
    mine, _, other = [await fired(world, me) for _ in range(3)]

    found = await store.since(began, [mine.job_id, other.job_id])

    assert set(found.runs) == {mine.key.run_id, other.key.run_id}
    assert found.before is None


async def test_live_runs_past_the_limit_of_a_read_are_found_and_its_end_is_reported(
    world: World,
) -> None:
    me = await world.member()
    job = await world.job(due=None)
    old = [await triggered(world, me, job, START - day * timedelta(days=1)) for day in (3, 2)]
    store = change_store(world, 2)
    began = await store.now()
    [assigned] = await me.assigned(draft(old[0]))
    newest = [await triggered(world, me, job, START + n * MINUTE) for n in range(2)]

    for of in (None, [job.definition.job_id]):
        found = await store.since(began, of)
        assert set(found.runs) == {assigned.key.run_id, *(run.key.run_id for run in newest)}
        assert found.older == {run.key.run_id for run in old}
        assert found.before == START


async def test_another_timeline_and_a_future_time_have_no_known_changes(world: World) -> None:
    await world.member()
    store = change_store(world)
    now = await store.now()

    for cursor in (
        Cursor(now.timeline + 1, now.transaction),
        Cursor(now.timeline, now.transaction + 1_000_000),
    ):
        assert (await store.since(cursor, None)).unknown


async def test_runs_are_read_in_the_order_asked_for_with_the_transaction_that_wrote_them(
    world: World,
) -> None:
    me = await world.member()
    runs = [await fired(world, me) for _ in range(3)]
    store = change_store(world)
    wanted = [runs[2].key.run_id, RunId(new_id()), runs[0].key.run_id]

    found = await store.read(wanted)

    assert [change.run_id for change in found] == [wanted[0], wanted[2]]
    assert found[0].version > found[1].version
    await me.assigned(draft(runs[0]))
    [again] = await store.read([runs[0].key.run_id])
    assert again.version > found[0].version
    assert again.record.run.state is State.RUNNING


async def test_a_stream_begins_with_the_newest_unended_runs_of_its_scope(
    world: World,
) -> None:
    me = await world.member()
    job = await world.job(due=None)
    runs = [await triggered(world, me, job, START + n * MINUTE) for n in range(4)]
    other = await fired(world, me, namespace="other")
    await me.store.users.cancel_run(runs[3].key.run_id, ok("cancel"))
    store = change_store(world)

    mine = Scope("default", job.definition.job_id)
    assert await store.unended(mine, 2) == [runs[1].key.run_id, runs[2].key.run_id]
    assert await store.unended(EVERYTHING, 10) == [run.key.run_id for run in runs[:3]]
    assert await store.unended(Scope("other"), 10) == [other.key.run_id]


async def test_live_runs_are_found_behind_many_newer_ended_ones(world: World) -> None:
    me = await world.member()
    job, other = await world.job(due=None), await world.job(due=None)
    old = [await triggered(world, me, job, START - n * MINUTE) for n in (3, 2, 1)]
    done = [await triggered(world, me, other, START + n * MINUTE) for n in range(4)]
    for run in done:
        await me.store.users.cancel_run(run.key.run_id, ok("cancel"))
    newest = await triggered(world, me, job, START + 5 * MINUTE)
    store = change_store(world, 2)

    for scope in (EVERYTHING, Scope("default", job.definition.job_id)):
        all_ = [run.key.run_id for run in (*old, newest)]
        assert await store.unended(scope, 10) == all_
        assert await store.unended(scope, 2) == all_[-2:]
    assert await store.unended(Scope("default", other.definition.job_id), 10) == []
