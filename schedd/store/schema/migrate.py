"""Create and change the schema: `schedd migrate`. Each start checks the schema (`revisions`).

Alembic runs the steps of `migrations/` in one transaction, under a lock that a second `migrate`
waits for.

Invariants
- Each step names the oldest revision whose code works on its schema.
- Members continue to run meanwhile: a step that waits blocks them for `HOLDS_UP` a table at most.
- No downgrade: `migrate` of an older schedd leaves a newer schema as it is.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from time import sleep
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from schedd.store.connection.database import CONNECTION, url_of
from schedd.store.connection.errors import DRIVER_ERRORS, judge, sqlstate
from schedd.store.connection.primary_selection import Servers
from schedd.store.connection.session import ENCODING
from schedd.store.schema import grants, partitions
from schedd.store.schema.revisions import MIGRATIONS, read_schema_state, runs_with_newer
from schedkit.errors import Misconfigured

log = logging.getLogger(__name__)

LOCK = 0x73636864  # "schd"

HOLDS_UP = "500ms"
"""How long a step waits for a table lock. Members queue behind it, and wait for tables that the
migration has locked already. After that time the migration rolls back and starts again."""

TRIES, PAUSE = 20, 0.5
"""Tries of the migration, and seconds between them in which members can work."""

LOCK_CONFLICTS = ("55P03", "40P01")
"""Another session holds the table lock; deadlock."""

PROMISE = "UPDATE schema_compatibility SET compatible_from = %s"


def upgrade(dsn: str) -> str:
    """Migrate the database to the newest schema, and create the next partitions of `runs`.

    Returns the database's revision. A newer one that admits this schedd is left as it is.
    Raises `SchemaMismatch` if the database is too new for this schedd, `Unavailable` if it is
    unavailable, `Rejected` if it can't be used, `Misconfigured` if its encoding isn't UTF8.
    """
    engine = _engine(dsn)
    try:
        for left in reversed(range(TRIES)):
            try:
                return _upgrade(engine)
            except DRIVER_ERRORS as error:
                waits = isinstance(error, DBAPIError) and sqlstate(error) in LOCK_CONFLICTS
                if not (left and waits):
                    raise judge(error, committing=False)[0] from error
                log.info("migration waiting for a table lock tries_left=%d", left)
                sleep(PAUSE)
    finally:
        engine.dispose()
    raise AssertionError("unreachable: the last try of a migration returns or raises an error")


def daemon_grants(dsn: str) -> str:
    """Return the SQL for daemons whose role isn't the one of this DSN."""
    engine = _engine(dsn)
    try:
        with engine.begin() as connection:
            return grants.for_daemons(connection)
    finally:
        engine.dispose()


def _engine(dsn: str) -> Engine:
    """Return an engine that connects to the DSN's current primary, as members do."""
    engine = create_engine(url_of(dsn), poolclass=NullPool, connect_args=dict(CONNECTION))
    dialect = engine.dialect
    servers = Servers(lambda params: dialect.connect(**params), lambda _: nullcontext())

    def connect(*given: Any) -> object:
        *_, params = given
        return servers.connect(params)[0]

    event.listen(engine, "do_connect", connect)
    return engine


def _upgrade(engine: Engine) -> str:
    """Try `upgrade` once."""
    with engine.begin() as connection:
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        connection.exec_driver_sql("SET LOCAL lock_timeout = '10s'")
        if lacks := grants.missing(connection):
            raise Misconfigured(lacks)
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK})")
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{HOLDS_UP}'")
        found = read_schema_state(connection)
        _check_encoding(connection, exists=found.revision is not None)
        if not runs_with_newer(found):
            command.upgrade(_config(connection), "head")
            connection.exec_driver_sql(PROMISE, (compatible_from(),))
        for day in partitions.missing_days(connection, partitions.DAYS_AHEAD):
            partitions.make_day(connection, day)
        revision = read_schema_state(connection).revision
    assert revision is not None
    return revision


def _check_encoding(connection: Connection, *, exists: bool) -> None:
    """Reject a new database that can't store every text; log a warning for one in use. Raises
    Misconfigured: the database is empty and its encoding isn't UTF8.
    """
    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
    if encoding == ENCODING:
        return
    fault = (
        f"the database's encoding is {encoding}, and schedd needs {ENCODING}: create it with"
        " CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
    )
    if not exists:
        raise Misconfigured(fault)
    log.warning(
        "%s, and move the data with pg_dump; values that it can't store are set aside", fault
    )


def steps() -> list[Script]:
    return list(_script().walk_revisions())[::-1]


def compatible_from() -> str:
    """Return the oldest revision whose code works on `head`, as the newest step declares it."""
    named = steps()[-1].module.compatible_from
    assert isinstance(named, str)
    return named


def _script() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config(None))


def _config(connection: Connection | None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    return config
