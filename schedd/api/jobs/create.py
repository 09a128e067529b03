"""Create jobs, one or many in a call: checked one by one, stored by group commit."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, TypeAlias

from google.protobuf.message import Message

from schedd.api import audit_diff, batches, views
from schedd.api.batches import RequestTemplates
from schedd.api.budgeted_calls import compute
from schedd.api.cluster.cluster import running_incarnations
from schedd.api.definitions import notifications, references, validation
from schedd.api.jobs import stored_jobs
from schedd.api.services import Caller, Services
from schedd.core.cluster.partition import shard_of_job
from schedd.core.dispatch.placement import able, asked_of_worker
from schedd.core.ids import JobId, ShardId, new_id
from schedd.core.jobs.definition import CatchUpPolicy, Definition, Overlap, matches_text
from schedd.core.runs.model import AuditRecord, Incarnation
from schedd.core.runs.records import ChainRefused, Create, Idempotency, JobRecord, StoreConflict
from schedd.core.schedule.cron import is_hashed
from schedd.runtime.job_codec import JobDefinition
from schedkit.errors import Unavailable
from schedproto.v1 import job_pb2
from schedproto.v1 import job_service_pb2 as wire

Answer: TypeAlias = JobRecord | StoreConflict | ChainRefused | Unavailable
Result: TypeAlias = wire.BatchCreateJobsResponse.Result
Definitions: TypeAlias = dict[JobId, JobDefinition]
"""The definitions of a call's requests that were checked."""

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
    if _is_soon(stored):
        services.wake_ups.jobs_changed([(stored.definition.job_id, stored.shard)])
    return await with_warnings(services, stored, definition)


async def batch_create_jobs(
    services: Services, caller: Caller, request: wire.BatchCreateJobsRequest
) -> wire.BatchCreateJobsResponse:
    """Create many jobs; each succeeds or fails as with `create_job`."""
    batches.check_count(request.requests)
    definitions: Definitions = {}
    templates: RequestTemplates[wire.CreateJobRequest, Create] = RequestTemplates("job.name")
    messages: dict[JobId, job_pb2.Job] = {}
    soon: list[tuple[JobId, ShardId]] = []
    warnings_of = await read_workers(services)

    async def check(one: wire.CreateJobRequest) -> Create | Result:
        checked = await _checked(services, caller, one, definitions)
        if isinstance(checked, job_pb2.Job):
            return Result(job=checked)
        # Else the item depends on the job's name and id elsewhere than `_derived` says.
        if checked.plain and not (one.job.HasField("jitter") or any(map(is_hashed, one.job.cron))):
            templates.add(one, checked)
        return checked

    def derive(one: wire.CreateJobRequest) -> Create | None:
        first, now = templates.find(one), services.clock.now()
        if first is None or (first.template.due_at or _NEVER) <= now:
            return None
        return _derived(caller, one, first, now)

    def message_of(template: JobRecord) -> job_pb2.Job:
        """Return the answer for a new job, which differs in `views.set_own` only."""
        job_id = template.definition.job_id
        if job_id not in messages:
            messages[job_id] = job = views.job_message(template, definitions[job_id])
            job.warnings.extend(warnings_of(definitions[job_id]))
        return messages[job_id]

    def convert(result: Result, one: wire.CreateJobRequest, made: Create | Answer) -> None:
        if isinstance(made, Create):
            result.job.CopyFrom(message_of(made.template))
            views.set_own(result.job, made.job_id, made.name, made.created_at)
            record, job_id, shard = made.template, made.job_id, made.shard
        else:
            record, definition = _made(one, made, definitions)
            result.job.CopyFrom(views.job_message(record, definition))
            result.job.warnings.extend(warnings_of(definition))
            job_id, shard = record.definition.job_id, record.shard
        if _is_soon(record):
            soon.append((job_id, shard))

    answer = wire.BatchCreateJobsResponse()
    store = services.store.create_jobs
    await batches.answer_all(request.requests, answer.results, check, store, convert, derive)
    if soon:
        services.wake_ups.jobs_changed(soon)
    if answer.ByteSize() > batches.MOST_BYTES:
        for result in answer.results:
            if result.HasField("error"):
                result.error.ClearField("violations")
            plain: Message = result.job
            for field, _ in plain.ListFields():
                if field.name not in NAMES:
                    plain.ClearField(field.name)
    return answer


def _is_soon(record: JobRecord) -> bool:
    """Return whether the owner must be woken: the timer is due soon, or a pause ends."""
    if record.paused_until is not None:
        return True
    return record.due_at is not None and record.due_at - record.created_at < SOON


