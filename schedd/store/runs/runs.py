"""Read, trigger and cancel runs.

Invariants
- A trigger locks the job's timer FOR SHARE: no such row means that the job is deleted.
- A cancel ends a waiting run at once. A running one is marked, and the caller notifies its worker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import Connection, select, true

from schedd.core.ids import JobId, RunId, Token
from schedd.core.jobs.definition import Overlap, Priority
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import AuditRecord, NewRun, Trigger
from schedd.core.runs.records import Idempotency, StoreConflict, Submit
from schedd.core.runs.run_records import AttemptRecord, RunRecord
from schedd.store import audit
from schedd.store.connection.database import RolledBack
from schedd.store.jobs import pools
from schedd.store.jobs.jobs import insert_job
from schedd.store.runs.run_records import record, record_name, records
from schedd.store.schema.tables import attempts, jobs, outputs, results, runs, timers
from schedd.store.statements import idempotency
from schedd.store.statements.rows import decoded, record_of
from schedd.store.timers.run_insert import insert_run_row
from schedkit.records import replace

CANCEL = """
WITH ended AS (
    UPDATE runs SET state = 'CANCELLED', reason = 'BY_USER', cancelling = true,
        finished_at = clock_timestamp() WHERE run_id = %s RETURNING shard, job_id, run_id
)
DELETE FROM live l USING ended e
WHERE l.shard = e.shard AND l.job_id = e.job_id AND l.run_id = e.run_id
"""

ATTEMPT = (*(attempts.c[each.name] for each in fields(AttemptRecord)), attempts.c.digest)
"""The columns of an attempt, which the newest one has in the run's row."""


def submit_run(connection: Connection, submit: Submit) -> RunRecord | None:
    """Store one-time work, a job and its run. With a key used before, return the earlier run."""
    record, run = submit.record, submit.run
    earlier = idempotency.claim(connection, submit.key, run.key.run_id)
    if earlier is not None:
        return get_run(connection, RunId(earlier))
    insert_job(connection, record)
    new = record.definition
    if new.pool and not pools.hold(connection, new.namespace, new.pool):
        raise RolledBack(StoreConflict("pool", new.job_id))
    insert_run_row(
        *(connection, new.job_id, record.shard, new.generation, run, Trigger.SUBMIT),
        *(submit.priority, submit.payload),
    )
    audit.write_all(connection, [submit.entry])
    return get_run(connection, run.key.run_id)


def insert_run(
    connection: Connection,
    job_id: JobId,
    run: NewRun,
    trigger: Trigger,
    priority: Priority,
    payload: bytes | None,
    wanted: Idempotency | None,
    entry: AuditRecord,
    overlap: Overlap | None = None,
) -> RunRecord | StoreConflict | None:
    """Insert a run of a job. With a key used before, return the earlier run. None: the job is
    deleted. `StoreConflict`: it is submitted work, and its pool is deleted.
    """
    earlier = idempotency.claim(connection, wanted, run.key.run_id)
    if earlier is not None:
        return get_run(connection, RunId(earlier))
    timer = connection.execute(
        select(timers.c.shard, timers.c.generation, jobs.c.namespace, jobs.c.pool)
        .join(jobs, jobs.c.job_id == timers.c.job_id)
        .where(timers.c.job_id == job_id)
        .with_for_update(read=True, of=timers)
    ).first()
    if timer is None:
        return None
    if timer.pool and not pools.hold(connection, timer.namespace, timer.pool):
        raise RolledBack(StoreConflict("pool", job_id))
    insert_run_row(
        connection, job_id, timer.shard, timer.generation, run, trigger, priority, payload, overlap
    )
    audit.write_all(connection, [entry])
    return get_run(connection, run.key.run_id)


def get_run(connection: Connection, run_id: RunId) -> RunRecord | None:
    return next(iter(get_runs(connection, [run_id])), None)


def get_runs(connection: Connection, run_ids: Collection[RunId]) -> list[RunRecord]:
    query = records().where(runs.c.run_id.in_(run_ids))
    return decoded("runs", connection.execute(query), record, record_name)


def newest_states(
    connection: Connection, job_ids: Sequence[JobId], count: int
) -> dict[JobId, list[State]]:
    """Return the states of the newest runs of each of these jobs, newest first, without children of
    broadcasts. One statement for all jobs.
    """
    newest = (
        select(runs.c.state, runs.c.scheduled_at)
        .where(runs.c.job_id == jobs.c.job_id, runs.c.parent.is_(None))
        .order_by(runs.c.scheduled_at.desc())
        .limit(count)
        .lateral()
    )
    query = (
        select(jobs.c.job_id, newest.c.state)
        .select_from(jobs.join(newest, true()))
        .where(jobs.c.job_id.in_(job_ids))
        .order_by(jobs.c.job_id, newest.c.scheduled_at.desc())
    )
    found: dict[JobId, list[State]] = {job_id: [] for job_id in job_ids}
    for row in connection.execute(query):
        found[JobId(row.job_id)].append(State(row.state))
    return found


def cancel_run(
    connection: Connection,
    run_id: RunId,
    entry: AuditRecord,
    noted: Callable[[RunRecord, RunRecord], tuple[str, str]] | None = None,
) -> RunRecord | None:
    """Cancel a waiting run, or mark a running one. A run that has ended or is marked doesn't
    change, and gets no audit entry. `noted`: returns the audit log's texts before and after.
    """
    held = select(runs.c.run_id).where(runs.c.run_id == run_id).with_for_update(key_share=True)
    connection.execute(held)
    was = get_run(connection, run_id)
    if was is None:
        return None
    if was.run.state in (State.PENDING, State.RETRYING):
        connection.exec_driver_sql(CANCEL, (run_id,))
    elif was.run.state is State.RUNNING and not was.run.cancelling:
        connection.execute(runs.update().where(runs.c.run_id == run_id).values(cancelling=True))
    else:
        return was
    now = get_run(connection, run_id)
    if noted is not None and now is not None:
        before, after = noted(was, now)
        entry = replace(entry, before=before, after=after)
    audit.write_all(connection, [entry])
    return now


def attempts_of(connection: Connection, run_id: RunId) -> list[AttemptRecord]:
    """Return the run's assignments, oldest first. The newest one is in the run's own row."""
    earlier = select(*ATTEMPT).where(attempts.c.run_id == run_id)
    latest = select(*(runs.c[column.name] for column in ATTEMPT)).where(
        runs.c.run_id == run_id, runs.c.token > 0, runs.c.children.is_(None)
    )
    rows = connection.execute(earlier.union_all(latest).order_by("token"))
    return decoded("attempts", rows, _attempt)


def output(
    connection: Connection, run_id: RunId, token: Token | None
) -> tuple[Token, bytes] | None:
    """Return the log's pieces of one assignment, of the newest with a log if `token` is None."""
    query = select(outputs.c.token, outputs.c.pieces).where(outputs.c.run_id == run_id)
    if token is not None:
        query = query.where(outputs.c.token == token)
    found = connection.execute(query.order_by(outputs.c.token.desc()).limit(1)).one_or_none()
    return None if found is None else (Token(found.token), bytes(found.pieces))


def result(connection: Connection, run_id: RunId) -> bytes | None:
    query = select(results.c.payload).where(results.c.run_id == run_id)
    found = connection.execute(query).scalar()
    return None if found is None else bytes(found)


def _attempt(row: Any) -> AttemptRecord:
    failed = row.state == State.RETRYING and row.digest is not None
    return record_of(
        AttemptRecord,
        row,
        state=State.FAILED if failed else State(row.state),
        reason=None if row.reason is None else Reason(row.reason).value,
    )
