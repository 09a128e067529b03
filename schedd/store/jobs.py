"""Jobs: made, read, edited, paused, resumed, deleted (PROTOCOL 3).

    lock the shard's row ─→ the job's ─→ its timer's ─→ its runs' ─→ write ─→ audit

Invariants
- A call that changes a job holds its shard's row first, so that no owner's batch is in flight
  beside it; if the job has moved meanwhile, it starts over.
- Definition and timer have the same generation, raised by every change of either.
- No call ends a run that was inserted early, but delete: the unique key would swallow the instant.
- A deleted job has no timer, and its name is free at once.
- What was due by a timer that is set anew or goes, and never fired, is reckoned from the timer as
  it stands under the lock, and accounted for in the same transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from sqlalchemy import (
    Boolean,
    Connection,
    Row,
    Select,
    bindparam,
    case,
    func,
    select,
    true,
    tuple_,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import IntegrityError

from schedd.core import because
from schedd.core.ids import JobId, ShardId, TenureId
from schedd.core.model import AuditEntry, NewRun, Priority, Trigger
from schedd.core.records import Conflict, Idempotency, JobRecord, StoredDefinition, TimerEdit
from schedd.store import audit, calendars, idempotency, standing
from schedd.store.arrays import clean
from schedd.store.database import Refused, StartOver
from schedd.store.inserting import insert_run_row
from schedd.store.schema import jobs, resumptions, timers
from schedd.store.waiting import cancel_waiting, skip_paused


def create_job(
    connection: Connection,
    record: JobRecord,
    wanted: Idempotency | None,
    entry: AuditEntry,
) -> JobRecord | Conflict:
    """Store job and timer; with a key used before, the job of then."""
    new = record.definition
    earlier = idempotency.claim(connection, wanted, new.job_id)
    if earlier is not None:
        return _stored(connection, JobId(earlier))
    insert_job(connection, record)
    _pin(connection, new)
    audit.write_all(connection, [entry])
    return _stored(connection, new.job_id)


def get_job(connection: Connection, namespace: str, job: str) -> JobRecord | None:
    """By id or by name; a submit's own job by id alone. None for a deleted one."""
    by_id = _uuid(job)
    where = jobs.c.job_id == by_id if by_id else (jobs.c.name == clean(job)) & ~jobs.c.ephemeral
    row = connection.execute(
        _records().where(jobs.c.namespace == clean(namespace), jobs.c.deleted_at.is_(None), where)
    ).first()
    return None if row is None else _record(row)


def records_of(connection: Connection, wanted: Collection[JobId]) -> list[JobRecord]:
    """Those of these that aren't deleted."""
    where = (jobs.c.job_id.in_(wanted), jobs.c.deleted_at.is_(None))
    return [_record(row) for row in connection.execute(_records().where(*where))]


def list_jobs(
    connection: Connection, namespace: str, after: tuple[datetime, JobId] | None, limit: int
) -> list[JobRecord]:
    """Newest first, past `after`."""
    query = (
        _records()
        .where(jobs.c.namespace == clean(namespace), jobs.c.deleted_at.is_(None), ~jobs.c.ephemeral)
        .order_by(jobs.c.created_at.desc(), jobs.c.job_id.desc())
        .limit(limit)
    )
    if after is not None:
        query = query.where(tuple_(jobs.c.created_at, jobs.c.job_id) < after)
    return [_record(row) for row in connection.execute(query)]


def update_job(
    connection: Connection,
    job_id: JobId,
    seen_generation: int,
    definition: StoredDefinition,
    timer: TimerEdit,
    entry: AuditEntry,
    missed: Callable[[JobRecord], NewRun | None] | None = None,
) -> JobRecord | Conflict | None:
    """Write a new generation, if the present one is the one seen. `missed` says of the job as it
    stood what accounts for what was due by the old schedule and never fired.
    """
    generation = lock_job(connection, job_id)
    if generation is None:
        return None
    if generation != seen_generation:
        return Conflict("etag", job_id)
    unfired = None if missed is None else missed(_stored(connection, job_id))
    try:
        _change(connection, job_id, name=clean(definition.name), spec=definition.spec)
    except IntegrityError as error:
        raise Refused(Conflict("name")) from error
    _pin(connection, definition)
    _set_timer(connection, job_id, timer)
    if unfired is not None:
        _account(connection, job_id, generation, unfired)
    audit.write_all(connection, [entry])
    return _stored(connection, job_id)


