"""Calls on jobs: create, read, edit, pause, resume, trigger, delete, and what comes next.

Each is: check, do it in one transaction with its audit line, tell the owner. `ok` of pause, edit
and delete means that nothing of the old definition starts any more: it waits until each attempt
that may still start was given up, has started, or has expired (PROTOCOL 3).
"""

import asyncio
import hashlib
from dataclasses import replace
from datetime import datetime
from typing import Final
from uuid import uuid4

from google.protobuf.message import Message

from schedd.api import definitions, paging, views
from schedd.api.errors import (
    Aborted,
    AlreadyExists,
    InvalidArgument,
    NotFound,
    OutcomeUnclear,
    Violation,
)
from schedd.api.masks import SCHEDULES, masked
from schedd.api.services import DEFAULT_NAMESPACE, Caller, Services
from schedd.api.unbuilt import refuse_unbuilt
from schedd.core import catch_up
from schedd.core.ids import JobId, RunId, scheduled_run_id
from schedd.core.lifecycle import Reason, State
from schedd.core.model import Definition, NewRun, Priority, RunKey, Trigger
from schedd.core.partition import shard_of
from schedd.core.records import Conflict, Idempotency, JobRecord, StoredDefinition
from schedd.core.schedule import CompiledSchedule, Occurrence
from schedproto.v1 import job_pb2, job_service_pb2, run_pb2

WHEN: Final = frozenset({*SCHEDULES, "phase", "time_zone", "start", "end", "jitter", "dst"})
"""Fields whose edit sets the timer anew; any other keeps it."""
MOST_NEXT: Final = 1000
RESUMED_AT_MOST: Final = 5
"""Tries of a resume while others edit the job."""
FOLDS: Final = 50
"""Steps in which the instants of a pause are counted; past them the count is a lower bound."""


async def create_job(
    services: Services, caller: Caller, request: job_service_pb2.CreateJobRequest
) -> job_pb2.Job:
    """Store a new job with its timer."""
    now = services.clock.now()
    job = request.job
    definitions.check(job, now)
    record = new_record(
        services, caller, job, JobId(uuid4()), namespace_of(job.namespace), now, ephemeral=False
    )
    if request.validate_only:
        return views.job_message(record)
    stored = await services.store.create_job(
        record,
        None,
        idempotency(record.definition.namespace, request.idempotency_key, "CreateJob", job),
        caller.audit("create", f"job/{record.definition.namespace}/{job.name}", request.request_id),
    )
    if isinstance(stored, Conflict):
        raise _taken(stored, job.name)
    services.nudges.jobs_changed([(stored.definition.job_id, stored.shard)])
    return views.job_message(stored)


async def get_job(
    services: Services, caller: Caller, request: job_service_pb2.GetJobRequest
) -> job_pb2.Job:
    """One job, by id or name."""
    del caller
    return views.job_message(await find(services, request.namespace, request.job))


async def list_jobs(
    services: Services, caller: Caller, request: job_service_pb2.ListJobsRequest
) -> job_service_pb2.ListJobsResponse:
    """A page of jobs, newest first."""
    del caller
    refuse_unbuilt(request)
    size = paging.size(request.page_size)
    after = paging.read_token(request.page_token)
    rows = await services.store.list_jobs(
        namespace_of(request.namespace), (after[0], JobId(after[1])) if after else None, size + 1
    )
    page = rows[:size]
    token = paging.token(page[-1].created_at, page[-1].definition.job_id) if rows[size:] else ""
    return job_service_pb2.ListJobsResponse(
        jobs=[views.job_message(row) for row in page], next_page_token=token
    )


