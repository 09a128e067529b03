"""A job moves to another shard, for its pool is another one (PROTOCOL 3).

    both shards' rows, in order ─→ the job's ─→ its timer's ─→ its live runs' ─→ the new shard's
    epoch ─→ all that stands by shard: job, timer, resumption, failures, live runs, notifications

Invariants
- The new shard's epoch grows past the old one's, and past the clock as a taking's does: so whatever
  its owner hands out next has a greater token than the job's runs ever had. The owner finds its
  epoch gone, takes the shard anew, and reads it.
- A run that has ended stays where it was: nobody asks for its shard.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, select

from schedd.core.ids import JobId, ShardId
from schedd.store.cluster.membership import FLOOR
from schedd.store.dispatch.waiting_runs import LOCK_RUNS
from schedd.store.schema.tables import timers

RAISE: Final = f"""
UPDATE shards SET epoch = GREATEST(
    epoch + 1, (SELECT epoch + 1 FROM shards WHERE id = %(here)s), {FLOOR})
WHERE id = %(there)s
"""

MOVE: Final = (
    "UPDATE jobs SET shard = %(there)s WHERE job_id = %(job)s",
    "UPDATE timers SET shard = %(there)s WHERE job_id = %(job)s",
    "UPDATE resumptions SET shard = %(there)s WHERE job_id = %(job)s",
    "UPDATE failing SET shard = %(there)s WHERE job_id = %(job)s",
    """
    UPDATE runs r SET shard = %(there)s FROM live l
    WHERE l.shard = %(here)s AND l.job_id = %(job)s
      AND r.scheduled_at = l.scheduled_at AND r.run_id = l.run_id
    """,
    "UPDATE live SET shard = %(there)s WHERE shard = %(here)s AND job_id = %(job)s",
    "UPDATE notifications SET shard = %(there)s WHERE job_id = %(job)s",
)


def move(connection: Connection, job_id: JobId, there: ShardId) -> None:
    """Called with both shards' rows, the job's and its timer's locked."""
    timer = select(timers.c.shard).where(timers.c.job_id == job_id)
    here = connection.execute(timer).scalar_one()
    if here == there:
        return
    where = {"job": job_id, "here": here, "there": there}
    connection.exec_driver_sql(LOCK_RUNS, where | {"shard": here})
    connection.exec_driver_sql(RAISE, where)
    for statement in MOVE:
        connection.exec_driver_sql(statement, where)
