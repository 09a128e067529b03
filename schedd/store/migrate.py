"""The schema: made and changed by `schedd migrate`, checked at each start.

Alembic runs the steps of `migrations/` in one transaction, under a lock that a second `migrate`
waits for.

Invariants
- A daemon starts on the schema that it was written for, and on a newer one that says itself that it
  may: `compatible_from` is the oldest revision whose code works on it. Each step names it.
- Whether that holds is told by knowing that revision, never by comparing names of revisions.
- Members go on meanwhile: a step that has to wait holds them up for `HOLDS_UP` a table at most.
- Nothing goes back: `migrate` of an older schedd leaves a newer schema as it is.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from schedd.store import partitions
from schedd.store.database import CONNECTION, url_of
from schedd.store.errors import SchemaMismatch, judge, sqlstate
from schedd.store.servers import Servers

log = logging.getLogger(__name__)

LOCK = 0x73636864  # "schd"

HOLDS_UP = "500ms"
"""How long a step waits for a table. All who come after it wait as long, members in the first
place, and for what it has already: longer, and it begins anew."""

TRIES, PAUSE = 20, 0.5
"""How often it begins, and seconds for the others in between."""

IN_THE_WAY = ("55P03", "40P01")
"""Somebody has the table; somebody waits for us as we for him."""

SAYS = "SELECT to_regclass('schema_compatibility') IS NOT NULL"

PROMISED = "SELECT compatible_from FROM schema_compatibility"

PROMISE = "UPDATE schema_compatibility SET compatible_from = %s"

TIMEOUTS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")


@dataclass(frozen=True, slots=True)
class Found:
    """The schema of a database.

    `revision`: None if it has none yet. `compatible_from`: the oldest revision whose code works on
    it; None if it doesn't say.
    """

    revision: str | None
    compatible_from: str | None

    def newer(self) -> bool:
        """Whether it was made by a schedd newer than this one."""
        return self.revision is not None and self.revision not in _known()

    def admits(self) -> bool:
        """Whether it is newer, and says that this schedd may work on it."""
        return self.newer() and self.compatible_from in _known()


def upgrade(dsn: str) -> str:
    """Bring the database to the newest schema and make the coming partitions of `runs`.

    Gives the revision that it has then: a newer one that admits this schedd is left as it is.
    Raises `SchemaMismatch` when the database is too new for this schedd, `Unavailable` when it is
    away, `Misconfigured` when it can't be used.
    """
    engine = _engine(dsn)
    try:
        for left in reversed(range(TRIES)):
            try:
                return _upgrade(engine)
            except DBAPIError as error:
                if not (left and sqlstate(error) in IN_THE_WAY):
                    raise judge(error, committing=False)[0] from error
                log.info("somebody is at a table that is to be changed; trying again")
                sleep(PAUSE)
    finally:
        engine.dispose()
    raise AssertionError("the last try gives an answer or raises")


def _engine(dsn: str) -> Engine:
    """Of the servers that the DSN names it leads where members go: to none that was replaced."""
    engine = create_engine(url_of(dsn), poolclass=NullPool, connect_args=dict(CONNECTION))
    dialect = engine.dialect
    servers = Servers(lambda params: dialect.connect(**params), lambda _: nullcontext())

    def connect(*given: Any) -> object:
        *_, params = given
        return servers.connect(params)[0]

    event.listen(engine, "do_connect", connect)
    return engine


def _upgrade(engine: Engine) -> str:
    """One try of `upgrade`."""
    with engine.begin() as connection:
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        connection.exec_driver_sql("SET LOCAL lock_timeout = '10s'")
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK})")
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{HOLDS_UP}'")
        if not _admitted(look(connection)):
            command.upgrade(_config(connection), "head")
            connection.exec_driver_sql(PROMISE, (compatible_from(),))
        for day in partitions.missing_days(connection, partitions.DAYS_AHEAD):
            partitions.make_day(connection, day)
        revision = look(connection).revision
    assert revision is not None
    return revision


def head() -> str:
    """The newest revision that this schedd knows."""
    revision = _script().get_current_head()
    assert revision is not None
    return revision


def steps() -> list[Script]:
    """All steps, in their order."""
    return list(_script().walk_revisions())[::-1]


def compatible_from() -> str:
    """The oldest revision whose code works on `head`, as its step says."""
    named = steps()[-1].module.compatible_from
    assert isinstance(named, str)
    return named


def look(connection: Connection) -> Found:
    """What schema this database has."""
    revision = MigrationContext.configure(connection).get_current_revision()
    says = connection.exec_driver_sql(SAYS).scalar_one()
    promised = connection.exec_driver_sql(PROMISED).scalar() if says else None
    return Found(revision, promised)


def check_schema(connection: Connection) -> None:
    """Raise `SchemaMismatch` unless this schedd may work on the schema."""
    found = look(connection)
    if found.revision == head() or _admitted(found):
        return
    if found.revision is None:
        raise SchemaMismatch("The database has no schema yet. Run `schedd migrate`.")
    raise SchemaMismatch(
        f"The schema is too old: revision {found.revision}, this schedd needs {head()}."
        " Run `schedd migrate`."
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


def _admitted(found: Found) -> bool:
    """Whether there is a newer schema that admits this schedd. Raises `SchemaMismatch` if there is
    one that doesn't.
    """
    if not found.newer():
        return False
    if not found.admits():
        raise SchemaMismatch(
            f"The schema is too new: revision {found.revision}, this schedd knows up to {head()}."
            " Upgrade schedd, or point it at another database."
        )
    log.info(
        "the schema is newer than this schedd (revision %s, not %s), and admits it (from %s on)",
        found.revision,
        head(),
        found.compatible_from,
    )
    return True


def _known() -> set[str]:
    return {step.revision for step in steps()}


def _script() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config(None))


def _config(connection: Connection | None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    return config
