"""Create the next runs of backfills, up to `max_parallel` of each (docs/protocol-rules.md, P3.18).

    with room, read ─→ lock timers, backfills ─→ count live runs ─→ insert runs, advance `made`

Invariants
- Called under the locks of the jobs' shards. Each call locks the backfill's row before it counts
  live runs. So `max_parallel` holds across owners, and no run is created after a cancel.
- `made` advances in the transaction that inserts the runs. Their ids derive from the backfill's id.
- A run's due time is its creation time, so it doesn't age before it exists.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from sqlalchemy import Connection

from schedd.core.ids import ShardId, TenureId, backfilled_run_id
from schedd.core.runs.model import LiveRun
from schedd.core.timers.backfill import OpenBackfill
from schedd.store.cluster.fence import BY_INDEX
from schedd.store.statements import arrays
from schedd.store.statements.rows import RUN_COLUMNS, decoded, live_run, run_id_of

AT_ONCE: Final = 200
"""Runs that one transaction creates, and backfills that it reads, as it holds locks."""

THERE = """
    (SELECT count(*) FROM live l CROSS JOIN LATERAL (
        SELECT * FROM runs r WHERE r.scheduled_at = l.scheduled_at AND r.run_id = l.run_id OFFSET 0
     ) r WHERE l.shard = t.shard AND l.job_id = b.job_id AND r.backfill = b.backfill_id)
"""
"""The number of live runs of the backfill `b`; `t` is its job's timer."""

OPEN = f"""
SELECT b.backfill_id, b.job_id, t.shard FROM backfills b JOIN timers t USING (job_id)
WHERE b.open AND t.shard = ANY (%(shards)s::int[]) AND {THERE} < b.max_parallel
  AND NOT (SELECT paused FROM cluster WHERE one)
ORDER BY b.created_at LIMIT {AT_ONCE}
"""

LOCK = """
SELECT b.backfill_id FROM backfills b JOIN timers t USING (job_id)
WHERE b.backfill_id = ANY (%(backfills)s::uuid[]) AND t.shard = ANY (%(shards)s::int[]) AND b.open
  AND NOT (SELECT paused FROM cluster WHERE one)
ORDER BY b.backfill_id FOR SHARE OF t FOR NO KEY UPDATE OF b
"""

NEXT = f"""
SELECT b.backfill_id, b.job_id, t.shard, t.generation, b.overlap, b.priority,
    b.instants[b.made + 1 : b.made + LEAST({AT_ONCE}, GREATEST(0, b.max_parallel - {THERE}))]
FROM backfills b JOIN timers t USING (job_id)
WHERE b.backfill_id = ANY (%(backfills)s::uuid[])
"""
"""A separate statement, so it sees everything that committed before the lock was acquired."""

MAKE = f"""
WITH b AS MATERIALIZED (
    SELECT * FROM unnest(%(backfills)s::uuid[], %(jobs)s::uuid[], %(shards)s::int[],
        %(generations)s::int[], %(overlaps)s::text[], %(priorities)s::smallint[],
        %(scheduled)s::timestamptz[], %(runs)s::uuid[])
      b(backfill_id, job_id, shard, generation, overlap, priority, scheduled_at, run_id)
), made AS (
    UPDATE backfills f SET made = f.made + m.count,
        open = f.made + m.count < cardinality(f.instants)
    FROM (SELECT backfill_id, count(*)::int FROM b GROUP BY backfill_id) m
    WHERE f.backfill_id = m.backfill_id
), inserted AS (
    INSERT INTO runs AS r (scheduled_at, run_id, job_id, due_at, shard, priority, trigger, state,
        ready_at, generation, overlap, backfill, fired_by)
    SELECT scheduled_at, run_id, job_id, statement_timestamp(), shard, priority, 'MANUAL',
        'PENDING', statement_timestamp(), generation, overlap, backfill_id, %(tenure)s
    FROM b ON CONFLICT DO NOTHING RETURNING {RUN_COLUMNS}
), waiting AS (
    INSERT INTO live (shard, job_id, run_id, scheduled_at)
    SELECT shard, job_id, run_id, scheduled_at FROM inserted ON CONFLICT DO NOTHING
)
SELECT * FROM inserted
"""


def with_room(connection: Connection, shards: Collection[ShardId]) -> list[OpenBackfill]:
    """Return backfills of these shards that may get more runs now, oldest first. A hint."""
    connection.exec_driver_sql(f"SELECT {BY_INDEX}")
    found = connection.exec_driver_sql(OPEN, {"shards": arrays.numbers(shards)})
    return [OpenBackfill(*row) for row in found]


def feed(
    connection: Connection,
    tenure: TenureId,
    wanted: Sequence[OpenBackfill],
    shards: Collection[ShardId],
) -> list[LiveRun]:
    """Create the next runs of these backfills. The caller holds the locks of `shards`."""
    arguments: dict[str, object] = {
        "backfills": arrays.ids(each.backfill_id for each in wanted),
        "shards": arrays.numbers(shards),
    }
    locked = connection.exec_driver_sql(LOCK, arguments).scalars().all()
    if not locked:
        return []
    rows = connection.exec_driver_sql(NEXT, {"backfills": arrays.ids(locked)}).all()
    new = [(*row[:6], at, backfilled_run_id(row[0], at)) for row in rows for at in row[6]][:AT_ONCE]
    if not new:
        return []
    ids, of, places, generations, overlaps, priorities, scheduled, run_ids = zip(*new, strict=True)
    made = connection.exec_driver_sql(
        MAKE,
        {
            "backfills": arrays.ids(ids),
            "jobs": arrays.ids(of),
            "shards": arrays.numbers(places),
            "generations": arrays.numbers(generations),
            "overlaps": arrays.texts(overlaps),
            "priorities": arrays.numbers(priorities),
            "scheduled": arrays.instants(scheduled),
            "runs": arrays.ids(run_ids),
            "tenure": tenure,
        },
    )
    return decoded("runs", made, live_run, run_id_of)
