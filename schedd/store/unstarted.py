"""Attempts that may still start, whatever became of their runs: what `ok` waits for (PROTOCOL 3).

    RUNNING, not yet reported started          it was handed out
    WORKER_LOST, and waits                     its worker may live: etcd alone said that it was gone
    among the earlier attempts, WORKER_LOST    the same, and the run was handed out again since

What was given back was refused, or never will start by its worker's own word.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, Select, or_
from sqlalchemy.engine import Row

from schedd.core.ids import JobId, Token
from schedd.core.lifecycle import Reason, State
from schedd.core.model import LiveRun
from schedd.store.run_records import record, records
from schedd.store.schema import attempts, jobs, live, runs

LOST = Reason.WORKER_LOST.value


def unstarted_attempts(
    connection: Connection, job_id: JobId | None, now: datetime
) -> list[LiveRun]:
    """Those of a job, a deleted one too; None: of all, but for earlier attempts."""
    present = _live(job_id).where(
        runs.c.start_by > now,
        runs.c.started_at.is_(None),
        or_(runs.c.state == State.RUNNING.value, runs.c.reason == LOST),
    )
    found = [record(row).run for row in connection.execute(present)]
    if job_id is not None:
        found += [_earlier(row) for row in connection.execute(_lost_before(job_id, now))]
    return found


def _live(job_id: JobId | None) -> Select[tuple[object, ...]]:
    query = records().join(
        live, (live.c.run_id == runs.c.run_id) & (live.c.scheduled_at == runs.c.scheduled_at)
    )
    return query if job_id is None else query.where(*_of(job_id))


def _of(job_id: JobId) -> tuple[ColumnElement[bool], ...]:
    return jobs.c.job_id == job_id, live.c.job_id == job_id, live.c.shard == jobs.c.shard


def _lost_before(job_id: JobId, now: datetime) -> Select[tuple[object, ...]]:
    return (
        _live(job_id)
        .join(attempts, attempts.c.run_id == runs.c.run_id)
        .add_columns(
            attempts.c.token.label("earlier_token"),
            attempts.c.worker.label("earlier_worker"),
            attempts.c.incarnation.label("earlier_incarnation"),
            attempts.c.generation.label("earlier_generation"),
            attempts.c.start_by.label("earlier_start_by"),
        )
        .where(
            attempts.c.start_by > now,
            attempts.c.started_at.is_(None),
            attempts.c.reason == LOST,
        )
    )


def _earlier(row: Row[tuple[object, ...]]) -> LiveRun:
    return replace(
        record(row).run,
        token=Token(row.earlier_token),
        worker=row.earlier_worker,
        incarnation=row.earlier_incarnation,
        generation=row.earlier_generation,
        start_by=row.earlier_start_by,
        started_at=None,
    )
