"""Calls on jobs, and their next scheduled times; creating them is separate (`create`).

A change and its audit line are one transaction; then the owner is notified. `ok` of update and
delete means that nothing of the old definition can start any more (`quiesce`).
"""

import logging
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from schedd.api import paging, pools, views
from schedd.api.audit import audit_diff
from schedd.api.budgeted_calls import compute
from schedd.api.definitions import chains, exclusions, notifications, validation
from schedd.api.errors import FieldViolation, refuse
from schedd.api.field_bounds import MOST_COMING
from schedd.api.jobs import job_filter, quiesce, stored_jobs, timer_edit, worker_warnings
from schedd.api.jobs.timer_edit import MissedOnEdit
from schedd.api.jobs.update_masks import masked
from schedd.api.services import Caller, Services, compact
from schedd.core.events import EndedUnreported
from schedd.core.ids import JobId, RunId, new_id
from schedd.core.jobs.definition import Priority
from schedd.core.jobs.notifications import redirected
from schedd.core.runs import reasons
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import NewRun, RunKey, Trigger
from schedd.core.runs.records import ChainRefused, JobRecord, StoreConflict, StoredDefinition
from schedd.core.schedule.compiled_schedule import Occurrence
from schedd.core.schedule.cron import EPOCH, ScheduleError
from schedd.core.schedule.work_budget import TooMuchWork, limited, spend
from schedd.runtime import job_codec
from schedd.runtime.job_codec import JobDefinition
from schedkit.clock import boottime
from schedkit.set_aside import set_aside
from schedkit.tasks import in_turns
from schedproto.v1 import job_pb2, job_service_pb2, run_pb2

log = logging.getLogger(__name__)

LOOKS: Final = 50
"""Statements for a page of a list, at most. A page that they don't fill is returned as it is."""
LOOKED_FOR: Final = 0.05
"""Seconds after which no further statement is sent for a page."""
PAGE: Final = 20_000
"""Work budget (`core/schedule/work_budget`) to find the next runs of a page's jobs: about 20 ms."""
_TICK: Final = timedelta(microseconds=1)


async def get_job(
    services: Services, caller: Caller, request: job_service_pb2.GetJobRequest
) -> job_pb2.Job:
    record = await stored_jobs.find(services, request.namespace, request.job)
    return await compute(caller, partial(views.job_message, record, exact=True))


async def list_jobs(
    services: Services, _caller: Caller, request: job_service_pb2.ListJobsRequest
) -> job_service_pb2.ListJobsResponse:
    """Return a page of jobs, newest first."""
    wanted = job_filter.parse_filter(request.filter)
    paged = paging.Paged("jobs", request, paging.time_and(JobId))
    size, listing, after = paged.size, paged.listing, paged.after
    namespace = stored_jobs.namespace_of(request.namespace)
    page: list[job_pb2.Job] = []
    began = boottime()
    for _ in range(LOOKS):
        rows, end = await services.store.list_jobs(namespace, after, size + 1, wanted.stored)
        with limited(PAGE):
            async for row in in_turns(rows, every=10):
                name = f"job/{row.definition.namespace}/{row.definition.name}"
                with set_aside("definition", name, passes=(TooMuchWork,), once=True):
                    job = views.job_message(row)
                    if wanted.holds(job):
                        if len(page) == size:
                            return _page(page, listing, after)
                        page.append(job)
                after = row.created_at, row.definition.job_id
        if len(rows) <= size:
            after = end
        if after is None or boottime() - began > LOOKED_FOR:
            break
    return _page(page, listing, after)


async def newest_definitions(
    services: Services, namespace: str, most: int
) -> list[StoredDefinition]:
    """Return the definitions of the newest jobs, without calendars. The caller must be authorized
    already.
    """
    return await services.store.newest_definitions(stored_jobs.namespace_of(namespace), most)


def _page(
    page: list[job_pb2.Job], listing: str, after: tuple[datetime, JobId] | None
) -> job_service_pb2.ListJobsResponse:
    token = "" if after is None else paging.token(listing, *after)
    return job_service_pb2.ListJobsResponse(jobs=page, next_page_token=token)


