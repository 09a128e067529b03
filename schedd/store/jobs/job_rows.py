"""The rows of a job: locked in one order, read with the rows that belong to them, changed together.

    shards ─→ jobs ─→ timers        locked (`lock_job`)
    jobs + timers + resumptions + pinned calendars ─→ JobRecord

Invariants
- Definition and timer have the same generation: `change` and `set_timer` raise it together.
- Scheduled times that never fired are accounted for (`account`) under the lock of the timer read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from itertools import repeat
from struct import iter_unpack
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, bindparam, case, func, select, true

from schedd.core.dispatch.ready_bucket_ids import LineId
from schedd.core.ids import Id, JobId, ShardId, TenureId
from schedd.core.jobs.definition import Priority
from schedd.core.runs.model import NewRun, Trigger
from schedd.core.runs.records import (
    NEVER_EDITED,
    JobOfText,
    JobRecord,
    StoredDefinition,
    StoredText,
    TimerEdit,
)
from schedd.core.timers.packed_timer import instant_of
from schedd.store.connection.database import StartOver
from schedd.store.jobs import calendars
from schedd.store.schema.tables import jobs, live, resumptions, timers
from schedd.store.statements import arrays
from schedd.store.statements.rows import ID, cut, record_of
from schedd.store.timers.run_insert import insert_run_row

LOCK_SHARDS: Final = """
SELECT 1 FROM shards WHERE id = ANY (%s::int[]) ORDER BY id FOR NO KEY UPDATE
"""

BY_KEY: Final = f"""
FROM unnest(%(jobs)s::uuid[]) b(job_id)
CROSS JOIN LATERAL (SELECT * FROM jobs j WHERE j.job_id = b.job_id OFFSET 0) j
{calendars.PINNED}
"""
"""Lookups by key, one for each job. A join would read the whole tables for some hundred jobs."""

DEFINITIONS: Final = f"""
SELECT b.job_id, j.generation, j.namespace, j.name, j.spec, COALESCE(t.paused, false),
    j.deleted_at IS NOT NULL, j.ephemeral, pinned.names, pinned.versions, pinned.specs
{BY_KEY}
LEFT JOIN LATERAL (SELECT paused FROM timers t WHERE t.job_id = b.job_id OFFSET 0) t ON true
"""

BY_TEXT: Final = f"""
SELECT j.spec, j.namespace, j.generation, j.ephemeral, pinned.names, pinned.versions, pinned.specs,
    string_agg(uuid_send(j.job_id), ''), array_agg(j.name),
    CASE WHEN j.generation > 1 THEN string_agg(timestamptz_send(j.updated_at), '') END
{BY_KEY}
GROUP BY 1, 2, 3, 4, 5, 6, 7
"""
"""Each text is sent once, with columns of its jobs."""


def lock_job(connection: Connection, job_id: JobId, *others: ShardId) -> int | None:
    """Lock the job's shard and `others`, then the job, then its timer. Returns the generation, None
    if the job is deleted.
    """
    where = select(timers.c.shard).where(timers.c.job_id == job_id)
    shard = connection.execute(where).scalar_one_or_none()
    if shard is None:
        return None
    connection.exec_driver_sql(LOCK_SHARDS, (arrays.numbers({shard, *others}),))
    generation = connection.execute(
        select(jobs.c.generation)
        .where(jobs.c.job_id == job_id, jobs.c.deleted_at.is_(None))
        .with_for_update(key_share=True)
    ).scalar_one_or_none()
    if generation is None:
        return None
    now_in = connection.execute(where.with_for_update(key_share=True)).scalar_one_or_none()
    if now_in != shard:
        raise StartOver(
            f"job {job_id} moved from shard {shard} to shard {now_in}: schedd repeats the"
            " transaction"
        )
    return int(generation)


def change(connection: Connection, job_id: JobId, **values: Any) -> None:
    connection.execute(
        jobs.update()
        .where(jobs.c.job_id == job_id)
        .values(generation=jobs.c.generation + 1, updated_at=func.clock_timestamp(), **values)
    )


def set_timer(
    connection: Connection,
    job_id: JobId,
    edit: TimerEdit | None = None,
    *,
    paused: bool | None = None,
    line: LineId | None = None,
) -> None:
    """Change the timer. `line`: the edited definition's; None: unchanged."""
    same = timers.c.line_generation == timers.c.generation
    values: dict[str, Any] = {
        "generation": timers.c.generation + 1,
        "line": case((same, timers.c.line)) if line is None else line,
        "line_generation": timers.c.generation + 1,
    }
    if edit is not None:
        values |= _edited(edit)
    if paused is not None:
        values["paused"] = paused
    connection.execute(timers.update().where(timers.c.job_id == job_id).values(**values))


