"""Timers and the step from due to run: one statement advances timers and inserts their runs.

    firings ─→ UPDATE timers WHERE nothing about them changed ─→ INSERT INTO runs FROM the advanced

Invariants (PROTOCOL 3)
- Every row of the ledger, folds included, selects from the timers that advanced: a paused, edited,
  moved or already advanced timer leaves no run.
- The database's own clock holds a step back that comes early, whatever the owner believes.
- A row that is kept already (the same job and instant) stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection

from schedd.core.ids import JobId, ShardId, TenureId
from schedd.core.lifecycle import State
from schedd.core.model import Firing, LiveRun, Timer
from schedd.store import arrays
from schedd.store.rows import TIMER_COLUMNS, timer

DUE = f"""
SELECT {TIMER_COLUMNS} FROM timers t
WHERE t.shard = ANY (%(shards)s::int[]) AND t.due_at <= %(until)s
  AND NOT t.paused AND t.due_at IS NOT NULL
ORDER BY t.due_at LIMIT %(limit)s
"""

TIMERS = f"""
SELECT {TIMER_COLUMNS} FROM unnest(%(jobs)s::uuid[]) b(job_id) JOIN timers t USING (job_id)
"""

FIRE = """
WITH b AS (
    SELECT * FROM unnest(%(jobs)s::uuid[], %(shards)s::int[], %(generations)s::int[],
        %(due)s::timestamptz[], %(next_due)s::timestamptz[], %(next_nominal)s::timestamptz[],
        %(last)s::timestamptz[], %(priorities)s::smallint[])
      AS b(job_id, shard, generation, due_at, next_due, next_nominal, last_instant, priority)
), advanced AS (
    UPDATE timers t SET due_at = b.next_due, nominal = b.next_nominal FROM b
    WHERE t.job_id = b.job_id AND t.shard = b.shard AND t.generation = b.generation
      AND t.due_at = b.due_at AND NOT t.paused
      AND b.last_instant <= clock_timestamp() + %(horizon)s
    RETURNING t.job_id, t.shard, t.generation, b.priority
), new AS (
    SELECT * FROM unnest(%(run_jobs)s::uuid[], %(scheduled)s::timestamptz[], %(runs)s::uuid[],
        %(run_due)s::timestamptz[], %(states)s::text[], %(reasons)s::text[], %(counts)s::int[],
        %(until)s::timestamptz[])
      AS n(job_id, scheduled_at, run_id, due_at, state, reason, count, scheduled_until)
), inserted AS (
    INSERT INTO runs (scheduled_at, run_id, job_id, due_at, shard, priority, count,
        scheduled_until, fired_by, trigger, state, ready_at, generation, reason, finished_at)
    SELECT n.scheduled_at, n.run_id, n.job_id, n.due_at, a.shard, a.priority, n.count,
        n.scheduled_until, %(tenure)s, 'SCHEDULE', n.state, n.due_at, a.generation, n.reason,
        CASE WHEN n.state <> 'PENDING' THEN clock_timestamp() END
    FROM new n JOIN advanced a USING (job_id)
    ON CONFLICT DO NOTHING RETURNING shard, job_id, run_id, scheduled_at, state
), waiting AS (
    INSERT INTO live (shard, job_id, run_id, scheduled_at)
    SELECT shard, job_id, run_id, scheduled_at FROM inserted WHERE state = 'PENDING'
    ON CONFLICT DO NOTHING
)
SELECT a.job_id, i.run_id FROM advanced a LEFT JOIN inserted i USING (job_id)
"""


def due_timers(
    connection: Connection, shards: Collection[ShardId], until: datetime, limit: int
) -> list[Timer]:
    """Soonest first, from minus infinity: a creation may commit behind any watermark."""
    arguments = {"shards": arrays.numbers(shards), "until": until, "limit": limit}
    return [timer(row) for row in connection.exec_driver_sql(DUE, arguments)]


def timers(connection: Connection, jobs: Collection[JobId]) -> list[Timer]:
    """The timers of these jobs, paused ones too; none for a deleted job."""
    return [timer(row) for row in connection.exec_driver_sql(TIMERS, {"jobs": arrays.ids(jobs)})]


def fire(
    connection: Connection, tenure: TenureId, firings: Sequence[Firing], horizon: timedelta
) -> tuple[list[LiveRun], list[JobId]]:
    """Advance what may advance. Gives the new live runs, and the jobs whose timers didn't.

    At most one firing a job.
    """
    rows = connection.exec_driver_sql(FIRE, _arguments(tenure, firings, horizon)).all()
    advanced = {row[0] for row in rows}
    inserted = {row[1] for row in rows}
    live = [
        LiveRun(
            new.key,
            firing.job_id,
            firing.shard,
            State.PENDING,
            firing.priority,
            new.due_at,
            new.due_at,
            generation=firing.generation,
        )
        for firing in firings
        if firing.job_id in advanced
        for new in firing.runs
        if new.state is State.PENDING and new.key.run_id in inserted
    ]
    return live, [firing.job_id for firing in firings if firing.job_id not in advanced]


def _arguments(
    tenure: TenureId, firings: Sequence[Firing], horizon: timedelta
) -> dict[str, object]:
    runs = [(firing, run) for firing in firings for run in firing.runs]
    return {
        "tenure": tenure,
        "horizon": horizon,
        "jobs": arrays.ids(each.job_id for each in firings),
        "shards": arrays.numbers(each.shard for each in firings),
        "generations": arrays.numbers(each.generation for each in firings),
        "due": arrays.instants(each.due_at for each in firings),
        "next_due": arrays.instants(each.next_due_at for each in firings),
        "next_nominal": arrays.instants(each.next_nominal for each in firings),
        "last": arrays.instants(each.last_instant for each in firings),
        "priorities": arrays.numbers(each.priority.value for each in firings),
        "run_jobs": arrays.ids(each.job_id for each, _ in runs),
        "scheduled": arrays.instants(run.key.scheduled_at for _, run in runs),
        "runs": arrays.ids(run.key.run_id for _, run in runs),
        "run_due": arrays.instants(run.due_at for _, run in runs),
        "states": arrays.texts(run.state.value for _, run in runs),
        "reasons": arrays.texts(run.reason and run.reason.value for _, run in runs),
        "counts": arrays.numbers(run.count for _, run in runs),
        "until": arrays.instants(run.scheduled_until for _, run in runs),
    }
