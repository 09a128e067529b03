"""Counts of a schedule, times of resumes, numbers of failures: rows that any owner finds."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from schedd.core.jobs.definition import Priority
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import AuditRecord, Firing, LiveRun, Trigger
from schedd.core.runs.records import FailedTooOften, JobRecord, Resumption, TimerEdit
from support.store import (
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
)

ANOTHER = TimerEdit(max_runs=1)


def last(job: JobRecord, *, fired: int = 0) -> Firing:
    """The step that makes the last run of `max_runs`."""
    return replace(firing(job), next_due_at=None, fired=fired, counted=1)


async def timer_of(me: Member, job: JobRecord) -> tuple[datetime | None, datetime | None, int]:
    [timer] = await me.store.owner.timers([job.definition.job_id])
    return timer.due_at, timer.nominal, timer.fired


async def admitted(me: Member, job: JobRecord) -> LiveRun:
    """A run of the job that a person triggered, on a worker."""
    await me.store.users.insert_run(
        job.definition.job_id,
        manual_run(),
        Trigger.MANUAL,
        Priority.HIGH,
        None,
        None,
        ok("trigger"),
    )
    [live] = await me.store.owner.live_runs([job.shard], [State.PENDING])
    [run] = await me.assigned(draft(live))
    return run


async def test_the_last_run_leaves_nothing_due_and_the_instant_to_continue_with(
    world: World,
) -> None:
    me = await world.member()
    job = await world.job()

    assert len((await me.fire(last(job))).runs) == 1

    assert await timer_of(me, job) == (None, START + MINUTE, 1)


async def test_a_step_computed_from_another_count_is_rejected(world: World) -> None:
    """P3.15: else a schedule whose turn was given back meanwhile would end one run too early."""
    me = await world.member()
    job = await world.job()

    fired = await me.fire(last(job, fired=1))

    assert (fired.runs, fired.refused) == ([], [job.definition.job_id])


async def test_a_time_with_an_existing_run_uses_no_quota(world: World) -> None:
    """P3.15: it was made early, and an edit of the schedule set the timer back to it."""
    me = await world.member()
    job = await world.job()
    await me.fire(replace(firing(job), counted=1))
    await world.sql("UPDATE timers SET due_at = %s, nominal = %s", START, START)

    fired = await me.fire(last(job, fired=1))

    assert (fired.runs, fired.refused) == ([], [])
    assert await timer_of(me, job) == (START + MINUTE, START + MINUTE, 1)


async def test_a_run_skipped_by_a_cluster_pause_returns_its_quota(world: World) -> None:
    """P3.15"""
    me = await world.member(horizon=timedelta(hours=1))
    soon = datetime.now(UTC) + timedelta(seconds=0.3)
    job = await world.job(due=soon)
    [early] = (await me.fire(last(job))).runs

    def audited(_before: object, _after: object) -> AuditRecord:
        return ok("pause")

    await world.store.pauses.pause("ann", "", audited)
    await world.sql("SELECT pg_sleep_until(%s)", soon)
    await world.store.pauses.resume(None, None, audited)

    assert (await world.run_row(early.key.run_id))["reason"] == "PAUSED"
    assert await timer_of(me, job) == (soon + MINUTE, soon + MINUTE, 0)


async def test_a_skipped_run_returns_its_quota_and_the_schedule_continues(world: World) -> None:
    """P3.15."""
    me = await world.member()
    job = await world.job()
    await admitted(me, job)
    [run] = (await me.fire(last(job))).runs

    answer = await me.assign(draft(run, counted=True))

    assert answer.ended == [run.key]
    assert await timer_of(me, job) == (START + MINUTE, START + MINUTE, 0)


async def test_a_skipped_manual_run_returns_no_quota(world: World) -> None:
    me = await world.member()
    job = await world.job()
    [first] = (await me.fire(last(job))).runs
    await me.assigned(draft(first, counted=True))
    await me.store.users.insert_run(
        job.definition.job_id,
        manual_run(),
        Trigger.MANUAL,
        Priority.HIGH,
        None,
        None,
        ok("trigger"),
    )
    [second] = await me.store.owner.live_runs([job.shard], [State.PENDING])

    assert (await me.assign(draft(second, counted=True))).ended == [second.key]

    assert await timer_of(me, job) == (None, START + MINUTE, 1)


@pytest.mark.parametrize(
    ("edit", "found"),
    [
        (TimerEdit(max_runs=1), (None, START + MINUTE, 1)),
        (TimerEdit((START, START), max_runs=1), (None, START, 1)),
        (TimerEdit(restart=(START, START), max_runs=2), (START, START, 1)),
        (TimerEdit(restart=(START, START)), (START, START, 0)),
    ],
    ids=["another field", "the schedule", "more runs", "no limit any more"],
)
async def test_after_an_edit_a_schedule_continues_if_it_has_runs_left(
    world: World, edit: TimerEdit, found: tuple[datetime | None, datetime | None, int]
) -> None:
    me = await world.member()
    job = await world.job()
    await me.fire(last(job))

    await me.store.users.update_job(job.definition.job_id, 1, job.definition, edit, ok("update"))

    assert await timer_of(me, job) == found


async def test_a_run_skipped_by_a_pause_returns_its_quota(world: World) -> None:
    """P3.15."""
    me = await world.member(horizon=timedelta(hours=1))
    soon = datetime.now(UTC) + timedelta(seconds=0.3)
    job = await world.job(due=soon)
    [early] = (await me.fire(last(job))).runs
    paused = await me.store.users.pause_job(job.definition.job_id, "", "ann", ok("pause"))
    assert paused is not None
    await world.sql("SELECT pg_sleep_until(%s)", soon)  # its instant falls into the pause

    await me.store.users.resume_job(job.definition.job_id, ANOTHER, None, ok("resume"))

    assert (await world.run_row(early.key.run_id))["reason"] == "PAUSED"
    assert await timer_of(me, job) == (soon + MINUTE, soon + MINUTE, 0)


# -- Paused until --


async def ended_at(me: Member, job: JobRecord, now: datetime) -> list[JobRecord]:
    over, _ = await me.store.owner.read_due_pause_changes([job.shard], now, 10)
    return over


def resumption(job: JobRecord, until: datetime) -> Resumption:
    edit = TimerEdit((until + MINUTE, until + MINUTE))
    stored = job.definition
    return Resumption(stored.job_id, job.shard, stored.generation, until, edit, None, ok("resume"))


async def test_a_pause_that_has_ended_is_found_by_the_shards_owner_and_by_no_other(
    world: World,
) -> None:
    me = await world.member()
    job = await world.job(shard=3)
    until = datetime.now(UTC) + MINUTE
    paused = await me.store.users.pause_job(job.definition.job_id, "", "ann", ok("pause"), until)
    assert paused is not None
    assert paused.paused_until == until

    assert await ended_at(me, job, until - timedelta(seconds=1)) == []
    [found] = await ended_at(me, job, until)
    assert found == paused
    assert await me.store.owner.read_due_pause_changes([4], until, 10) == ([], [])


async def test_an_owner_resumes_a_job_only_at_the_generation_it_read(
    world: World,
) -> None:
    """P3.16."""
    me = await world.member()
    job = await world.job()
    until = datetime.now(UTC)
    await me.store.users.pause_job(job.definition.job_id, "", "ann", ok("pause"), until)
    [seen] = await ended_at(me, job, until)
    again = await me.store.users.pause_job(
        job.definition.job_id, "longer", "ben", ok("pause"), until + MINUTE
    )
    assert again is not None
    claim = me.claim(0)

    assert await me.store.owner.resume(claim, [resumption(seen, until)]) == []
    skipped = new_run(job, START, state=State.SKIPPED, reason=Reason.PAUSED)
    assert await me.store.owner.resume(
        claim, [replace(resumption(again, until), skipped=skipped)]
    ) == [job.definition.job_id]
    assert (await world.run_row(skipped.key.run_id))["fired_by"] == me.tenure

    found = await me.store.users.get_job("default", job.definition.name)
    assert found is not None
    assert (found.definition.paused, found.paused_until, found.due_at) == (
        False,
        None,
        until + MINUTE,
    )


async def test_a_member_that_lost_the_shard_resumes_nothing(world: World) -> None:
    """P3.16."""
    me, other = await world.member(), await world.member(take=False)
    job = await world.job()
    until = datetime.now(UTC)
    paused = await me.store.users.pause_job(job.definition.job_id, "", "ann", ok("pause"), until)
    assert paused is not None
    stale = me.claim(0)
    await world.sql("UPDATE shards SET epoch = epoch + 1 WHERE id = 0")

    assert await other.store.owner.resume(stale, [resumption(paused, until)]) == []


@pytest.mark.parametrize("how", ["resume", "pause", "delete"])
async def test_a_later_pause_resume_or_delete_removes_the_end_of_a_pause(
    world: World, how: str
) -> None:
    me = await world.member()
    job = await world.job()
    job_id, users = job.definition.job_id, me.store.users
    now = datetime.now(UTC)
    await users.pause_job(job_id, "", "ann", ok("pause"), now)

    if how == "resume":
        await users.resume_job(job_id, TimerEdit((now, now)), None, ok("resume"))
    elif how == "pause":
        await users.pause_job(job_id, "for good", "ann", ok("pause"))
    else:
        await users.delete_job(job_id, ok("delete"))

    assert await ended_at(me, job, now + MINUTE) == []
    assert await world.sql("SELECT count(*) FROM resumptions") == [(0,)]


# -- Failures in a row --


async def ends(me: Member, job: JobRecord, *, at: datetime, state: State, most: int = 3) -> None:
    """A run of the job, which ends so."""
    [run] = (await me.fire(firing(job, at=at))).runs
    [handed] = await me.assigned(draft(run))
    failed = state is State.FAILED
    await me.store.results.accept(
        [
            report(
                handed,
                state=state,
                reason=Reason.EXIT_CODE if failed else None,
                dead=failed,
                pause_after=most,
            )
        ]
    )


async def failures(me: Member, job: JobRecord) -> list[int]:
    _, often = await me.store.owner.read_due_pause_changes([job.shard], datetime.now(UTC), 10)
    return [count for _, count in often]


async def test_failures_in_a_row_are_counted_and_a_success_resets_the_count(world: World) -> None:
    """P3.16."""
    me = await world.member()
    job = await world.job()
    ended = [State.FAILED, State.FAILED, State.SUCCEEDED, *[State.FAILED] * 3]
    seen = []
    for n, state in enumerate(ended):
        await ends(me, job, at=START + n * MINUTE, state=state)
        seen.append(await failures(me, job))

    assert seen == [[], [], [], [], [], [3]]


def too_often(job: JobRecord, *, most: int = 1, note: str = "1 run failed") -> FailedTooOften:
    stored = job.definition
    return FailedTooOften(stored.job_id, job.shard, stored.generation, most, note, ok("pause"))


async def test_an_owner_pauses_a_job_that_failed_too_often_once(world: World) -> None:
    """P3.16."""
    me = await world.member()
    job = await world.job()
    await ends(me, job, at=START, state=State.FAILED, most=1)
    assert await failures(me, job) == [1]

    assert await me.store.owner.pause_failing(me.claim(0), [too_often(job)]) == [
        job.definition.job_id
    ]

    found = await me.store.users.get_job("default", job.definition.name)
    assert found is not None
    assert (found.definition.paused, found.pause_note, found.paused_by) == (
        True,
        "1 run failed",
        "tester",
    )
    assert await failures(me, job) == []
    again = await me.store.owner.pause_failing(me.claim(0), [too_often(job)])
    assert again == [], "it was reckoned from another generation"


async def test_failures_are_counted_no_more_once_they_dont_pause_the_job(world: World) -> None:
    me = await world.member()
    job = await world.job()
    await ends(me, job, at=START, state=State.FAILED, most=1)

    await me.store.owner.pause_failing(me.claim(0), [too_often(job, most=5, note="")])
    assert await failures(me, job) == []
    assert await world.sql("SELECT failures, most FROM failing") == [(1, 5)]
    await me.store.owner.pause_failing(me.claim(0), [too_often(job, most=0, note="")])
    assert await world.sql("SELECT count(*) FROM failing") == [(0,)]
