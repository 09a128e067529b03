"""What was written down of an instant: the row that accounts for it, and who paused its job then.

Reads alone, for people who ask; nothing of firing goes through here.

Invariant: the rows of a job's schedule never overlap. So an instant is in the newest row that
begins no later, or in none.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, select

from schedd.core.ids import JobId
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import AuditEntry, Trigger
from schedd.core.runs.run_records import RunRecord
from schedd.store.runs.run_records import record, record_name, records
from schedd.store.schema.tables import audit, runs
from schedd.store.statements import arrays
from schedd.store.statements.rows import decoded


def accounted(connection: Connection, job_id: JobId, at: datetime) -> RunRecord | None:
    """The row of the schedule's own that begins at the instant, or folds it in."""
    query = _scheduled(job_id).where(runs.c.scheduled_at <= at)
    row = connection.execute(query.order_by(runs.c.scheduled_at.desc()).limit(1)).first()
    if row is None or (row.scheduled_until or row.scheduled_at) < at:
        return None
    return record(row)


def taken_by(connection: Connection, job_id: JobId, after: datetime) -> RunRecord | None:
    """What stands for instants that are COALESCED, the last of them `after`: rows follow each
    other, so it is the first that begins later but for what is COALESCED with them, or excluded.
    """
    between = (runs.c.state == State.COALESCED.value) | (runs.c.reason == Reason.CALENDAR.value)
    query = _scheduled(job_id).where(runs.c.scheduled_at > after, between.isnot(True))
    row = connection.execute(query.order_by(runs.c.scheduled_at).limit(1)).first()
    return None if row is None else record(row)


def backfilled(connection: Connection, job_id: JobId, at: datetime) -> list[RunRecord]:
    """Runs that backfills made of the instant, oldest first."""
    query = records().where(
        runs.c.job_id == job_id, runs.c.scheduled_at == at, runs.c.backfill.is_not(None)
    )
    found = connection.execute(query.order_by(runs.c.created_at))
    return decoded("runs", found, record, record_name)


def last_pause(
    connection: Connection, object_: str, since: datetime, at: datetime
) -> AuditEntry | None:
    """The audit's newest line that paused it no later than `at`. `since`: when it was made, for
    another one may have had its name before.
    """
    row = connection.execute(
        select(audit)
        .where(audit.c.object == arrays.clean(object_), audit.c.action == "pause")
        .where(audit.c.outcome == "ok", audit.c.at.between(since, at))
        .order_by(audit.c.seq.desc())
        .limit(1)
    ).first()
    if row is None:
        return None
    return AuditEntry(
        row.actor,
        row.action,
        row.object,
        row.outcome,
        at=row.at,
        before=row.before,
        after=row.after,
    )


def _scheduled(job_id: JobId) -> Select[Any]:
    return records().where(
        runs.c.job_id == job_id,
        runs.c.trigger == Trigger.SCHEDULE.value,
        runs.c.parent.is_(None),
    )