async def update_job(
    services: Services, caller: Caller, request: job_service_pb2.UpdateJobRequest
) -> job_pb2.Job:
    """Write a new generation with the fields of the mask."""
    now = services.clock.now()
    record = await _seen(services, request)
    stored, old = record.definition, JobDefinition.read(record.definition)
    new = await _edited(services, caller, request, old, now)
    if new.spec == old.spec:
        if not request.validate_only:  # a retry of an edit whose outcome was unknown
            async with quiesce.failover_check(services, f"job {stored.name}"):
                await quiesce.quiesce_job(services, caller, record, may_start=stored.generation)
        return views.job_message(record, old)
    timer = await compute(caller, partial(timer_edit.edited_timer, record, old, new, now))
    by = reasons.edit(caller.actor)
    missed = (
        None
        if timer.reset is None
        else MissedOnEdit(
            partial(timer_edit.never_fired, old=old, now=now, by=by, new=new),
            services.emit,
        )
    )
    if request.validate_only:
        due = timer_edit.due_after(record, timer)
        return await worker_warnings.answer(
            services, replace(record, definition=new.stored, due_at=due), new
        )
    audit = stored_jobs.audited(caller, "update", stored, request.request_id)
    before, after = audit_diff.differences(old.spec, new.spec)
    audit = replace(audit, before=before, after=after)
    async with quiesce.failover_check(services, f"job {stored.name}"):
        notices = redirected(job_codec.notices_of(old.spec), new.parsed.notices)
        result = _written(
            await services.store.update_job(
                stored.job_id, stored.generation, new.stored, timer, audit, missed, notices
            ),
            stored.name,
            new.spec.pool,
        )
        if missed is not None:
            missed.stored()
        await quiesce.quiesce_job(services, caller, result, may_start=result.definition.generation)
    return await worker_warnings.answer(services, result, new)


async def _seen(services: Services, request: job_service_pb2.UpdateJobRequest) -> JobRecord:
    """Return the job to edit, if its etag matches."""
    record = await stored_jobs.find(
        services, request.job.namespace, request.job.name or request.job.job_id
    )
    stored = record.definition
    if request.job.job_id and request.job.job_id.lower() != str(stored.job_id):
        raise stored_jobs.another_job(stored.name, request.job.job_id)
    for etags in (request.etag, request.job.etag):
        stored_jobs.check_seen(stored, etags)
    return record


async def _edited(
    services: Services,
    caller: Caller,
    request: job_service_pb2.UpdateJobRequest,
    old: JobDefinition,
    now: datetime,
) -> JobDefinition:
    stored, job = old.row, masked(old.spec, request)
    if list(request.update_mask.paths) == ["*"]:
        validation.check_pause(request.job)
    job.namespace, job.name = stored.namespace, stored.name
    calendars = await exclusions.calendars_of(services, stored.namespace, job)
    new = old.edited(job, calendars)
    await compute(caller, partial(timer_edit.check_edit, old, new, now))
    await pools.check_there(services, stored.namespace, job.pool)
    notifications.check_means(services, job, old.spec)
    await chains.check(services, stored.job_id, stored.namespace, job)
    return new


def _written(
    result: JobRecord | StoreConflict | ChainRefused | None, name: str, pool: str
) -> JobRecord:
    """Return the edited job. Raises the error for a rejected edit."""
    if isinstance(result, ChainRefused):
        raise chains.refusal(result, name)
    if isinstance(result, StoreConflict) and result.what == "calendar":
        raise exclusions.changed_meanwhile(name)
    if isinstance(result, StoreConflict) and result.what == "pool":
        raise pools.missing(pool)
    if isinstance(result, StoreConflict):
        raise stored_jobs.edited_meanwhile(name)
    if result is None:
        raise stored_jobs.unknown(name)
    return result


async def delete_job(
    services: Services, caller: Caller, request: job_service_pb2.DeleteJobRequest
) -> job_service_pb2.DeleteJobResponse:
    """Delete a job: waiting runs are cancelled, running ones finish, its name can be reused."""
    validation.check_note(request.note, "note")
    record = await stored_jobs.find(services, request.namespace, request.job)
    stored = record.definition
    stored_jobs.check_seen(stored, request.etag)
    audit = stored_jobs.audited(caller, "delete", stored, request.request_id)
    if request.note:
        audit = replace(audit, after=compact({"note": request.note}))
    async with quiesce.failover_check(services, f"job {stored.name}"):
        missed = MissedOnEdit(partial(_never_fired, caller.actor), services.emit)
        seen = stored.generation if request.etag else None
        deleted = await services.store.delete_job(stored.job_id, audit, missed, _audit_state, seen)
        if isinstance(deleted, StoreConflict):
            raise stored_jobs.edited_meanwhile(stored.name)
        if isinstance(deleted, ChainRefused):
            raise chains.refusal(deleted, stored.name)
        if deleted is None:
            raise stored_jobs.unknown(request.job)
        missed.stored()
        if deleted.cancelled:
            services.emit(EndedUnreported(State.CANCELLED, Reason.DELETED, deleted.cancelled))
        await quiesce.quiesce_job(services, caller, record)
    return job_service_pb2.DeleteJobResponse(deleted=True)


