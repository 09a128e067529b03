"""Create, list and cancel backfills. `backfill_feed` creates their runs.

    lock the job's row ─→ its timer's ─→ existing runs ─→ select times ─→ one row ─→ audit

Invariants
- Creating locks the job's row, so of two backfills of one range the second sees the first. It also
  locks the timer FOR SHARE: without that row the job is deleted (docs/protocol-rules.md, P3.1).
- Canceling locks the backfill's row, as creating its runs does, so it finds all of its runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, func, select, tuple_
from sqlalchemy.dialects.postgresql import JSONB

from schedd.core.ids import BackfillId, JobId, RunId, ShardId
from schedd.core.jobs.definition import Overlap, Priority
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import AuditRecord, LiveRun
from schedd.core.runs.records import Idempotency, StoreConflict
from schedd.core.timers.backfill import (
    Backfilled,
    BackfillRecord,
    BackfillRequest,
    BackfillSelection,
    ExistingRuns,
    Ran,
    plan,
)
from schedd.store import audit
from schedd.store.schema.tables import backfills, jobs, runs, timers
from schedd.store.statements import arrays, idempotency
from schedd.store.statements.arrays import clean
from schedd.store.statements.rows import RUN_COLUMNS, decoded, live_run, run_id_of
from schedkit.records import replace

RAN = """
SELECT r.scheduled_at, r.run_id, r.state, r.token > 0
FROM unnest(%(instants)s::timestamptz[]) b(at) CROSS JOIN LATERAL (
    SELECT * FROM runs r WHERE r.job_id = %(job)s AND r.scheduled_at = b.at
      AND r.scheduled_at >= %(first)s AND r.scheduled_at <= %(last)s OFFSET 0
) r
WHERE r.parent IS NULL
  AND (r.trigger = 'SCHEDULE' OR r.backfill IS NOT NULL OR r.redrive_of IS NOT NULL)
"""

PENDING = """
SELECT unnest(instants[made + 1:]) FROM backfills WHERE job_id = %(job)s AND open
UNION ALL
SELECT l.scheduled_at FROM dead_letters l JOIN redrives d ON d.redrive_id = l.redrive
WHERE l.job_id = %(job)s AND l.scheduled_at >= %(first)s AND l.scheduled_at <= %(last)s
  AND l.resolution IS NULL AND d.open
