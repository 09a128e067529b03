"""Read jobs that fail repeatedly, and jobs with growing numbers of waiting runs, for the doctor."""

from __future__ import annotations

from sqlalchemy import Connection

from schedd.core.checkup.facts import FailingJob, GrowingQueue
from schedd.store.cluster.fence import BY_INDEX

LETTERS = 2_000
"""Newest dead letters that are read."""
IN_A_ROW = 3
MOST_RUNS = 20
MOST_JOBS = 50
LIVE = 100_000
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
        SELECT job_id FROM live LIMIT {LIVE}
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


def failing(connection: Connection) -> list[FailingJob]:
    """Return jobs whose last runs failed, three times or more in a row."""
    connection.exec_driver_sql(f"SELECT {BY_INDEX}")
    rows = connection.exec_driver_sql(FAILING).all()
    return [FailingJob(job, failed, failed >= MOST_RUNS) for job, failed in rows]


def growing(connection: Connection) -> list[GrowingQueue]:
    """Return jobs with many waiting runs, where more runs are created than end."""
    return [GrowingQueue(*row) for row in connection.exec_driver_sql(GROWING)]
