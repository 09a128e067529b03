"""Incarnations of workers: registered once, lost once (docs/protocol-rules.md, P6.2). Drains of
workers: one row for each name, until the worker is undrained.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from datetime import UTC

from sqlalchemy import Connection

from schedd.core.cluster.cluster_events import (
    ClusterEventRecord,
    EventKind,
    LossReason,
    RegisteredWorker,
)
from schedd.core.ids import IncarnationId, TenureId
from schedd.core.runs.model import AuditRecord, Incarnation
from schedd.core.runs.records import Drain
from schedd.store import audit
from schedd.store.cluster import cluster_events
from schedd.store.connection.database import Database, in_autocommit, in_transaction
from schedd.store.statements import arrays
from schedd.store.statements.arrays import clean
from schedd.store.statements.operations import operations
from schedd.store.statements.rows import INCARNATION_COLUMNS, decoded, incarnation
from schedkit.records import dataclass

REGISTER = f"""
INSERT INTO incarnations ({INCARNATION_COLUMNS})
VALUES (%(id)s, %(worker)s, %(spool_id)s, %(host)s, %(version)s, %(slots)s, %(labels)s::jsonb,
    %(handlers)s::text[], %(actions)s::text[], %(started_at)s, NULL, %(namespaces)s::text[])
ON CONFLICT (id) DO UPDATE SET namespaces = EXCLUDED.namespaces
WHERE incarnations.namespaces IS DISTINCT FROM EXCLUDED.namespaces
    AND incarnations.worker = EXCLUDED.worker
"""

NOTE_SEEN = """
UPDATE incarnations SET seen_at = clock_timestamp()
WHERE id IN (SELECT i.id FROM incarnations i WHERE i.id = ANY (%(ids)s::uuid[])
             AND i.seen_at IS NULL ORDER BY i.id FOR NO KEY UPDATE)
  AND seen_at IS NULL
RETURNING id
"""

RETURNED = """
SELECT n.worker, b.lost_at FROM incarnations n
CROSS JOIN LATERAL (
    SELECT unplanned, lost_at FROM incarnations o
    WHERE o.worker = n.worker AND o.seen_at < n.seen_at
    ORDER BY o.seen_at DESC LIMIT 1
) b
WHERE n.id = ANY (%(ids)s::uuid[]) AND b.unplanned
ORDER BY n.worker
"""
"""Workers whose last incarnation before these was lost."""

LOSE = """
UPDATE incarnations SET lost_at = clock_timestamp(),
    unplanned = %(unplanned)s AND seen_at IS NOT NULL
WHERE id IN (SELECT i.id FROM incarnations i WHERE i.id = ANY (%(ids)s::uuid[])
             AND i.lost_at IS NULL ORDER BY i.id FOR NO KEY UPDATE)
  AND lost_at IS NULL
RETURNING worker, host, seen_at IS NOT NULL
"""

RECORDER = """
SELECT 'member/' || member FROM tenures
WHERE id = COALESCE(%(tenure)s::uuid, (SELECT leader FROM term))
"""

REGISTERED = """
SELECT id, worker, seen_at IS NOT NULL FROM incarnations WHERE lost_at IS NULL ORDER BY id
"""

BY_ID = f"SELECT {INCARNATION_COLUMNS} FROM incarnations WHERE id = ANY (%(ids)s::uuid[])"

ENDED_AND_DRAINED = """
SELECT ARRAY(
    SELECT b.id FROM unnest(%(ids)s::uuid[]) b(id)
    WHERE NOT EXISTS (SELECT FROM incarnations i WHERE i.id = b.id AND i.lost_at IS NULL)
), ARRAY(SELECT worker FROM drains)
"""

OF_WORKER = f"""
SELECT {INCARNATION_COLUMNS} FROM incarnations
WHERE worker = %(worker)s AND lost_at IS NULL ORDER BY started_at DESC, id DESC
"""

NEWEST_OF = f"""
SELECT DISTINCT ON (worker) {INCARNATION_COLUMNS} FROM incarnations
WHERE worker = ANY (%(workers)s::text[]) ORDER BY worker, started_at DESC, id DESC
"""


DRAINS = "SELECT worker, drained_at, drained_by, reason FROM drains ORDER BY worker"

DRAIN = """
INSERT INTO drains (worker, drained_by, reason) VALUES (%(worker)s, %(by)s, %(reason)s)
ON CONFLICT (worker) DO UPDATE SET
    reason = CASE WHEN EXCLUDED.reason = '' THEN drains.reason ELSE EXCLUDED.reason END
