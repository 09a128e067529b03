"""Pause and resume a job. While it is paused, its schedule doesn't fire; triggers still work."""

from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final

from schedd.api import views
from schedd.api.budgeted_calls import compute
from schedd.api.definitions import validation
from schedd.api.errors import wrong
from schedd.api.jobs import quiesce, stored_jobs, timer_edit
from schedd.api.services import Caller, Services, compact
from schedd.core.runs.records import JobRecord, StoreConflict
from schedd.runtime import job_codec
from schedkit.protojson.problems import IN_THE_PAST
from schedproto.v1 import job_pb2, job_service_pb2

RESUMED_AT_MOST: Final = 5
"""Tries of a resume while others edit the job."""


async def pause_job(
    services: Services, caller: Caller, request: job_service_pb2.PauseJobRequest
) -> job_pb2.Job:
    """Pause a job until it is resumed, automatically at `until` if given. Triggers still work."""
    validation.check_note(request.note, "note")
    until = job_codec.instant(request.until) if request.HasField("until") else None
    if until is not None and until <= services.clock.now():
        raise wrong(
            "until",
            IN_THE_PAST,
            "give a time in the future, or leave `until` out to pause without an end",
        )
    record = await stored_jobs.find(services, request.namespace, request.job)
    stored = record.definition
    stored_jobs.check_seen(stored, request.etag)
    audit = stored_jobs.audited(caller, "pause", stored, request.request_id)
    async with quiesce.failover_check(services, f"job {stored.name}"):
        paused = await services.store.pause_job(
            stored.job_id,
            request.note,
            caller.actor,
            audit,
            until,
            stored.generation if request.etag else None,
            _audit_state,
        )
        if isinstance(paused, StoreConflict):
            raise stored_jobs.edited_meanwhile(stored.name)
        if paused is None:
            raise stored_jobs.unknown(request.job)
        await quiesce.quiesce_job(services, caller, paused)
    return views.job_message(paused)


async def resume_job(
    services: Services, caller: Caller, request: job_service_pb2.ResumeJobRequest
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
        resumed = await services.store.resume_job(
            stored.job_id,
            timer,
            skipped,
            replace(audit, after=compact({"paused": False})),
            stored.generation,
            _audit_state,
        )
        if not isinstance(resumed, StoreConflict):
            break  # else the job was edited meanwhile: compute the timer again
    else:
        raise stored_jobs.edited_meanwhile(request.job)
    if resumed is None:
        raise stored_jobs.unknown(request.job)
    services.wake_ups.jobs_changed([(stored.job_id, resumed.shard)])
    services.wake_ups.runs_ready([resumed.shard])
    return views.job_message(resumed)


def _audit_state(job: JobRecord) -> str:
    paused = job.definition.paused
    return compact(pause_state(paused, job.paused_by, job.pause_note, job.paused_until))


def pause_state(paused: bool, by: str, note: str, until: datetime | None) -> dict[str, object]:
    """Return a pause state, for the audit log."""
    if not paused:
        return {"paused": False}
    state: dict[str, object] = {"paused": True, "by": by, "note": note}
    return state if until is None else state | {"until": until.isoformat()}