"""

CANCELLED = f"""
WITH there AS MATERIALIZED (
    SELECT r.scheduled_at, r.run_id FROM jobs j
    JOIN live l ON l.shard = j.shard AND l.job_id = j.job_id
    JOIN runs r ON r.scheduled_at = l.scheduled_at AND r.run_id = l.run_id
    WHERE j.job_id = %(job)s AND r.backfill = %(backfill)s
    ORDER BY r.scheduled_at, r.run_id FOR NO KEY UPDATE OF r
), changed AS (
    UPDATE runs r SET cancelling = true,
        state = CASE WHEN r.state = 'RUNNING' THEN r.state ELSE 'CANCELLED' END,
        reason = CASE WHEN r.state = 'RUNNING' THEN r.reason ELSE 'BY_USER' END,
        finished_at = CASE WHEN r.state = 'RUNNING' THEN r.finished_at
            ELSE statement_timestamp() END
    FROM there WHERE r.scheduled_at = there.scheduled_at AND r.run_id = there.run_id
      AND r.state IN ('PENDING', 'RUNNING', 'RETRYING')
    RETURNING {RUN_COLUMNS}
), gone AS (
    DELETE FROM live l USING changed c
    WHERE c.state = 'CANCELLED' AND l.shard = c.shard AND l.job_id = c.job_id
      AND l.run_id = c.run_id
)
SELECT * FROM changed
"""


def planned(connection: Connection, job_id: JobId, request: BackfillRequest) -> BackfillSelection:
    """Return what the backfill would run now. Locks and stores nothing."""
    return plan(request.instants, _existing(connection, job_id, request), request.rerun)


def create(
    connection: Connection,
    job_id: JobId,
    seen_generation: int,
    request: BackfillRequest,
    wanted: Idempotency | None,
    entry: AuditRecord,
) -> Backfilled | StoreConflict | None:
    """Store a backfill with the scheduled times that are selected now. With a key used before,
    return the earlier one.

    None: the job is deleted. `StoreConflict`: the job's generation isn't the one that the times
    were computed from.
    """
    earlier = idempotency.claim(connection, wanted, request.backfill_id)
    if earlier is not None:
        return _stored(connection, BackfillId(earlier), ())
    generation = connection.execute(
        select(jobs.c.generation)
        .where(jobs.c.job_id == job_id, jobs.c.deleted_at.is_(None))
        .with_for_update(key_share=True)
    ).scalar_one_or_none()
    timer = select(timers.c.shard).where(timers.c.job_id == job_id).with_for_update(read=True)
    if generation is None or connection.execute(timer).first() is None:
        return None
    if generation != seen_generation:
        return StoreConflict("etag", job_id)
    chosen = planned(connection, job_id, request)
    connection.execute(
        backfills.insert().values(
            backfill_id=request.backfill_id,
            job_id=job_id,
            first=request.first,
            last=request.last,
            instants=list(chosen.instants),
            made=0,
            open=bool(chosen.instants),
            overlap=request.overlap and request.overlap.value,
            max_parallel=request.max_parallel,
            priority=request.priority.value,
            created_at=func.clock_timestamp(),
            created_by=clean(request.by),
            cancelled_by="",
        )
    )
    audit.write_all(connection, [entry])
    return _stored(connection, request.backfill_id, chosen.omitted)


def get(connection: Connection, backfill_id: BackfillId) -> BackfillRecord | None:
    """Return one backfill, with the states of its runs."""
    row = connection.execute(_records().where(backfills.c.backfill_id == backfill_id)).first()
    return None if row is None else _record(row)


def newest(
    connection: Connection,
    namespace: str,
    job_id: JobId | None,
    after: tuple[datetime, BackfillId] | None,
    limit: int,
) -> list[BackfillRecord]:
    """Return backfills after `after` (created_at, id), newest first."""
    query = _records().where(jobs.c.namespace == clean(namespace))
    if job_id is not None:
        query = query.where(backfills.c.job_id == job_id)
    if after is not None:
        query = query.where(tuple_(backfills.c.created_at, backfills.c.backfill_id) < after)
    query = query.order_by(backfills.c.created_at.desc(), backfills.c.backfill_id.desc())
    return decoded("backfills", connection.execute(query.limit(limit)), _record)


def cancel(
    connection: Connection,
    backfill_id: BackfillId,
    by: str,
    entry: AuditRecord,
    noted: Callable[[BackfillRecord, Sequence[LiveRun]], tuple[str, str]],
) -> tuple[BackfillRecord, list[LiveRun]] | None:
    """Stop the backfill and cancel its live runs: waiting ones end now; running ones are marked,
    and the caller must notify their workers. Returns the changed runs. A finished backfill doesn't
    change. `noted`: returns the audit log's texts, from the earlier record and the changed runs.
    """
    mine = backfills.c.backfill_id == backfill_id
    locked = connection.execute(select(backfills).where(mine).with_for_update(key_share=True))
    row = locked.first()
    was = get(connection, backfill_id)
    if row is None or was is None:
        return None
    arguments = {"job": row.job_id, "backfill": backfill_id}
    found = connection.exec_driver_sql(CANCELLED, arguments)
    changed = decoded("runs", found, live_run, run_id_of)
    if row.cancelled_at is None and (row.open or changed):
        connection.execute(
            backfills.update()
            .where(mine)
            .values(open=False, cancelled_at=func.clock_timestamp(), cancelled_by=clean(by))
        )
        before, after = noted(was, changed)
        audit.write_all(connection, [replace(entry, before=before, after=after)])
    record = get(connection, backfill_id)
    assert record is not None
    return record, changed


def pending(connection: Connection, job_id: JobId, at: datetime) -> BackfillId | None:
    """Return the backfill that will create a run for this scheduled time of the job, if any."""
    to_come = func.array_position(backfills.c.instants, at) > backfills.c.made
    row = connection.execute(
        select(backfills.c.backfill_id)
        .where(backfills.c.job_id == job_id, backfills.c.open, to_come)
        .limit(1)
    ).first()
    return None if row is None else BackfillId(row.backfill_id)


def _existing(connection: Connection, job_id: JobId, request: BackfillRequest) -> ExistingRuns:
    arguments = {
        "job": job_id,
        "instants": arrays.instants(request.instants),
        "first": request.first,
        "last": request.last,
    }
    timer = connection.execute(
        select(timers.c.due_at, timers.c.nominal, timers.c.paused).where(timers.c.job_id == job_id)
    ).first()
    ran = connection.exec_driver_sql(RAN, arguments).all()
    return ExistingRuns(
        [Ran(at, RunId(run_id), State(state), dispatched) for at, run_id, state, dispatched in ran],
        set(connection.exec_driver_sql(PENDING, arguments).scalars()),
        # Times in a pause of the job never fire, so a backfill may run them meanwhile.
        None if timer is None or timer.paused or timer.due_at is None else timer.nominal,
    )


def _stored(connection: Connection, backfill_id: BackfillId, omitted: Any) -> Backfilled | None:
    record = get(connection, backfill_id)
    if record is None:
        return None
    instants = connection.execute(
        select(backfills.c.instants).where(backfills.c.backfill_id == backfill_id)
    ).scalar_one()
    return Backfilled(record, BackfillSelection(tuple(instants), tuple(omitted)))


def _records() -> Select[Any]:
    each = (
        select(runs.c.state, func.count().label("how_many"))
        .where(
            runs.c.job_id == backfills.c.job_id,
            runs.c.scheduled_at >= backfills.c.first,
            runs.c.scheduled_at <= backfills.c.last,
            runs.c.backfill == backfills.c.backfill_id,
        )
        .group_by(runs.c.state)
        .correlate(backfills)
        .subquery("each")
        .lateral()
    )
    run_states = (
        select(func.jsonb_object_agg(each.c.state, each.c.how_many, type_=JSONB))
        .select_from(each)
        .correlate(backfills)
        .scalar_subquery()
    )
    return select(
        *(column for column in backfills.c if column.name != "instants"),
        func.cardinality(backfills.c.instants).label("total"),
        jobs.c.namespace,
        jobs.c.name,
        jobs.c.shard,
        jobs.c.deleted_at,
        run_states.label("states"),
    ).select_from(backfills.join(jobs, jobs.c.job_id == backfills.c.job_id))


def _record(row: Row[Any]) -> BackfillRecord:
    return BackfillRecord(
        BackfillId(row.backfill_id),
        JobId(row.job_id),
        row.namespace,
        row.name,
        ShardId(row.shard),
        row.first,
        row.last,
        row.total,
        row.made,
        row.open,
        row.overlap and Overlap(row.overlap),
        row.max_parallel,
        Priority(row.priority),
        {State(state): count for state, count in (row.states or {}).items()},
        row.created_at,
        row.created_by,
        row.cancelled_at or (row.deleted_at if row.open else None),
        row.cancelled_by,
    )
