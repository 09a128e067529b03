"""Which schema a database has, and whether this schedd may work on it.

The steps are the files of `migrations/versions`, `v0017_what_it_adds.py`: their numbers are their
revisions. Each daemon looks at each start, so Alembic, which runs the steps (`migrate`), isn't
asked here: to load it, and them, takes a third as long as the rest of a daemon.

Invariants
- A daemon starts on the schema that it was written for, and on a newer one that says itself that it
  may: `compatible_from` is the oldest revision whose code works on it.
- Whether that holds is told by knowing that revision, never by comparing names of revisions.
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

SAYS = "SELECT to_regclass('schema_compatibility') IS NOT NULL"

PROMISED = "SELECT compatible_from FROM schema_compatibility"

TIMEOUTS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")


@dataclass(frozen=True, slots=True)
class SchemaState:
    """The schema of a database.

    `revision`: None if it has none yet. `compatible_from`: the oldest revision whose code works on
    it; None if it doesn't say.
    """

    revision: str | None
    compatible_from: str | None

    def newer(self) -> bool:
        """Whether it was made by a schedd newer than this one."""
        return self.revision is not None and self.revision not in known()

    def admits(self) -> bool:
        """Whether it is newer, and says that this schedd may work on it."""
        return self.newer() and self.compatible_from in known()


@cache
def known() -> frozenset[str]:
    """All revisions that this schedd knows."""
    return frozenset(file.name[1:5] for file in (MIGRATIONS / "versions").glob("v[0-9]*_*.py"))


def head() -> str:
    """The newest revision that this schedd knows."""
    return max(known())


def look(connection: Connection) -> SchemaState:
    """What schema this database has."""
    has = connection.exec_driver_sql(HAS).scalar_one()
    revision = connection.exec_driver_sql(REVISION).scalar() if has else None
    says = connection.exec_driver_sql(SAYS).scalar_one()
    promised = connection.exec_driver_sql(PROMISED).scalar() if says else None
    return SchemaState(revision, promised)


def check_schema(connection: Connection) -> None:
    """Raise `SchemaMismatch` unless this schedd may work on the schema."""
    found = look(connection)
    if found.revision == head() or admitted(found):
        return
    if found.revision is None and (lacks := grants.missing(connection)):
        raise SchemaMismatch(f"{lacks}\nThen run `schedd migrate`.")
    if found.revision is None:
        raise SchemaMismatch("The database has no schema yet")
    raise SchemaMismatch(
        f"The schema is too old: revision {found.revision}, this schedd needs {head()}"
    )


def check_timeouts(connection: Connection) -> list[str]:
    """Names of the timeouts that the role lacks; each is told in the log with its remedy."""
    unset = [
        name
        for name in TIMEOUTS
        if connection.exec_driver_sql(f"SHOW {name}").scalar_one() in {"0", ""}
    ]
    if unset:
        log.warning(
            "the database role has no %s: a stalled session can hold others up."
            " Set them with ALTER ROLE … SET (3s, 2s, 2s)",
            ", ".join(unset),
        )
    return unset


def admitted(found: SchemaState) -> bool:
    """Whether there is a newer schema that admits this schedd. Raises `SchemaMismatch` if there is
    one that doesn't.
    """
    if not found.newer():
        return False
    if not found.admits():
        raise SchemaMismatch(
            f"The schema is too new: revision {found.revision}, this schedd knows up to {head()}",
            "Upgrade schedd, or point it at another database",
        )
    log.info(
        "the schema is newer than this schedd (revision %s, not %s), and admits it (from %s on)",
        found.revision,
        head(),
        found.compatible_from,
    )
    return True
