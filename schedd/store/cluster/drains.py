"""Drained workers: one row for each name, until the worker is undrained."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection

from schedd.core.runs.model import AuditRecord
from schedd.core.runs.records import Drain
from schedd.store import audit
from schedd.store.statements.arrays import clean

ALL = "SELECT worker, drained_at, drained_by, reason FROM drains ORDER BY worker"

BEGIN = """
INSERT INTO drains (worker, drained_by, reason) VALUES (%(worker)s, %(by)s, %(reason)s)
ON CONFLICT (worker) DO UPDATE SET
    reason = CASE WHEN EXCLUDED.reason = '' THEN drains.reason ELSE EXCLUDED.reason END
RETURNING worker, drained_at, drained_by, reason
"""
"""A worker that is already drained keeps its time and actor."""

AuditOf = Callable[[Drain | None, Drain | None], AuditRecord]
"""Returns the audit entry for a change from the first to the second. None: not drained."""


def drains(connection: Connection) -> list[Drain]:
    return [Drain(*row) for row in connection.exec_driver_sql(ALL)]


def begin(connection: Connection, worker: str, by: str, reason: str, entry: AuditOf) -> Drain:
    before = _locked(connection, worker)
    arguments = {"worker": clean(worker), "by": clean(by), "reason": clean(reason)}
    after = Drain(*connection.exec_driver_sql(BEGIN, arguments).one())
    if after != before:
        audit.write_all(connection, [entry(before, after)])
    return after


def end(connection: Connection, worker: str, entry: AuditOf) -> bool:
    before = _locked(connection, worker)
    if before is None:
        return False
    connection.exec_driver_sql("DELETE FROM drains WHERE worker = %s", (clean(worker),))
    audit.write_all(connection, [entry(before, None)])
    return True


def _locked(connection: Connection, worker: str) -> Drain | None:
    row = connection.exec_driver_sql(
        "SELECT worker, drained_at, drained_by, reason FROM drains WHERE worker = %s FOR UPDATE",
        (clean(worker),),
    ).first()
    return None if row is None else Drain(*row)
