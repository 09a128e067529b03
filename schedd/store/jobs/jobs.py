"""Create, read, edit and delete jobs (P3.1 to P3.3). `job_pauses` pauses and resumes them.

    lock the shard's row ─→ the job's ─→ its timer's ─→ its runs' ─→ write ─→ audit
    (a definition with `after`: the lock of the chains' graph first)

Invariants
- A call that changes a job locks its shard's row first, so no owner's batch runs at the same time.
  If the job has moved meanwhile, the call starts again.
- Only delete ends a run that was inserted early: its unique key would block the scheduled time.
- A deleted job has no timer, and its name is free at once.
- When a timer is reset or deleted, its scheduled times that never fired are computed from the timer
  under the lock, and accounted for in the same transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, TypeAlias

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Connection,
    LargeBinary,
    Select,
    bindparam,
    case,
    func,
    literal,
    select,
    tuple_,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import IntegrityError

from schedd.core.cluster.partition import shard_of_job
from schedd.core.ids import Id, JobId, ShardId
from schedd.core.jobs.notifications import NOT_REDIRECTED, ReroutedNotifications
from schedd.core.runs import reasons
from schedd.core.runs.model import AuditRecord, NewRun
from schedd.core.runs.records import (
    ALL_JOBS,
    ChainRefused,
    Deletion,
    Idempotency,
    JobFilter,
    JobRecord,
    StoreConflict,
    StoredDefinition,
    TimerEdit,
)
from schedd.store import audit
from schedd.store.cluster.membership import FLOOR
from schedd.store.connection.database import RolledBack, StartOver
from schedd.store.dispatch.waiting_runs import LOCK_RUNS, cancel_waiting
from schedd.store.jobs import calendars, chains, pools
from schedd.store.jobs.job_rows import (
    account,
    change,
    job_record,
    lock_job,
    records,
    set_timer,
    stored,
)
from schedd.store.notify import outbox, outbox_reroute
from schedd.store.results import failure_counts
from schedd.store.schema.tables import jobs, timers
from schedd.store.statements import idempotency
from schedd.store.statements.arrays import clean
from schedd.store.statements.rows import decoded

# A job moves to another shard when its pool changes (P3.2).
#
#     both shards' rows, in order ─→ the job's ─→ its timer's ─→ its live runs' ─→ the new shard's
#     epoch ─→ all rows with a shard: job, timer, resumption, failures, live runs, notifications
#
# Invariants
# - The new shard's epoch grows past the old one's, and past the clock, as in a takeover. So each
#   token of its owner is greater than the tokens of the job's runs. The owner finds that its epoch
#   isn't current, takes the shard again, and reads it.
# - A run that has ended keeps its shard: nothing reads it any more.

RAISE: Final = f"""
UPDATE shards SET epoch = GREATEST(
    epoch + 1, (SELECT epoch + 1 FROM shards WHERE id = %(here)s), {FLOOR})
