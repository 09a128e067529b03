"""Rows of cluster events, each written beside its line of the audit log in one transaction.

`transaction` is the id of the writing transaction, so that a stream continues after a cursor
(`store/runs/change_stream.py`) without gaps: rows may become visible in another order than their
ids.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import Connection

from schedd.core.cluster.cluster_events import (
    MOST_LOST,
    ClusterEventRecord,
    EventKind,
    Losses,
    LostMember,
)
from schedd.core.runs.change_stream import Cursor
from schedd.core.runs.model import AuditRecord
from schedd.store import audit
from schedd.store.statements import arrays
from schedd.store.statements.rows import INCARNATION_COLUMNS, decoded, incarnation

KEPT = "interval '30 days'"

MOST_READ = 200

INSERT = """
INSERT INTO cluster_events (kind, object, actor, reason, detail)
SELECT * FROM unnest(%(kinds)s::text[], %(objects)s::text[], %(actors)s::text[],
    %(reasons)s::text[], %(details)s::text[])
"""

COLUMNS = "kind, object, actor, reason, detail, id, at"

BETWEEN = f"""
SELECT {COLUMNS} FROM (
    SELECT * FROM cluster_events WHERE transaction >= %(from)s AND transaction < %(to)s
    ORDER BY id DESC LIMIT {MOST_READ}
) newest ORDER BY id
"""

AFTER = f"SELECT {COLUMNS} FROM cluster_events WHERE id > %s ORDER BY id LIMIT {MOST_READ}"

LOST_MEMBERS = f"""
SELECT l.member, l.id, l.fenced_at, l.grpc, l.http, l.version FROM (
    SELECT DISTINCT ON (member) * FROM tenures
    WHERE unplanned AND fenced_at > statement_timestamp() - %(kept)s
    ORDER BY member, opened_at DESC
) l
WHERE NOT EXISTS (SELECT FROM tenures n WHERE n.member = l.member AND n.opened_at > l.opened_at)
ORDER BY l.fenced_at DESC LIMIT {MOST_LOST}
"""

LOST_WORKERS = f"""
SELECT {INCARNATION_COLUMNS} FROM (
    SELECT DISTINCT ON (worker) * FROM incarnations
    WHERE unplanned AND lost_at > statement_timestamp() - %(kept)s
    ORDER BY worker, seen_at DESC
) l
WHERE NOT EXISTS (
    SELECT FROM incarnations n WHERE n.worker = l.worker AND n.seen_at > l.seen_at)
ORDER BY l.lost_at DESC LIMIT {MOST_LOST}
"""
"""`started_at` doesn't order them: all incarnations of one process have the same."""


RETURNS = f"""
SELECT count(*) FILTER (WHERE kind = '{EventKind.MEMBER_RETURNED}'),
    count(*) FILTER (WHERE kind = '{EventKind.WORKER_RETURNED}')
FROM cluster_events WHERE at > statement_timestamp() - %(kept)s
"""


def record(connection: Connection, events: Sequence[ClusterEventRecord]) -> None:
    """Write the events, and a line of the audit log for each."""
    if not events:
        return
    values = {
        "kinds": arrays.texts(event.kind for event in events),
        "objects": arrays.texts(event.object for event in events),
        "actors": arrays.texts(event.actor for event in events),
        "reasons": arrays.texts(event.reason for event in events),
        "details": arrays.texts(event.detail for event in events),
    }
    connection.exec_driver_sql(INSERT, values)
    audit.write_all(
        connection,
        [
            AuditRecord(
                event.actor,
                event.kind,
                event.object,
                "ok",
                event.reason,
                worker=event.name if event.object.startswith("worker/") else "",
                after=json.dumps({"note": event.detail}) if event.detail else "",
            )
            for event in events
        ],
    )


def read_events(connection: Connection, since: Cursor, until: Cursor) -> list[ClusterEventRecord]:
    """Return the newest events of transactions from `since` up to `until`, oldest first."""
    if since.timeline != until.timeline:
        return []
    asked = {"from": since.transaction, "to": until.transaction}
    return decoded("cluster_events", connection.exec_driver_sql(BETWEEN, asked), _event)


def after(connection: Connection, id_: int) -> list[ClusterEventRecord]:
    return decoded("cluster_events", connection.exec_driver_sql(AFTER, (id_,)), _event)


BEFORE_TERM = """
SELECT min(e.id) - 1 FROM cluster_events e
JOIN (SELECT id, at FROM cluster_events WHERE kind = %s ORDER BY id DESC LIMIT 1) newest
  ON e.id <= newest.id AND e.at >= newest.at - interval '30 s'
"""


def before_term(connection: Connection) -> int:
    """Return the id before the events of this term and of the 30 s before it, while there may have
    been no leader; 0 if there was never one.
    """
    asked = (EventKind.LEADER_CHANGED.value,)
    return int(connection.exec_driver_sql(BEFORE_TERM, asked).scalar() or 0)


def losses(connection: Connection, kept: timedelta) -> Losses:
    """Return members and workers that were lost within `kept` and have no later registration."""
    members = connection.exec_driver_sql(LOST_MEMBERS, {"kept": kept})
    workers = connection.exec_driver_sql(LOST_WORKERS, {"kept": kept})
    return Losses(
        tuple(LostMember(*row) for row in members), tuple(incarnation(row) for row in workers)
    )


def returns(connection: Connection, kept: timedelta) -> tuple[int, int]:
    """Return the number of returns of lost members, and of lost workers, within `kept`."""
    members, workers = connection.exec_driver_sql(RETURNS, {"kept": kept}).one()
    return members, workers


def prune(connection: Connection) -> None:
    connection.exec_driver_sql(
        f"DELETE FROM cluster_events WHERE at < statement_timestamp() - {KEPT}"
    )


def _event(row: Sequence[object]) -> ClusterEventRecord:
    return ClusterEventRecord(*row)  # type: ignore[arg-type]  # columns in this order
