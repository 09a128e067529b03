"""Calendars by the calls, over a real database: versions, their users, what becomes of jobs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp

from schedd.api.errors import (
    AbortedError,
    CallError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)
from schedd.core.runs.model import LiveRun, Timer
from schedd.core.runs.records import JobRecord
from schedd.runtime.job_codec import JobDefinition
from schedd.timers.timer_steps import firing_of
from schedproto.v1 import calendar_service_pb2 as calendars
from schedproto.v1 import job_pb2
from schedproto.v1 import job_service_pb2 as wire
from support.definitions import cached_definition
from support.store import START

SHELL = job_pb2.ShellAction(argv=["true"])
DAY = timedelta(days=1)
TODAY = START.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
"""Its midnight; what is made here is dated a day before START."""


@dataclass
class Desk:
    """The calls on calendars, and on the job `j`: daily at nine, but for what it excludes."""

    api: Any

    async def apply(self, name: str = "off", *, dry: bool = False, **says: Any) -> Any:
        calendar = calendars.Calendar(name=name, **says)
        request = calendars.ApplyCalendarRequest(calendar=calendar, validate_only=dry)
        return await self.api("ApplyCalendar", request)

    async def get(self, name: str = "off", version: int = 0) -> Any:
        request = calendars.GetCalendarRequest(calendar=name, version=version)
        return await self.api("GetCalendar", request)

    async def delete(self, name: str = "off") -> Any:
        return await self.api("DeleteCalendar", calendars.DeleteCalendarRequest(calendar=name))

    async def job(self, *exclude: str, name: str = "j", **changes: Any) -> job_pb2.Job:
        values: dict[str, Any] = {"shell": SHELL, "cron": ["0 9 * * *"], **changes}
        if exclude:
            values["exclude"] = job_pb2.Exclude(calendars=exclude)
        job = job_pb2.Job(name=name, **values)
        made: job_pb2.Job = await self.api("CreateJob", wire.CreateJobRequest(job=job))
        return made

    async def patch(self, mask: str, **changes: Any) -> Any:
        job = job_pb2.Job(name="j", **changes)
        request = wire.UpdateJobRequest(job=job, update_mask=FieldMask(paths=[mask]))
        return await self.api("UpdateJob", request)

    async def now(self) -> job_pb2.Job:
        job: job_pb2.Job = await self.api("GetJob", wire.GetJobRequest(job="j"))
        return job

    async def next(self, count: int = 3, *, excluded: bool = False) -> list[tuple[datetime, str]]:
        request = wire.ListNextInstantsRequest(
            job="j", after=stamp(TODAY), count=count, excluded=excluded
        )
        found = await self.api("ListNextInstants", request)
        return [(one.scheduled_at.ToDatetime(UTC), one.excluded_by) for one in found.instants]

    async def explained(self, at: datetime) -> str:
        request = wire.ExplainInstantRequest(job="j", at=stamp(at))
        return str((await self.api("ExplainInstant", request)).answer)

    async def set_back(self, to: datetime) -> None:
        """The job was made a day before, and its timer stands at the first instant behind `to`."""
        record = await self.record()
        timer = JobDefinition.read(record.definition).schedule.following(to)
        assert timer is not None
        await self.sql("UPDATE jobs SET created_at = %s, updated_at = %s", *[to - DAY] * 2)
        await self.sql("UPDATE timers SET due_at = %s, nominal = %s", timer.due, timer.nominal)

    async def sql(self, statement: str, *arguments: Any) -> None:
        await self.api.world.sql(f"{statement} RETURNING 1", *arguments)

    async def record(self) -> JobRecord:
        record = await self.api.services.store.get_job("default", "j")
        assert record is not None
        return record

    async def fire(self, now: datetime) -> list[LiveRun]:
        """Act as the owner does in a scan at `now`."""
        record = await self.record()
        stored = record.definition
        definition = JobDefinition.read(stored)
        known = cached_definition(definition.parsed, definition.schedule)
        timer = Timer(
            stored.job_id,
            record.shard,
            stored.generation,
            record.due_at,
            record.nominal,
            fired=record.fired,
        )
        paused = await self.api.services.pauses.read()
        firing = firing_of(timer, known, now, paused)
        me = self.api.world.members[0]
        fired = await me.store.owner.fire(me.claim(record.shard), [firing], paused.switched)
        assert not fired.refused
        return fired.runs

    async def rows(self) -> list[tuple[Any, ...]]:
        return await self.api.world.sql(
            "SELECT state, reason, count, excluded_by FROM runs ORDER BY scheduled_at"
        )


def stamp(instant: datetime) -> Timestamp:
    found = Timestamp()
    found.FromDatetime(instant)
    return found


def day(away: int) -> str:
    return f"{TODAY + away * DAY:%Y-%m-%d}"


def nine(away: int) -> datetime:
    return TODAY + away * DAY + timedelta(hours=9)


@pytest.fixture
def desk(api: Any) -> Desk:
    return Desk(api)


# -- Calendars --


async def test_each_change_of_a_calendar_is_a_version_and_the_same_again_is_none(desk: Desk):
    first = await desk.apply(dates=[day(3)])
    assert (first.name, first.namespace, first.version, first.jobs) == ("off", "default", 1, 0)
    assert (first.updated_by, list(first.dates)) == ("tester", [day(3)])
    assert (await desk.apply(dates=[day(3)])).version == 1
    assert (await desk.apply(dates=[day(4)])).version == 2
    assert list((await desk.get()).dates) == [day(4)]
    assert list((await desk.get(version=1)).dates) == [day(3)]
    listed = await desk.api("ListCalendars", calendars.ListCalendarsRequest())
    assert [(one.name, one.version) for one in listed.calendars] == [("off", 2)]


async def test_a_dry_run_stores_nothing(desk: Desk):
    assert (await desk.apply(dates=[day(3)], dry=True)).version == 1
    with pytest.raises(NotFoundError, match="calendar 'off' not found"):
        await desk.get()


async def test_a_calendar_is_refused_with_all_that_is_wrong_with_it(desk: Desk):
    with pytest.raises(InvalidArgumentError) as refused:
        await desk.apply("Off!", dates=["2026-02-30", "12-24"], weekdays=["someday"], cron=["H 1"])
    fields = [violation.field for violation in refused.value.violations]
    assert fields == [
        "calendar.name",
        "calendar.dates[0]",
        "calendar.weekdays[0]",
        "calendar.cron[0]",
    ]
    with pytest.raises(InvalidArgumentError, match="excludes nothing"):
        await desk.apply()


async def test_lists_of_calendars_continue_where_a_page_ends(desk: Desk):
    for name in ("a", "b", "c"):
        await desk.apply(name, weekdays=["sun"])
    first = await desk.api("ListCalendars", calendars.ListCalendarsRequest(page_size=2))
    assert [one.name for one in first.calendars] == ["a", "b"]
    token = first.next_page_token
    rest = await desk.api("ListCalendars", calendars.ListCalendarsRequest(page_token=token))
    assert ([one.name for one in rest.calendars], rest.next_page_token) == (["c"], "")


async def test_a_calendar_in_use_is_not_deleted_and_the_error_names_its_users(desk: Desk):
    """P3.17: a job that names it would have no instants."""
    await desk.apply(dates=[day(1)])
    await desk.job("off")
    await desk.job("off", name="k")
    with pytest.raises(FailedPreconditionError, match="calendar 'off' is used by j, k"):
        await desk.delete()
    await desk.api("DeleteJob", wire.DeleteJobRequest(job="k"))
    await desk.patch("exclude")
    assert (await desk.delete()).deleted
    with pytest.raises(NotFoundError, match="calendar 'off' not found"):
        await desk.delete()
    assert (await desk.apply(dates=[day(1)])).version == 2, "a number is never used again"


# -- Jobs that use them --


async def test_a_job_runs_but_on_excluded_days_and_says_by_which_version(desk: Desk):
    await desk.apply(dates=[day(2), day(3)])
    made = await desk.job("off")
    assert dict(made.calendar_versions) == {"off": 1}
    assert await desk.next() == [(nine(0), ""), (nine(1), ""), (nine(4), "")]
    shown = await desk.next(excluded=True)
    assert shown == [
        (nine(0), ""),
        (nine(1), ""),
        (nine(2), "calendar off v1"),
        (nine(3), "calendar off v1"),
        (nine(4), ""),
    ]
    assert (await desk.get()).jobs == 1


async def test_the_next_run_of_a_job_is_never_an_excluded_instant(desk: Desk):
    await desk.apply(dates=[f"{datetime.now(UTC) + away * DAY:%F}" for away in range(3)])
    made = await desk.job("off", cron=["0 * * * *"])
    assert made.next_run_at.ToDatetime(UTC) >= datetime.now(UTC) + 2 * DAY


async def test_a_run_with_roll_next_moves_to_the_next_open_day(desk: Desk):
    await desk.apply(dates=[day(1), day(2)], roll=calendars.ROLL_NEXT)
    weekday = (TODAY + DAY).isoweekday() % 7
    await desk.job("off", cron=[f"0 9 * * {weekday}"])
    assert (await desk.next(1)) == [(nine(3), "")]


@pytest.mark.parametrize(
    ("exclude", "message"),
    [
        ({"calendars": ["missing"]}, "calendar 'missing' not found"),
        ({"calendars": ["off", "off"]}, "'off' is given twice"),
        ({"cron": ["61 * * * *"]}, "'61 \\* \\* \\* \\*'"),
        ({"cron": ["H 2 * * *"]}, "H, which isn't allowed in calendars"),
        ({"cron": ["@every 90s"]}, "has no time of day"),
        ({"cron": ["* 9 * * *"]}, "excludes all scheduled times"),
    ],
)
async def test_an_invalid_exclude_is_refused(desk: Desk, exclude, message):
    await desk.apply(dates=[day(1)])
    with pytest.raises(InvalidArgumentError, match=message):
        await desk.job(exclude=job_pb2.Exclude(**exclude))
    with pytest.raises(NotFoundError):
        await desk.now()


async def test_one_time_work_and_jobs_without_instants_exclude_nothing(desk: Desk):
    with pytest.raises(InvalidArgumentError, match="exclude"):
        await desk.job(exclude=job_pb2.Exclude(cron=["* 9 * * *"]), cron=[], on_demand=True)


async def test_each_job_of_a_calendar_uses_its_new_version(desk: Desk):
    """P3.17: with a generation, so that no owner continues with the copy it has read."""
    await desk.apply(dates=[day(1)])
    await desk.apply("other", dates=[day(1)])
    before = await desk.job("off")
    await desk.job("other", name="k")
    untouched = await desk.api("GetJob", wire.GetJobRequest(job="k"))
    after = await desk.apply(dates=[day(2)])
    assert (after.version, after.jobs, after.jobs_behind) == (2, 1, 0)
    job = await desk.now()
    assert (job.generation, dict(job.calendar_versions)) == (before.generation + 1, {"off": 2})
    assert await desk.next() == [(nine(0), ""), (nine(1), ""), (nine(3), "")]
    assert desk.api.nudged.jobs[-1] == (await desk.record()).definition.job_id
    assert await desk.api("GetJob", wire.GetJobRequest(job="k")) == untouched


async def test_repeating_apply_updates_jobs_left_at_the_old_calendar_version(desk: Desk):
    await desk.apply(dates=[day(1)])
    await desk.job("off")
    store = desk.api.services.calendars
    audit = (await desk.api.services.store.list_audit(None, None, None, None, 1))[0][1]
    spec = calendars.Calendar(dates=[day(2)]).SerializeToString(deterministic=True)
    await store.apply("default", "off", spec, "ann", replace(audit, at=None))
    assert ((await desk.get()).version, (await desk.get()).jobs_behind) == (2, 1)
    assert dict((await desk.now()).calendar_versions) == {"off": 1}
    assert (await desk.apply(dates=[day(2)])).jobs_behind == 0
    assert dict((await desk.now()).calendar_versions) == {"off": 2}


async def test_a_job_is_never_stored_with_a_version_that_was_replaced_meanwhile(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
):
    """P3.17: who wrote the new version has looked for its users already."""
    await desk.apply(dates=[day(1)])
    store, create = desk.api.services.store, type(desk.api.services.store).create_job

    async def late(self: Any, *arguments: Any) -> Any:
        monkeypatch.undo()
        await desk.apply(dates=[day(2)])
        return await create(self, *arguments)

    monkeypatch.setattr(type(store), "create_job", late)
    with pytest.raises(AbortedError, match="a calendar of job 'j' was changed meanwhile"):
        await desk.job("off")
    with pytest.raises(NotFoundError):
        await desk.now()


async def test_concurrent_creates_and_applies_leave_no_job_at_an_old_calendar_version(desk: Desk):
    """P3.17."""
    await desk.apply(dates=[day(1)])

    async def maker(number: int) -> None:
        for _ in range(20):
            try:
                await desk.job("off", name=f"j{number}")
            except AbortedError:
                continue
            return

    async def changer() -> None:
        for away in range(2, 8):
            await desk.apply(dates=[day(away)])

    async with asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(maker(number), name=f"maker-{number}")
        group.create_task(changer(), name="changer")
    after = await desk.get()
    assert (after.version, after.jobs, after.jobs_behind) == (7, 8, 0)
    with pytest.raises(FailedPreconditionError):
        await desk.delete()


# -- Stored and reported --


async def test_excluded_instants_share_a_row_that_says_by_which_calendar(desk: Desk):
    await desk.apply(dates=[day(0)])
    await desk.job("off", cron=["0 * * * *"])
    await desk.set_back(TODAY - timedelta(minutes=1))
    assert (await desk.record()).due_at == TODAY + timedelta(hours=23)
    assert not await desk.fire(TODAY + timedelta(hours=23))
    assert await desk.rows() == [("SKIPPED", "CALENDAR", 24, "calendar off v1")]
    assert len(await desk.fire(TODAY + DAY)) == 1
    answer = await desk.explained(TODAY + timedelta(hours=5))
    assert answer.startswith("The run was skipped by calendar off v1. Read from run ")
    assert "24 scheduled times" in answer


async def test_a_past_exclusion_is_explained_from_the_row_and_not_from_the_calendar(
    desk: Desk,
):
    await desk.apply(dates=[day(0)])
    await desk.job("off")
    await desk.set_back(TODAY)
    await desk.fire(nine(0))
    await desk.apply(dates=[day(20)])
    assert (await desk.explained(nine(0))).startswith("The run was skipped by calendar off v1.")
    for table in ("live", "runs"):
        await desk.sql(f"DELETE FROM {table}")
    assert (await desk.explained(nine(0))).startswith("There is no record")


async def test_an_excluded_instant_is_explained_before_there_is_a_row(desk: Desk):
    await desk.apply(dates=[day(0), f"{datetime.now(UTC) + 40 * DAY:%F}"])
    await desk.job("off", cron=["0 9,21 * * *"])
    await desk.set_back(TODAY)
    answer = await desk.explained(nine(0))
    assert answer.startswith("The job didn't run: the time is excluded by calendar off v1. A row")
    later = datetime.now(UTC).replace(hour=9, minute=0, second=0, microsecond=0) + 40 * DAY
    answer = await desk.explained(later)
    assert answer.startswith(
        "The job won't run: the time is excluded by calendar off v1. Read from"
    )


async def test_an_edit_records_the_times_that_were_excluded_until_then(desk: Desk):
    now = datetime.now(UTC)
    await desk.apply(dates=[f"{now - DAY:%F}", f"{now:%F}", f"{now + DAY:%F}"])
    await desk.job("off", cron=["* * * * *"])
    await desk.set_back(now - timedelta(minutes=10))
    await desk.apply(dates=[f"{now + 2 * DAY:%F}"])
    [(state, reason, count, excluded_by)] = await desk.rows()
    assert (state, reason, excluded_by) == ("SKIPPED", "CALENDAR", "calendar off v1")
    assert 10 <= count <= 11
    record = await desk.record()
    assert record.nominal is not None
    assert record.nominal > now


async def test_late_times_beside_a_calendar_coalesce_into_one_run_of_open_times(desk: Desk):
    await desk.apply(cron=["30-59 * * * *"])
    await desk.job("off", cron=["*/10 * * * *"])
    await desk.set_back(TODAY - timedelta(minutes=1))
    runs = await desk.fire(TODAY + timedelta(minutes=95))
    assert [run.key.scheduled_at for run in runs] == [TODAY + timedelta(minutes=80)]
    rows = [row[:3] for row in await desk.rows()]
    assert rows == [
        ("MISSED", "WINDOW", 3),
        ("SKIPPED", "CALENDAR", 3),
        ("COALESCED", None, 2),
        ("PENDING", None, 1),
        ("SKIPPED", "CALENDAR", 1),
    ]


async def test_an_excluded_time_does_not_count_for_max_runs(desk: Desk):
    await desk.apply(dates=[day(0), day(2)])
    await desk.job("off", max_runs=2)
    await desk.set_back(TODAY)
    assert await desk.next(5) == [(nine(1), ""), (nine(3), "")]
    for away in range(4):
        assert len(await desk.fire(nine(away))) == away % 2
    assert [row[:2] for row in await desk.rows()] == [
        ("SKIPPED", "CALENDAR"),
        ("PENDING", None),
    ] * 2
    job = await desk.now()
    assert (job.runs_created, job.HasField("next_run_at")) == (2, False)


async def test_a_paused_job_uses_a_new_calendar_version_and_stays_paused(desk: Desk):
    await desk.apply(dates=[day(1)])
    await desk.job("off")
    await desk.api("PauseJob", wire.PauseJobRequest(job="j", note="why"))
    await desk.apply(dates=[day(2)])
    job = await desk.now()
    assert (job.paused, job.pause_note, dict(job.calendar_versions)) == (True, "why", {"off": 2})


async def test_no_answer_of_calendars_is_a_bug(desk: Desk):
    for name in ("", "x" * 500, "a\0b", "ü"):
        for call in (desk.get, desk.delete):
            with pytest.raises(CallError):
                await call(name)
