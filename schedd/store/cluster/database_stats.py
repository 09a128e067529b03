"""Statistics that the leader reads regularly: two short statements, at any size of the database."""

from __future__ import annotations

from sqlalchemy import Connection

from schedd.core.cluster.statistics import MOST_LETTERS, DatabaseSnapshot

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


def read_stats(connection: Connection) -> DatabaseSnapshot:
    now, oldest, oldest_id, holds = connection.exec_driver_sql(OLDEST).one()
    letters = connection.exec_driver_sql(LETTERS).scalar_one()
    return DatabaseSnapshot(now, oldest, oldest_id, holds, letters)
