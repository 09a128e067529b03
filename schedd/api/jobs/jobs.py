"""Calls on jobs: get, list, edit, delete, trigger, pause, resume, and their next scheduled times;
creating them is separate (`create`).

A change and its audit line are one transaction; then the owner is notified. `ok` of update and
delete means that nothing of the old definition can start any more (`quiesce`).
"""

import logging
from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from google.protobuf.message import Message

from schedd.api import audit_diff, paging, views
from schedd.api.budgeted_calls import compute
from schedd.api.definitions import notifications, references, validation
from schedd.api.errors import FieldViolation, InvalidArgumentError, cut, refuse, wrong
from schedd.api.jobs import job_filter, quiesce, stored_jobs, timer_edit
from schedd.api.jobs.create import with_warnings
from schedd.api.jobs.timer_edit import MissedOnEdit
from schedd.api.request_bounds import MOST_COMING
from schedd.api.services import Caller, Services, compact
from schedd.core.events import EndedUnreported
from schedd.core.ids import JobId, RunId, new_id
from schedd.core.jobs.definition import Priority
from schedd.core.jobs.notifications import redirected
from schedd.core.runs import reasons
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import NewRun, RunKey, Trigger
from schedd.core.runs.records import JobRecord, StoreConflict, StoredDefinition
from schedd.core.schedule.compiled_schedule import Occurrence
from schedd.core.schedule.cron import EPOCH, ScheduleError
from schedd.core.schedule.work_budget import TooMuchWork, limited, spend
from schedd.runtime import job_codec
from schedd.runtime.job_codec import OF_INSTANTS, JobDefinition
from schedkit.clock import boottime
from schedkit.protojson.problems import IN_THE_PAST
from schedkit.set_aside import set_aside
from schedkit.tasks import in_turns
from schedproto.v1 import job_pb2, run_pb2
from schedproto.v1 import job_service_pb2 as wire

log = logging.getLogger(__name__)

LOOKS: Final = 50
"""Statements for a page of a list, at most. A page that they don't fill is returned as it is."""
LOOKED_FOR: Final = 0.05
"""Seconds after which no further statement is sent for a page."""
PAGE: Final = 20_000
"""Work budget (`core/schedule/work_budget`) to find the next runs of a page's jobs: about 20 ms."""
_TICK: Final = timedelta(microseconds=1)


async def get_job(services: Services, caller: Caller, request: wire.GetJobRequest) -> job_pb2.Job:
    record = await stored_jobs.find(services, request.namespace, request.job)
    return await compute(caller, partial(views.job_message, record, exact=True))


async def list_jobs(
    services: Services, _caller: Caller, request: wire.ListJobsRequest
) -> wire.ListJobsResponse:
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
    """Return the newest jobs, without calendars, for a caller who is authorized already."""
    return await services.store.newest_definitions(stored_jobs.namespace_of(namespace), most)


def _page(
    page: list[job_pb2.Job], listing: str, after: tuple[datetime, JobId] | None
) -> wire.ListJobsResponse:
    token = "" if after is None else paging.token(listing, *after)
    return wire.ListJobsResponse(jobs=page, next_page_token=token)