def pause_job(
    connection: Connection,
    job_id: JobId,
    note: str,
    actor: str,
    entry: AuditEntry,
    until: datetime | None = None,
    seen_generation: int | None = None,
) -> JobRecord | Conflict | None:
    """Nothing fires from the commit on; waiting runs wait. Pausing again changes the note and the
    end. A `Conflict` if the generation isn't the one seen.
    """
    generation = lock_job(connection, job_id)
    if generation is None:
        return None
    if seen_generation not in (None, generation):
        return Conflict("etag", job_id)
    _change(
        connection,
        job_id,
        pause_note=clean(note),
        paused_by=clean(actor),
        paused_at=func.coalesce(jobs.c.paused_at, func.clock_timestamp()),
    )
    _set_timer(connection, job_id, paused=True)
    standing.resume_at(connection, job_id, until)
    audit.write_all(connection, [entry])
    return _stored(connection, job_id)


def resume_job(
    connection: Connection,
    job_id: JobId,
    timer: TimerEdit,
    skipped: NewRun | None,
    entry: AuditEntry,
    seen_generation: int | None = None,
    until: datetime | None = None,
    *,
    tenure: TenureId | None = None,
) -> JobRecord | Conflict | None:
    """Let it fire again from `timer` on; what fell due in the pause is accounted for. A `Conflict`
    if the generation isn't the one that `timer` was reckoned from. `until`: the pause ended then.
    `tenure`: whose owner does it; None: a person's call.
    """
    generation = lock_job(connection, job_id)
    if generation is None:
        return None
    if seen_generation not in (None, generation):
        return Conflict("etag", job_id)
    was = _stored(connection, job_id)
    by = because.pause(was.paused_by, was.paused_at, was.pause_note)
    skip_paused(connection, job_id, by, tenure, until)
    if skipped is not None:
        _account(connection, job_id, generation, skipped, tenure)
    _change(connection, job_id, pause_note="", paused_by="", paused_at=None)
    _set_timer(connection, job_id, timer, paused=False)
    standing.forget(connection, job_id)
    audit.write_all(connection, [entry])
    return _stored(connection, job_id)


def delete_job(
    connection: Connection,
    job_id: JobId,
    entry: AuditEntry,
    missed: Callable[[JobRecord, datetime], NewRun | None] | None = None,
) -> bool:
    """Delete it: waiting runs are cancelled, running ones finish. False: it wasn't there. `missed`
    says of the job as it stood at that moment what accounts for what was due and never fired.
    """
    generation = lock_job(connection, job_id)
    if generation is None:
        return False
    now = connection.execute(select(func.clock_timestamp())).scalar_one()
    unfired = None if missed is None else missed(_stored(connection, job_id), now)
    if unfired is not None:
        _account(connection, job_id, generation, unfired)
    _change(connection, job_id, deleted_at=now)
    connection.execute(timers.delete().where(timers.c.job_id == job_id))
    standing.forget(connection, job_id)
    calendars.forget(connection, job_id)
    cancel_waiting(connection, job_id, because.deletion(entry.actor))
    audit.write_all(connection, [entry])
    return True


def lock_job(connection: Connection, job_id: JobId) -> int | None:
    """Lock the job's shard, then the job, then its timer; its generation, None if deleted."""
    where = select(timers.c.shard).where(timers.c.job_id == job_id)
    shard = connection.execute(where).scalar_one_or_none()
    if shard is None:
        return None
    connection.exec_driver_sql("SELECT 1 FROM shards WHERE id = %s FOR NO KEY UPDATE", (shard,))
    generation = connection.execute(
        select(jobs.c.generation)
        .where(jobs.c.job_id == job_id, jobs.c.deleted_at.is_(None))
        .with_for_update(key_share=True)
    ).scalar_one_or_none()
    if generation is None:
        return None
    now_in = connection.execute(where.with_for_update(key_share=True)).scalar_one_or_none()
    if now_in != shard:
        raise StartOver(f"job {job_id} moved from shard {shard} to {now_in}")
    return int(generation)


def _change(connection: Connection, job_id: JobId, **values: Any) -> None:
    connection.execute(
        jobs.update()
        .where(jobs.c.job_id == job_id)
        .values(generation=jobs.c.generation + 1, updated_at=func.clock_timestamp(), **values)
    )


def _pin(connection: Connection, definition: StoredDefinition) -> None:
    """Have it be computed with its calendars; refused if one of them was changed meanwhile."""
    namespace, pinned = clean(definition.namespace), definition.calendars
    if not pinned:
        calendars.forget(connection, definition.job_id)
    elif not calendars.pin(connection, definition.job_id, namespace, pinned):
        raise Refused(Conflict("calendar", definition.job_id))


