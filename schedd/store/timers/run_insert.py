"""Insert a single run: for triggers, submits and resumes, outside the owner's batches."""

from __future__ import annotations

from sqlalchemy import Connection, func
from sqlalchemy.dialects.postgresql import insert

from schedd.core.ids import Id, JobId, RunId, ShardId, TenureId
from schedd.core.jobs.definition import Overlap, Priority
from schedd.core.runs.lifecycle import TERMINAL
from schedd.core.runs.model import NewRun, Trigger
from schedd.store.schema.tables import live, runs
from schedd.store.statements.arrays import clean


def insert_run_row(
    connection: Connection,
    job_id: JobId,
    shard: ShardId,
    generation: int,
    run: NewRun,
    trigger: Trigger,
    priority: Priority,
    payload: bytes | None = None,
    overlap: Overlap | None = None,
    fired_by: TenureId | None = None,
    redrive_of: RunId | None = None,
    root: Id | None = None,
) -> bool:
    """Insert the run, and its live row if it hasn't ended. False: the key exists already.
    `fired_by`: the owner's tenure; None: a user's call. `redrive_of`: the failed run that it
    repeats. `root`: the run that began its chain cycle; None: this run.
    """
    ended = run.state in TERMINAL
    made = connection.execute(
        insert(runs)
        .values(
            scheduled_at=run.key.scheduled_at,
            run_id=run.key.run_id,
            job_id=job_id,
            due_at=run.due_at,
            shard=shard,
            priority=priority.value,
            count=run.count,
            scheduled_until=run.scheduled_until,
            trigger=trigger.value,
            state=run.state.value,
            ready_at=run.due_at,
            generation=generation,
            reason=run.reason and run.reason.value,
            finished_at=func.clock_timestamp() if ended else None,
            payload=payload,
            overlap=overlap and overlap.value,
            fired_by=fired_by,
            redrive_of=redrive_of,
            root=root,
            excluded_by=clean(run.excluded_by) or None,
        )
        .on_conflict_do_nothing()
        .returning(runs.c.run_id)
    )
    if made.first() is None:
        return False
    if not ended:
        connection.execute(
            live.insert().values(
                shard=shard, job_id=job_id, run_id=run.key.run_id, scheduled_at=run.key.scheduled_at
            )
        )
    return True
