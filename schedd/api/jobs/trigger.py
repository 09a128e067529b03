"""Trigger a job: start a run by request."""

from dataclasses import replace

from schedd.api import pools, views
from schedd.api.definitions import validation
from schedd.api.errors import FieldViolation, refuse
from schedd.api.jobs import stored_jobs
from schedd.api.services import Caller, Services
from schedd.core.ids import RunId, new_id
from schedd.core.jobs.definition import Priority
from schedd.core.runs.model import NewRun, RunKey, Trigger
from schedd.core.runs.records import StoreConflict
from schedd.runtime import job_codec
from schedd.runtime.job_codec import JobDefinition
from schedproto.v1 import job_service_pb2, run_pb2


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
