"""Statistics that are read regularly, by short statements at any size of the database: an owner's
pools, overdue timers and backfills, which work it has at all, and the leader's of the database.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection

from schedd.core.cluster.statistics import LATE, MOST, MOST_LETTERS, DatabaseSnapshot, QueueStats
from schedd.core.ids import JobId, ShardId
from schedd.core.runs.pools import PoolKey
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

OLDEST = """
SELECT clock_timestamp(), GREATEST(clock_timestamp() - min(began), interval '0'),
    pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmin(s) <> pg_snapshot_xmax(s)
FROM pg_current_snapshot() s, (
    SELECT xact_start FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND datname = current_database()
      AND COALESCE(backend_xid, backend_xmin) IS NOT NULL
      AND backend_type <> 'autovacuum worker'
    UNION ALL SELECT prepared FROM pg_prepared_xacts WHERE database = current_database()
    UNION ALL SELECT clock_timestamp()
) t(began)
GROUP BY 3, 4
"""
"""With the id of the oldest writing transaction: the role may not see when it began."""

LETTERS = f"""
SELECT count(*) FROM (
    SELECT FROM dead_letters WHERE resolution IS NULL LIMIT {MOST_LETTERS}
) waiting
"""

ANY = """
SELECT EXISTS (SELECT FROM chain_edges) OR EXISTS (SELECT FROM chain_arrivals),
    EXISTS (SELECT FROM backfills WHERE open),
    EXISTS (SELECT FROM redrives WHERE open), EXISTS (SELECT FROM notifications),
    EXISTS (SELECT FROM resumptions) OR EXISTS (SELECT FROM failing WHERE failures >= most)
"""
"""Each answer is the first entry of a table or of a partial index, for any number of rows."""


@dataclass(frozen=True, slots=True)
class PendingWork:
    """Whether any shard may have this work."""

    chains: bool
    backfills: bool
    redrives: bool
    notifications: bool
    pause_changes: bool


def read_pending_work(connection: Connection) -> PendingWork:
    """Return which kinds of work exist, of any shard. A hint."""
    return PendingWork(*connection.exec_driver_sql(ANY).one())


def read_queue_stats(connection: Connection, shards: Sequence[ShardId]) -> QueueStats:
    mine = {"shards": arrays.numbers(shards)}
    pools = connection.exec_driver_sql(POOLS, mine)
    named = {PoolKey(key): tuple(JobId(job) for job in jobs) for key, jobs in pools}
    overdue, behind = connection.exec_driver_sql(OVERDUE, mine).one()
    left = connection.exec_driver_sql(BACKFILLS, mine).scalar_one()
    return QueueStats(named, overdue, behind, left)


def read_database_stats(connection: Connection) -> DatabaseSnapshot:
    now, oldest, oldest_id, holds = connection.exec_driver_sql(OLDEST).one()
    letters = connection.exec_driver_sql(LETTERS).scalar_one()
    return DatabaseSnapshot(now, oldest, oldest_id, holds, letters)


@operations("statistics")
@dataclass(frozen=True, slots=True)
class StatisticsStore:
    """Statistics that are read regularly. No decision depends on them."""

    database: Database

    read_queue_stats = in_transaction(read_queue_stats)
    read_database_stats = in_transaction(read_database_stats)
