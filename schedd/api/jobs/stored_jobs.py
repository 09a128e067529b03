"""Stored jobs: find one by name, build a record from a definition, and the errors that calls on
jobs share.
"""

import hashlib
from datetime import datetime
from typing import TypeVar

from google.protobuf.message import Message

from schedd.api import views
from schedd.api.batches import KEYS
from schedd.api.budgeted_calls import compute
from schedd.api.definitions import references, validation
from schedd.api.errors import (
    AbortedError,
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    cut,
    not_found,
    refuse,
)
from schedd.api.services import DEFAULT_NAMESPACE, Caller, Services
from schedd.core.cluster.partition import shard_of_job
from schedd.core.ids import RunId
from schedd.core.runs.model import AuditRecord
from schedd.core.runs.records import (
    ChainRefused,
    Idempotency,
    JobRecord,
    StoreConflict,
    StoredDefinition,
)
from schedd.core.schedule.compiled_schedule import CompiledSchedule
from schedd.core.schedule.cron import ScheduleError
from schedd.runtime import job_codec
from schedd.runtime.job_codec import JobDefinition
from schedkit.errors import Unavailable

T = TypeVar("T")


def namespace_of(given: str) -> str:
    """Return the namespace of a request. Raises InvalidArgumentError."""
    if not given:
        return DEFAULT_NAMESPACE
    remedy = "leave it out for the namespace `default`"
    refuse([*validation.check_name(given, "namespace")], "BAD_NAMESPACE", remedy)
    return given


async def find(services: Services, namespace: str, job: str) -> JobRecord:
    """Return the job with this id or name. Raises NotFoundError."""
    record = await services.store.get_job(namespace_of(namespace), job) if job else None
    if record is None:
        raise unknown(job)
    return record


async def schedule_of(caller: Caller, definition: JobDefinition) -> CompiledSchedule:
    """Return the schedule of a stored job. Raises InvalidArgumentError if it isn't valid."""
    try:
        return await compute(caller, lambda: definition.schedule)
    except ScheduleError as error:
        raise InvalidArgumentError(
            f"the job's schedule is invalid: {error}",
            reason="INVALID_JOB",
            remedy=f"correct the schedule: schedctl job patch {definition.row.name}",
        ) from error


def new_record(caller: Caller, definition: JobDefinition, now: datetime) -> JobRecord:
    """Return the record to store for a validated definition."""
    stored, job = definition.stored, definition.message
    first = definition.schedule.first(now)
    return JobRecord(
        definition=stored,
        shard=shard_of_job(stored.job_id, stored.namespace, stored.pool),
        due_at=first.due if first else None,
        nominal=first.nominal if first else None,
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
    """Return the caller's key with a digest of the request."""
    if not key:
        return None
    if named := [field for field in KEYS if field in body.DESCRIPTOR.fields_by_name]:
        plain = type(body)()
        plain.CopyFrom(body)
        for field in named:
            plain.ClearField(field)
        body = plain
    digest = hashlib.sha256(body.SerializeToString(deterministic=True)).digest()
    return Idempotency(namespace, key, call, digest)


def audited(caller: Caller, action: str, stored: StoredDefinition, request_id: str) -> AuditRecord:
    """Return the audit line for a change of a job. For one-time work it names the run."""
    if not stored.ephemeral:
        return caller.audit(action, f"job/{stored.namespace}/{stored.name}", request_id)
    run_id = RunId(stored.job_id)
    return caller.audit(action, f"run/{run_id}", request_id, run_id=run_id)


def stored(
    result: T | StoreConflict | ChainRefused | Unavailable | None,
    *,
    name: str,
    asked: str = "",
    pool: str = "",
    key: str = "",
) -> T:
    """Return what the store wrote for a job of this name, pool and idempotency key. Raises the
    error for a rejected change. `asked`: the job in the request, if that may be an id.
    """
    if isinstance(result, Unavailable):
        raise result
    if isinstance(result, ChainRefused):
        raise references.chain_refusal(result, name)
    if result is None:
        raise unknown(asked or name)
    if not isinstance(result, StoreConflict):
        return result
    match result.what:
        case "key" | "name":
            raise taken(result, name=name, key=key)
        case "pool":
            raise references.missing_pool(pool)
        case "calendar":
            raise AbortedError(
                f"a calendar of job {name!r} was changed meanwhile",
                reason="CALENDAR_CHANGED",
                remedy="call again: the job is then checked with the new version",
            )
        case _:
            raise edited_meanwhile(name)


def pause_state(paused: bool, by: str, note: str, until: datetime | None) -> dict[str, object]:
    """Return the state of a pause of a job or pool, for the audit log."""
    if not paused:
        return {"paused": False}
    state: dict[str, object] = {"paused": True, "by": by, "note": note}
    return state if until is None else state | {"until": until.isoformat()}


def unknown(job: str) -> NotFoundError:
    """Return the error for a job that doesn't exist."""
    return not_found("job", repr(cut(job)), "job list")


def check_seen(stored: StoredDefinition, etags: str) -> None:
    """Raise AbortedError unless the etag matches one of `etags`, as in `If-Match`, if any."""
    seen = {one.strip() for one in etags.split(",")}
    if etags and views.etag(stored.job_id, stored.generation) not in seen:
        raise edited_meanwhile(stored.name)


def deleted_pool(what: str) -> FailedPreconditionError:
    """Return the error for another run of a deleted pool, which would wait without limit."""
    return FailedPreconditionError(
        f"{what} was deleted",
        reason="NO_SUCH_POOL",
        remedy="create the pool again, `schedctl pool set NAME --limit N`, or submit the work"
        " without a pool",
    )


def edited_meanwhile(name: str) -> AbortedError:
    """Return the error for an edit of an old version."""
    return AbortedError(
        f"job {name!r} was changed meanwhile",
        reason="ETAG_MISMATCH",
        remedy="read the job again, then edit the current version",
    )


def taken(conflict: StoreConflict, *, name: str, key: str) -> AlreadyExistsError:
    """Return the error for a name that exists, or an idempotency key that was used."""
    if conflict.what == "key":
        return AlreadyExistsError(
            f"idempotency key {key!r} was already used for a different request",
            reason="IDEMPOTENCY_KEY_REUSED",
            remedy="use a new idempotency key for a new call",
        )
    return AlreadyExistsError(
        f"job {name!r} already exists",
        reason="NAME_TAKEN",
        remedy=f"edit this job with `schedctl job patch {name}`, or choose another name",
    )
