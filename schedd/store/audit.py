"""The audit log: who did what to which object, with which outcome. Append-only.

During `pg_restore` the table exists before its rows and its primary key. An entry that is written
then takes a number of a restored row, and the restore fails. So each insert names the primary key:
without the key PostgreSQL rejects the statement. With it no entry ever conflicts; if one does, its
number is behind the rows, and the NULL makes the statement fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, TypeAlias

from sqlalchemy import Connection, select

from schedd.core.ids import RunId
from schedd.core.runs.model import AuditRecord
from schedd.store.schema.tables import audit
from schedd.store.statements import arrays
from schedd.store.statements.rows import record_of

_Fields: TypeAlias = Mapping[str, tuple[str, Callable[[Any], str]]]

_SHARED: Final[_Fields] = {
    "at": ("timestamptz", arrays.instants),
    "actor": ("text", arrays.texts),
    "action": ("text", arrays.texts),
    "outcome": ("text", arrays.texts),
    "reason": ("text", arrays.texts),
    "token": ("bigint", arrays.numbers),
    "worker": ("text", arrays.texts),
    "before": ("text", arrays.texts),
    "after": ("text", arrays.texts),
}
"""The fields that entries of equal calls share, each with its type and array."""
_OWN: Final[_Fields] = {
    "object": ("text", arrays.texts),
    "run_id": ("uuid", arrays.ids),
    "source": ("text", arrays.texts),
}
SHARED_OF = attrgetter(*_SHARED)
"""Returns those values of an entry."""


def _parameters(fields: Iterable[str]) -> str:
    kinds = {**_SHARED, **_OWN}
    return ", ".join(f"%(log_{name})s::{kinds[name][0]}[]" for name in fields)


def _names(fields: Iterable[str]) -> str:
    return ", ".join(f"log_{name}" for name in fields)


SHARED, SHARED_NAMES = _parameters(_SHARED), _names(_SHARED)
OWN, OWN_NAMES = _parameters(_OWN), _names(_OWN)

ARRAYS = f"{SHARED}, {OWN}"
"""The parameters of a statement that writes entries: `columns`."""

NAMES = f"{SHARED_NAMES}, {OWN_NAMES}"
"""The columns of ARRAYS."""

INSERT = """
INSERT INTO audit (at, actor, action, object, outcome, reason, run_id, token, worker, source,
    before, after)
SELECT COALESCE(log_at, clock_timestamp()), log_actor, log_action, log_object, log_outcome,
    log_reason, log_run_id, log_token, log_worker, log_source, log_before, log_after
"""
"""To be followed by FROM rows with the columns NAMES, and WITH_KEY."""

WITH_KEY = "ON CONFLICT (seq) DO UPDATE SET action = NULL"

WRITE = f"{INSERT} FROM unnest({ARRAYS}) AS b({NAMES})"

UNLESS_LOGGED = """
WHERE NOT EXISTS (
    SELECT FROM audit a WHERE a.run_id = log_run_id AND a.token = log_token
      AND a.action = log_action AND a.reason = log_reason AND a.source = log_source)
"""


def write_all(connection: Connection, entries: Sequence[AuditRecord]) -> None:
    """Append these entries, in order. `at` defaults to the database's clock."""
    _write(connection, WRITE + WITH_KEY, entries)


def write_once(connection: Connection, entries: Sequence[AuditRecord]) -> None:
    """Append these entries about runs, except those that the same source has logged before. The
    caller holds the locks of the runs' rows: concurrent calls don't see each other's entries.
    """
    _write(connection, WRITE + UNLESS_LOGGED + WITH_KEY, list(dict.fromkeys(entries)))


def _write(connection: Connection, statement: str, entries: Sequence[AuditRecord]) -> None:
    if entries:
        connection.exec_driver_sql(statement, columns(entries))


def columns(entries: Sequence[AuditRecord]) -> dict[str, object]:
    return shared_columns(entries) | own_columns(entries)


def shared_columns(entries: Sequence[AuditRecord]) -> dict[str, object]:
    return _columns(_SHARED, entries)


def own_columns(entries: Sequence[AuditRecord]) -> dict[str, object]:
    return _columns(_OWN, entries)


def _columns(fields: _Fields, entries: Sequence[AuditRecord]) -> dict[str, object]:
    return {
        f"log_{name}": array([getattr(entry, name) for entry in entries])
        for name, (_, array) in fields.items()
    }


def list_audit(
    connection: Connection,
    action: str | None,
    object_: str | None,
    run_id: RunId | None,
    before: int | None,
    limit: int,
) -> list[tuple[int, AuditRecord]]:
    """Return entries below the sequence number `before`, newest first."""
    query = select(audit).order_by(audit.c.seq.desc()).limit(limit)
    if action is not None:
        query = query.where(audit.c.action == arrays.clean(action))
    if object_ is not None:
        query = query.where(audit.c.object == arrays.clean(object_))
    if run_id is not None:
        query = query.where(audit.c.run_id == run_id)
    if before is not None:
        query = query.where(audit.c.seq < before)
    return [(row.seq, record_of(AuditRecord, row)) for row in connection.execute(query)]