def _edited(edit: TimerEdit) -> dict[str, Any]:
    """Return the new values as SQL: the timer may have fired since the caller read it."""
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
    return {"due_at": case((timers.c.fired >= edit.max_runs, None), else_=due), "nominal": nominal}


def account(
    connection: Connection,
    job_id: JobId,
    generation: int,
    merged: NewRun,
    tenure: TenureId | None = None,
) -> None:
    where = select(timers.c.shard).where(timers.c.job_id == job_id)
    shard = ShardId(connection.execute(where).scalar_one())
    insert_run_row(
        connection,
        job_id,
        shard,
        generation,
        merged,
        Trigger.SCHEDULE,
        Priority.MEDIUM,
        fired_by=tenure,
    )


def stored(connection: Connection, job_id: JobId) -> JobRecord:
    return job_record(connection.execute(_OF_ID, {"wanted": job_id}).one())


def records() -> Select[Any]:
    early = select(func.array_agg(live.c.scheduled_at)).where(
        live.c.shard == timers.c.shard,
        live.c.job_id == timers.c.job_id,
        live.c.scheduled_at > func.statement_timestamp(),
    )
    pinned = calendars.PINNED_LATERAL
    return select(
        jobs,
        timers.c.due_at,
        timers.c.nominal,
        func.coalesce(timers.c.paused, False).label("paused"),
        func.coalesce(timers.c.fired, 0).label("fired"),
        resumptions.c.resume_at,
        early.correlate(timers).scalar_subquery().label("early"),
        pinned.c.names,
        pinned.c.versions,
        pinned.c.specs,
    ).select_from(
        jobs.outerjoin(timers, timers.c.job_id == jobs.c.job_id)
        .outerjoin(resumptions, resumptions.c.job_id == jobs.c.job_id)
        .outerjoin(pinned, true())
    )


# Built once: building a statement costs more than running it.
_OF_ID: Final = records().where(jobs.c.job_id == bindparam("wanted"))


def job_record(row: Row[Any]) -> JobRecord:
    definition = record_of(
        StoredDefinition,
        row,
        deleted=row.deleted_at is not None,
        calendars=calendars.pinned(row.names, row.versions, row.specs),
        pool=row.pool or "",
    )
    return record_of(
        JobRecord,
        row,
        definition=definition,
        paused_until=row.resume_at,
        early=tuple(sorted(row.early or ())),
    )


def definitions(connection: Connection, jobs: Collection[JobId]) -> dict[JobId, StoredDefinition]:
    """Return the present definitions, of deleted jobs, too."""
    rows = connection.exec_driver_sql(DEFINITIONS, {"jobs": arrays.ids(jobs)})
    found = {}
    for job_id, generation, namespace, name, spec, paused, deleted, ephemeral, *pins in rows:
        found[job_id] = StoredDefinition(
            job_id,
            generation,
            namespace,
            name,
            bytes(spec),
            paused,
            deleted,
            ephemeral,
            calendars.pinned(*pins),
        )
    return found


def definitions_by_text(
    connection: Connection, jobs: Collection[JobId]
) -> dict[StoredText, list[JobOfText]]:
    """Return the present definitions, of deleted jobs, too, by text."""
    rows = connection.exec_driver_sql(BY_TEXT, {"jobs": arrays.ids(jobs)})
    found: dict[StoredText, list[JobOfText]] = defaultdict(list)
    for spec, namespace, generation, ephemeral, *pins, ids, names, edited in rows:
        text = StoredText(bytes(spec), namespace, generation, ephemeral, calendars.pinned(*pins))
        edits = [instant_of(at) for (at,) in iter_unpack(">q", edited)] if edited else ()
        its = zip(cut(ids, ID), names, edits or repeat(NEVER_EDITED), strict=False)
        found[text] += [(JobId(Id(job)), name, at) for job, name, at in its]
    return found
