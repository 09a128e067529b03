"""Incarnations of workers: registered once, lost once and for good (PROTOCOL 6)."""

from __future__ import annotations

import json
from collections.abc import Collection

from sqlalchemy import Connection

from schedd.core.ids import IncarnationId
from schedd.core.model import Incarnation
from schedd.store import arrays
from schedd.store.rows import INCARNATION_COLUMNS, incarnation

REGISTER = f"""
INSERT INTO incarnations ({INCARNATION_COLUMNS})
VALUES (%(id)s, %(worker)s, %(spool_id)s, %(host)s, %(version)s, %(slots)s, %(labels)s::jsonb,
    %(handlers)s::text[], %(actions)s::text[], %(started_at)s, NULL, %(namespaces)s::text[])
ON CONFLICT (id) DO UPDATE SET namespaces = EXCLUDED.namespaces
WHERE incarnations.namespaces IS DISTINCT FROM EXCLUDED.namespaces
    AND incarnations.worker = EXCLUDED.worker
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


def register(connection: Connection, new: Incarnation) -> Incarnation:
    """Insert it if it is new; the stored row wins, but for the namespaces, which go by the
    certificate of its newest stream.
    """
    connection.exec_driver_sql(
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
    )
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


def mark_lost(connection: Connection, lost: IncarnationId) -> None:
    """Write the loss down; the first one stays."""
    connection.exec_driver_sql(
        "UPDATE incarnations SET lost_at = clock_timestamp() WHERE id = %s AND lost_at IS NULL",
        (lost,),
    )
