"""Statistics that an owner reads regularly of its shards: pools, overdue timers, backfills."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection

from schedd.core.cluster.statistics import LATE, MOST, QueueStats
from schedd.core.ids import JobId, ShardId
from schedd.core.runs.pools import PoolKey
from schedd.store.cluster import database_stats
from schedd.store.connection.database import Database, in_transaction
from schedd.store.statements import arrays
from schedd.store.statements.operations import operations
from schedkit.records import dataclass

MOST_POOLS: Final = 200
OF_EACH: Final = 20
"""Stored jobs of a pool that are read. Submitted work is left out."""
LOOKED_AT: Final = 200
"""Rows scanned for them: a pool may have had a million submitted runs."""
BEHIND: Final = f"interval '{LATE.total_seconds()} s'"

POOLS = f"""
SELECT p.namespace || '/' || p.name, ARRAY(
    SELECT job_id FROM (
        SELECT job_id, ephemeral FROM jobs j
        WHERE j.namespace = p.namespace AND j.pool = p.name AND j.pool IS NOT NULL
          AND j.deleted_at IS NULL
        LIMIT {LOOKED_AT}
    ) looked_at WHERE NOT ephemeral LIMIT {OF_EACH})
FROM pools p WHERE p.shard = ANY (%(shards)s::int[]) ORDER BY 1 LIMIT {MOST_POOLS}
"""

OVERDUE = f"""
SELECT (SELECT count(*) FROM (
        SELECT FROM unnest(%(shards)s::int[]) s(shard) CROSS JOIN LATERAL (
            SELECT FROM timers t
            WHERE t.shard = s.shard AND NOT paused AND due_at < statement_timestamp() - {BEHIND}
            ORDER BY due_at LIMIT {MOST}) t
        LIMIT {MOST}) overdue),
    COALESCE(clock_timestamp() - min(first), interval '0')
FROM unnest(%(shards)s::int[]) s(shard) LEFT JOIN LATERAL (
    SELECT due_at FROM timers t
    WHERE t.shard = s.shard AND NOT paused AND due_at < statement_timestamp() - {BEHIND}
    ORDER BY due_at LIMIT 1
) earliest(first) ON true
"""
"""The first timer of each shard is one index lookup, for any number of overdue timers."""

BACKFILLS = """
SELECT COALESCE(sum(cardinality(b.instants) - b.made), 0)::bigint
FROM backfills b JOIN timers t USING (job_id)
WHERE b.open AND t.shard = ANY (%(shards)s::int[])
"""


def read_queue_stats(connection: Connection, shards: Sequence[ShardId]) -> QueueStats:
    mine = {"shards": arrays.numbers(shards)}
    pools = connection.exec_driver_sql(POOLS, mine)
    named = {PoolKey(key): tuple(JobId(job) for job in jobs) for key, jobs in pools}
    overdue, behind = connection.exec_driver_sql(OVERDUE, mine).one()
    left = connection.exec_driver_sql(BACKFILLS, mine).scalar_one()
    return QueueStats(named, overdue, behind, left)


@operations("statistics")
@dataclass(frozen=True, slots=True)
class StatisticsStore:
    """Statistics that are read regularly. No decision depends on them."""

    database: Database

    read_queue_stats = in_transaction(read_queue_stats)
    read_database_stats = in_transaction(database_stats.read_stats)
