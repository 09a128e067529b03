"""Pause and resume jobs, by a user's call or by their shard's owner (P3.1, P3.16).

    lock the job's rows ─→ who, when, why ─→ timer paused ⋯ missed times skipped ─→ timer set

Invariant: the transaction that ends a pause accounts for the scheduled times inside it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from sqlalchemy import Connection, func

from schedd.core.ids import JobId, TenureId
from schedd.core.runs import reasons
from schedd.core.runs.model import AuditRecord, NewRun
from schedd.core.runs.records import JobRecord, StoreConflict, TimerEdit
from schedd.store import audit
from schedd.store.dispatch.waiting_runs import skip_paused
from schedd.store.jobs.job_rows import account, change, lock_job, set_timer, stored
from schedd.store.results import failure_counts
from schedd.store.schema.tables import jobs
from schedd.store.statements.arrays import clean
from schedkit.records import replace


def pause_job(
    connection: Connection,
    job_id: JobId,
    note: str,
    actor: str,
    entry: AuditRecord,
    until: datetime | None = None,
    seen_generation: int | None = None,
    noted: Callable[[JobRecord], str] | None = None,
) -> JobRecord | StoreConflict | None:
    """Pause the job: nothing fires after the commit, and waiting runs wait. Pausing again replaces
    the end, and the note if one is given; nothing is written if both are the same. `StoreConflict`:
    the generation isn't the one seen. `noted`: returns the audit log's text for the job's state.
    """
    generation = lock_job(connection, job_id)
    if generation is None:
        return None
    if seen_generation not in (None, generation):
        return StoreConflict("etag", job_id)
    was = stored(connection, job_id)
    said = clean(note) or was.pause_note
    if was.definition.paused and (was.pause_note, was.paused_until) == (said, until):
        return was
    change(
        connection,
        job_id,
        pause_note=said,
        paused_by=clean(actor),
        paused_at=func.coalesce(jobs.c.paused_at, func.clock_timestamp()),
    )
    set_timer(connection, job_id, paused=True)
    failure_counts.resume_at(connection, job_id, until)
    now = stored(connection, job_id)
    if noted is not None:
        entry = replace(entry, before=noted(was), after=noted(now))
    audit.write_all(connection, [entry])
    return now


def resume_job(
    connection: Connection,
    job_id: JobId,
    timer: TimerEdit,
    skipped: NewRun | None,
    entry: AuditRecord,
    seen_generation: int | None = None,
    noted: Callable[[JobRecord], str] | None = None,
    *,
    until: datetime | None = None,
    tenure: TenureId | None = None,
) -> JobRecord | StoreConflict | None:
    """Resume the job with `timer`, and account for the scheduled times in the pause.
    `StoreConflict`: the generation isn't the one that `timer` was computed from. `until`: when the
    pause ended. `tenure`: the owner's, None for a user's call. `noted`: returns the audit log's
    text for the earlier state.
    """
    generation = lock_job(connection, job_id)
    if generation is None:
        return None
    if seen_generation not in (None, generation):
        return StoreConflict("etag", job_id)
    was = stored(connection, job_id)
    by = reasons.pause(was.paused_by, was.paused_at, was.pause_note)
    skip_paused(connection, job_id, by, tenure, until)
    if skipped is not None:
        account(connection, job_id, generation, skipped, tenure)
    change(connection, job_id, pause_note="", paused_by="", paused_at=None)
    set_timer(connection, job_id, timer, paused=False)
    failure_counts.forget(connection, job_id)
    before = entry.before if noted is None else noted(was)
    audit.write_all(connection, [replace(entry, before=before)])
    return stored(connection, job_id)
