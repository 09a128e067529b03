"""Calls on calendars: apply, get, list, delete.

    check ─→ next version, COMMIT ─→ each job that uses it: generation + 1, timer reset ─→ ok

A version never changes and a job's definition names its versions, so owners need no notification.
`ok` means that every job uses the new version. If the call timed out before that, `jobs_behind`
counts the jobs that don't yet, and the same call again updates them.
"""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from google.protobuf.message import Message

from schedd.api import audit_diff, paging
from schedd.api.budgeted_calls import compute
from schedd.api.definitions import references, validation
from schedd.api.errors import (
    FailedPreconditionError,
    FieldViolation,
    LimitReachedError,
    NotFoundError,
    OutcomeUnknownError,
    cut,
    not_found,
    refuse,
    too_many,
)
from schedd.api.jobs import stored_jobs, timer_edit
from schedd.api.jobs.timer_edit import MissedOnEdit
from schedd.api.request_bounds import MOST_VIOLATIONS
from schedd.api.services import Caller, Services
from schedd.core.ids import JobId
from schedd.core.runs import reasons
from schedd.core.runs.records import CalendarRecord, JobRecord, TimerEdit
from schedd.core.schedule.calendars.rules import WrongRules
from schedd.core.schedule.cron import ScheduleError
from schedd.runtime import job_codec
from schedd.runtime.job_codec import JobDefinition
from schedproto.v1 import calendar_service_pb2 as wire

log = logging.getLogger(__name__)

SET_BY_CLUSTER: Final = ("version", "jobs", "jobs_behind", "updated_at", "updated_by")
"""Fields that are ignored in a request."""
BATCH: Final = 200
"""Jobs that are read at once to move them to a new version."""
AT_ONCE: Final = 4
"""Jobs that are written at once."""
MOST_USERS: Final = 20
"""Jobs that the error of a rejected delete names."""
LONGEST: Final = 256 * 1024
"""Bytes of one calendar."""


async def apply_calendar(
    services: Services, caller: Caller, request: wire.ApplyCalendarRequest
) -> wire.Calendar:
    """Create a calendar, or write its next version and move the jobs that use it to that."""
    calendar = request.calendar
    namespace = stored_jobs.namespace_of(calendar.namespace)
    violations = await compute(caller, lambda: [*_violations(calendar)])
    refuse(violations, "INVALID_CALENDAR")
    plain: Message = wire.Calendar()
    plain.CopyFrom(calendar)
    for field in (*SET_BY_CLUSTER, "namespace", "name"):
        plain.ClearField(field)
    spec = plain.SerializeToString(deterministic=True)
    if request.validate_only:
        before = await services.calendars.get(namespace, calendar.name)
        if before is not None and before.spec == spec:
            return _message(before)
        version, jobs = (before.version, before.jobs) if before else (0, 0)
        now, name = services.clock.now(), calendar.name
        new = CalendarRecord(namespace, name, version + 1, spec, now, caller.actor, jobs)
        return _message(new)
    audit = caller.audit("apply", f"calendar/{namespace}/{calendar.name}", request.request_id)
    record = await services.calendars.apply(
        namespace, calendar.name, spec, caller.actor, audit, partial(_differences, spec)
    )
    try:
        async with asyncio.timeout(caller.deadline):
            await _update_jobs(services, caller, record)
    except TimeoutError:
        raise OutcomeUnknownError(
            f"calendar {record.name!r} v{record.version} is stored, but not all jobs use it yet",
            reason="JOBS_BEHIND",
            remedy="call again to update the remaining jobs",
        ) from None
    return _message(await _find(services, namespace, calendar.name, record.version))


async def get_calendar(
    services: Services, _caller: Caller, request: wire.GetCalendarRequest
) -> wire.Calendar:
    """Return a calendar, in its newest version or an earlier one."""
    namespace = stored_jobs.namespace_of(request.namespace)
    return _message(await _find(services, namespace, request.calendar, request.version))


async def list_calendars(
    services: Services, _caller: Caller, request: wire.ListCalendarsRequest
) -> wire.ListCalendarsResponse:
    """Return a page of calendars, by name."""
    paged = paging.Paged("calendars", request, paging.name_of)
    namespace = stored_jobs.namespace_of(request.namespace)
    rows = await services.calendars.list(namespace, paged.after or "", paged.read_rows)
    page, token = paged.cut(rows, lambda row: (row.name,))
    return wire.ListCalendarsResponse(
        calendars=[_message(row) for row in page], next_page_token=token
    )