async def update_job(
    services: Services, caller: Caller, request: wire.UpdateJobRequest
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
    if request.validate_only:
        due = timer_edit.due_after(record, timer)
        edited = replace(record, definition=new.stored, due_at=due)
        return await with_warnings(services, edited, new)
    by = reasons.edit(caller.actor)
    never_fired = partial(timer_edit.never_fired, old=old, now=now, by=by, new=new)
    missed = None if timer.reset is None else MissedOnEdit(never_fired, services.emit)
    before, after = audit_diff.differences(old.spec, new.spec)
    audit = stored_jobs.audited(caller, "update", stored, request.request_id)
    audit = replace(audit, before=before, after=after)
    async with quiesce.failover_check(services, f"job {stored.name}"):
        notices = redirected(job_codec.notices_of(old.spec), new.parsed.notices)
        written = await services.store.update_job(
            stored.job_id, stored.generation, new.stored, timer, audit, missed, notices
        )
        result = stored_jobs.stored(written, name=stored.name, pool=new.spec.pool)
        if missed is not None:
            missed.stored()
        await quiesce.quiesce_job(services, caller, result, may_start=result.definition.generation)
    return await with_warnings(services, result, new)


async def _seen(services: Services, request: wire.UpdateJobRequest) -> JobRecord:
    """Return the job to edit, if its etag matches."""
    asked = request.job
    record = await stored_jobs.find(services, asked.namespace, asked.name or asked.job_id)
    stored = record.definition
    if asked.job_id and asked.job_id.lower() != str(stored.job_id):
        problem = f"isn't the id of job {cut(stored.name)!r}"
        raise InvalidArgumentError(
            f"job.job_id: {cut(asked.job_id)!r} {problem}",
            reason="JOB_ID_MISMATCH",
            remedy="leave job_id out, or give the name of the job with this id; nothing was stored",
            violations=[FieldViolation("job.job_id", problem)],
        )
    for etags in (request.etag, asked.etag):
        stored_jobs.check_seen(stored, etags)
    return record


async def _edited(
    services: Services,
    caller: Caller,
    request: wire.UpdateJobRequest,
    old: JobDefinition,
    now: datetime,
) -> JobDefinition:
    stored, job = old.row, masked(old.spec, request)
    if list(request.update_mask.paths) == ["*"]:
        validation.check_pause(request.job)
    job.namespace, job.name = stored.namespace, stored.name
    new = old.edited(job, await references.calendars_of(services, stored.namespace, job))
    await compute(caller, partial(timer_edit.check_edit, old, new, now))
    await references.check_pool(services, stored.namespace, job.pool)
    notifications.check_means(services, job, old.spec)
    await references.check_parents(services, stored.job_id, stored.namespace, job)
    return new


async def delete_job(
    services: Services, caller: Caller, request: wire.DeleteJobRequest
) -> wire.DeleteJobResponse:
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
        written = await services.store.delete_job(
            stored.job_id,
            audit,
            missed,
            lambda job: audit_diff.definition(JobDefinition.read(job.definition)),
            seen,
        )
        deleted = stored_jobs.stored(written, name=stored.name, asked=request.job)
        missed.stored()
        if deleted.cancelled:
            services.emit(EndedUnreported(State.CANCELLED, Reason.DELETED, deleted.cancelled))
        await quiesce.quiesce_job(services, caller, record)
    return wire.DeleteJobResponse(deleted=True)


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
    services: Services, caller: Caller, request: wire.ListNextInstantsRequest
) -> wire.ListNextInstantsResponse:
    """Return the next scheduled times of a job that will run; with `max_runs`, those left."""
    count = paging.coming(request.count)
    record = await stored_jobs.find(services, request.namespace, request.job)
    after = services.clock.now()
    if request.HasField("after"):
        after = max(job_codec.instant(request.after), EPOCH)  # a schedule has no earlier past
    coming = await compute(
        caller, partial(_coming, record, after, count, excluded=request.excluded)
    )
    return wire.ListNextInstantsResponse(
        instants=[
            wire.ListNextInstantsResponse.Instant(
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
    """Return the next `count` times that run; with `excluded`, also those in between, and why."""
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
    services: Services, caller: Caller, request: wire.TriggerJobRequest
) -> run_pb2.Run:
    """Start a run of the job now, or after a delay; also while it is paused."""
    violations = [*validation.payload_violations(request.payload)]
    if request.delay.ToTimedelta() < timedelta(0):
        violations.append(FieldViolation("delay", "must not be negative"))
    refuse(violations, "INVALID_TRIGGER")
    record = await stored_jobs.find(services, request.namespace, request.job)
    stored = record.definition
    now = services.clock.now()
    definition = JobDefinition.read(stored).parsed
    run = NewRun(RunKey(now, RunId(new_id())), now + request.delay.ToTimedelta())
    audit = stored_jobs.audited(caller, "trigger", stored, request.request_id)
    result = await services.store.insert_run(
        stored.job_id,
        run,
        Trigger.MANUAL,
        Priority(request.priority) if request.priority else definition.priority,
        request.payload.SerializeToString() if request.HasField("payload") else None,
        stored_jobs.idempotency(stored.namespace, request.idempotency_key, "TriggerJob", request),
        replace(audit, run_id=run.key.run_id),
        job_codec.overlap_of(request.overlap),
    )
    if isinstance(result, StoreConflict) and result.what == "pool":
        raise stored_jobs.deleted_pool(f"pool {definition.pool.partition('/')[2]}")
    inserted = stored_jobs.stored(result, name=request.job, key=request.idempotency_key)
    services.wake_ups.runs_created([inserted.run])
    return views.run_message(inserted)


# Pause and resume a job. While it is paused, its schedule doesn't fire; triggers still work.

RESUMED_AT_MOST: Final = 5
"""Tries of a resume while others edit the job."""


async def pause_job(
    services: Services, caller: Caller, request: wire.PauseJobRequest
) -> job_pb2.Job:
    """Pause a job until it is resumed, automatically at `until` if given. Triggers still work."""
    validation.check_note(request.note, "note")
    until = job_codec.instant(request.until) if request.HasField("until") else None
    if until is not None and until <= services.clock.now():
        remedy = "give a time in the future, or leave `until` out to pause without an end"
        raise wrong("until", IN_THE_PAST, remedy)
    record = await stored_jobs.find(services, request.namespace, request.job)
    stored = record.definition
    stored_jobs.check_seen(stored, request.etag)
    audit = stored_jobs.audited(caller, "pause", stored, request.request_id)
    async with quiesce.failover_check(services, f"job {stored.name}"):
        seen = stored.generation if request.etag else None
        written = await services.store.pause_job(
            stored.job_id, request.note, caller.actor, audit, until, seen, _pause_state
        )
        paused = stored_jobs.stored(written, name=stored.name, asked=request.job)
        await quiesce.quiesce_job(services, caller, paused)
    return views.job_message(paused)


async def resume_job(
    services: Services, caller: Caller, request: wire.ResumeJobRequest
) -> job_pb2.Job:
    """Resume a job; the scheduled times of the pause are SKIPPED (PAUSED)."""
    for _ in range(RESUMED_AT_MOST):
        record = await stored_jobs.find(services, request.namespace, request.job)
        stored = record.definition
        if not stored.paused:
            return views.job_message(record)
        timer, skipped = await compute(
            caller, partial(timer_edit.after_pause, record, services.clock.now())
        )
        audit = stored_jobs.audited(caller, "resume", stored, request.request_id)
        audit = replace(audit, after=compact({"paused": False}))
        written = await services.store.resume_job(
            stored.job_id, timer, skipped, audit, stored.generation, _pause_state
        )
        if not isinstance(written, StoreConflict):
            break  # else the job was edited meanwhile: compute the timer again
    resumed = stored_jobs.stored(written, name=request.job)
    services.wake_ups.jobs_changed([(stored.job_id, resumed.shard)])
    services.wake_ups.runs_ready([resumed.shard])
    return views.job_message(resumed)


def _pause_state(job: JobRecord) -> str:
    paused = job.definition.paused
    return compact(stored_jobs.pause_state(paused, job.paused_by, job.pause_note, job.paused_until))


# Update masks: which fields of a job an edit changes.
#
# `"*"` means all fields that a caller may set; otherwise each path names one field, at any depth. A
# patch with one kind of schedule clears the other kinds, and the fields that belong to them.


def masked(old: job_pb2.Job, request: wire.UpdateJobRequest) -> job_pb2.Job:
    """Return the job with the named fields of the request."""
    paths = list(request.update_mask.paths)
    if not paths:
        raise _bad_mask(
            "update_mask is missing", 'name the fields to change, or "*" for all fields'
        )
    if paths == ["*"]:
        return job_codec.set_by_user(request.job)
    if "at" in paths and request.job.local_at:
        paths.append("local_at")  # forms call both `at`
    unset = {*job_codec.SET_BY_CLUSTER, *job_codec.STORED_ONLY, "name", "namespace"}
    for path in paths:
        first = path.split(".")[0]
        if first not in job_pb2.Job.DESCRIPTOR.fields_by_name:
            raise _no_such_field(path)
        if first in unset:
            remedy = "leave the field out: the cluster sets it, or another call, such as PauseJob"
            raise wrong(path, "can't be edited", remedy, reason="BAD_UPDATE_MASK")
    new = job_pb2.Job()
    new.CopyFrom(old)
    begins = not old.HasField("after") and "after.jobs" in paths and bool(request.job.after.jobs)
    if begins or any(path in timer_edit.SCHEDULES for path in paths):
        plain: Message = new
        for field in (*timer_edit.SCHEDULES, *_meaningless(request.job, paths)):
            plain.ClearField(field)
    _copy(request.job, new, paths)
    return new


def _meaningless(given: job_pb2.Job, paths: Collection[str]) -> set[str]:
    """Return the fields that don't belong to the given kind of schedule."""
    kept: set[str] = set()
    if "every" in paths and given.HasField("every"):
        kept.update(("phase", "anchor"))
    if "cron" in paths and given.cron:
        kept.add("dst")
    bare = "on_demand" in paths and given.on_demand
    bare |= ("after" in paths or "after.jobs" in paths) and bool(given.after.jobs)
    return {"phase", "anchor", "dst", *(OF_INSTANTS if bare else ())} - kept


def _copy(source: Message, target: Message, paths: list[str]) -> None:
    """Replace the fields that `paths` name, at any depth; an unset one is cleared."""
    for path in paths:
        from_, to = source, target
        *parents, last = path.split(".")
        for name in parents:
            field = from_.DESCRIPTOR.fields_by_name.get(name)
            if field is None or field.message_type is None or field.is_repeated:
                raise _no_such_field(path)
            from_, to = getattr(from_, name), getattr(to, name)
        field = from_.DESCRIPTOR.fields_by_name.get(last)
        if field is None:
            raise _no_such_field(path)
        to.ClearField(last)
        if field.is_repeated:
            getattr(to, last).MergeFrom(getattr(from_, last))
        elif field.message_type is not None:
            if from_.HasField(last):
                getattr(to, last).CopyFrom(getattr(from_, last))
        elif not field.has_presence or from_.HasField(last):
            setattr(to, last, getattr(from_, last))


def _no_such_field(path: str) -> InvalidArgumentError:
    return _bad_mask(
        f"update_mask names the field {path!r}, but a job has no such field",
        "name fields as `schedctl job get -o json` shows them",
    )


def _bad_mask(message: str, remedy: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        message,
        reason="BAD_UPDATE_MASK",
        remedy=remedy,
        violations=[FieldViolation("update_mask", message)],
    )