def _audit_state(record: JobRecord) -> str:
    return audit_diff.definition(JobDefinition.read(record.definition))


def _never_fired(actor: str, record: JobRecord, now: datetime) -> NewRun | None:
    """Return the row for due runs of a deleted job; None if the job can't be read."""
    stored, by = record.definition, reasons.deletion(actor)
    try:
        old = JobDefinition.read(stored)
        job_codec.check_dialect(old.spec)
        return timer_edit.never_fired(record, old, now, by, Reason.DELETED)
    except (ValueError, ScheduleError, TooMuchWork) as wrong:  # deleting must work nevertheless
        log.warning(
            "job deleted, but its overdue scheduled times aren't recorded job=%s: %s",
            stored.name,
            wrong,
        )
        return None


async def list_next_instants(
    services: Services, caller: Caller, request: job_service_pb2.ListNextInstantsRequest
) -> job_service_pb2.ListNextInstantsResponse:
    """Return the next scheduled times of a job that will run. With `max_runs`, the remaining ones,
    from its next run on.
    """
    count = paging.coming(request.count)
    record = await stored_jobs.find(services, request.namespace, request.job)
    after = services.clock.now()
    if request.HasField("after"):
        after = max(job_codec.instant(request.after), EPOCH)  # a schedule has no earlier past
    coming = await compute(
        caller, partial(_coming, record, after, count, excluded=request.excluded)
    )
    return job_service_pb2.ListNextInstantsResponse(
        instants=[
            job_service_pb2.ListNextInstantsResponse.Instant(
                scheduled_at=views.stamp(one.nominal),
                due_at=views.stamp(one.due),
                excluded_by=excluded_by,
            )
            for one, excluded_by in coming
        ]
    )


def _coming(
    record: JobRecord, after: datetime, count: int, *, excluded: bool
) -> list[tuple[Occurrence, str]]:
    """Return the next `count` times that run; with `excluded`, also the excluded ones in between,
    each with the calendar or expression that excludes it.
    """
    definition = JobDefinition.read(record.definition)
    compiled, most = definition.schedule, definition.parsed.max_runs
    if most:
        count = min(count, timer_edit.left_after(record, compiled, most, after))
        after = max(after, record.nominal - _TICK) if record.nominal else after
    found: list[tuple[Occurrence, str]] = []
    source = compiled.whole if excluded else compiled
    while count > 0 and len(found) < MOST_COMING and (one := source.next_after(after)) is not None:
        spend(10)
        found.append((one, compiled.excluded_by(one.nominal)))
        count -= not found[-1][1]
        after = one.nominal
    return found


async def trigger_job(
    services: Services, caller: Caller, request: job_service_pb2.TriggerJobRequest
) -> run_pb2.Run:
    """Start a run of the job now, or after a delay; also while it is paused."""
    check_trigger(request)
    record = await stored_jobs.find(services, request.namespace, request.job)
    stored = record.definition
    now = services.clock.now()
    definition = JobDefinition.read(stored).parsed
    run = NewRun(RunKey(now, RunId(new_id())), now + request.delay.ToTimedelta())
    audit = stored_jobs.audited(caller, "trigger", stored, request.request_id)
    inserted = await services.store.insert_run(
        stored.job_id,
        run,
        Trigger.MANUAL,
        Priority(request.priority) if request.priority else definition.priority,
        request.payload.SerializeToString() if request.HasField("payload") else None,
        stored_jobs.idempotency(stored.namespace, request.idempotency_key, "TriggerJob", request),
        replace(audit, run_id=run.key.run_id),
        job_codec.overlap_of(request.overlap),
    )
    if isinstance(inserted, StoreConflict) and inserted.what == "pool":
        raise pools.deleted(f"pool {definition.pool.partition('/')[2]}")
    if isinstance(inserted, StoreConflict):
        raise stored_jobs.taken(inserted, name=request.job, key=request.idempotency_key)
    if inserted is None:
        raise stored_jobs.unknown(request.job)
    services.wake_ups.runs_created([inserted.run])
    return views.run_message(inserted)


def check_trigger(request: job_service_pb2.TriggerJobRequest) -> None:
    """Raise InvalidArgument for an invalid payload or a negative delay."""
    violations = list(validation.payload_violations(request.payload))
    if request.delay.ToTimedelta().total_seconds() < 0:
        violations.append(FieldViolation("delay", "must not be negative"))
    refuse(violations, "INVALID_TRIGGER")
