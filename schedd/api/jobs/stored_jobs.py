"""Jobs between the wire and the store: found by name, made from a checked message, and the
refusals that every call on them shares.
"""

import hashlib
from dataclasses import replace
from datetime import datetime

from google.protobuf.message import Message

from schedd.api import views
from schedd.api.definitions import validation
from schedd.api.errors import (
    Aborted,
    AlreadyExists,
    InvalidArgument,
    NotFound,
    Violation,
    cut,
    refuse,
)
from schedd.api.services import DEFAULT_NAMESPACE, Caller, Services
from schedd.core.cluster.partition import shard_of_job
from schedd.core.ids import JobId, RunId
from schedd.core.jobs.definition import Definition
from schedd.core.runs.model import AuditEntry
from schedd.core.runs.records import (
    Idempotency,
    JobRecord,
    PinnedCalendar,
    StoreConflict,
    StoredDefinition,
)
from schedd.core.schedule.compiled_schedule import CompiledSchedule
from schedd.runtime import job_codec
from schedproto.v1 import job_pb2


def namespace_of(given: str) -> str:
    """The namespace of a request. Raises InvalidArgument for what can't be one."""
    if not given:
        return DEFAULT_NAMESPACE
    remedy = "leave it out for the namespace `default`"
    refuse([*validation.check_name(given, "namespace")], "BAD_NAMESPACE", remedy)
    return given


async def find(services: Services, namespace: str, job: str) -> JobRecord:
    """The job of this id or name. Raises NotFound."""
    record = await services.store.get_job(namespace_of(namespace), job) if job else None
    if record is None:
        raise unknown(job)
    return record


def new_record(
    caller: Caller,
    job: job_pb2.Job,
    job_id: JobId,
    namespace: str,
    now: datetime,
    *,
    ephemeral: bool,
    calendars: tuple[PinnedCalendar, ...] = (),
) -> JobRecord:
    """The record of a job that was checked, as it will be stored."""
    spec = job_codec.spec_of(job)
    stored = StoredDefinition(
        job_id=job_id,
        generation=1,
        namespace=namespace,
        name=job.name,
        spec=spec.SerializeToString(deterministic=True),
        paused=job.paused,
        ephemeral=ephemeral,
        calendars=calendars,
        pool=job.pool,
        after=tuple(job.after.jobs),
        retention=job_codec.retention(job),
        line=job_codec.line_id(job, namespace),
    )
    schedule = job_codec.schedule_of(spec, job_id, namespace, job.name, calendars)
    due_at, nominal = first_timer(schedule, now)
    return JobRecord(
        definition=stored,
        shard=shard_of_job(job_id, namespace, job.pool),
        due_at=due_at,
        nominal=nominal,
        pause_note=job.pause_note,
        paused_by=caller.actor if job.paused else "",
        created_at=now,
        created_by=caller.actor,
        updated_at=now,
        paused_until=(
            job_codec.instant(job.paused_until) if job.HasField("paused_until") else None
        ),
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


def definition(stored: StoredDefinition) -> Definition:
    """As the core reads it."""
    return job_codec.stored_definition(stored)


def compiled(stored: StoredDefinition) -> CompiledSchedule:
    """Its schedule, ready to be asked for instants."""
    return job_codec.compiled(definition(stored))


def first_timer(
    schedule: CompiledSchedule, now: datetime
) -> tuple[datetime | None, datetime | None]:
    """When it is due first after `now`, and the instant that stands for; None, None: never."""
    first = schedule.first(now)
    return (first.due, first.nominal) if first else (None, None)


def audited(caller: Caller, action: str, stored: StoredDefinition, request_id: str) -> AuditEntry:
    """The audit's line for a change of a job; of one-time work, which has no name of its own, it
    names the run.
    """
    if not stored.ephemeral:
        return caller.audit(action, f"job/{stored.namespace}/{stored.name}", request_id)
    entry = caller.audit(action, f"run/{stored.job_id}", request_id)
    return replace(entry, run_id=RunId(stored.job_id))


def unknown(job: str) -> NotFound:
    """The refusal for a job that isn't there."""
    return NotFound(
        f"there is no job {cut(job)!r}" if job else "no job was named",
        reason="NO_SUCH_JOB",
        remedy="see `schedctl job list`",
    )


def another_job(name: str, job_id: str) -> InvalidArgument:
    """The refusal for an edit that names one job and bears the id of another."""
    return InvalidArgument(
        f"job.job_id: {cut(job_id)!r} isn't the id of job {cut(name)!r}",
        reason="JOB_ID_MISMATCH",
        remedy="leave the id out, or name the job that it belongs to; nothing was stored",
        violations=[Violation("job.job_id", f"isn't the id of job {cut(name)!r}")],
    )


def check_seen(stored: StoredDefinition, etags: str) -> None:
    """Raise Aborted unless this is what the caller has seen: its etag, or one of several with
    commas between, as `If-Match` has them; empty: it doesn't matter.
    """
    seen = {one.strip() for one in etags.split(",")}
    if etags and views.etag(stored.job_id, stored.generation) not in seen:
        raise edited_meanwhile(stored.name)


def edited_meanwhile(name: str) -> Aborted:
    """The refusal for an edit of what the caller hasn't seen."""
    return Aborted(
        f"job {name!r} was changed meanwhile",
        reason="ETAG_MISMATCH",
        remedy="read it again, and edit what you then see",
    )


def taken(conflict: StoreConflict, *, name: str, key: str) -> AlreadyExists:
    """The refusal for a name or an idempotency key that stands for something else."""
    if conflict.what == "key":
        return AlreadyExists(
            f"the idempotency key {key!r} was used for another body",
            reason="IDEMPOTENCY_KEY_REUSED",
            remedy="use a new key for a new call",
        )
    return AlreadyExists(
        f"there is a job {name!r} already",
        reason="NAME_TAKEN",
        remedy=f"edit it with `schedctl job patch {name}`, or choose another name",
    )
