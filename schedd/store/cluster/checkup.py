"""Read the facts about PostgreSQL for the doctor: settings, standbys, vacuum blockers, disk space.

The daemons' role reads them. Without `pg_read_all_stats` it sees of other roles' sessions only pid,
user, application, transaction ids and locks: every other column of `pg_stat_activity` is NULL.
Facts that it can't read are left out, never guessed.
"""

from __future__ import annotations

from sqlalchemy import Connection

from schedd.core.checkup.facts import DatabaseFacts, DatabaseSession, HeldLock, Replica, TableFacts
from schedd.core.ids import Timeline
from schedd.store.connection.primary_selection import TIMELINE
from schedd.store.schema import grants, partitions, revisions
from schedkit.clock import boottime

SETTINGS = (
    *revisions.TIMEOUTS,
    "fsync",
    "full_page_writes",
    "synchronous_commit",
    "synchronous_standby_names",
    "max_connections",
    "server_version_num",
    "server_encoding",
    "search_path",
)

ROLE = f"""
SELECT pg_is_in_recovery(),
    {TIMELINE},
    (SELECT count(*) FROM pg_stat_activity
     WHERE COALESCE(backend_type = 'client backend',
                    usesysid IS NOT NULL AND datid IS NOT NULL)),
    (SELECT age(datfrozenxid) FROM pg_database WHERE datname = current_database()),
    quote_ident(current_user)
"""

OLDEST = """
SELECT COALESCE(extract(epoch FROM clock_timestamp() - min(began)), 0),
    (SELECT pg_snapshot_xmax(s)::text::bigint - pg_snapshot_xmin(s)::text::bigint
     FROM pg_current_snapshot() s)
FROM (
    SELECT xact_start FROM pg_stat_activity WHERE pid <> pg_backend_pid()
    UNION ALL SELECT prepared FROM pg_prepared_xacts
) t(began)
"""

HIDDEN = """
SELECT a.pid, COALESCE(a.usename, ''), COALESCE(a.application_name, '') FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.usesysid IS NOT NULL AND a.backend_start IS NULL
  AND EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.locktype = 'virtualxid'
              AND l.mode = 'ExclusiveLock' AND l.granted)
ORDER BY 1
"""
"""Each open transaction holds a lock of its virtual id, which every role sees."""

LONG = 3
"""Seconds from which a transaction with conflicting locks is reported. schedd's own end earlier."""

LOCKS = f"""
WITH tables AS (
    SELECT c.oid, COALESCE(p.relname, c.relname)::text AS name
    FROM pg_class s
    JOIN pg_class c ON c.relnamespace = s.relnamespace AND c.relowner = s.relowner
    LEFT JOIN pg_inherits i ON i.inhrelid = c.oid LEFT JOIN pg_class p ON p.oid = i.inhparent
    WHERE s.oid = to_regclass('shards') AND c.relkind IN ('r', 'p')
), here AS (
    SELECT l.* FROM pg_locks l JOIN pg_database d ON d.datname = current_database()
    WHERE l.database = d.oid OR l.locktype = 'transactionid'
), found AS (
    SELECT l.pid, t.name, l.mode, l.granted FROM here l JOIN tables t ON t.oid = l.relation
    WHERE l.locktype = 'relation'
      AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
    UNION ALL
    SELECT h.pid, t.name, NULL, true
    FROM here w JOIN here h ON h.transactionid = w.transactionid AND h.granted
    JOIN here r ON r.pid = w.pid AND r.locktype = 'tuple' AND r.granted
    JOIN tables t ON t.oid = r.relation
    WHERE w.locktype = 'transactionid' AND NOT w.granted
      AND NOT EXISTS (SELECT FROM here x WHERE x.pid = h.pid AND NOT x.granted)
)
SELECT f.pid, COALESCE(a.usename, ''), COALESCE(a.application_name, ''),
    array_agg(DISTINCT f.name), array_remove(array_agg(DISTINCT f.mode), NULL),
    bool_or(f.granted), a.xact_start
FROM found f JOIN pg_stat_activity a USING (pid)
WHERE f.pid <> pg_backend_pid() AND a.usesysid IS NOT NULL
  AND COALESCE(clock_timestamp() - a.xact_start > interval '{LONG} s', true)
GROUP BY f.pid, a.usename, a.application_name, a.xact_start ORDER BY f.pid
"""
"""Reads catalogs only, so it never waits for the locks that it finds.

Locks of rows aren't listed, but a session that waits for a row waits for the transaction that
locked the row, and holds a `tuple` lock meanwhile. A session that has locked rows and waits itself
isn't the cause.
"""

