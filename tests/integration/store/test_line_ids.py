"""Rows name the line in which a job's runs wait: the present definition's, or none."""

from __future__ import annotations

from dataclasses import replace

from schedd.core.dispatch.ready_bucket_ids import HURRIED, LATE_ALERT, LineId, line_id_of
from schedd.core.ids import JobId
from schedd.core.jobs.definition import Priority
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import Trigger
from schedd.core.runs.records import Create, JobRecord, Submit, TimerEdit
from schedd.store.jobs import job_insert, submits
from support.store import Member, World, job_record, manual_run, ok

PLAIN, OTHER = line_id_of(("shell",)), line_id_of(("http",))


async def waiting(member: Member) -> list[LineId | None]:
    found = await member.store.owner.live_runs(range(16), [State.PENDING])  # type: ignore[arg-type]  # shards
    return [run.line for run in found]


async def triggered(member: Member, job: JobId) -> None:
    made = await member.store.users.insert_run(
        job, manual_run(), Trigger.MANUAL, Priority.MEDIUM, b"", None, ok("trigger")
    )
    assert made is not None


def record(line: LineId | None) -> JobRecord:
    new = job_record()
    return replace(new, definition=replace(new.definition, line=line))


async def stored(world: World, line: LineId | None) -> JobRecord:
    made = await world.store.users.create_job(record(line), None, ok("create"))
    assert isinstance(made, JobRecord)
    return made


async def test_a_waiting_run_has_its_jobs_line_and_after_an_edit_the_new_one(
    world: World,
) -> None:
    me = await world.member()
    job = (await stored(world, PLAIN)).definition
    await triggered(me, job.job_id)
    assert await waiting(me) == [PLAIN]

    await me.store.users.update_job(
        job.job_id, 1, replace(job, line=OTHER), TimerEdit(), ok("update")
    )
    assert await waiting(me) == [OTHER | HURRIED], "it was made before the edit, and may end"


async def test_a_pause_keeps_the_line_id_of_a_job(world: World) -> None:
    me = await world.member()
    job = (await stored(world, PLAIN)).definition
    await me.store.users.pause_job(job.job_id, "", "ann", ok("pause"))
    await triggered(me, job.job_id)
    assert await waiting(me) == [PLAIN]


async def test_an_edit_by_a_member_of_the_previous_version_makes_the_line_id_unknown(
    world: World,
) -> None:
    me = await world.member()
    job = (await stored(world, PLAIN)).definition
    await triggered(me, job.job_id)
    await world.sql("UPDATE timers SET generation = generation + 1")
    assert await waiting(me) == [None]

    paused = await me.store.users.pause_job(job.job_id, "", "ann", ok("pause"))
    assert paused is not None
    assert await waiting(me) == [None], "what isn't known isn't made up"


async def test_runs_created_or_submitted_in_batches_have_the_line_too(world: World) -> None:
    me = await world.member()
    create = Create.first(record(PLAIN), None, ok("create"))
    submit = Submit(record(OTHER), manual_run(), None, ok("submit"), Priority.MEDIUM)

    made = await me.store.database.call(lambda c: job_insert.create_all(c, [create]))
    await me.store.database.call(lambda c: submits.submit_all(c, [submit]))
    await triggered(me, made[0].job_id)

    assert sorted(filter(None, await waiting(me))) == sorted([PLAIN, OTHER])


async def test_a_run_that_was_reported_late_isnt_reported_again(world: World) -> None:
    me = await world.member()
    job = (await stored(world, LineId(PLAIN | LATE_ALERT))).definition
    await triggered(me, job.job_id)
    assert await waiting(me) == [PLAIN | LATE_ALERT]
    await world.sql("UPDATE runs SET late_notified = true")
    assert await waiting(me) == [PLAIN]