async def update_job(
    services: Services, caller: Caller, request: job_service_pb2.UpdateJobRequest
) -> job_pb2.Job:
    """Write a new generation with the fields that the mask names."""
    now = services.clock.now()
    refuse_unbuilt(request)
    record = await find(services, request.job.namespace, request.job.job_id or request.job.name)
    stored = record.definition
    if request.etag and request.etag != views.etag(stored.job_id, stored.generation):
        raise _old_etag(stored.name)
    old = job_pb2.Job.FromString(stored.spec)
    new = masked(old, request)
    new.namespace, new.name = stored.namespace, stored.name
    definitions.check(new, _edited_at(old, new, now))
    spec = definitions.spec_of(new)
    if spec == old:
        if not request.validate_only:  # an edit whose answer was "unknown" may be asked again
            await _settle(services, caller, record, may_start=stored.generation)
        return views.job_message(record)
    edited = replace(
        stored, generation=stored.generation + 1, spec=spec.SerializeToString(deterministic=True)
    )
    timer, missed = None, None
    if _schedule_changed(old, spec):
        timer = _first(_compiled(edited), now)
        missed = _never_fired(record, now)
    if request.validate_only:
        due = timer[0] if timer else record.due_at
        return views.job_message(replace(record, definition=edited, due_at=due))
    result = await services.store.update_job(
        stored.job_id,
        stored.generation,
        edited,
        timer,
        caller.audit("update", f"job/{stored.namespace}/{stored.name}", request.request_id),
        missed,
    )
    if isinstance(result, Conflict):
        raise _old_etag(stored.name)
    if result is None:
        raise _unknown(stored.name)
    await _settle(services, caller, result, may_start=result.definition.generation)
    return views.job_message(result)


async def delete_job(
    services: Services, caller: Caller, request: job_service_pb2.DeleteJobRequest
) -> job_service_pb2.DeleteJobResponse:
    """Delete a job: waiting runs are cancelled, running ones finish, the name is free."""
    record = await find(services, request.namespace, request.job)
    stored = record.definition
    if request.etag and request.etag != views.etag(stored.job_id, stored.generation):
        raise _old_etag(stored.name)
    audit = caller.audit("delete", f"job/{stored.namespace}/{stored.name}", request.request_id)
    if not await services.store.delete_job(stored.job_id, audit):
        raise _unknown(request.job)
    await _settle(services, caller, record)
    return job_service_pb2.DeleteJobResponse(deleted=True)


async def pause_job(
    services: Services, caller: Caller, request: job_service_pb2.PauseJobRequest
) -> job_pb2.Job:
    """Fire nothing more until it is resumed. Triggers still work."""
    refuse_unbuilt(request)
    record = await find(services, request.namespace, request.job)
    stored = record.definition
    paused = await services.store.pause_job(
        stored.job_id,
        request.note,
        caller.actor,
        caller.audit("pause", f"job/{stored.namespace}/{stored.name}", request.request_id),
    )
    if paused is None:
        raise _unknown(request.job)
    await _settle(services, caller, paused)
    return views.job_message(paused)


async def resume_job(
    services: Services, caller: Caller, request: job_service_pb2.ResumeJobRequest
) -> job_pb2.Job:
    """Fire again from now on; the instants of the pause are SKIPPED (PAUSED)."""
    for _ in range(RESUMED_AT_MOST):
        record = await find(services, request.namespace, request.job)
        stored = record.definition
        if not stored.paused:
            return views.job_message(record)
        timer, skipped = _after_pause(record, services.clock.now())
        resumed = await services.store.resume_job(
            stored.job_id,
            timer,
            skipped,
            caller.audit("resume", f"job/{stored.namespace}/{stored.name}", request.request_id),
            stored.generation,
        )
        if not isinstance(resumed, Conflict):
            break  # else it was edited meanwhile, and the timer was reckoned from what it was
    else:
        raise _old_etag(request.job)
    if resumed is None:
        raise _unknown(request.job)
    services.nudges.jobs_changed([(stored.job_id, resumed.shard)])
    services.nudges.runs_ready([resumed.shard])
    return views.job_message(resumed)


async def trigger_job(
    services: Services, caller: Caller, request: job_service_pb2.TriggerJobRequest
) -> run_pb2.Run:
    """Start a run of the job now, or after a delay; also while it is paused."""
    refuse_unbuilt(request)
    check_trigger(request)
    record = await find(services, request.namespace, request.job)
    stored = record.definition
    now = services.clock.now()
    definition = _definition(stored)
    inserted = await services.store.insert_run(
        stored.job_id,
        NewRun(RunKey(now, RunId(uuid4())), now + request.delay.ToTimedelta()),
        Trigger.MANUAL,
        Priority(request.priority) if request.priority else definition.priority,
        request.payload.SerializeToString() if request.HasField("payload") else None,
        idempotency(stored.namespace, request.idempotency_key, "TriggerJob", request),
        caller.audit("trigger", f"job/{stored.namespace}/{stored.name}", request.request_id),
    )
    if isinstance(inserted, Conflict):
        raise _taken(inserted, request.idempotency_key)
    if inserted is None:
        raise _unknown(request.job)
    services.nudges.runs_ready([record.shard])
    return views.run_message(inserted)


