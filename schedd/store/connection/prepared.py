"""Prepare statements that serve single calls: parsing and planning take longer than execution.

    first use in a session ──PREPARE──▶ EXECUTE, from then on
    behind a pooler, or a large batch ─▶ the statement itself

Invariants
- Nothing depends on a prepared statement. Behind a pooler the next transaction may run in another
  session of the server, so none is prepared there. A session behind a pooler is recognized by its
  number: PgBouncer gives its clients numbers of its own.
- A statement is prepared under a name that is a hash of its text. If the session has lost it, or
  has it already, the transaction starts again, and the session prepares nothing any more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import closing
from hashlib import sha256
from typing import Any, Final

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from schedd.store.connection.database import StartOver
from schedd.store.connection.errors import sqlstate

MOST_ROWS: Final = 16
"""Rows of a batch that is executed as prepared. Its plan is made for few rows."""

MOST_PREPARED: Final = 32
"""Statements that a session prepares. Some name a table of a day, so their number would grow."""

_PREPARED: Final = "schedd: prepared"
"""Key of a session's `info`: the names of its prepared statements; None: it prepares none."""
_UNUSABLE = frozenset({"26000", "42P05", "0A000"})
"""Codes of PostgreSQL: no such prepared statement, one that exists already, and one whose rows have
another type since a migration.
"""
_PARAMETER: Final = re.compile(r"%\((\w+)\)s")


class PreparedStatement:
    """A statement with named parameters, as psycopg2 writes them, each with a cast."""

    def __init__(self, text: str) -> None:
        self.text = text
        names = list(dict.fromkeys(_PARAMETER.findall(text)))
        places = {name: f"${place}" for place, name in enumerate(names, 1)}
        self._name = f"schedd_{sha256(text.encode()).hexdigest()[:16]}"
        numbered = _PARAMETER.sub(lambda found: places[found[1]], text)
        self._prepare = f"PREPARE {self._name} AS {numbered}"
        self._execute = f"EXECUTE {self._name} ({', '.join(f'%({name})s' for name in names)})"

    def execute(self, connection: Connection, values: Mapping[str, object], rows: int) -> list[Any]:
        """Run the statement for a batch of so many rows, and return its rows. Raises StartOver if
        the session can't use the prepared statement any more.
        """
        if rows > MOST_ROWS or (prepared := _prepared_in(connection)) is None:
            return [*connection.exec_driver_sql(self.text, values)]
        try:
            if self._name not in prepared:
                if len(prepared) >= MOST_PREPARED:
                    connection.exec_driver_sql("DEALLOCATE ALL")
                    prepared.clear()
                connection.exec_driver_sql(self._prepare)
                prepared.add(self._name)
            return _fetch_rows(connection, self._execute, values)
        except DBAPIError as error:
            if sqlstate(error) not in _UNUSABLE:
                raise
            connection.info[_PREPARED] = None
            raise StartOver(
                "a session can't use its prepared statement any more: schedd repeats the"
                " transaction"
            ) from error


def _fetch_rows(connection: Connection, text: str, values: Mapping[str, object]) -> list[Any]:
    """Run a statement, and return its rows as tuples. The same as `exec_driver_sql`, without the
    result object of SQLAlchemy, which takes longer than the driver.
    """
    try:
        with closing(connection.connection.cursor()) as cursor:
            cursor.execute(text, values)
            return [*cursor.fetchall()]
    except Exception as error:
        # Tells the listeners of `handle_error`, and discards lost sessions.
        connection._handle_dbapi_exception(error, text, values, None, None)  # noqa: SLF001
        raise


def _prepared_in(connection: Connection) -> set[str] | None:
    """Return the names of the session's prepared statements; None behind a pooler."""
    known: set[str] | None
    if _PREPARED not in connection.info:
        raw = connection.connection.dbapi_connection
        served_by = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        direct = served_by == raw.get_backend_pid()  # type: ignore[union-attr]  # of psycopg2
        connection.info[_PREPARED] = set() if direct else None
    known = connection.info[_PREPARED]
    return known