RETURNING worker, drained_at, drained_by, reason
"""
"""A worker that is already drained keeps its time and actor."""

DrainAudit = Callable[[Drain | None, Drain | None], AuditRecord]
"""Returns the audit entry for a change from the first to the second. None: not drained."""

KEPT_FOR = "interval '90 days'"
MOST_OF_WORKER = 10_000
"""Incarnations of one worker that are kept; `run attempts` shows the worker by them."""

WORKERS_AT_ONCE = 20

FORGET = f"""
WITH RECURSIVE part AS (
    (SELECT worker, 1 AS place FROM incarnations WHERE worker > %(after)s ORDER BY worker LIMIT 1)
    UNION ALL
    SELECT n.worker, p.place + 1 FROM part p CROSS JOIN LATERAL (
        SELECT worker FROM incarnations i WHERE i.worker > p.worker ORDER BY i.worker LIMIT 1
    ) n
    WHERE p.place < {WORKERS_AT_ONCE}
), of_worker AS MATERIALIZED (
    SELECT worker, (SELECT started_at FROM incarnations WHERE worker = p.worker
            ORDER BY started_at DESC LIMIT 1) AS newest,
        (SELECT started_at FROM incarnations WHERE worker = p.worker
         ORDER BY started_at DESC OFFSET {MOST_OF_WORKER - 1} LIMIT 1) AS last_kept
    FROM part p
), old AS MATERIALIZED (
    SELECT o.id FROM of_worker w CROSS JOIN LATERAL (
        SELECT id, started_at, lost_at FROM incarnations i WHERE i.worker = w.worker
          AND i.started_at < LEAST(w.newest,
              GREATEST(w.last_kept, statement_timestamp() - {KEPT_FOR})) OFFSET 0
    ) o
    WHERE o.lost_at < statement_timestamp() - interval '1 hour'
      AND (o.started_at < w.last_kept OR o.lost_at < statement_timestamp() - {KEPT_FOR})
    LIMIT %(limit)s
), deleted AS (
    DELETE FROM incarnations WHERE id IN (
        SELECT id FROM old WHERE id NOT IN (SELECT r.incarnation FROM live l JOIN runs r
            ON r.scheduled_at = l.scheduled_at AND r.run_id = l.run_id
            WHERE r.state = 'RUNNING' AND r.incarnation IS NOT NULL)
    ) RETURNING 1
)
SELECT (SELECT max(worker) FROM part),
    (SELECT count(*) FROM old) = %(limit)s AND EXISTS (SELECT FROM deleted)