async def list_next_instants(
    services: Services, caller: Caller, request: job_service_pb2.ListNextInstantsRequest
) -> job_service_pb2.ListNextInstantsResponse:
    """The coming instants of a stored job, as its schedule has them."""
    del caller
    count = request.count or 10
    if not 0 < count <= MOST_NEXT:
        raise InvalidArgument(
            f"count is {count}",
            reason="BAD_COUNT",
            remedy=f"give 1 to {MOST_NEXT}",
            violations=[Violation("count", f"must be from 1 to {MOST_NEXT}")],
        )
    record = await find(services, request.namespace, request.job)
    after = (
        definitions.instant(request.after) if request.HasField("after") else services.clock.now()
    )
    found: list[Occurrence] = []
    compiled = _compiled(record.definition)
    while len(found) < count and (occurrence := compiled.next_after(after)) is not None:
        found.append(occurrence)
        after = occurrence.nominal
    return job_service_pb2.ListNextInstantsResponse(
        instants=[
            job_service_pb2.ListNextInstantsResponse.Instant(
                scheduled_at=views.stamp(one.nominal), due_at=views.stamp(one.due)
            )
            for one in found
        ]
    )


# ---- shared with other calls ----


def namespace_of(given: str) -> str:
    """The namespace of a request. Raises InvalidArgument for what can't be one."""
    if not given:
        return DEFAULT_NAMESPACE
    violations = list(definitions.check_name(given, "namespace"))
    if violations:
        raise InvalidArgument(
            f"namespace: {violations[0].problem}",
            reason="BAD_NAMESPACE",
            remedy="leave it out for the namespace `default`",
            violations=violations,
        )
    return given


async def find(services: Services, namespace: str, job: str) -> JobRecord:
    """The job of this id or name. Raises NotFound."""
    record = await services.store.get_job(namespace_of(namespace), job) if job else None
    if record is None:
        raise _unknown(job)
    return record


def new_record(
    services: Services,
    caller: Caller,
    job: job_pb2.Job,
    job_id: JobId,
    namespace: str,
    now: datetime,
    *,
    ephemeral: bool,
) -> JobRecord:
    """The record of a job that was checked, as it will be stored."""
    del services
    stored = StoredDefinition(
        job_id=job_id,
        generation=1,
        namespace=namespace,
        name=job.name,
        spec=definitions.spec_of(job).SerializeToString(deterministic=True),
        paused=job.paused,
        ephemeral=ephemeral,
    )
    due_at, nominal = _first(_compiled(stored), now)
    return JobRecord(
        definition=stored,
        shard=shard_of(job_id),
        due_at=due_at,
        nominal=nominal,
        pause_note=job.pause_note,
        paused_by=caller.actor if job.paused else "",
        created_at=now,
        created_by=caller.actor,
        updated_at=now,
    )


def idempotency(namespace: str, key: str, call: str, body: Message) -> Idempotency | None:
    """The caller's key with a digest of what it stands for."""
    if not key:
        return None
    plain = type(body)()
    plain.CopyFrom(body)
    for field in ("idempotency_key", "request_id"):
        if field in plain.DESCRIPTOR.fields_by_name:
            plain.ClearField(field)
    digest = hashlib.sha256(plain.SerializeToString(deterministic=True)).digest()
    return Idempotency(namespace, key, call, digest)


def check_trigger(request: job_service_pb2.TriggerJobRequest) -> None:
    """Raise InvalidArgument for a payload that can't be stored, or a delay that is negative."""
    violations = list(definitions.payload_violations(request.payload))
    if request.delay.ToTimedelta().total_seconds() < 0:
        violations.append(Violation("delay", "must not be negative"))
    if violations:
        first = violations[0]
        raise InvalidArgument(
            f"{first.field}: {first.problem}",
            reason="INVALID_TRIGGER",
            remedy="mend the field and call again; nothing was stored",
            violations=violations,
        )


# ---- steps ----