WHERE id = %(there)s
"""

MOVE: Final = (
    "UPDATE jobs SET shard = %(there)s WHERE job_id = %(job)s",
    "UPDATE timers SET shard = %(there)s WHERE job_id = %(job)s",
    "UPDATE resumptions SET shard = %(there)s WHERE job_id = %(job)s",
    "UPDATE failing SET shard = %(there)s WHERE job_id = %(job)s",
    """
    UPDATE runs r SET shard = %(there)s FROM live l
    WHERE l.shard = %(here)s AND l.job_id = %(job)s
      AND r.scheduled_at = l.scheduled_at AND r.run_id = l.run_id
    """,
    "UPDATE live SET shard = %(there)s WHERE shard = %(here)s AND job_id = %(job)s",
    "UPDATE notifications SET shard = %(there)s WHERE job_id = %(job)s",
)


def move(connection: Connection, job_id: JobId, there: ShardId) -> None:
    """Move the job to another shard. The caller has locked both shards, the job and its timer."""
    timer = select(timers.c.shard).where(timers.c.job_id == job_id)
    here = connection.execute(timer).scalar_one()
    if here == there:
        return
    where = {"job": job_id, "here": here, "there": there}
    connection.exec_driver_sql(LOCK_RUNS, where | {"shard": here})
    connection.exec_driver_sql(RAISE, where)
    for statement in MOVE:
        connection.exec_driver_sql(statement, where)


LOOKED_AT: Final = 5_000
"""Jobs that one statement scans, in some hundredths of a second."""

Place: TypeAlias = tuple[datetime, JobId]
"""A position in a list of jobs: creation time and id of the last one."""

_PLACE: Final = tuple_(jobs.c.created_at, jobs.c.job_id)


def create_job(
    connection: Connection, record: JobRecord, wanted: Idempotency | None, entry: AuditRecord
) -> JobRecord | StoreConflict | ChainRefused:
    """Store job and timer. With a key used before, return the earlier job."""
    new = record.definition
    if new.after:
        chains.lock(connection)
    earlier = idempotency.claim(connection, wanted, new.job_id)
    if earlier is not None:
        return stored(connection, JobId(earlier))
    insert_job(connection, record)
    _pin(connection, new)
    if new.after:
        _link(connection, new)
    audit.write_all(connection, [entry])
    return stored(connection, new.job_id)


def get_job(connection: Connection, namespace: str, job: str) -> JobRecord | None:
    """Return a job by id or name, the job of a submit by id only. None for a deleted job."""
    by_id = _uuid(job)
    where = jobs.c.job_id == by_id if by_id else (jobs.c.name == clean(job)) & ~jobs.c.ephemeral
    row = connection.execute(
        records().where(jobs.c.namespace == clean(namespace), jobs.c.deleted_at.is_(None), where)
    ).first()
    return None if row is None else job_record(row)


def records_of(connection: Connection, wanted: Collection[JobId]) -> list[JobRecord]:
    where = (jobs.c.job_id.in_(wanted), jobs.c.deleted_at.is_(None))
    return decoded("jobs", connection.execute(records().where(*where)), job_record)


def list_jobs(
    connection: Connection,
    namespace: str,
    after: Place | None,
    limit: int,
    wanted: JobFilter = ALL_JOBS,
) -> tuple[list[JobRecord], Place | None]:
    """Return jobs after `after`, newest first, and the place where the scan ended; None: the end of
    the list. Without an index for the filter `LOOKED_AT` jobs are scanned.
    """
    end = None if wanted.by_index else _end(connection, namespace, after)
    query = _newest(records(), namespace, after).where(*_conditions(wanted)).limit(limit)
    if end is not None:
        query = query.where(end <= _PLACE)
    return [job_record(row) for row in connection.execute(query)], end


def newest_definitions(
    connection: Connection, namespace: str, limit: int
) -> list[StoredDefinition]:
    """Return the definitions of the newest jobs, without their calendars. `paused` is read from the
    job's row, `idle` from its timer.
    """
    its = select(timers.c.due_at.is_(None)).where(timers.c.job_id == jobs.c.job_id)
    said = select(
        jobs.c.job_id,
        jobs.c.generation,
        jobs.c.name,
        jobs.c.spec,
        jobs.c.paused_at,
        its.scalar_subquery().label("idle"),
    )
    rows = connection.execute(_newest(said, namespace, None).limit(limit)).all()
    return [
        StoredDefinition(
            JobId(row.job_id),
            row.generation,
            namespace,
            row.name,
            bytes(row.spec),
            bool(row.paused_at),
            idle=bool(row.idle),
        )
        for row in rows
    ]


def _end(connection: Connection, namespace: str, after: Place | None) -> Place | None:
    """Return where a scan after `after` ends; None: it reaches the end of the list."""
    places = _newest(select(jobs.c.created_at, jobs.c.job_id), namespace, after)
    last = connection.execute(places.offset(LOOKED_AT - 1).limit(1)).first()
    return None if last is None else (last.created_at, JobId(last.job_id))


def _newest(query: Select[Any], namespace: str, after: Place | None) -> Select[Any]:
    query = query.where(
        jobs.c.namespace == clean(namespace), jobs.c.deleted_at.is_(None), ~jobs.c.ephemeral
    ).order_by(jobs.c.created_at.desc(), jobs.c.job_id.desc())
    return query if after is None else query.where(after > _PLACE)


def _conditions(wanted: JobFilter) -> Iterator[ColumnElement[bool]]:
    """Return the filter's conditions. Full names and pools have an index; the rest needs a scan."""
    if "*" in wanted.name:
        likened = wanted.name.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        yield jobs.c.name.like(clean(likened.replace("*", "%")), escape="\\")
    elif wanted.name:
        yield jobs.c.name == clean(wanted.name)
    for word in wanted.words:
        yield jobs.c.name.contains(clean(word.lower()), autoescape=True)
    if wanted.paused is not None:  # a copy of the timer's flag: no join
        yield jobs.c.paused_at.is_not(None) if wanted.paused else jobs.c.paused_at.is_(None)
    if wanted.pool is not None:
        yield jobs.c.pool == clean(wanted.pool) if wanted.pool else jobs.c.pool.is_(None)
    for part in wanted.bytes_:
        yield func.position(literal(part, LargeBinary).op("IN")(jobs.c.spec)) > 0


