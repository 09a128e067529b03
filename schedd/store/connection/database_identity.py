"""Check that a new connection leads to the database that this process knows, before its first use.

    new connection ──look──→ the known mark, or a later one  ─→ used without further checks
                        └──→ an earlier mark, or another database ─→ `Lineage.broken`: calls fail

A restore needs a restart of the server. So every connection to a restored database is new, and is
checked before its first statement. A pooler (PgBouncer) keeps client connections open over the
restart: then the probe, each second, detects it.

Invariants
- The known mark is read before the check. Marks only grow, so a smaller one proves a restore.
- A standby isn't compared: it may lag behind. No connection leads to one (`primary_selection`).
"""

from __future__ import annotations

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from schedd.core.cluster.data_loss_check import Lineage, Mark
from schedd.core.ids import Timeline
from schedd.core.runs.records import DatabaseProbe
from schedd.store.connection.errors import sqlstate
from schedd.store.connection.primary_selection import TIMELINE
from schedkit.errors import Unavailable

LOOK = f"""
SELECT clock_timestamp(), pg_is_in_recovery(),
    {TIMELINE},
    c.marked_at, c.cluster_id::text, COALESCE(schedd_system_identifier(), 0)
FROM cluster c WHERE c.one
"""

_NOT_MIGRATED = {"42P01", "42703", "42883"}
_LOOKED_AT = "schedd: looked at"


def probe_server(connection: Connection) -> DatabaseProbe:
    """Read the server's clock, timeline and role, and the newest mark."""
    now, in_recovery, timeline, at, database, system = connection.exec_driver_sql(LOOK).one()
    mark = Mark(at, database, system, Timeline(timeline))
    return DatabaseProbe(now, mark.timeline, in_recovery, mark)


def admit(connection: Connection, lineage: Lineage) -> None:
    """Check where a connection leads, once, in a separate transaction. Raises Unavailable: it
    doesn't lead to the known database. Raises DBAPIError: as any statement.
    """
    if _LOOKED_AT in connection.info:
        return
    known = lineage.known
    try:
        with connection.begin():
            probe = probe_server(connection)
    except DBAPIError as error:
        if sqlstate(error) in _NOT_MIGRATED:
            return  # the schema check at start reports the missing migration
        connection.invalidate()  # its COMMIT may have failed: see `database`
        raise
    try:
        compare(lineage, probe, known)
    except Unavailable:
        connection.invalidate()
        raise
    connection.info[_LOOKED_AT] = True


def compare(lineage: Lineage, probe: DatabaseProbe, known: Mark | None) -> None:
    """Compare the probe with the lineage. `known`: the mark that was known before the probe.
    Raises Unavailable: it isn't the known database.
    """
    if probe.in_recovery or probe.mark is None:
        return
    lineage.record_mark(probe.mark, known)
    if lineage.broken:
        raise Unavailable(lineage.broken)
