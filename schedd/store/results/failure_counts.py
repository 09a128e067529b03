"""Automatic pauses and resumes of jobs: pauses with an end, and failures in a row.

    pause until T ─→ resumptions ─── T has come ──→ resumed by its shard's owner
    failed for good ─→ failing ── as often in a row as the job says ─→ paused by its shard's owner

Invariants
- A row of `resumptions` exists only with a paused timer. Every resume, and every pause without an
  end, deletes it.
- Failures are counted in the transaction that stores them. A success deletes the count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime

from sqlalchemy import Connection

from schedd.core.ids import JobId, ShardId
from schedd.store.statements import arrays

RESUME_AT = """
INSERT INTO resumptions (job_id, shard, resume_at)
SELECT job_id, shard, %(at)s FROM timers WHERE job_id = %(job)s
ON CONFLICT (job_id) DO UPDATE SET resume_at = EXCLUDED.resume_at
"""

SUCCEEDED = """
DELETE FROM failing WHERE job_id IN (
    SELECT f.job_id FROM failing f WHERE f.job_id = ANY (%(jobs)s::uuid[])
    ORDER BY f.job_id FOR UPDATE)
"""

FAILED = """
INSERT INTO failing (job_id, shard, failures, most)
SELECT * FROM unnest(%(jobs)s::uuid[], %(shards)s::int[], %(failures)s::int[], %(most)s::int[])
    b(job_id, shard, failures, most) ORDER BY job_id
ON CONFLICT (job_id) DO UPDATE SET failures = failing.failures + EXCLUDED.failures,
    most = EXCLUDED.most
"""

OVER = """
SELECT job_id FROM resumptions WHERE shard = ANY (%(shards)s::int[]) AND resume_at <= %(now)s
ORDER BY resume_at LIMIT %(limit)s
"""

TOO_OFTEN = """
SELECT job_id, failures FROM failing WHERE shard = ANY (%(shards)s::int[]) AND failures >= most
LIMIT %(limit)s
"""


def resume_at(connection: Connection, job_id: JobId, at: datetime | None) -> None:
    """Set when the paused job is resumed automatically; None: only by a user."""
    if at is None:
        connection.exec_driver_sql("DELETE FROM resumptions WHERE job_id = %s", (job_id,))
    else:
        connection.exec_driver_sql(RESUME_AT, {"job": job_id, "at": at})


def forget(connection: Connection, job_id: JobId) -> None:
    """Delete the counts and the automatic resume of a resumed or deleted job."""
    for table in ("resumptions", "failing"):
        connection.exec_driver_sql(f"DELETE FROM {table} WHERE job_id = %s", (job_id,))


def count(connection: Connection, ended: Iterable[tuple[JobId, ShardId, bool, int]]) -> None:
    """Count runs that ended for good, in order: job, shard, whether it succeeded, and how many
    failures in a row pause the job.
    """
    succeeded: set[JobId] = set()
    row: dict[JobId, tuple[ShardId, int, int]] = {}
    for job, shard, well, most in ended:
        if well:
            succeeded.add(job)
            row.pop(job, None)
        else:
            row[job] = (shard, row[job][1] + 1 if job in row else 1, most)
    if succeeded:
        connection.exec_driver_sql(SUCCEEDED, {"jobs": arrays.ids(sorted(succeeded))})
    if row:
        jobs = sorted(row)
        values = {
            "jobs": arrays.ids(jobs),
            "shards": arrays.numbers(row[job][0] for job in jobs),
            "failures": arrays.numbers(row[job][1] for job in jobs),
            "most": arrays.numbers(row[job][2] for job in jobs),
        }
        connection.exec_driver_sql(FAILED, values)


def recount(connection: Connection, job_id: JobId, most: int) -> None:
    """Set how many failures in a row pause the job; 0: delete its count."""
    change = "UPDATE failing SET most = %(most)s" if most else "DELETE FROM failing"
    connection.exec_driver_sql(f"{change} WHERE job_id = %(job)s", {"job": job_id, "most": most})


def read_ended_pauses(
    connection: Connection, shards: Collection[ShardId], now: datetime, limit: int
) -> list[JobId]:
    """Return jobs of these shards whose pause has ended by now, soonest first."""
    arguments = {"shards": arrays.numbers(shards), "now": now, "limit": limit}
    return [job for (job,) in connection.exec_driver_sql(OVER, arguments)]


def too_often(
    connection: Connection, shards: Collection[ShardId], limit: int
) -> list[tuple[JobId, int]]:
    """Return jobs of these shards that failed often enough to be paused, with the count."""
    arguments = {"shards": arrays.numbers(shards), "limit": limit}
    return [(job, failures) for job, failures in connection.exec_driver_sql(TOO_OFTEN, arguments)]
