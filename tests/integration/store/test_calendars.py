"""Calendars and the jobs that are pinned to them: who waits for whom, and what is read at once."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy import Connection

from schedd.core.runs.records import CalendarRecord, JobRecord, PinnedCalendar, StoreConflict
from schedd.store.jobs import jobs
from support.store import Member, World, job_record, ok, wait_for_waiter

OFF = PinnedCalendar("off", 1, b"what it says")


async def applied(me: Member, spec: bytes = OFF.spec, name: str = "off") -> CalendarRecord:
    return await me.store.calendars.apply("default", name, spec, "ann", ok("apply"))


def pinned_to(*pins: PinnedCalendar) -> JobRecord:
    record = job_record()
    return replace(record, definition=replace(record.definition, calendars=pins))


@pytest.mark.parametrize("call", ["apply", "delete"])
async def test_a_change_of_a_calendar_waits_for_a_job_that_is_just_pinned_to_it(
    world: World, call: str
) -> None:
    """P3.17: else the job would be left behind, or go by a calendar that is deleted."""
    me = await world.member()
    await applied(me)
    record = pinned_to(OFF)
    locked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def making(connection: Connection) -> None:
        jobs.create_job(connection, record, None, ok("create"))
        loop.call_soon_threadsafe(locked.set)
        wait_for_waiter(connection)

    flying = asyncio.create_task(me.store.database.call(making), name="making")
    await locked.wait()
    store = me.store.calendars
    if call == "apply":
        changed = await applied(me, b"something else")
        behind = await store.behind("default", "off", changed.version, 10)
        assert behind == [record.definition.job_id]
    else:
        users = await store.delete("default", "off", ok("delete"), 10)
        assert users == [record.definition.name]
    await flying


async def test_a_job_is_pinned_to_the_newest_versions_or_not_stored_at_all(world: World) -> None:
    """P3.17."""
    me = await world.member()
    await applied(me)
    await applied(me, name="other")
    other = replace(OFF, name="other")
    users = me.store.users
    stored = await users.create_job(pinned_to(OFF, other), None, ok("create"))
    assert isinstance(stored, JobRecord)
    assert stored.definition.calendars == (OFF, other)
    for wrong in (replace(OFF, version=2), replace(OFF, name="nobody")):
        refused = pinned_to(other, wrong)
        answer = await users.create_job(refused, None, ok("create"))
        assert answer == StoreConflict("calendar", refused.definition.job_id)
        assert await users.get_job("default", refused.definition.name) is None


async def test_owners_read_what_a_definition_is_computed_with_beside_it(world: World) -> None:
    me = await world.member()
    await applied(me)
    record = pinned_to(OFF)
    job_id = record.definition.job_id
    await me.store.users.create_job(record, None, ok("create"))
    await applied(me, b"something else")
    plain = await world.job()
    read = await me.store.owner.definitions_by_text([job_id, plain.definition.job_id])
    found = {job: text.calendars for text, jobs in read.items() for job, _, _ in jobs}
    assert found[job_id] == (OFF,), "until a caller moves the job to the new version"
    assert found[plain.definition.job_id] == ()


async def test_a_deleted_job_uses_no_calendar_and_a_deleted_calendar_keeps_its_versions(
    world: World,
) -> None:
    me = await world.member()
    await applied(me)
    record = pinned_to(OFF)
    await me.store.users.create_job(record, None, ok("create"))
    await me.store.users.delete_job(record.definition.job_id, ok("delete"))
    store = me.store.calendars
    assert await store.delete("default", "off", ok("delete"), 10) is True
    assert await store.get("default", "off") is None
    kept = await store.get("default", "off", 1)
    assert kept is not None
    assert kept.spec == OFF.spec
    assert (await applied(me)).version == 2