TIMELINE_GIVEN = "SELECT schedd_timeline() IS NOT NULL"

REPLICAS = """
SELECT application_name, COALESCE(state, ''), COALESCE(sync_state, ''),
    COALESCE(pg_wal_lsn_diff({here}, replay_lsn), 0)::bigint
FROM pg_stat_replication ORDER BY 1
"""

ENDS_SESSIONS = """
SELECT has_function_privilege('pg_terminate_backend(int, bigint)', 'execute')
    AND has_function_privilege('pg_blocking_pids(int)', 'execute')
"""
"""Fencing needs both to end a session of its role that hangs inside a transaction."""

IDLE_SLOTS = "SELECT slot_name FROM pg_replication_slots WHERE NOT active ORDER BY 1"

SCHEMAS = """
SELECT ARRAY(
    SELECT DISTINCT n.nspname::text
    FROM unnest(%(tables)s::text[]) t(name)
    JOIN pg_class c ON c.oid = to_regclass(t.name)
    JOIN pg_namespace n ON n.oid = c.relnamespace ORDER BY 1
), ARRAY(
    SELECT n.nspname::text
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relname = ANY (%(tables)s) AND c.relkind IN ('r', 'p')
    GROUP BY n.nspname HAVING count(*) = cardinality(%(tables)s) ORDER BY 1
)
"""
"""Schemas in which the search path finds `OF_SCHEDD`, and those that have all of them."""

OF_SCHEDD = ["alembic_version", "jobs", "runs", "shards", "timers"]

TABLES = """
SELECT relname, n_live_tup, n_dead_tup FROM pg_stat_user_tables ORDER BY relname
"""

MAY_SEE_WAL = "SELECT has_function_privilege('pg_ls_waldir()', 'execute')"

WAL = "SELECT sum(size)::bigint FROM pg_ls_waldir()"


def read_locks(connection: Connection) -> tuple[HeldLock, ...]:
    """Return the sessions whose locks block statements on schedd's tables."""
    return tuple(
        HeldLock(
            DatabaseSession(pid, user, application), tuple(tables), tuple(modes), granted, since
        )
        for pid, user, application, tables, modes, granted, since in connection.exec_driver_sql(
            LOCKS
        )
    )


def read_facts(connection: Connection) -> DatabaseFacts:
    began = boottime()
    settings = {
        name: str(connection.exec_driver_sql(f"SHOW {name}").scalar_one()) for name in SETTINGS
    }
    in_recovery, timeline, connections, age, user = connection.exec_driver_sql(ROLE).one()
    took = (boottime() - began) / (len(SETTINGS) + 1)
    oldest, held_back = connection.exec_driver_sql(OLDEST).one()
    schema = revisions.read_schema_state(connection)
    schemas, copies = connection.exec_driver_sql(SCHEMAS, {"tables": OF_SCHEDD}).one()
    given = in_recovery or connection.exec_driver_sql(TIMELINE_GIVEN).scalar_one()
    here = "pg_current_wal_lsn()" if given else "sent_lsn"
    replicas = () if in_recovery else connection.exec_driver_sql(REPLICAS.format(here=here)).all()
    return DatabaseFacts(
        version=int(settings["server_version_num"]),
        settings=settings,
        in_recovery=in_recovery,
        timeline=Timeline(timeline),
        timeline_given=given,
        lacks=grants.missing(connection),
        ends_sessions=connection.exec_driver_sql(ENDS_SESSIONS).scalar_one(),
        connections=connections,
        replicas=tuple(Replica(*row) for row in replicas),
        idle_slots=tuple(connection.exec_driver_sql(IDLE_SLOTS).scalars()),
        oldest_transaction=float(oldest),
        hidden=tuple(DatabaseSession(*row) for row in connection.exec_driver_sql(HIDDEN)),
        user=user,
        held_back=held_back,
        wal=_wal(connection),
        tables=tuple(TableFacts(*row) for row in connection.exec_driver_sql(TABLES)),
        age=age,
        schema=schema.revision or "none",
        wanted_schema=revisions.head(),
        schema_admits=schema.admits(),
        schemas=tuple(schemas),
        copies=tuple(copies),
        missing_days=len(partitions.missing_days(connection, 1)),
        took=took,
    )


def _wal(connection: Connection) -> int | None:
    if not connection.exec_driver_sql(MAY_SEE_WAL).scalar_one():
        return None
    return int(connection.exec_driver_sql(WAL).scalar_one() or 0)