"""
"""Reads the next workers by the index of worker and start: a part of the table, whatever its size.
An incarnation is lost after it started.
"""


def forget_lost(connection: Connection, after: str = "", limit: int = 5_000) -> str | None:
    """Delete incarnations of the next workers after `after` that were lost long ago. Returns where
    to continue, None at the end. The newest incarnation of each worker stays, and one with a run
    that is RUNNING.
    """
    last, more = connection.exec_driver_sql(FORGET, {"after": after, "limit": limit}).one()
    return after if more else last


def register(connection: Connection, new: Incarnation) -> Incarnation:
    """Insert the incarnation if it is new, and return the stored row. An existing row changes only
    in its namespaces: they come from the certificate of the newest stream.
    """
    values = {
        "id": new.id,
        "worker": arrays.clean(new.worker),
        "spool_id": arrays.clean(new.spool_id),
        "host": arrays.clean(new.host),
        "version": arrays.clean(new.version),
        "slots": new.slots,
        "labels": json.dumps(
            {arrays.clean(key): arrays.clean(value) for key, value in new.labels.items()}
        ),
        "handlers": arrays.texts(new.handlers),
        "actions": arrays.texts(new.actions),
        "started_at": new.started_at,
        "namespaces": None if new.namespaces is None else arrays.texts(sorted(new.namespaces)),
    }
    connection.exec_driver_sql(REGISTER, values)
    [stored] = incarnations(connection, [new.id])
    return stored


def incarnations(connection: Connection, ids: Collection[IncarnationId]) -> list[Incarnation]:
    found = connection.exec_driver_sql(BY_ID, {"ids": arrays.ids(ids)})
    return decoded("incarnations", found, incarnation)


def ended_and_drained(
    connection: Connection, ids: Collection[IncarnationId]
) -> tuple[frozenset[IncarnationId], frozenset[str]]:
    """Return which of these incarnations are lost or unknown, and the names of drained workers."""
    ended, drained = connection.exec_driver_sql(ENDED_AND_DRAINED, {"ids": arrays.ids(ids)}).one()
    return frozenset(IncarnationId(one) for one in ended), frozenset(drained)


def of_worker(connection: Connection, worker: str) -> list[Incarnation]:
    rows = connection.exec_driver_sql(OF_WORKER, {"worker": arrays.clean(worker)})
    return decoded("incarnations", rows, incarnation)


def newest_of(connection: Connection, workers: Collection[str]) -> list[Incarnation]:
    rows = connection.exec_driver_sql(NEWEST_OF, {"workers": arrays.texts(workers)})
    return decoded("incarnations", rows, incarnation)


def lose(
    connection: Connection,
    lost: Collection[IncarnationId],
    kind: EventKind | None,
    owner: TenureId | None = None,
) -> None:
    """Record these incarnations as lost. An earlier record keeps its time. `kind`: WORKER_LOST, or
    WORKER_RESTARTED if a newer incarnation of its spool directory replaced it. None: a clean
    shutdown. An incarnation that never had a key in etcd ends without an event. `owner`: the member
    that records a WORKER_LOST; None: the leader.
    """
    unplanned = kind is EventKind.WORKER_LOST
    rows = connection.exec_driver_sql(LOSE, {"ids": arrays.ids(lost), "unplanned": unplanned}).all()
    if kind is None:
        return
    reason = LossReason.LEASE_EXPIRED.value if unplanned else ""
    recorder = None
    if unplanned:
        recorder = connection.exec_driver_sql(RECORDER, {"tenure": owner}).scalar()
    cluster_events.record(
        connection,
        [
            ClusterEventRecord(
                kind, f"worker/{worker}", recorder or f"worker/{worker}", reason, f"host {host}"
            )
            for worker, host, seen in rows
            if seen
        ],
    )


def registered(connection: Connection) -> list[RegisteredWorker]:
    return [RegisteredWorker(*row) for row in connection.exec_driver_sql(REGISTERED)]


def note_seen(connection: Connection, seen: Collection[IncarnationId]) -> None:
    """Record that these incarnations have keys in etcd. A lost worker counts as returned."""
    noted = connection.exec_driver_sql(NOTE_SEEN, {"ids": arrays.ids(seen)}).scalars().all()
    if not noted:
        return
    returned = connection.exec_driver_sql(RETURNED, {"ids": arrays.ids(noted)}).all()
    cluster_events.record(
        connection,
        [
            ClusterEventRecord(
                EventKind.WORKER_RETURNED,
                f"worker/{worker}",
                f"worker/{worker}",
                detail=f"lost since {lost_at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",
            )
            for worker, lost_at in returned
        ],
    )


def read_drains(connection: Connection) -> list[Drain]:
    return [Drain(*row) for row in connection.exec_driver_sql(DRAINS)]


def drain(connection: Connection, worker: str, by: str, reason: str, entry: DrainAudit) -> Drain:
    before = _locked_drain(connection, worker)
    arguments = {"worker": clean(worker), "by": clean(by), "reason": clean(reason)}
    after = Drain(*connection.exec_driver_sql(DRAIN, arguments).one())
    if after != before:
        audit.write_all(connection, [entry(before, after)])
    return after


def undrain(connection: Connection, worker: str, entry: DrainAudit) -> bool:
    before = _locked_drain(connection, worker)
    if before is None:
        return False
    connection.exec_driver_sql("DELETE FROM drains WHERE worker = %s", (clean(worker),))
    audit.write_all(connection, [entry(before, None)])
    return True


def _locked_drain(connection: Connection, worker: str) -> Drain | None:
    row = connection.exec_driver_sql(
        "SELECT worker, drained_at, drained_by, reason FROM drains WHERE worker = %s FOR UPDATE",
        (clean(worker),),
    ).first()
    return None if row is None else Drain(*row)


@operations("workers")
@dataclass(frozen=True, slots=True)
class WorkerStore:
    database: Database

    register = in_transaction(register)
    incarnations = in_autocommit(incarnations)
    ended_and_drained = in_autocommit(ended_and_drained)
    of_worker = in_autocommit(of_worker)
    newest_of = in_autocommit(newest_of)
    drain = in_transaction(drain)
    undrain = in_transaction(undrain)
    drains = in_autocommit(read_drains)
    lose = in_transaction(lose)
    registered = in_autocommit(registered)
    note_seen = in_transaction(note_seen)
