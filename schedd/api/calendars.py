"""Calls on calendars: make, change, read, delete.

    judged ─→ next version, COMMIT ─→ each job that uses it: generation + 1, its timer anew ─→ ok

A version never changes, so an owner that reads a job's definition reads what it is computed with,
and nobody has to be told. `ok` means that every job goes by the new version. Where it couldn't be
waited for, those that don't yet say so (`behind`), and the same call again takes them on.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from google.protobuf.message import Message

from schedd.api import paging
from schedd.api.audit import audit_diff
from schedd.api.budgeted_calls import compute
from schedd.api.definitions import exclusions, validation
from schedd.api.errors import (
    FailedPrecondition,
    LimitReached,
    NotFound,
    OutcomeUnclear,
    Violation,
    cut,
    refuse,
)
from schedd.api.jobs import stored_jobs, timer_edit
from schedd.api.jobs.missed_on_edit import MissedOnEdit
from schedd.api.request_check import MOST_TOLD
from schedd.api.services import Caller, Services
from schedd.api.unbuilt import refuse_unbuilt
from schedd.core.ids import JobId
from schedd.core.runs import reasons
from schedd.core.runs.records import CalendarRecord, JobRecord, TimerEdit
from schedd.core.schedule.calendars import WrongRules
from schedd.core.schedule.cron import ScheduleError
from schedd.runtime import job_codec
from schedproto.v1 import calendar_service_pb2, job_pb2

log = logging.getLogger(__name__)

SET_BY_CLUSTER: Final = ("version", "jobs", "behind", "updated_at", "updated_by")
"""What they say in a request is ignored."""
BATCH: Final = 200
"""Jobs that are read at once, to go by a new version."""
AT_ONCE: Final = 4
"""Jobs of them that are written at once."""
MOST_USERS: Final = 20
"""Jobs that a refusal to delete names."""
LONGEST: Final = 256 * 1024
"""Bytes of one calendar."""


async def apply_calendar(
    services: Services, caller: Caller, request: calendar_service_pb2.ApplyCalendarRequest
) -> calendar_service_pb2.Calendar:
    """Make it, or write its next version; the jobs that use it go by that one then."""
    refuse_unbuilt(request)
    calendar = request.calendar
    namespace = stored_jobs.namespace_of(calendar.namespace)
    violations = await compute(caller, lambda: [*_violations(calendar)])
    refuse(violations, "INVALID_CALENDAR")
    spec = _spec(calendar)
    if request.validate_only:
        return await _as_it_would_be(services, namespace, calendar.name, spec, caller)
    audit = caller.audit("apply", f"calendar/{namespace}/{calendar.name}", request.request_id)
    told = partial(_differences, spec)
    record = await services.calendars.apply(
        namespace, calendar.name, spec, caller.actor, audit, told
    )
    try:
        async with asyncio.timeout(caller.deadline):
            await _take_on(services, caller, record)
    except TimeoutError:
        raise _some_behind(record) from None
    return _message(await _find(services, namespace, calendar.name, record.version))


async def get_calendar(
    services: Services, caller: Caller, request: calendar_service_pb2.GetCalendarRequest
) -> calendar_service_pb2.Calendar:
    """One calendar, in its newest version or an earlier one."""
    del caller
    namespace = stored_jobs.namespace_of(request.namespace)
    return _message(await _find(services, namespace, request.calendar, request.version))


async def list_calendars(
    services: Services, caller: Caller, request: calendar_service_pb2.ListCalendarsRequest
) -> calendar_service_pb2.ListCalendarsResponse:
    """A page of calendars, by name."""
    del caller
    size = paging.size(request.page_size)
    listing = paging.listing("calendars", request)
    after = paging.read_name_token(listing, request.page_token)
    namespace = stored_jobs.namespace_of(request.namespace)
    rows = await services.calendars.list(namespace, after, size + 1)
    token = paging.name_token(listing, rows[size - 1].name) if rows[size:] else ""
    return calendar_service_pb2.ListCalendarsResponse(
        calendars=[_message(row) for row in rows[:size]], next_page_token=token
    )


async def delete_calendar(
    services: Services, caller: Caller, request: calendar_service_pb2.DeleteCalendarRequest
) -> calendar_service_pb2.DeleteCalendarResponse:
    """Delete it, unless a job uses it."""
    namespace, name = stored_jobs.namespace_of(request.namespace), request.calendar
    audit = caller.audit("delete", f"calendar/{namespace}/{name}", request.request_id)
    answer = await services.calendars.delete(namespace, name, audit, MOST_USERS + 1, _whole)
    if isinstance(answer, list):
        raise _in_use(name, answer)
    if not answer:
        raise _unknown(name)
    return calendar_service_pb2.DeleteCalendarResponse(deleted=True)


async def _take_on(services: Services, caller: Caller, record: CalendarRecord) -> None:
    """Have every job that uses the calendar go by its newest version."""
    left_alone: set[JobId] = set()
    while behind := [
        job
        for job in await services.calendars.behind(
            record.namespace, record.name, record.version, BATCH + len(left_alone)
        )
        if job not in left_alone
    ]:
        todo = iter(behind)

        async def work_off(todo: Iterator[JobId]) -> None:
            for job in todo:
                if not await _renewed(services, caller, record, job):
                    left_alone.add(job)

        async with asyncio.TaskGroup() as group:
            for number in range(AT_ONCE):
                group.create_task(work_off(todo), name=f"calendar-{number}")


async def _renewed(
    services: Services, caller: Caller, calendar: CalendarRecord, job_id: JobId
) -> bool:
    """One job goes by the newest version of its calendars; False: its definition can't be read."""
    job = await services.store.get_job(calendar.namespace, str(job_id))
    if job is None:
        return True
    stored = job.definition
    spec = job_pb2.Job.FromString(stored.spec)
    calendars = await exclusions.calendars_of(services, stored.namespace, spec)
    edited = replace(stored, generation=stored.generation + 1, calendars=calendars)
    now = services.clock.now()
    try:
        most = job_codec.stored_definition(edited, spec).max_runs
        anew_at = await compute(caller, partial(timer_edit.timer_anew, job, edited, now))
        timer = TimerEdit(anew_at, max_runs=most)
        by = reasons.edit(f"{caller.actor}: calendar {calendar.name} v{calendar.version}")
        anew = await compute(caller, partial(stored_jobs.compiled, edited))
        never_fired = partial(timer_edit.never_fired, now=now, by=by, edited=anew)
        missed = MissedOnEdit(never_fired, services.emit)
        # a definition that can't be read is rejected here, before the transaction
        await compute(caller, partial(stored_jobs.compiled, stored))
    except (ScheduleError, LimitReached) as wrong:
        log.warning("job %s can't go by calendar %s: %s", stored.name, calendar.name, wrong)
        return False
    entry = caller.audit("update", f"job/{stored.namespace}/{stored.name}")
    entry = replace(entry, reason=f"calendar {calendar.name} v{calendar.version}")
    result = await services.store.update_job(
        job_id, stored.generation, edited, timer, entry, missed
    )
    if isinstance(result, JobRecord):  # else it was changed meanwhile, and comes up again
        missed.stored()
        services.nudges.jobs_changed([(job_id, result.shard)])
    return True