async def delete_calendar(
    services: Services, caller: Caller, request: wire.DeleteCalendarRequest
) -> wire.DeleteCalendarResponse:
    """Delete a calendar, unless a job uses it."""
    namespace, name = stored_jobs.namespace_of(request.namespace), request.calendar
    audit = caller.audit("delete", f"calendar/{namespace}/{name}", request.request_id)
    answer = await services.calendars.delete(namespace, name, audit, MOST_USERS + 1, _whole)
    if isinstance(answer, list):
        more = " and more" if len(answer) > MOST_USERS else ""
        raise FailedPreconditionError(
            f"calendar {name!r} is used by {', '.join(answer[:MOST_USERS])}{more}",
            reason="CALENDAR_IN_USE",
            remedy="remove the calendar from the jobs first:"
            " schedctl job patch JOB --exclude-calendar …",
        )
    if not answer:
        raise _unknown(name)
    return wire.DeleteCalendarResponse(deleted=True)


async def _update_jobs(services: Services, caller: Caller, record: CalendarRecord) -> None:
    """Move every job that uses the calendar to its newest version."""
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
                if not await _update_job(services, caller, record, job):
                    left_alone.add(job)

        async with asyncio.TaskGroup() as group:
            for number in range(AT_ONCE):
                group.create_task(work_off(todo), name=f"calendar-{number}")


async def _update_job(
    services: Services, caller: Caller, calendar: CalendarRecord, job_id: JobId
) -> bool:
    """Move a job to the newest versions of its calendars. False: its definition can't be read."""
    job = await services.store.get_job(calendar.namespace, str(job_id))
    if job is None:
        return True
    stored = job.definition
    old = JobDefinition.read(stored)
    calendars = await references.calendars_of(services, stored.namespace, old.spec)
    edited = replace(stored, generation=stored.generation + 1, calendars=calendars)
    new = JobDefinition(old.message, edited)
    now = services.clock.now()
    try:
        most = new.parsed.max_runs
        reset = await compute(caller, partial(timer_edit.reset_timer, job, old, new, now))
        timer = TimerEdit(reset, max_runs=most)
        by = reasons.edit(f"{caller.actor}: calendar {calendar.name} v{calendar.version}")
        never_fired = partial(timer_edit.never_fired, old=old, now=now, by=by, new=new)
        missed = MissedOnEdit(never_fired, services.emit)
        # a definition that can't be read is rejected here, before the transaction
        await compute(caller, lambda: old.schedule)
    except (ScheduleError, LimitReachedError) as wrong:
        names = stored.name, calendar.name
        log.warning("calendar not applied job=%s calendar=%s: %s", *names, wrong)
        return False
    entry = caller.audit("update", f"job/{stored.namespace}/{stored.name}")
    entry = replace(entry, reason=f"calendar {calendar.name} v{calendar.version}")
    result = await services.store.update_job(
        job_id, stored.generation, edited, timer, entry, missed
    )
    if isinstance(result, JobRecord):  # else the job was changed meanwhile, and is read again
        missed.stored()
        services.wake_ups.jobs_changed([(job_id, result.shard)])
    return True


async def _find(services: Services, namespace: str, name: str, version: int) -> CalendarRecord:
    record = await services.calendars.get(namespace, name, version) if name else None
    if record is None:
        raise _unknown(name, version)
    return record


def _differences(spec: bytes, before: CalendarRecord | None) -> tuple[str, str]:
    new = wire.Calendar.FromString(spec)
    if before is None:
        return "", audit_diff.whole(new)
    return audit_diff.differences(wire.Calendar.FromString(before.spec), new)


def _whole(record: CalendarRecord) -> str:
    return audit_diff.whole(wire.Calendar.FromString(record.spec))


def _violations(calendar: wire.Calendar) -> Iterator[FieldViolation]:
    yield from validation.check_name(calendar.name, "calendar.name")
    if calendar.ByteSize() > LONGEST:
        yield from too_many("calendar", calendar.ByteSize(), "bytes", LONGEST)
        return
    try:
        job_codec.rules_of(calendar)
    except WrongRules as wrong:
        for fault in wrong.faults[:MOST_VIOLATIONS]:
            hint = f" ({fault.hint})" if fault.hint else ""
            yield FieldViolation(f"calendar.{fault.field}", fault.problem + hint)


def _message(record: CalendarRecord) -> wire.Calendar:
    found = wire.Calendar.FromString(record.spec)
    found.namespace, found.name, found.version = record.namespace, record.name, record.version
    found.jobs, found.jobs_behind, found.updated_by = record.jobs, record.behind, record.updated_by
    found.updated_at.FromDatetime(record.updated_at)
    return found


def _unknown(name: str, version: int = 0) -> NotFoundError:
    of = f"version {version} of " if version else ""
    return not_found(f"{of}calendar" if name else "calendar", repr(cut(name)), "calendar list")
