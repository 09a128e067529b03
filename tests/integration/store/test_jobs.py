"""Jobs on a real PostgreSQL: made once, found by id and name, locked through their shard."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection

from schedd.core.ids import JobId, new_id
from schedd.core.jobs.definition import Priority
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import Trigger
from schedd.core.runs.records import (
    NEVER_EDITED,
    Idempotency,
    JobFilter,
    JobRecord,
    StoreConflict,
    StoredText,
    Submit,
    TimerEdit,
    Unstarted,
)
from schedd.core.runs.run_records import RunRecord
from schedd.store.cluster.fence import lock_shards
from schedd.store.jobs import jobs
from schedd.store.runs import run_counts, runs
from support.store import (
    MINUTE,
    START,
    World,
    draft,
    firing,
    job_record,
    manual_run,
    new_run,
    ok,
    wait_for_waiter,
)


async def test_a_job_is_found_by_its_id_and_by_its_name(world: World) -> None:
    await world.member()
    job = await world.job(name="nightly")

    by_name = await world.store.users.get_job("default", "nightly")
    by_id = await world.store.users.get_job("default", str(job.definition.job_id))

    assert by_name == by_id == job
    assert await world.store.users.get_job("other", "nightly") is None


async def test_every_job_has_a_timer_on_demand_ones_too(world: World) -> None:
    """P3.3: its absence says that the job was deleted, and calls lock it."""
    me = await world.member()
    job = await world.job(due=None, shard=7)

    [timer] = await me.store.owner.timers([job.definition.job_id])

    assert (timer.shard, timer.generation, timer.due_at, timer.paused) == (7, 1, None, False)


async def test_a_name_is_taken_once_and_nothing_of_the_second_is_stored(world: World) -> None:
    await world.member()
    first = await world.job(name="nightly")
    second = job_record(name="nightly")
    key = Idempotency("default", "k", "CreateJob", b"digest")

    answer = await world.store.users.create_job(second, key, ok("create"))

    assert answer == StoreConflict("name", first.definition.job_id)
    assert await world.sql("SELECT count(*) FROM timers") == [(1,)]
    assert await world.sql("SELECT count(*) FROM idempotency_keys") == [(0,)]
    assert await world.sql("SELECT count(*) FROM audit") == [(1,)]


async def test_a_deleted_jobs_name_is_free_at_once(world: World) -> None:
    me = await world.member()
    job = await world.job(name="nightly")

    assert await me.store.users.delete_job(job.definition.job_id, ok("delete"))
    again = await world.job(name="nightly")

    assert again.definition.job_id != job.definition.job_id
    assert not await me.store.users.delete_job(job.definition.job_id, ok("delete"))
    definitions = await me.store.users.definitions([job.definition.job_id])
    assert definitions[job.definition.job_id].deleted


async def test_an_owner_reads_each_text_once_with_what_its_jobs_differ_in(world: World) -> None:
    me = await world.member()
    named = [await world.job(name=name) for name in ("a", "b", "c")]
    submitted = [await world.job(ephemeral=True) for _ in range(3)]
    await world.sql("UPDATE jobs SET name = '' WHERE ephemeral")
    jobs = [job.definition.job_id for job in (*named, *submitted)]
    await me.store.users.pause_job(jobs[2], "", "ann", ok("pause"))

    found = await me.store.owner.definitions_by_text(jobs)

    [(updated,)] = await world.sql("SELECT updated_at FROM jobs WHERE name = 'c'")
    assert {text: {*its} for text, its in found.items()} == {
        StoredText(b"spec", "default", 1): {(jobs[n], "ab"[n], NEVER_EDITED) for n in (0, 1)},
        StoredText(b"spec", "default", 2): {(jobs[2], "c", updated)},
        StoredText(b"spec", "default", 1, True): {(job, "", NEVER_EDITED) for job in jobs[3:]},
    }


async def test_the_same_idempotency_key_and_body_give_the_same_job(world: World) -> None:
    await world.member()
    key = Idempotency("default", "k", "CreateJob", b"digest")

    first = await world.store.users.create_job(job_record(), key, ok("create"))
    again = await world.store.users.create_job(job_record(), key, ok("create"))
    other = await world.store.users.create_job(
        job_record(), replace(key, digest=b"other"), ok("create")
    )

    assert isinstance(first, JobRecord)
    assert again == first
    assert other == StoreConflict("key", first.definition.job_id)
    assert await world.sql("SELECT count(*) FROM jobs") == [(1,)]


async def test_an_idempotency_key_ends_after_a_day(world: World) -> None:
    await world.member()
    key = Idempotency("default", "k", "CreateJob", b"digest")
    first = await world.store.users.create_job(job_record(), key, ok("create"))
    await world.sql("UPDATE idempotency_keys SET created_at = created_at - interval '25 h'")

    again = await world.store.users.create_job(job_record(), key, ok("create"))

    assert isinstance(first, JobRecord)
    assert isinstance(again, JobRecord)
    assert again.definition.job_id != first.definition.job_id


async def test_a_submit_stores_job_and_run_in_one_transaction(world: World) -> None:
    me = await world.member()
    record = job_record(shard=3, due=None, ephemeral=True)
    run = manual_run()

    given = await me.store.users.submit_run(Submit(record, run, None, ok("submit"), Priority.HIGH))

    [live] = await me.store.owner.live_runs([record.shard], [State.PENDING])
    assert (live.key, live.priority) == (run.key, Priority.HIGH)
    stored = await me.store.users.get_run(run.key.run_id)
    assert isinstance(stored, RunRecord)
    assert given == stored
    assert (stored.trigger, stored.ephemeral) == (Trigger.SUBMIT, True)
    assert await me.store.users.list_jobs("default", None, 10) == ([], None)


async def test_a_submit_with_a_used_key_returns_the_current_state_of_its_run(world: World) -> None:
    await world.member()
    key = Idempotency("default", "k", "SubmitRun", b"digest")

    async def submitted(key: Idempotency) -> RunRecord | StoreConflict | None:
        record = job_record(due=None, ephemeral=True)
        return await world.store.users.submit_run(
            Submit(record, manual_run(), key, ok("submit"), Priority.LOW)
        )

    first = await submitted(key)
    assert isinstance(first, RunRecord)
    cancelled = await world.store.users.cancel_run(first.run.key.run_id, ok("cancel"))

    assert await submitted(key) == cancelled
    assert await submitted(replace(key, digest=b"other")) == StoreConflict(
        "key", JobId(first.run.key.run_id)
    )
    assert await world.sql("SELECT count(*) FROM runs") == [(1,)]


async def test_jobs_are_listed_newest_first_page_by_page(world: World) -> None:
    await world.member()
    made = [await world.job(name=f"job-{n}") for n in range(5)]

    first, _ = await world.store.users.list_jobs("default", None, 3)
    last = first[-1]
    rest, end = await world.store.users.list_jobs(
        "default", (last.created_at, last.definition.job_id), 3
    )

    assert end is None
    assert [job.definition.name for job in first + rest] == [
        job.definition.name for job in reversed(made)
    ]


async def test_definitions_alone_are_read_of_the_newest_with_whether_they_are_paused(
    world: World,
) -> None:
    await world.member()
    await world.job(name="job-0")
    middle = (await world.job(name="job-1")).definition
    last, users = job_record(name="job-2"), world.store.users
    born_paused = replace(last, definition=replace(last.definition, paused=True))
    await users.create_job(born_paused, None, ok("create"))
    await world.job(name="elsewhere", namespace="team-a")

    async def paused() -> list[tuple[str, bool]]:
        found = await users.newest_definitions("default", 2)
        assert {one.spec for one in found} == {b"spec"}
        return [(one.name, one.paused) for one in found]

    assert await paused() == [("job-2", True), ("job-1", False)]
    await users.pause_job(middle.job_id, "", "ann", ok("pause"))
    assert await paused() == [("job-2", True), ("job-1", True)]
    await users.resume_job(middle.job_id, TimerEdit(), None, ok("resume"))
    assert await paused() == [("job-2", True), ("job-1", False)]


async def test_definitions_are_read_with_whether_a_time_is_still_due(
    world: World,
) -> None:
    await world.member()
    due, done = job_record(name="due"), job_record(name="done", due=None)
    for one in (due, done):
        await world.store.users.create_job(one, None, ok("create"))
    found = await world.store.users.newest_definitions("default", 2)
    assert {one.name: one.idle for one in found} == {"due": False, "done": True}


async def test_a_filter_without_an_index_scans_a_limited_number_of_jobs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "LOOKED_AT", 2)
    await world.member()
    for name in ("a-old", "b", "c", "a-new", "d"):
        await world.job(name=name)
    wanted, users = JobFilter(name="a-*"), world.store.users

    found, end = await users.list_jobs("default", None, 5, wanted)
    assert [job.definition.name for job in found] == ["a-new"]
    found, end = await users.list_jobs("default", end, 5, wanted)
    assert found == []
    assert end is not None
    found, end = await users.list_jobs("default", end, 5, wanted)
    assert [job.definition.name for job in found] == ["a-old"]
    assert end is None

    by_name = await users.list_jobs("default", None, 5, JobFilter(name="a-old"))
    assert (len(by_name[0]), by_name[1]) == (1, None)


async def test_an_edit_needs_the_generation_that_was_seen(world: World) -> None:
    me = await world.member()
    job = await world.job()
    new = replace(job.definition, spec=b"new")
    later = START + timedelta(hours=1)

    edited = await me.store.users.update_job(
        job.definition.job_id, 1, new, TimerEdit((later, later)), ok("update")
    )
    stale = await me.store.users.update_job(
        job.definition.job_id, 1, new, TimerEdit(), ok("update")
    )

    assert isinstance(edited, JobRecord)
    assert (edited.definition.generation, edited.definition.spec) == (2, b"new")
    assert (edited.due_at, edited.nominal) == (later, later)
    assert stale == StoreConflict("etag", job.definition.job_id)
    assert (
        await me.store.users.update_job(JobId(new_id()), 1, new, TimerEdit(), ok("update")) is None
    )


async def test_an_edit_that_leaves_the_schedule_alone_keeps_the_due_instant(world: World) -> None:
    me = await world.member()
    job = await world.job()

    edited = await me.store.users.update_job(
        job.definition.job_id, 1, job.definition, TimerEdit(), ok("update")
    )

    assert isinstance(edited, JobRecord)
    assert (edited.due_at, edited.nominal) == (job.due_at, job.nominal)
    assert (await me.store.owner.timers([job.definition.job_id]))[0].generation == 2


async def test_an_edit_to_a_name_that_is_taken_changes_nothing(world: World) -> None:
    me = await world.member()
    await world.job(name="taken")
    job = await world.job(name="mine")

    answer = await me.store.users.update_job(
        job.definition.job_id, 1, replace(job.definition, name="taken"), TimerEdit(), ok("update")
    )

    assert answer == StoreConflict("name")
    assert await me.store.users.get_job("default", "mine") == job


async def test_a_paused_job_isnt_due_and_its_waiting_runs_wait(world: World) -> None:
    me = await world.member()
    job = await world.job()
    [run] = (await me.fire(firing(job))).runs

    paused = await me.store.users.pause_job(job.definition.job_id, "holiday", "ann", ok("pause"))

    assert paused is not None
    assert (paused.definition.paused, paused.pause_note, paused.paused_by) == (
        True,
        "holiday",
        "ann",
    )
    now = datetime.now(UTC)
    assert await me.store.owner.due_timers([job.shard], now, 10) == []
    assert await me.store.owner.live_runs([job.shard], [State.PENDING]) == []
    answer = await me.assign(draft(run, generation=paused.definition.generation))
    assert answer.waiting == [run.key]


async def test_a_triggered_run_of_a_paused_job_works(world: World) -> None:
    me = await world.member()
    job = await world.job()
    paused = await me.store.users.pause_job(job.definition.job_id, "", "ann", ok("pause"))
    assert paused is not None

    made = await me.store.users.insert_run(
        job.definition.job_id,
        manual_run(),
        Trigger.MANUAL,
        Priority.HIGH,
        b"payload",
        None,
        ok("trigger"),
    )

    [live] = await me.store.owner.live_runs([job.shard], [State.PENDING])
    answer = await me.assign(draft(live, generation=paused.definition.generation))
    assert [each.payload for each in answer.assigned] == [b"payload"]
    assert made is not None


@pytest.mark.parametrize("pre_dispatched", [False, True])
async def test_resume_skips_runs_inserted_early_that_fell_due_in_the_pause(
    world: World, pre_dispatched: bool
) -> None:
    """P3.7: the pause ended nothing, for the key would swallow the instant; the resume accounts for
    it.
    """
    me = await world.member()
    job = await world.job()
    before = (await me.fire(firing(job))).runs
    await me.store.users.pause_job(job.definition.job_id, "", "ann", ok("pause"))
    inside = datetime.now(UTC)
    await world.sql("UPDATE jobs SET paused_at = %s", inside - MINUTE)
    await world.sql(
        "UPDATE timers SET paused = false, due_at = %s, generation = 1", inside - MINUTE / 2
    )
    early = (await me.fire(firing(job, at=inside - MINUTE / 2))).runs
    if pre_dispatched:  # dispatched before the pause, and asked back
        [assigned] = (await me.assign(draft(early[0], generation=1))).assigned
        given = Unstarted(early[0].key, job.shard, assigned.run.token)
        await me.store.owner.give_back(me.claim(job.shard), [given])
        assert (await world.run_row(early[0].key.run_id))["token"] > 0
    await world.sql("UPDATE timers SET paused = true")
    merged = new_run(job, inside - MINUTE / 4, state=State.SKIPPED, count=3, scheduled_until=inside)

    resumed = await me.store.users.resume_job(
        job.definition.job_id,
        TimerEdit((inside + MINUTE, inside + MINUTE)),
        merged,
        ok("resume"),
    )

    assert resumed is not None
    assert not resumed.definition.paused
    assert resumed.due_at == inside + MINUTE
    skipped = await world.run_row(early[0].key.run_id)
    assert (skipped["state"], skipped["reason"]) == ("SKIPPED", "PAUSED")
    assert not await world.is_live(early[0].key.run_id)
    assert (await world.run_row(before[0].key.run_id))["state"] == "PENDING"
    assert (await world.run_row(merged.key.run_id))["count"] == 3


async def test_delete_cancels_waiting_runs_and_lets_running_ones_finish(world: World) -> None:
    me = await world.member()
    job = await world.job()
    [first] = (await me.fire(firing(job))).runs
    [second] = (await me.fire(firing(job, at=START + MINUTE))).runs
    await me.assigned(draft(first))

    await me.store.users.delete_job(job.definition.job_id, ok("delete"))

    waiting = await world.run_row(second.key.run_id)
    assert (waiting["state"], waiting["reason"]) == ("CANCELLED", "DELETED")
    assert not await world.is_live(second.key.run_id)
    assert (await world.run_row(first.key.run_id))["state"] == "RUNNING"
    [running] = await me.store.owner.live_runs([job.shard], [State.RUNNING])
    assert running.key == first.key


async def test_a_trigger_of_a_deleted_job_inserts_nothing(world: World) -> None:
    """P3.1: it looks for the job's timer, and there is none."""
    me = await world.member()
    job = await world.job()
    await me.store.users.delete_job(job.definition.job_id, ok("delete"))

    made = await me.store.users.insert_run(
        job.definition.job_id,
        manual_run(),
        Trigger.MANUAL,
        Priority.MEDIUM,
        None,
        None,
        ok("trigger"),
    )

    assert made is None
    assert await world.sql("SELECT count(*) FROM runs") == [(0,)]


