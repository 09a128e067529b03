"""Batches of one day are written in its own partition, and nowhere else is anything missed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from sqlalchemy import event

from schedd.core.model import LiveRun, Overlap, Verdict
from schedd.store.partitions import name_of
from support.store import Member, World, draft, firing, report

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


async def test_batches_of_several_days_or_of_one_without_a_table_are_written_as_ever(
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


async def test_a_run_of_another_day_that_is_admitted_is_in_the_way(world: World) -> None:
    """P3.6: it began yesterday, and goes on."""
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


async def test_who_lines_up_waits_though_nobody_said_that_the_batch_has_such_runs(
    world: World,
) -> None:
    """The row knows; the batch was told otherwise, and leaves it to the next look."""
    me = await world.member()
    job = await world.job()
    [run] = (await me.fire(firing(job))).runs
    await world.sql("UPDATE runs SET overlap = 'BUFFER_ALL' WHERE run_id = %s", run.key.run_id)

    unaware = await me.assign(draft(run))
    assert (unaware.assigned, unaware.held) == ([], [run.key])
    [handed] = await me.assigned(draft(run, said=Overlap.BUFFER_ALL))
    assert handed.key == run.key