async def _as_it_would_be(
    services: Services, namespace: str, name: str, spec: bytes, caller: Caller
) -> calendar_service_pb2.Calendar:
    before = await services.calendars.get(namespace, name)
    if before is not None and before.spec == spec:
        return _message(before)
    version, jobs = (before.version, before.jobs) if before else (0, 0)
    now = services.clock.now()
    return _message(CalendarRecord(namespace, name, version + 1, spec, now, caller.actor, jobs))


async def _find(services: Services, namespace: str, name: str, version: int) -> CalendarRecord:
    record = await services.calendars.get(namespace, name, version) if name else None
    if record is None:
        raise _unknown(name, version)
    return record


def _spec(calendar: calendar_service_pb2.Calendar) -> bytes:
    """What is stored of a calendar: what a person says, without its name."""
    plain: Message = calendar_service_pb2.Calendar()
    plain.CopyFrom(calendar)
    for field in (*SET_BY_CLUSTER, "namespace", "name"):
        plain.ClearField(field)
    return plain.SerializeToString(deterministic=True)


def _differences(spec: bytes, before: CalendarRecord | None) -> tuple[str, str]:
    """What it was and what it is, as the audit has it."""
    new = calendar_service_pb2.Calendar.FromString(spec)
    if before is None:
        return "", audit_diff.whole(new)
    return audit_diff.differences(calendar_service_pb2.Calendar.FromString(before.spec), new)


def _whole(record: CalendarRecord) -> str:
    """What it was, as the audit has it."""
    return audit_diff.whole(calendar_service_pb2.Calendar.FromString(record.spec))


def _violations(calendar: calendar_service_pb2.Calendar) -> Iterator[Violation]:
    yield from validation.check_name(calendar.name, "calendar.name")
    if calendar.ByteSize() > LONGEST:
        problem = f"has {calendar.ByteSize():,} bytes, at most {LONGEST:,} are allowed"
        yield Violation("calendar", problem)
        return
    try:
        job_codec.rules_of(calendar)
    except WrongRules as wrong:
        for fault in wrong.faults[:MOST_TOLD]:
            hint = f" ({fault.hint})" if fault.hint else ""
            yield Violation(f"calendar.{fault.field}", fault.problem + hint)


def _message(record: CalendarRecord) -> calendar_service_pb2.Calendar:
    """A calendar as people see it."""
    found = calendar_service_pb2.Calendar.FromString(record.spec)
    found.namespace, found.name, found.version = record.namespace, record.name, record.version
    found.jobs, found.behind, found.updated_by = record.jobs, record.behind, record.updated_by
    found.updated_at.FromDatetime(record.updated_at)
    return found


def _unknown(name: str, version: int = 0) -> NotFound:
    what = f"calendar {cut(name)!r}"
    what = f"no version {version} of {what}" if version else f"no {what}"
    return NotFound(
        f"there is {what}" if name else "no calendar was named",
        reason="NO_SUCH_CALENDAR",
        remedy="see `schedctl calendar list`",
    )


def _in_use(name: str, users: Sequence[str]) -> FailedPrecondition:
    told = ", ".join(users[:MOST_USERS]) + (" and more" if len(users) > MOST_USERS else "")
    return FailedPrecondition(
        f"calendar {name!r} is used by {told}",
        reason="CALENDAR_IN_USE",
        remedy="take it out of the jobs first: schedctl job patch JOB --exclude-calendar …",
    )


def _some_behind(record: CalendarRecord) -> OutcomeUnclear:
    return OutcomeUnclear(
        f"calendar {record.name!r} v{record.version} is stored, but not all jobs go by it yet",
        reason="JOBS_BEHIND",
        remedy="call again: it takes on the jobs that are left",
    )
