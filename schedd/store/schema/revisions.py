"""Read the schema's revision, and decide whether this schedd may use the schema.

The steps are the files of `migrations/versions`, `v0101_what_it_adds.py`. Their numbers are the
revisions. Each daemon checks at each start without Alembic, which runs the steps (`migrate`):
loading it would make the start a third slower.

Invariants
- A daemon starts on the schema that it was written for, and on a newer one that allows it:
  `compatible_from` is the oldest revision whose code works on the newer schema.
- A newer schema allows a daemon that knows the revision `compatible_from`. Names of revisions are
  never compared.
- A schema of a version before 0.1.0 is `UNRELEASED`: no step leads from it.
"""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

from sqlalchemy import Connection

from schedd.store.connection.errors import SchemaMismatch
from schedd.store.schema import grants
from schedkit.records import dataclass

log = logging.getLogger(__name__)

MIGRATIONS = Path(__file__).parents[1] / "migrations"

HAS = "SELECT to_regclass('alembic_version') IS NOT NULL"

REVISION = "SELECT version_num FROM alembic_version"

HAS_COMPATIBILITY = "SELECT to_regclass('schema_compatibility') IS NOT NULL"

COMPATIBLE_FROM = "SELECT compatible_from FROM schema_compatibility"

UNRELEASED = frozenset(f"{number:04}" for number in range(1, 28))
"""Revisions of versions before 0.1.0."""

TIMEOUTS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")


@dataclass(frozen=True, slots=True)
class SchemaState:
    """The schema of a database. `revision`: None if there is no schema yet. `compatible_from`: the
    oldest revision whose code works on the schema; None if the schema doesn't record it.
    """

    revision: str | None
    compatible_from: str | None

    def newer(self) -> bool:
        return self.revision is not None and self.revision not in known() | UNRELEASED

    def admits(self) -> bool:
        return self.newer() and self.compatible_from in known()


@cache
def known() -> frozenset[str]:
    return frozenset(file.name[1:5] for file in (MIGRATIONS / "versions").glob("v[0-9]*_*.py"))


def head() -> str:
    return max(known())


def read_schema_state(connection: Connection) -> SchemaState:
    has = connection.exec_driver_sql(HAS).scalar_one()
    revision = connection.exec_driver_sql(REVISION).scalar() if has else None
    declares = connection.exec_driver_sql(HAS_COMPATIBILITY).scalar_one()
    oldest = connection.exec_driver_sql(COMPATIBLE_FROM).scalar() if declares else None
    return SchemaState(revision, oldest)


def check_schema(connection: Connection) -> None:
    found = read_schema_state(connection)
    if found.revision == head() or runs_with_newer(found):
        return
    if found.revision is None and (lacks := grants.missing(connection)):
        raise SchemaMismatch(
            "The database has no schema of schedd, and `schedd migrate` can't create it:"
            f" {lacks}\nAfter that, run `schedd migrate`."
        )
    if found.revision is None:
        raise SchemaMismatch(
            "The database has no schema of schedd yet, because `schedd migrate` hasn't run"
        )
    raise SchemaMismatch(
        f"The database's schema is too old: it has revision {found.revision}, and this schedd"
        f" needs {head()}"
    )


def check_timeouts(connection: Connection) -> list[str]:
    """Return the names of the timeouts that the role lacks. Logs them with their remedy."""
    unset = [
        name
        for name in TIMEOUTS
        if connection.exec_driver_sql(f"SHOW {name}").scalar_one() in {"0", ""}
    ]
    if unset:
        log.warning(
            "database role lacks timeouts: %s; a stalled session can block others."
            " Set them with ALTER ROLE … SET (3s, 2s, 2s)",
            ", ".join(unset),
        )
    return unset


def runs_with_newer(found: SchemaState) -> bool:
    """Return whether the schema is newer and allows this schedd. Raises `SchemaMismatch` if it is
    newer and doesn't, or if no step leads from it.
    """
    if found.revision in UNRELEASED:
        raise SchemaMismatch(
            "The database's schema is of a version before 0.1.0: it has revision"
            f" {found.revision}, which this schedd can't migrate",
            "Create a new database (docs/operations/upgrade.md)",
        )
    if not found.newer():
        return False
    if not found.admits():
        raise SchemaMismatch(
            f"The database's schema is too new: it has revision {found.revision}, and this"
            f" schedd knows revisions up to {head()}",
            "Upgrade schedd, or set postgres.dsn to another database",
        )
    log.info(
        "the schema is newer than this schedd revision=%s known=%s compatible_from=%s",
        found.revision,
        head(),
        found.compatible_from,
    )
    return True
