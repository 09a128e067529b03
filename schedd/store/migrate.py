"""The schema: made and changed by `schedd migrate`, checked at each start.

Alembic runs the steps of `migrations/` in one transaction, under a lock that a second `migrate`
waits for. A daemon starts only on the schema that it was written for.
"""

from __future__ import annotations

import logging
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from schedd.store import partitions
from schedd.store.database import CONNECTION, url_of
from schedd.store.errors import SchemaMismatch, judge

log = logging.getLogger(__name__)

LOCK = 0x73636864  # "schd"

TIMEOUTS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")


def upgrade(dsn: str) -> str:
    """Bring the database to the newest schema and make the coming partitions of `runs`.

    Gives the revision. Raises `SchemaMismatch` when the database is newer than this schedd,
    `Unavailable` when it is away, `Misconfigured` when it can't be used.
    """
    engine = create_engine(url_of(dsn), poolclass=NullPool, connect_args=dict(CONNECTION))
    try:
        with engine.begin() as connection:
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
            connection.exec_driver_sql("SET LOCAL lock_timeout = '10s'")
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK})")
            _refuse_newer(connection)
            command.upgrade(_config(connection), "head")
            for day in partitions.missing_days(connection, partitions.DAYS_AHEAD):
                partitions.make_day(connection, day)
    except DBAPIError as error:
        raise judge(error, committing=False)[0] from error
    finally:
        engine.dispose()
    return head()


def head() -> str:
    """The newest revision that this schedd knows."""
    revision = _script().get_current_head()
    assert revision is not None
    return revision


def check_schema(connection: Connection) -> None:
    """Raise `SchemaMismatch` unless the schema is the one this schedd was written for."""
    present = MigrationContext.configure(connection).get_current_revision()
    if present == head():
        return
    if present is None:
        raise SchemaMismatch("The database has no schema yet. Run `schedd migrate`.")
    _refuse_newer(connection)
    raise SchemaMismatch(
        f"The schema is too old: revision {present}, this schedd needs {head()}."
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


def _refuse_newer(connection: Connection) -> None:
    present = MigrationContext.configure(connection).get_current_revision()
    known = {script.revision for script in _script().walk_revisions()}
    if present is not None and present not in known:
        raise SchemaMismatch(
            f"The schema is too new: revision {present}, this schedd knows up to {head()}."
            " Upgrade schedd, or point it at another database."
        )


def _script() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config(None))


def _config(connection: Connection | None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    return config
