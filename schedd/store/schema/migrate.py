"""The schema: made and changed by `schedd migrate`, looked at by each start (`revisions`).

Alembic runs the steps of `migrations/` in one transaction, under a lock that a second `migrate`
waits for.

Invariants
- Each step names the oldest revision whose code works on what it makes.
- Members go on meanwhile: a step that has to wait holds them up for `HOLDS_UP` a table at most.
- Nothing goes back: `migrate` of an older schedd leaves a newer schema as it is.
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
from schedd.store.schema.revisions import MIGRATIONS, admitted, look
from schedkit.errors import Misconfigured

log = logging.getLogger(__name__)

LOCK = 0x73636864  # "schd"

HOLDS_UP = "500ms"
"""How long a step waits for a table. All who come after it wait as long, members in the first
place, and for what it has already: longer, and it begins anew."""

TRIES, PAUSE = 20, 0.5
"""How often it begins, and seconds for the others in between."""

IN_THE_WAY = ("55P03", "40P01")
"""Somebody has the table; somebody waits for us as we for him."""

PROMISE = "UPDATE schema_compatibility SET compatible_from = %s"


def upgrade(dsn: str) -> str:
    """Bring the database to the newest schema and make the coming partitions of `runs`.

    Gives the revision that it has then: a newer one that admits this schedd is left as it is.
    Raises `SchemaMismatch` when the database is too new for this schedd, `Unavailable` when it is
    away, `Rejected` when it can't be used, `Misconfigured` when its encoding isn't UTF8.
    """
    engine = _engine(dsn)
    try:
        for left in reversed(range(TRIES)):
            try:
                return _upgrade(engine)
            except DRIVER_ERRORS as error:
                waits = isinstance(error, DBAPIError) and sqlstate(error) in IN_THE_WAY
                if not (left and waits):
                    raise judge(error, committing=False)[0] from error
                log.info("somebody is at a table that is to be changed; trying again")
                sleep(PAUSE)
    finally:
        engine.dispose()
    raise AssertionError("the last try gives an answer or raises")


def daemon_grants(dsn: str) -> str:
    """The SQL for daemons whose role isn't the one of this DSN."""
    engine = _engine(dsn)
    try:
        with engine.begin() as connection:
            return grants.for_daemons(connection)
    finally:
        engine.dispose()


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
        if lacks := grants.missing(connection):
            raise Misconfigured(lacks)
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK})")
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{HOLDS_UP}'")
        found = look(connection)
        _check_encoding(connection, exists=found.revision is not None)
        if not admitted(found):
            command.upgrade(_config(connection), "head")
            connection.exec_driver_sql(PROMISE, (compatible_from(),))
        for day in partitions.missing_days(connection, partitions.DAYS_AHEAD):
            partitions.make_day(connection, day)
        revision = look(connection).revision
    assert revision is not None
    return revision


def _check_encoding(connection: Connection, *, exists: bool) -> None:
    """Reject a new database that can't store every text; of one in use, warn.

    Raises:
        Misconfigured: the database is empty and its encoding isn't UTF8.
    """
    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
    if encoding == ENCODING:
        return
    told = (
        f"the database's encoding is {encoding}, and schedd needs {ENCODING}: create it with"
        " CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
    )
    if not exists:
        raise Misconfigured(told)
    log.warning(
        "%s, and move the data with pg_dump; values that it can't store are set aside", told
    )


def steps() -> list[Script]:
    """All steps, in their order."""
    return list(_script().walk_revisions())[::-1]


def compatible_from() -> str:
    """The oldest revision whose code works on `head`, as its step says."""
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