async def test_a_delete_waits_for_a_trigger_in_flight(world: World) -> None:
    """P3.1: no owner would cancel a run that was inserted beside the delete."""
    me = await world.member()
    job = await world.job()
    job_id = job.definition.job_id
    inserted, loop = asyncio.Event(), asyncio.get_running_loop()

    def trigger(connection: Connection) -> None:
        runs.insert_run(
            connection,
            job_id,
            manual_run(),
            Trigger.MANUAL,
            Priority.MEDIUM,
            None,
            None,
            ok("trigger"),
        )
        loop.call_soon_threadsafe(inserted.set)
        wait_for_waiter(connection)

    triggering = asyncio.create_task(me.store.database.call(trigger), name="trigger")
    await inserted.wait()
    assert await me.store.users.delete_job(job_id, ok("delete"))
    await triggering
    assert await world.sql("SELECT DISTINCT state FROM runs") == [("CANCELLED",)]


@pytest.mark.parametrize("call", ["pause", "resume", "edit", "delete"])
async def test_a_change_of_a_job_waits_for_the_owners_batch_in_flight(
    world: World, call: str
) -> None:
    """P3.1: else what the batch decided on the old row would be committed after the ok."""
    me = await world.member()
    user = await world.member(take=False)
    job = await world.job()
    job_id, users = job.definition.job_id, user.store.users
    calls = {
        "pause": lambda: users.pause_job(job_id, "", "ann", ok("pause")),
        "resume": lambda: users.resume_job(job_id, TimerEdit(), None, ok("resume")),
        "edit": lambda: users.update_job(job_id, 1, job.definition, TimerEdit(), ok("update")),
        "delete": lambda: users.delete_job(job_id, ok("delete")),
    }
    order: list[str] = []
    locked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def batch(connection: Connection) -> None:
        lock_shards(connection, me.claim(0))
        loop.call_soon_threadsafe(locked.set)
        wait_for_waiter(connection)
        order.append("batch")

    flying = asyncio.create_task(me.store.database.on_lane([0], batch), name="batch")
    await locked.wait()
    assert await calls[call]()
    order.append(call)
    await flying

    assert order == ["batch", call]


async def test_many_rows_are_estimated_by_statistics_and_not_counted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.member()
    for _ in range(2):
        await world.job()
    await world.sql("ANALYZE jobs")
    monkeypatch.setattr(run_counts, "EXACT", 1)
    await world.job()
    assert (await world.store.users.counts()).jobs == 2
    monkeypatch.setattr(run_counts, "EXACT", 4)
    assert (await world.store.users.counts()).jobs == 3
