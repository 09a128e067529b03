"""Create jobs, one or many in a call: checked one by one, stored by group commit."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, TypeAlias

from google.protobuf.message import Message

from schedd.api import batches, pools, views
from schedd.api.audit import audit_diff
from schedd.api.batches import KEYS, RequestTemplates
from schedd.api.budgeted_calls import compute
from schedd.api.definitions import chains, exclusions, notifications, validation
from schedd.api.jobs import stored_jobs, worker_warnings
from schedd.api.services import Caller, Services
from schedd.core.ids import JobId, new_id
from schedd.core.runs.records import ChainRefused, Create, JobRecord, StoreConflict
from schedd.core.schedule.cron import is_hashed
from schedd.runtime.job_codec import JobDefinition
from schedkit.errors import Unavailable
from schedkit.records import replace
from schedproto.v1 import common_pb2, job_pb2
from schedproto.v1 import job_service_pb2 as wire

Answer: TypeAlias = JobRecord | StoreConflict | ChainRefused | Unavailable
Definitions: TypeAlias = dict[JobId, JobDefinition]
"""The definitions of a call's requests."""

_NEVER: Final = datetime.max.replace(tzinfo=UTC)

SOON: Final = timedelta(minutes=1)
"""Owners load timers that are due later without a wake-up (`timers/timer_loader.HORIZON`)."""

NAMES: Final = frozenset({"job_id", "namespace", "name", "generation", "etag", "warnings"})
"""Fields of each job that are kept in an answer that would be too large."""


async def create_job(
    services: Services, caller: Caller, request: wire.CreateJobRequest
) -> job_pb2.Job:
    """Create a job with its timer."""
    definitions: Definitions = {}
    checked = await _checked(services, caller, request, definitions)
    if isinstance(checked, job_pb2.Job):
        return checked
    answer = await services.store.create_job(checked.record, checked.key, checked.entry)
    stored, definition = _made(request, answer, definitions)
    _wake(services, [stored])
    return await worker_warnings.answer(services, stored, definition)


async def batch_create_jobs(
    services: Services, caller: Caller, request: wire.BatchCreateJobsRequest
) -> wire.BatchCreateJobsResponse:
    """Create many jobs; each succeeds or fails as with `create_job`."""
    batches.check_count(request.requests)
    definitions: Definitions = {}
    templates: RequestTemplates[wire.CreateJobRequest, Create] = RequestTemplates(_split)
    made: list[tuple[job_pb2.Job, JobDefinition]] = []
    records: list[JobRecord] = []

    async def check(one: wire.CreateJobRequest) -> Create | job_pb2.Job:
        checked = await _checked(services, caller, one, definitions)
        if isinstance(checked, Create) and _is_template(checked, one.job):
            templates.add(one, checked)
        return checked

    def derive(one: wire.CreateJobRequest) -> Create | None:
        template = templates.find(one)
        now = services.clock.now()
        if template is None or (template.record.due_at or _NEVER) <= now:
            return None
        derived = _derived(caller, one, template, now)
        ids = [each.record.definition.job_id for each in (template, derived)]
        definitions[ids[1]] = definitions[ids[0]]
        return derived

    def convert(one: wire.CreateJobRequest, answer: Answer) -> job_pb2.Job:
        stored, definition = _made(one, answer, definitions)
        made.append((job := views.job_message(stored, definition), definition))
        records.append(stored)
        return job

    outcomes = await batches.outcomes(
        request.requests, check, services.store.create_jobs, convert, derive
    )
    _wake(services, records)
    await worker_warnings.add(services, made)
    answer = wire.BatchCreateJobsResponse()
    for outcome in outcomes:
        if isinstance(outcome, common_pb2.CallError):
            answer.results.add(error=outcome)
        else:
            answer.results.add(job=outcome)
    if answer.ByteSize() > batches.MOST_BYTES:
        for result in answer.results:
            _cut(result)
    return answer