def update_job(
    connection: Connection,
    job_id: JobId,
    seen_generation: int,
    definition: StoredDefinition,
    timer: TimerEdit,
    entry: AuditRecord,
    missed: Callable[[JobRecord], NewRun | None] | None = None,
    redirection: ReroutedNotifications = NOT_REDIRECTED,
) -> JobRecord | StoreConflict | ChainRefused | None:
    """Write a new generation, if the present one is the one seen. `missed` returns, for the job as
    it was, the row for scheduled times of the old schedule that never fired. `redirection` says
    what happens to notifications that wait for delivery.
    """
    if definition.after:
        chains.lock(connection)
    there = _elsewhere(connection, definition)
    generation = lock_job(connection, job_id, *there)
    if generation is None:
        return None
    if generation != seen_generation:
        return StoreConflict("etag", job_id)
    if there != _elsewhere(connection, definition):
        raise StartOver(
            f"the pool of job {job_id} changed during the edit: schedd repeats the transaction"
        )
    unfired = None if missed is None else missed(stored(connection, job_id))
    try:
        change(
            connection,
            job_id,
            name=clean(definition.name),
            spec=definition.spec,
            pool=definition.pool or None,
            retention=definition.retention,
        )
    except IntegrityError as error:
        raise RolledBack(StoreConflict("name")) from error
    for shard in there:
        move(connection, job_id, shard)
    outbox_reroute.edited(connection, job_id, redirection)
    _pin(connection, definition)
    _link(connection, definition)
    set_timer(connection, job_id, timer, line=definition.line)
    if unfired is not None:
        account(connection, job_id, generation, unfired)
    audit.write_all(connection, [entry])
    return stored(connection, job_id)


def _elsewhere(connection: Connection, edited: StoredDefinition) -> tuple[ShardId, ...]:
    """Return the shard that an edit moves the job to, empty if the pool doesn't change."""
    before = connection.execute(select(jobs.c.pool).where(jobs.c.job_id == edited.job_id)).scalar()
    if (before or "") == edited.pool:
        return ()
    return (shard_of_job(edited.job_id, edited.namespace, edited.pool),)


def delete_job(
    connection: Connection,
    job_id: JobId,
    entry: AuditRecord,
    missed: Callable[[JobRecord, datetime], NewRun | None] | None = None,
    noted: Callable[[JobRecord], str] | None = None,
    seen_generation: int | None = None,
) -> Deletion | StoreConflict | ChainRefused | None:
    """Delete the job: waiting runs are canceled, running ones finish. None: it doesn't exist.
    `missed` returns the row that accounts for scheduled times that never fired, `noted` the audit
    log's text. `ChainRefused`: other jobs run after it. `StoreConflict`: the generation isn't the
    one seen.
    """
    generation = lock_job(connection, job_id)
    if generation is None:
        return None
    if seen_generation not in (None, generation):
        return StoreConflict("etag", job_id)
    if named := chains.children(connection, job_id):
        return ChainRefused("child", ", ".join(named[:10]))
    now = connection.execute(select(func.clock_timestamp())).scalar_one()
    gone = stored(connection, job_id)
    unfired = None if missed is None else missed(gone, now)
    if unfired is not None:
        account(connection, job_id, generation, unfired)
    change(connection, job_id, deleted_at=now)
    connection.execute(timers.delete().where(timers.c.job_id == job_id))
    failure_counts.forget(connection, job_id)
    calendars.forget(connection, job_id)
    chains.forget(connection, job_id)
    cancelled = cancel_waiting(connection, job_id, reasons.deletion(entry.actor))
    outbox.forget(connection, job_id)
    before = entry.before if noted is None else noted(gone)
    audit.write_all(connection, [replace(entry, before=before)])
    return Deletion(cancelled)


def _pin(connection: Connection, definition: StoredDefinition) -> None:
    """Pin the definition's calendars, and lock its pool against deletion. Rolls back if a calendar
    changed meanwhile or the pool doesn't exist.
    """
    namespace, pinned = clean(definition.namespace), definition.calendars
    if not pinned:
        calendars.forget(connection, definition.job_id)
    elif not calendars.pin(connection, definition.job_id, namespace, pinned):
        raise RolledBack(StoreConflict("calendar", definition.job_id))
    if definition.pool and not pools.hold(connection, namespace, definition.pool):
        raise RolledBack(StoreConflict("pool", definition.job_id))


def _link(connection: Connection, definition: StoredDefinition) -> None:
    """Set the definition's parents. Rolls back if it can't run after them. The caller holds the
    graph's lock if there are any.
    """
    found: ChainRefused | dict[str, JobId] = {}
    if definition.after:
        found = chains.fault(
            connection, definition.job_id, definition.namespace, definition.name, definition.after
        )
    if isinstance(found, ChainRefused):
        raise RolledBack(found)
    chains.link(connection, definition.job_id, found)


# Built once: building a statement costs more than running it.
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
        "pool": new.pool or None,
        "retention": new.retention,
    }
    if connection.execute(_INSERT_JOB, values).first() is None:
        raise RolledBack(StoreConflict("name", _named(connection, new)))
    timer = {
        "job_id": new.job_id,
        "shard": record.shard,
        "due_at": record.due_at,
        "nominal": record.nominal,
        "generation": new.generation,
        "paused": new.paused,
        "fired": 0,
        "line": new.line,
        "line_generation": new.generation,
    }
    connection.execute(_INSERT_TIMER, timer)
    if record.paused_until is not None:
        failure_counts.resume_at(connection, new.job_id, record.paused_until)


def _named(connection: Connection, taken: StoredDefinition) -> JobId | None:
    found = get_job(connection, taken.namespace, taken.name)
    return None if found is None else found.definition.job_id


def _uuid(text: str) -> Id | None:
    try:
        return Id.parse(text)
    except ValueError:
        return None
