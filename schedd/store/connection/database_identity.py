"""Whether a connection leads to the database that this process has known: looked at before its use.

    new connection ──look──→ as it was known, or further on ─→ used from here on without a look
                        └──→ went back, or another one      ─→ `Lineage.broken`: no call goes on

A restore needs a restart of the server, so each connection to what was restored is a new one, and
is looked at before the first statement of ours. A pooler between (PgBouncer) keeps our connections
over it: then the probe, each second, is what tells.

Invariants
- What was known is noted before the look: marks grow, so a lesser one isn't merely older news.
- A standby is compared with nothing: it may be behind. No connection leads to one (`servers`).
"""

from __future__ import annotations

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from schedd.core.cluster.data_loss_check import Lineage, Mark
from schedd.core.ids import Timeline
from schedd.core.runs.records import Probe
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


def look(connection: Connection) -> Probe:
    """The server's clock, timeline and role, and the newest mark."""
    now, in_recovery, timeline, at, database, system = connection.exec_driver_sql(LOOK).one()
    mark = Mark(at, database, system, Timeline(timeline))
    return Probe(now, mark.timeline, in_recovery, mark)


def admit(connection: Connection, lineage: Lineage) -> None:
    """Look where a connection leads, unless that was done, in a transaction of its own.

    Raises:
        Unavailable: not to the database that was known.
        DBAPIError: as any statement.
    """
    if _LOOKED_AT in connection.info:
        return
    known = lineage.known
    try:
        with connection.begin():
            probe = look(connection)
    except DBAPIError as error:
        if sqlstate(error) in _NOT_MIGRATED:
            return  # whoever starts on it is told what to do
        connection.invalidate()  # its COMMIT may have failed: see `database`
        raise
    try:
        compare(lineage, probe, known)
    except Unavailable:
        connection.invalidate()
        raise
    connection.info[_LOOKED_AT] = True


def compare(lineage: Lineage, probe: Probe, known: Mark | None) -> None:
    """Take in what was seen; `known`: what was known before it was asked for.

    Raises:
        Unavailable: it isn't the database that was known.
    """
    if probe.in_recovery or probe.mark is None:
        return
    lineage.seen(probe.mark, known)
    if lineage.broken:
        raise Unavailable(lineage.broken)
