"""Batches of one day are written in its own partition, and nowhere else is anything missed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from sqlalchemy import Connection, event

from schedd.core.ids import ShardId
from schedd.core.jobs.definition import Overlap
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import LiveRun, Verdict
from schedd.store.schema.partitions import name_of
from support.store import Member, World, draft, firing, report, wait_for_waiter

DAY = timedelta(days=1)


@contextmanager
def tables_written(me: Member) -> Iterator[list[str]]:
    """Which tables of runs are updated, in turn."""
    engine = me.store.database._engine
    written: list[str] = []

    def look(conn, cursor, statement, parameters, context, executemany):
        words = statement.split()
        written.extend(
            table
            for verb, table in pairwise(words)
            if verb == "UPDATE" and table.startswith("runs")
        )

    event.listen(engine, "before_cursor_execute", look)
    yield written
    event.remove(engine, "before_cursor_execute", look)


async def fired(world: World, me: Member, *instants: datetime) -> list[LiveRun]:
    """A run of a job of its own for each of these."""
    jobs = [await world.job(due=at) for at in instants]
    steps = [firing(job, at=at) for job, at in zip(jobs, instants, strict=True)]
    return sorted((await me.fire(*steps)).runs, key=lambda run: run.key.scheduled_at)


async def test_a_batch_of_one_day_is_written_in_that_days_table_alone(world: World) -> None:
    """The planner looks at every day that is kept, otherwise."""
    me = await world.member()
    now = datetime.now(UTC)
    runs = await fired(world, me, now, now)

    with tables_written(me) as written:
        handed = await me.assigned(*map(draft, runs))
        verdicts = await me.store.results.accept([report(run) for run in handed])

    assert verdicts == [Verdict.ACCEPTED] * 2
    assert written == [name_of(now.date())] * 2


async def test_a_result_finds_its_row_where_another_update_moved_it_while_it_waited(
    world: World,
) -> None:
    """An update puts a row into another spot of its table."""
    me = await world.member()
    [run] = await me.assigned(*map(draft, await fired(world, me, datetime.now(UTC))))
    moved = asyncio.Event()
    loop = asyncio.get_running_loop()

    def move(connection: Connection) -> None:
        connection.exec_driver_sql("UPDATE runs SET late_notified = true")
        loop.call_soon_threadsafe(moved.set)
        wait_for_waiter(connection)

    moving = asyncio.create_task(me.store.database.call(move), name="move")
    await moved.wait()
    assert await me.store.results.accept([report(run)]) == [Verdict.ACCEPTED]
    await moving

    row = await world.run_row(run.key.run_id)
    assert (row["state"], row["late_notified"]) == ("SUCCEEDED", True)


async def test_a_run_is_dispatched_where_another_update_moved_it_while_dispatch_waited(
    world: World,
) -> None:
    me = await world.member()
    [run] = await fired(world, me, datetime.now(UTC))
    moved = asyncio.Event()
    loop = asyncio.get_running_loop()

    def move(connection: Connection) -> None:
        connection.exec_driver_sql("UPDATE runs SET late_notified = true")
        loop.call_soon_threadsafe(moved.set)
        wait_for_waiter(connection)

    moving = asyncio.create_task(me.store.database.call(move), name="move")
    await moved.wait()
    [handed] = await me.assigned(draft(run))
    await moving

    row = await world.run_row(run.key.run_id)
    assert (row["state"], row["late_notified"], row["token"]) == ("RUNNING", True, handed.token)


async def test_batches_of_several_days_or_of_a_day_without_a_partition_use_the_parent_table(
    world: World,
) -> None:
    me = await world.member()
    now = datetime.now(UTC)
    for instants in ([now, now - DAY], [now - 400 * DAY]):
        runs = await fired(world, me, *instants)
        with tables_written(me) as written:
            handed = await me.assigned(*map(draft, runs))
            verdicts = await me.store.results.accept([report(run) for run in handed])
        assert verdicts == [Verdict.ACCEPTED] * len(instants)
        assert written == ["runs", "runs"]


async def test_an_admitted_run_of_another_day_blocks_the_next_run(world: World) -> None:
    """P3.6: it began yesterday and is still running."""
    me = await world.member()
    now = datetime.now(UTC)
    job = await world.job(due=now - DAY)
    first = firing(job, at=now - DAY, next_due_at=now, next_nominal=now)
    [before] = (await me.fire(first)).runs
    [running] = await me.assigned(draft(before))
    [new] = (await me.fire(firing(job, at=now))).runs

    with tables_written(me) as written:
        answer = await me.assign(draft(new))

    assert (answer.assigned, answer.ended) == ([], [new.key])
    assert running.key.scheduled_at.date() != new.key.scheduled_at.date()
    assert written[0] == name_of(now.date()), "the new one alone is in the batch"


async def test_a_buffered_run_waits_though_its_draft_doesnt_say_that_it_is_buffered(
    world: World,
) -> None:
    """The row has the policy; the batch got another one, and leaves the run to the next scan."""
    me = await world.member()
    job = await world.job()
    [run] = (await me.fire(firing(job))).runs
    await world.sql("UPDATE runs SET overlap = 'BUFFER_ALL' WHERE run_id = %s", run.key.run_id)

    unaware = await me.assign(draft(run))
    assert (unaware.assigned, unaware.held) == ([], [run.key])
    [handed] = await me.assigned(draft(replace(run, overlap=Overlap.BUFFER_ALL)))
    assert handed.key == run.key


async def test_a_detached_day_is_written_where_its_rows_are(world: World) -> None:
    """Its table keeps its name, and no reader sees what is written there."""
    me = await world.member()
    now = datetime.now(UTC)
    table = name_of(now.date())
    await world.sql(f"ALTER TABLE runs DETACH PARTITION {table}")

    [run] = await fired(world, me, now)
    [handed] = await me.assigned(draft(run))
    assert await me.store.results.accept([report(handed)]) == [Verdict.ACCEPTED]

    assert (await world.run_row(run.key.run_id))["state"] == "SUCCEEDED"
    assert await world.sql(f"SELECT count(*) FROM {table}") == [(0,)]


async def test_a_batch_counts_the_live_runs_of_a_job_once(
    world: World,
) -> None:
    """Once for each draft took longer than any statement may, again and again."""
    me = await world.member()
    job = await world.job()
    await world.sql(
        "WITH made AS (INSERT INTO runs (scheduled_at, run_id, job_id, due_at, shard, priority,"
        " trigger, state, ready_at) SELECT date_trunc('day', now()) + n * interval '1 ms',"
        " gen_random_uuid(), %s, now(), 0, 2, 'SCHEDULE', 'PENDING', now()"
        " FROM generate_series(1, 20000) n RETURNING shard, job_id, run_id, scheduled_at)"
        " INSERT INTO live (shard, job_id, run_id, scheduled_at) SELECT * FROM made",
        job.definition.job_id,
    )
    waiting = await me.store.owner.live_runs([ShardId(0)], [State.PENDING])
    assert len(waiting) == 20_000

    allowed = [draft(run, overlap=Overlap.ALLOW, overlap_limit=0) for run in waiting[:500]]
    assert len(await me.assigned(*allowed)) == 500
    more = [draft(run, overlap=Overlap.ALLOW, overlap_limit=600) for run in waiting[500:1_000]]
    answer = await me.assign(*more)
    assert (len(answer.assigned), len(answer.held)) == (100, 400)