def _account(
    connection: Connection,
    job_id: JobId,
    generation: int,
    fold: NewRun,
    tenure: TenureId | None = None,
) -> None:
    where = select(timers.c.shard).where(timers.c.job_id == job_id)
    shard = ShardId(connection.execute(where).scalar_one())
    insert_run_row(
        connection,
        job_id,
        shard,
        generation,
        fold,
        Trigger.SCHEDULE,
        Priority.MEDIUM,
        fired_by=tenure,
    )


def _set_timer(
    connection: Connection,
    job_id: JobId,
    edit: TimerEdit | None = None,
    *,
    paused: bool | None = None,
) -> None:
    values: dict[str, Any] = {"generation": timers.c.generation + 1}
    if edit is not None:
        values |= _edited(edit)
    if paused is not None:
        values["paused"] = paused
    connection.execute(timers.update().where(timers.c.job_id == job_id).values(**values))


def _edited(edit: TimerEdit) -> dict[str, Any]:
    """Judged on the row: the schedule may have made a run since it was read."""
    due: Any = timers.c.due_at
    nominal: Any = timers.c.nominal
    if edit.reset is not None:
        due, nominal = edit.reset
    elif edit.restart is not None:
        ended = due.is_(None)
        due = case((ended, edit.restart[0]), else_=due)
        nominal = case((ended, edit.restart[1]), else_=nominal)
    if not edit.max_runs:
        return {"due_at": due, "nominal": nominal, "fired": 0}
    return {
        "due_at": case((timers.c.fired >= edit.max_runs, None), else_=due),
        "nominal": nominal,
    }


def insert_job(connection: Connection, record: JobRecord) -> None:
    new = record.definition
    values = {
        "job_id": new.job_id,
        "namespace": clean(new.namespace),
        "name": clean(new.name),
        "shard": record.shard,
        "generation": new.generation,
        "spec": new.spec,
        "ephemeral": new.ephemeral,
        "created_at": record.created_at,
        "created_by": clean(record.created_by),
        "updated_at": record.updated_at,
        "pause_note": clean(record.pause_note),
        "paused_by": clean(record.paused_by),
        "is_paused": new.paused,
    }
    if connection.execute(_INSERT_JOB, values).first() is None:
        raise Refused(Conflict("name", _named(connection, new)))
    timer = {
        "job_id": new.job_id,
        "shard": record.shard,
        "due_at": record.due_at,
        "nominal": record.nominal,
        "generation": new.generation,
        "paused": new.paused,
        "fired": 0,
    }
    connection.execute(_INSERT_TIMER, timer)
    if record.paused_until is not None:
        standing.resume_at(connection, new.job_id, record.paused_until)


def _named(connection: Connection, taken: StoredDefinition) -> JobId | None:
    found = get_job(connection, taken.namespace, taken.name)
    return None if found is None else found.definition.job_id


def _stored(connection: Connection, job_id: JobId) -> JobRecord:
    return _record(connection.execute(_OF_ID, {"wanted": job_id}).one())


def _records() -> Select[Any]:
    pinned = calendars.pinned_lateral()
    return select(
        jobs,
        timers.c.due_at,
        timers.c.nominal,
        func.coalesce(timers.c.paused, False).label("paused"),
        func.coalesce(timers.c.fired, 0).label("fired"),
        resumptions.c.resume_at,
        pinned.c.names,
        pinned.c.versions,
        pinned.c.specs,
    ).select_from(
        jobs.outerjoin(timers, timers.c.job_id == jobs.c.job_id)
        .outerjoin(resumptions, resumptions.c.job_id == jobs.c.job_id)
        .outerjoin(pinned, true())
    )


# Made once: to put a statement together costs more than to run it.
_OF_ID: Final = _records().where(jobs.c.job_id == bindparam("wanted"))
_INSERT_TIMER: Final = timers.insert()
_INSERT_JOB: Final = (
    insert(jobs)
    .values(paused_at=case((bindparam("is_paused", type_=Boolean), func.clock_timestamp())))
    .on_conflict_do_nothing(
        index_elements=["namespace", "name"],
        index_where=jobs.c.deleted_at.is_(None) & ~jobs.c.ephemeral,
    )
    .returning(jobs.c.job_id)
)


def _record(row: Row[Any]) -> JobRecord:
    definition = StoredDefinition(
        JobId(row.job_id),
        row.generation,
        row.namespace,
        row.name,
        bytes(row.spec),
        paused=row.paused,
        deleted=row.deleted_at is not None,
        ephemeral=row.ephemeral,
        calendars=calendars.pinned(row.names, row.versions, row.specs),
    )
    return JobRecord(
        definition,
        ShardId(row.shard),
        row.due_at,
        row.nominal,
        row.pause_note,
        row.paused_by,
        row.created_at,
        row.created_by,
        row.updated_at,
        row.paused_at,
        row.resume_at,
        row.fired,
    )


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
