"""Count live work, at a cost that doesn't grow with idle jobs and ended runs. Find jobs that fail
repeatedly, and jobs with growing numbers of waiting runs, for the doctor.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from schedd.core.checkup.facts import FailingJob, GrowingQueue
from schedd.core.ids import SHARDS
from schedd.core.runs.records import Counts, SlotHolder, WaitingRuns
from schedd.store.cluster.fence import BY_INDEX
from schedd.store.statements import arrays

EXACT = 20_000
"""Rows that are counted exactly. Above, the planner's statistics are used. If they say twice as
many, nothing is counted: the number can't have dropped that far since the last ANALYZE.
"""

ROWS = """
SELECT count(*) FROM (SELECT 1 FROM {table} WHERE {where} LIMIT %(limit)s) rows
"""

ESTIMATE = (
    "SELECT GREATEST(reltuples, %(limit)s)::bigint FROM pg_class WHERE oid = %(of)s::regclass"
)

LIVE = """
SELECT r.state, count(*) FROM (SELECT scheduled_at, run_id FROM live LIMIT %(limit)s) l
CROSS JOIN LATERAL (
    SELECT CASE WHEN state = 'RUNNING' AND started_at IS NULL AND ready_at > statement_timestamp()
        THEN 'PENDING' ELSE state END AS state FROM runs r
    WHERE r.scheduled_at = l.scheduled_at AND r.run_id = l.run_id OFFSET 0
) r GROUP BY r.state
"""

OF_EACH_SHARD = 10
"""Live runs of each shard that `waits` reads: 2,560 in all."""
WAITS = """
SELECT r.job_id, r.target, count(*)::int, min(r.ready_at)
FROM generate_series(0, %(shards)s - 1) s(shard)
CROSS JOIN LATERAL (
    SELECT scheduled_at, run_id FROM live l WHERE l.shard = s.shard LIMIT %(each)s
) l CROSS JOIN LATERAL (
    SELECT job_id, target, ready_at, trigger FROM runs r
    WHERE r.scheduled_at = l.scheduled_at AND r.run_id = l.run_id
      AND state IN ('PENDING', 'RETRYING') AND ready_at < statement_timestamp() - interval '10 s'
    OFFSET 0
) r JOIN timers t ON t.job_id = r.job_id AND (NOT t.paused OR r.trigger IN ('MANUAL', 'SUBMIT'))
GROUP BY r.job_id, r.target ORDER BY 4 LIMIT %(most)s
"""
"""Runs that have waited less than 10 s are left out, and runs of paused jobs."""
MOST_WAITS = 50

HOLDERS = """
SELECT r.worker, j.namespace, CASE WHEN j.ephemeral THEN '' ELSE j.name END, count(*)::int,
    min(r.started_at)
