"""Incarnations of workers: registered once, lost once and for good (PROTOCOL 6)."""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import UTC

from sqlalchemy import Connection

from schedd.core.cluster_events import ClusterEvent, Kind, Registered, Why
from schedd.core.ids import IncarnationId
from schedd.core.model import Incarnation
from schedd.store import arrays, cluster_events
from schedd.store.rows import INCARNATION_COLUMNS, incarnation

REGISTER = f"""
INSERT INTO incarnations ({INCARNATION_COLUMNS}, seen_at)
VALUES (%(id)s, %(worker)s, %(spool_id)s, %(host)s, %(version)s, %(slots)s, %(labels)s::jsonb,
    %(handlers)s::text[], %(actions)s::text[], %(started_at)s, NULL, %(namespaces)s::text[],
    clock_timestamp())
ON CONFLICT (id) DO UPDATE SET namespaces = EXCLUDED.namespaces
WHERE incarnations.namespaces IS DISTINCT FROM EXCLUDED.namespaces
    AND incarnations.worker = EXCLUDED.worker
RETURNING xmax = 0
"""

BEFORE = """
SELECT unplanned, lost_at FROM incarnations WHERE worker = %s AND id <> %s
ORDER BY started_at DESC, id DESC LIMIT 1
"""

LOSE = """
UPDATE incarnations SET lost_at = clock_timestamp(),
    unplanned = %(unplanned)s AND seen_at IS NOT NULL
WHERE id IN (SELECT i.id FROM incarnations i WHERE i.id = ANY (%(ids)s::uuid[])
             AND i.lost_at IS NULL ORDER BY i.id FOR NO KEY UPDATE)
  AND lost_at IS NULL
RETURNING worker, host, unplanned
"""

REGISTERED = """
SELECT id, worker, seen_at IS NOT NULL FROM incarnations WHERE lost_at IS NULL ORDER BY id
"""

BY_ID = f"SELECT {INCARNATION_COLUMNS} FROM incarnations WHERE id = ANY (%(ids)s::uuid[])"

NOT_LIVING = """
SELECT b.id FROM unnest(%(ids)s::uuid[]) b(id)
WHERE NOT EXISTS (SELECT FROM incarnations i WHERE i.id = b.id AND i.lost_at IS NULL)
"""

OF_WORKER = f"""
SELECT {INCARNATION_COLUMNS} FROM incarnations
WHERE worker = %(worker)s AND lost_at IS NULL ORDER BY started_at DESC, id DESC
"""

NEWEST_OF = f"""
SELECT DISTINCT ON (worker) {INCARNATION_COLUMNS} FROM incarnations
WHERE worker = ANY (%(workers)s::text[]) ORDER BY worker, started_at DESC, id DESC
"""


KEPT_FOR = "interval '90 days'"
MOST_OF_WORKER = 10_000
"""Lost incarnations of one worker that are kept; `run attempts` shows the worker by them."""

FORGET = f"""
DELETE FROM incarnations WHERE id IN (
    SELECT id FROM (
        SELECT id, lost_at, row_number() OVER (PARTITION BY worker ORDER BY lost_at DESC) AS place
        FROM incarnations WHERE lost_at IS NOT NULL
    ) i
    WHERE place > 1 AND lost_at < clock_timestamp() - interval '1 hour'
      AND (place > {MOST_OF_WORKER} OR lost_at < clock_timestamp() - {KEPT_FOR})
      AND id NOT IN (SELECT r.incarnation FROM live l JOIN runs r
        ON r.scheduled_at = l.scheduled_at AND r.run_id = l.run_id
        WHERE r.state = 'RUNNING' AND r.incarnation IS NOT NULL)
    LIMIT %s
)
"""


def forget_lost(connection: Connection, limit: int = 5_000) -> int:
    """Delete incarnations that were lost long ago, at most `limit`; how many. The newest of each
    worker stays, and one with a run that is RUNNING.
    """
    return connection.exec_driver_sql(FORGET, (limit,)).rowcount


def register(connection: Connection, new: Incarnation) -> Incarnation:
    """Insert it if it is new; the stored row wins, but for the namespaces, which go by the
    certificate of its newest stream.
    """
    registered = connection.exec_driver_sql(
        REGISTER,
        {
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
        },
    ).scalar()
    if registered:
        _note_return(connection, new)
    [stored] = incarnations(connection, [new.id])
    return stored


def incarnations(connection: Connection, ids: Collection[IncarnationId]) -> list[Incarnation]:
    """Those that are known, lost ones too."""
    return [incarnation(row) for row in connection.exec_driver_sql(BY_ID, {"ids": arrays.ids(ids)})]


def not_living(connection: Connection, ids: Collection[IncarnationId]) -> frozenset[IncarnationId]:
    """Those that are lost, or not known."""
    rows = connection.exec_driver_sql(NOT_LIVING, {"ids": arrays.ids(ids)})
    return frozenset(IncarnationId(row.id) for row in rows)


def of_worker(connection: Connection, worker: str) -> list[Incarnation]:
    """Those of this worker that aren't lost, newest first."""
    rows = connection.exec_driver_sql(OF_WORKER, {"worker": arrays.clean(worker)})
    return [incarnation(row) for row in rows]


def newest_of(connection: Connection, workers: Collection[str]) -> list[Incarnation]:
    """The newest one of each of these workers, lost or not."""
    rows = connection.exec_driver_sql(NEWEST_OF, {"workers": arrays.texts(workers)})
    return [incarnation(row) for row in rows]


def lose(connection: Connection, lost: Collection[IncarnationId], kind: Kind | None) -> None:
    """Record these as lost; the first record stays. `kind`: WORKER_LOST, or WORKER_RESTARTED where
    a newer incarnation of its spool directory ends it. None: a goodbye.
    """
    unplanned = kind is Kind.WORKER_LOST
    rows = connection.exec_driver_sql(LOSE, {"ids": arrays.ids(lost), "unplanned": unplanned}).all()
    if kind is None:
        return
    reason = Why.LEASE_EXPIRED.value if unplanned else ""
    cluster_events.record(
        connection,
        [
            ClusterEvent(kind, f"worker/{worker}", f"worker/{worker}", reason, f"host {host}")
            for worker, host, counts in rows
            if counts or not unplanned
        ],
    )


def registered(connection: Connection) -> list[Registered]:
    """Return the incarnations that aren't recorded as lost."""
    return [Registered(*row) for row in connection.exec_driver_sql(REGISTERED)]


def note_seen(connection: Connection, seen: Collection[IncarnationId]) -> None:
    """Record that the keys of these exist; registrations by an older version don't say."""
    connection.exec_driver_sql(
        "UPDATE incarnations SET seen_at = clock_timestamp()"
        " WHERE id = ANY (%s::uuid[]) AND seen_at IS NULL",
        (arrays.ids(seen),),
    )


def _note_return(connection: Connection, new: Incarnation) -> None:
    worker = arrays.clean(new.worker)
    before = connection.exec_driver_sql(BEFORE, (worker, new.id)).first()
    if before is None or not before.unplanned:
        return
    since = f"lost since {before.lost_at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    event = ClusterEvent(Kind.WORKER_RETURNED, f"worker/{worker}", f"worker/{worker}", detail=since)
    cluster_events.record(connection, [event])