async def _checked(
    services: Services, caller: Caller, request: wire.CreateJobRequest, definitions: Definitions
) -> Create | job_pb2.Job:
    """Return the item to store, and add its definition to `definitions`; with `validate_only`, the
    job as it would be.
    """
    now = services.clock.now()
    job = request.job
    namespace = stored_jobs.namespace_of(job.namespace)
    calendars = await references.calendars_of(services, namespace, job)
    definition = JobDefinition.requested(job, JobId(new_id()), namespace, calendars)
    await compute(caller, partial(validation.check, definition, now))
    await references.check_pool(services, namespace, job.pool)
    notifications.check_means(services, job)
    await references.check_parents(services, None, namespace, job)
    record = await compute(caller, partial(stored_jobs.new_record, caller, definition, now))
    if request.validate_only:
        if await services.store.get_job(namespace, job.name):
            raise stored_jobs.taken(StoreConflict("name"), name=job.name, key="")
        return await with_warnings(services, record, definition)
    definitions[record.definition.job_id] = definition
    key, entry = _noted(caller, request, namespace, audit_diff.definition(definition))
    return Create.first(record, key, entry)


def _noted(
    caller: Caller, request: wire.CreateJobRequest, namespace: str, after: str
) -> tuple[Idempotency | None, AuditRecord]:
    job = request.job
    return (
        stored_jobs.idempotency(namespace, request.idempotency_key, "CreateJob", job),
        caller.audit("create", f"job/{namespace}/{job.name}", request.request_id, after=after),
    )


def _derived(
    caller: Caller, request: wire.CreateJobRequest, first: Create, now: datetime
) -> Create:
    """Return the item of a request that differs from the first one's in name and keys only."""
    template = first.template.definition
    job_id = JobId(new_id())
    return Create(
        first.template,
        job_id,
        request.job.name,
        shard_of_job(job_id, template.namespace, template.pool),
        now,
        *_noted(caller, request, template.namespace, first.entry.after),
    )


def _made(
    request: wire.CreateJobRequest, stored: Answer, definitions: Definitions
) -> tuple[JobRecord, JobDefinition]:
    """Return the stored job and its definition. Raises the error for a rejected one."""
    job = request.job
    made = stored_jobs.stored(stored, name=job.name, pool=job.pool, key=request.idempotency_key)
    definition = definitions.get(made.definition.job_id)  # None: a repeated call
    return made, definition or JobDefinition.read(made.definition)


# Warn of jobs whose runs no running worker can take, or whose late runs would be skipped. A warning
# never fails the call, because the job is stored already.

WARNS_WITHIN: Final = 1.0
"""Seconds that reading the workers may take; after that there is no warning."""


SKIPS_LATE: Final = (
    "catch_up all with overlap skip: late runs become ready together, and all but one at a time are"
    " skipped; set overlap buffer_all or allow"
)


async def with_warnings(
    services: Services, record: JobRecord, definition: JobDefinition
) -> job_pb2.Job:
    """Return the job's API message with its warnings."""
    warnings_of = await read_workers(services)
    job = views.job_message(record, definition)
    job.warnings.extend(warnings_of(definition))
    return job


async def read_workers(services: Services) -> Callable[[JobDefinition], list[str]]:
    """Return the function that lists the warnings of a job for the workers that run now."""
    workers: Sequence[Incarnation] | None = None
    with suppress(Unavailable, TimeoutError):
        async with asyncio.timeout(WARNS_WITHIN):
            workers = await running_incarnations(services)

    def warnings_of(definition: JobDefinition) -> list[str]:
        job = definition.parsed
        # Each late time would get a run, and nearly all of these be skipped.
        skips = job.catch_up.policy is CatchUpPolicy.ALL and job.overlap is Overlap.SKIP
        unable = "" if workers is None else warning(job, workers)
        return [text for text in (SKIPS_LATE if skips else "", unable) if text]

    return warnings_of


def warning(definition: Definition, workers: Sequence[Incarnation]) -> str:
    """Return why none of these workers can run the job; empty if one can."""
    need = asked_of_worker(definition)
    if any(able(worker, need) for worker in workers):
        return ""
    waits = "its runs stay PENDING until one connects"
    if not workers:
        return f"no worker is running; {waits}"
    here = [worker for worker in workers if worker.may_work_for(need.namespace)]
    if not here:
        return f"no running worker serves namespace {need.namespace!r}; {waits}"
    runs = [worker for worker in here if need.action in worker.actions]
    if not runs:
        return f"no running worker runs {need.action} jobs; {waits}"
    handles = [one for one in runs if not need.handler or need.handler in one.handlers]
    if not handles:
        return f"no running worker has handler {need.handler!r}; {waits}"
    if not any(able(worker, replace(need, slots=1)) for worker in handles):
        what = f"handler {need.handler!r}" if need.handler else f"the {need.action} executor"
        return f"no running worker with {what} has {matches_text(need.require)}; {waits}"
    return f"no running worker that fits has {need.slots} slots; {waits}"