FROM (SELECT scheduled_at, run_id FROM live LIMIT %(limit)s) l CROSS JOIN LATERAL (
    SELECT job_id, worker, started_at FROM runs r
    WHERE r.scheduled_at = l.scheduled_at AND r.run_id = l.run_id
      AND state = 'RUNNING' AND started_at IS NOT NULL AND worker = ANY(%(workers)s::text[])
    OFFSET 0
) r JOIN jobs j ON j.job_id = r.job_id
GROUP BY 1, 2, 3 ORDER BY 5 LIMIT %(most)s
"""
MOST_HOLDERS = 50

LETTERS = 2_000
"""Newest dead letters that are read."""
IN_A_ROW = 3
MOST_RUNS = 20
MOST_JOBS = 50
MOST_LIVE = 100_000
"""Live runs that are counted."""
MANY = 100
"""Waiting runs of one job from which it is reported."""
NEWEST = 1_000

FAILING = f"""
WITH candidates AS (
    SELECT job_id, count(*) AS dead FROM (
        SELECT job_id FROM dead_letters WHERE resolution IS NULL
        ORDER BY scheduled_at DESC, run_id DESC LIMIT {LETTERS}
    ) d GROUP BY job_id HAVING count(*) >= {IN_A_ROW} ORDER BY 2 DESC LIMIT {MOST_JOBS}
)
SELECT c.job_id, f.failed FROM candidates c CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE NOT succeeded) AS failed FROM (
        SELECT bool_or(state = 'SUCCEEDED') OVER (ORDER BY scheduled_at DESC) AS succeeded FROM (
            SELECT scheduled_at, state FROM runs WHERE job_id = c.job_id
            ORDER BY scheduled_at DESC LIMIT {5 * MOST_RUNS}
        ) newest WHERE state IN ('SUCCEEDED', 'FAILED')
        ORDER BY scheduled_at DESC LIMIT {MOST_RUNS}
    ) ended
) f WHERE f.failed >= {IN_A_ROW} ORDER BY f.failed DESC, c.dead DESC
"""

GROWING = f"""
WITH waiting AS (
    SELECT l.job_id, count(*) AS runs FROM (
        SELECT job_id FROM live LIMIT {MOST_LIVE}
    ) l GROUP BY l.job_id HAVING count(*) >= {MANY} ORDER BY 2 DESC LIMIT {MOST_JOBS}
)
SELECT w.job_id, w.runs, n.made, n.ended FROM waiting w CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE created_at > statement_timestamp() - interval '10 min') AS made,
        count(*) FILTER (WHERE finished_at > statement_timestamp() - interval '10 min') AS ended
    FROM (
        SELECT created_at, finished_at FROM runs WHERE job_id = w.job_id
        ORDER BY scheduled_at DESC LIMIT {NEWEST}
    ) newest
) n WHERE n.made > n.ended ORDER BY w.runs DESC
"""


def read_waiting_runs(connection: Connection) -> list[WaitingRuns]:
    """Return the longest waiting runs by job, of a sample of each shard's live runs."""
    connection.exec_driver_sql(f"SELECT {BY_INDEX}")
    asked = {"shards": SHARDS, "each": OF_EACH_SHARD, "most": MOST_WAITS}
    return [WaitingRuns(*row) for row in connection.exec_driver_sql(WAITS, asked)]


def read_slot_holders(connection: Connection, workers: Sequence[str]) -> list[SlotHolder]:
    """Return the running runs on these workers by job, those that started first in front."""
    connection.exec_driver_sql(f"SELECT {BY_INDEX}")
    asked = {"limit": EXACT, "workers": arrays.texts(workers), "most": MOST_HOLDERS}
    return [SlotHolder(*row) for row in connection.exec_driver_sql(HOLDERS, asked)]


def counts(connection: Connection) -> Counts:
    """Count stored jobs, live runs by state, and dead letters. Pre-dispatched runs count as waiting
    (`run_records.pre_dispatched`).
    """
    jobs = _count(connection, "jobs", "deleted_at IS NULL AND NOT ephemeral", "jobs_name")
    dead = _count(connection, "dead_letters", "resolution IS NULL", "dead_letters_waiting")
    live = _live(connection)
    return Counts(
        jobs, live.get("PENDING", 0), live.get("RUNNING", 0), live.get("RETRYING", 0), dead
    )


def _live(connection: Connection) -> dict[str, int]:
    """Return the number of live runs by state. Above `EXACT` it is extrapolated from a sample."""
    connection.exec_driver_sql(f"SELECT {BY_INDEX}")
    states: dict[str, int] = {
        row[0]: row[1] for row in connection.exec_driver_sql(LIVE, {"limit": EXACT})
    }
    seen = sum(states.values())
    if seen < EXACT:
        return states
    total: int = connection.exec_driver_sql("SELECT count(*) FROM live").scalar_one()
    return {state: count * max(total, seen) // seen for state, count in states.items()}


def _count(connection: Connection, table: str, where: str, statistics: str) -> int:
    limit = {"limit": EXACT}
    estimate: int = connection.exec_driver_sql(ESTIMATE, limit | {"of": statistics}).scalar_one()
    if estimate >= 2 * EXACT:
        return estimate
    statement = ROWS.format(table=table, where=where)
    counted: int = connection.exec_driver_sql(statement, limit).scalar_one()
    return counted if counted < EXACT else estimate


def failing(connection: Connection) -> list[FailingJob]:
    """Return jobs whose last runs failed, three times or more in a row."""
    connection.exec_driver_sql(f"SELECT {BY_INDEX}")
    rows = connection.exec_driver_sql(FAILING).all()
    return [FailingJob(job, failed, failed >= MOST_RUNS) for job, failed in rows]


def growing(connection: Connection) -> list[GrowingQueue]:
    """Return jobs with many waiting runs, where more runs are created than end."""
    return [GrowingQueue(*row) for row in connection.exec_driver_sql(GROWING)]