async def _settle(
    services: Services, caller: Caller, record: JobRecord, *, may_start: int | None = None
) -> None:
    """Tell the owner, and wait until nothing of the old definition can start any more; attempts
    of generation `may_start` and later may.
    """
    stored = record.definition
    services.nudges.jobs_changed([(stored.job_id, record.shard)])
    out = [
        run
        for run in await services.store.unstarted_attempts(stored.job_id, services.clock.now())
        if may_start is None or run.generation < may_start
    ]
    if not out:
        return
    try:
        async with asyncio.timeout(caller.deadline):
            await services.lines.revoke(out)
    except TimeoutError:
        raise OutcomeUnclear(
            f"{stored.name or stored.job_id} was changed, but a run of it may still start",
            reason="ATTEMPTS_OUT",
            remedy="it can't start later than five seconds from now; call again to be sure",
        ) from None


def _after_pause(
    record: JobRecord, now: datetime
) -> tuple[tuple[datetime | None, datetime | None], NewRun | None]:
    """The timer to go on with, and the row that accounts for the pause."""
    fold, following = _settled(record, now, State.SKIPPED, Reason.PAUSED)
    return ((following.due, following.nominal) if following else (None, None)), fold


def _never_fired(record: JobRecord, now: datetime) -> NewRun | None:
    """The row that accounts for what was due by a schedule that is being replaced."""
    if record.definition.paused:
        return _settled(record, now, State.SKIPPED, Reason.PAUSED)[0]
    return _settled(record, now, State.MISSED, Reason.EDITED)[0]


def _settled(
    record: JobRecord, now: datetime, state: State, reason: Reason
) -> tuple[NewRun | None, Occurrence | None]:
    """One row for all instants of the timer that are due, and the first one that isn't."""
    if record.nominal is None or record.due_at is None:
        return None, None
    compiled = _compiled(record.definition)
    following: Occurrence | None = Occurrence(record.nominal, record.due_at)
    folds: list[catch_up.Fold] = []
    while following is not None and following.due <= now and len(folds) < FOLDS:
        fold, following = catch_up.settle(compiled, following, now, state, reason)
        folds += [fold] if fold else []
    if following is not None and following.due <= now:
        following = compiled.next_after(now)
    if not folds:
        return None, following
    first, last = folds[0], folds[-1]
    return NewRun(
        RunKey(first.first, scheduled_run_id(record.definition.job_id, first.first)),
        first.due,
        state=state,
        reason=reason,
        count=sum(fold.count for fold in folds),
        scheduled_until=last.last,
    ), following


def _edited_at(old: job_pb2.Job, new: job_pb2.Job, now: datetime) -> datetime:
    """The instant to judge an edit by: an `at` that stays as it was may be past."""
    return definitions.instant(old.at) if new.HasField("at") and new.at == old.at else now


def _schedule_changed(old: job_pb2.Job, new: job_pb2.Job) -> bool:
    plain_old: Message = old
    plain_new: Message = new
    return any(getattr(plain_old, field) != getattr(plain_new, field) for field in WHEN)


def _first(compiled: CompiledSchedule, now: datetime) -> tuple[datetime | None, datetime | None]:
    first = compiled.first(now)
    return (first.due, first.nominal) if first else (None, None)


def _definition(stored: StoredDefinition) -> Definition:
    return definitions.definition_of(
        job_pb2.Job.FromString(stored.spec),
        stored.job_id,
        stored.generation,
        stored.namespace,
        stored.name,
    )


def _compiled(stored: StoredDefinition) -> CompiledSchedule:
    return definitions.compiled(_definition(stored))


def _unknown(job: str) -> NotFound:
    return NotFound(
        f"there is no job {job!r}" if job else "no job was named",
        reason="NO_SUCH_JOB",
        remedy="see `schedctl job list`",
    )


def _old_etag(name: str) -> Aborted:
    return Aborted(
        f"job {name!r} was changed meanwhile",
        reason="ETAG_MISMATCH",
        remedy="read it again, and edit what you then see",
    )


def _taken(conflict: Conflict, what: str) -> AlreadyExists:
    if conflict.what == "key":
        return AlreadyExists(
            f"the idempotency key {what!r} was used for another body"
            if what
            else "the idempotency key was used for another body",
            reason="IDEMPOTENCY_KEY_REUSED",
            remedy="use a new key for a new call",
        )
    return AlreadyExists(
        f"there is a job {what!r} already",
        reason="NAME_TAKEN",
        remedy=f"edit it with `schedctl job patch {what}`, or choose another name",
    )
