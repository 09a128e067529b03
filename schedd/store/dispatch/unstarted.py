"""Attempts that may still start, which `ok` of a pause, edit or delete waits for (P3.8).

    RUNNING, not yet reported started    the assignment was dispatched
    a lost assignment                    its worker may still run: only its etcd lease expired

A run that was given back can't start: its worker rejected it or reported so. A rescue records each
assignment that it takes from a worker within its `start_by` (`rescue.RESCUE`). Its run
may have been dispatched again since, have ended, or have been deleted with its job.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, select, true
from sqlalchemy.engine import Row

from schedd.core.ids import JobId, Token
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import LiveRun
from schedd.core.runs.pools import PoolKey, pool_key
from schedd.store.runs.run_records import record, record_name, records
from schedd.store.schema.tables import jobs, live, lost_assignments, pool_turns, runs
from schedd.store.statements.rows import decoded
from schedkit.records import replace

FORGET = """
DELETE FROM lost_assignments WHERE (run_id, token) IN (
    SELECT run_id, token FROM lost_assignments
    WHERE start_by < statement_timestamp() - interval '1 min' FOR UPDATE SKIP LOCKED)
"""


def unstarted_attempts(
    connection: Connection, job_id: JobId | None, now: datetime, pool: tuple[str, str] | None = None
) -> list[LiveRun]:
    """Return attempts of a job, deleted ones too, or those dispatched in a pool (namespace and
    name), whatever pool their jobs have now. None: of all.

    A run that is lost between the two statements is in both results.
    """
    key = None if pool is None else pool_key(*pool)
    return [*_running(connection, job_id, now, key), *_lost(connection, job_id, now, key)]


def forget_expired(connection: Connection) -> None:
    """Delete lost assignments that can't start any more."""
    connection.exec_driver_sql(FORGET)


def _running(
    connection: Connection, job_id: JobId | None, now: datetime, key: PoolKey | None
) -> list[LiveRun]:
    query = (
        records()
        .join(live, (live.c.run_id == runs.c.run_id) & (live.c.scheduled_at == runs.c.scheduled_at))
        .where(
            runs.c.state == State.RUNNING.value,
            runs.c.start_by > now,
            runs.c.started_at.is_(None),
            _in_pool(key, runs.c.run_id, runs.c.token),
        )
    )
    if job_id is not None:
        query = query.where(
            jobs.c.job_id == job_id, live.c.job_id == job_id, live.c.shard == jobs.c.shard
        )
    return [one.run for one in decoded("runs", connection.execute(query), record, record_name)]


def _lost(
    connection: Connection, job_id: JobId | None, now: datetime, key: PoolKey | None
) -> list[LiveRun]:
    lost = lost_assignments.c
    query = (
        records()
        .join(
            lost_assignments,
            (lost.run_id == runs.c.run_id) & (lost.scheduled_at == runs.c.scheduled_at),
        )
        .add_columns(
            lost.token.label("lost_token"),
            lost.worker.label("lost_worker"),
            lost.incarnation.label("lost_incarnation"),
            lost.generation.label("lost_generation"),
            lost.start_by.label("lost_start_by"),
        )
        .where(lost.start_by > now, _in_pool(key, lost.run_id, lost.token))
    )
    if job_id is not None:
        query = query.where(lost.job_id == job_id)
    return decoded("runs", connection.execute(query), _as_it_was, record_name)


def _in_pool(key: PoolKey | None, run: Any, token: Any) -> ColumnElement[bool]:
    turn = pool_turns.c
    taken = select(turn.token).where(turn.run_id == run, turn.token == token, turn.pool == key)
    return true() if key is None else taken.exists()


def _as_it_was(row: Row[tuple[object, ...]]) -> LiveRun:
    return replace(
        record(row).run,
        token=Token(row.lost_token),
        worker=row.lost_worker,
        incarnation=row.lost_incarnation,
        generation=row.lost_generation,
        start_by=row.lost_start_by,
        started_at=None,
    )
