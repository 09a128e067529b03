"""Read the row that accounts for a scheduled time, and who had paused the job then.

Read-only, for calls of users. Firing doesn't use it.

Invariant: the rows of a job's schedule never overlap. So a scheduled time is in the newest row that
begins no later, or in none.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select

from schedd.core.ids import JobId
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import Trigger
from schedd.core.runs.run_records import RunRecord
from schedd.store.runs.run_records import record, record_name, records
from schedd.store.schema.tables import runs
from schedd.store.statements.rows import decoded


def accounted(connection: Connection, job_id: JobId, at: datetime) -> RunRecord | None:
    """Return the schedule's row that begins at `at` or merges it."""
    query = _scheduled(job_id).where(runs.c.scheduled_at <= at)
    row = connection.execute(query.order_by(runs.c.scheduled_at.desc()).limit(1)).first()
    if row is None or (row.scheduled_until or row.scheduled_at) < at:
        return None
    return record(row)


def taken_by(connection: Connection, job_id: JobId, after: datetime) -> RunRecord | None:
    """Return the run that replaces COALESCED times up to `after`: the first later row that is
    neither COALESCED nor excluded by a calendar.
    """
    between = (runs.c.state == State.COALESCED.value) | (runs.c.reason == Reason.CALENDAR.value)
    query = _scheduled(job_id).where(runs.c.scheduled_at > after, between.isnot(True))
    row = connection.execute(query.order_by(runs.c.scheduled_at).limit(1)).first()
    return None if row is None else record(row)


def backfilled(connection: Connection, job_id: JobId, at: datetime) -> list[RunRecord]:
    """Return the backfilled runs of a scheduled time, oldest first."""
    query = records().where(
        runs.c.job_id == job_id, runs.c.scheduled_at == at, runs.c.backfill.is_not(None)
    )
    found = connection.execute(query.order_by(runs.c.created_at))
    return decoded("runs", found, record, record_name)


def _scheduled(job_id: JobId) -> Select[Any]:
    return records().where(
        runs.c.job_id == job_id, runs.c.trigger == Trigger.SCHEDULE.value, runs.c.parent.is_(None)
    )