def _wake(services: Services, stored: Sequence[JobRecord]) -> None:
    """Wake the owners of the timers that are due soon, and of pauses that end."""
    soon = [
        (record.definition.job_id, record.shard)
        for record in stored
        if record.paused_until is not None
        or (record.due_at is not None and record.due_at - record.created_at < SOON)
    ]
    if soon:
        services.wake_ups.jobs_changed(soon)


def _cut(result: wire.BatchCreateJobsResponse.Result) -> None:
    if result.HasField("error"):
        result.error.ClearField("violations")
        return
    plain: Message = result.job
    for field, _ in plain.ListFields():
        if field.name not in NAMES:
            plain.ClearField(field.name)


async def _checked(
    services: Services,
    caller: Caller,
    request: wire.CreateJobRequest,
    definitions: Definitions,
) -> Create | job_pb2.Job:
    """Return the item to store, and add its definition to `definitions`; with `validate_only`, the
    job as it would be.
    """
    now = services.clock.now()
    job = request.job
    namespace = stored_jobs.namespace_of(job.namespace)
    calendars = await exclusions.calendars_of(services, namespace, job)
    definition = JobDefinition.requested(job, JobId(new_id()), namespace, calendars)
    await compute(caller, partial(validation.check, definition, now))
    await pools.check_there(services, namespace, job.pool)
    notifications.check_means(services, job)
    await chains.check(services, None, namespace, job)
    record = await compute(caller, partial(stored_jobs.new_record, caller, definition, now))
    if request.validate_only:
        if await services.store.get_job(namespace, job.name):
            raise stored_jobs.taken(StoreConflict("name"), name=job.name, key="")
        return await worker_warnings.answer(services, record, definition)
    definitions[record.definition.job_id] = definition
    return _item(caller, request, record, audit_diff.definition(definition))


def _item(caller: Caller, request: wire.CreateJobRequest, record: JobRecord, after: str) -> Create:
    namespace, job = record.definition.namespace, request.job
    return Create(
        record,
        stored_jobs.idempotency(namespace, request.idempotency_key, "CreateJob", job),
        caller.audit("create", f"job/{namespace}/{job.name}", request.request_id, after=after),
    )


def _split(request: wire.CreateJobRequest) -> tuple[str, wire.CreateJobRequest]:
    """Return the name of a request's job, and the request without name and keys."""
    common = wire.CreateJobRequest()
    common.CopyFrom(request)
    for field in KEYS:
        common.ClearField(field)
    common.job.ClearField("name")
    return request.job.name, common


def _is_template(create: Create, job: job_pb2.Job) -> bool:
    """Return whether the item depends on the job's name and id only where `_derived` says so."""
    hashed = job.HasField("jitter") or any(map(is_hashed, job.cron))
    return create.plain and not hashed


def _derived(
    caller: Caller, request: wire.CreateJobRequest, template: Create, now: datetime
) -> Create:
    """Return the item of a request that differs from the template's in name and keys only."""
    record = template.record
    job_id = JobId(new_id())
    stored = replace(record.definition, job_id=job_id, name=request.job.name)
    return _item(caller, request, stored_jobs.record_of(record, stored, now), template.entry.after)


def _made(
    request: wire.CreateJobRequest, stored: Answer, definitions: Definitions
) -> tuple[JobRecord, JobDefinition]:
    """Return the stored job and its definition. Raises the error for a rejected one."""
    job = request.job
    if isinstance(stored, Unavailable):
        raise stored
    if isinstance(stored, ChainRefused):
        raise chains.refusal(stored, job.name)
    if isinstance(stored, StoreConflict) and stored.what == "calendar":
        raise exclusions.changed_meanwhile(job.name)
    if isinstance(stored, StoreConflict) and stored.what == "pool":
        raise pools.missing(job.pool)
    if isinstance(stored, StoreConflict):
        raise stored_jobs.taken(stored, name=job.name, key=request.idempotency_key)
    definition = definitions.get(stored.definition.job_id)  # None: a repeated call
    return stored, definition or JobDefinition.read(stored.definition)
