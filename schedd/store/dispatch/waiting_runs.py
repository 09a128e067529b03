"""Change a job's waiting runs in a call: cancel at delete, skip at resume.

The job's live runs are locked first, in order. The change is a separate statement after that, so it
sees everything that results and assignments committed meanwhile.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection

from schedd.core.ids import JobId, TenureId
from schedd.core.runs.model import RunKey
from schedd.store.statements import arrays
from schedd.store.timers import run_quota

LOCK_RUNS = """
SELECT 1 FROM live l
JOIN runs r ON r.scheduled_at = l.scheduled_at AND r.run_id = l.run_id
WHERE l.shard = %(shard)s AND l.job_id = %(job)s
ORDER BY r.scheduled_at, r.run_id FOR NO KEY UPDATE OF r
"""

END = """
WITH ended AS (
    UPDATE runs r SET state = %(state)s, reason = %(reason)s, finished_at = clock_timestamp(),
        excluded_by = %(by)s,
        fired_by = CASE WHEN %(state)s = 'SKIPPED' THEN %(tenure)s ELSE r.fired_by END
    FROM live l
    WHERE l.shard = %(shard)s AND l.job_id = %(job)s
      AND r.scheduled_at = l.scheduled_at AND r.run_id = l.run_id
      AND r.state IN ('PENDING', 'RETRYING') AND {which}
    RETURNING r.run_id
)
DELETE FROM live l USING ended e
WHERE l.shard = %(shard)s AND l.job_id = %(job)s AND l.run_id = e.run_id
RETURNING l.scheduled_at, l.run_id
"""

CANCEL = END.format(which="true")

SKIP = END.format(
    which="""r.state = 'PENDING' AND r.losses = 0
      AND r.trigger = 'SCHEDULE' AND r.parent IS NULL
      AND r.scheduled_at <= LEAST(statement_timestamp(), %(until)s)
      AND r.scheduled_at > (SELECT paused_at FROM jobs WHERE job_id = %(job)s)"""
)


def cancel_waiting(connection: Connection, job_id: JobId, by: str) -> int:
    """Cancel the PENDING and RETRYING runs of a deleted job (CANCELLED, DELETED). Returns how many.
    `by`: who deleted the job, as text.
    """
    return len(_end(connection, CANCEL, job_id, "CANCELLED", "DELETED", by))


def skip_paused(
    connection: Connection,
    job_id: JobId,
    by: str,
    tenure: TenureId | None = None,
    until: datetime | None = None,
) -> None:
    """Skip runs of a resumed job that were inserted early for times in the pause (SKIPPED, PAUSED).
    `by`: the pause, as text. `tenure`: the owner that resumes; None: a user. `until`: when the
    pause ended; None: now.
    """
    skipped = _end(connection, SKIP, job_id, "SKIPPED", "PAUSED", by, until, tenure)
    run_quota.give_back(connection, skipped)


def _end(
    connection: Connection,
    statement: str,
    job_id: JobId,
    state: str,
    reason: str,
    by: str,
    until: datetime | None = None,
    tenure: TenureId | None = None,
) -> list[RunKey]:
    shard = connection.exec_driver_sql(
        "SELECT shard FROM jobs WHERE job_id = %s", (job_id,)
    ).scalar_one()
    arguments = {"job": job_id, "shard": shard, "state": state, "reason": reason, "until": until}
    arguments |= {"by": arrays.clean(by), "tenure": tenure}
    connection.exec_driver_sql(LOCK_RUNS, arguments)
    return [RunKey(*row) for row in connection.exec_driver_sql(statement, arguments)]
