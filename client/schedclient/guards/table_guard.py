"""A guard in PostgreSQL: one statement, in the transaction of the write that it protects.

The statement locks the resource's row until the transaction ends, so the check and the writes are
atomic. A check that isn't in the transaction of its writes is an error. docs/fencing.md has an
example, and the statement for other drivers and languages.
"""

import re
from collections.abc import Mapping
from contextlib import closing
from typing import Any, Final, Protocol

from schedclient.guards import fencing
from schedkit.errors import Misconfigured
from schedkit.records import immutable_dataclass

SCHEMA: Final = """\
CREATE TABLE {table} (
    resource text PRIMARY KEY,
    token bigint NOT NULL
)"""

CHECK: Final = """\
INSERT INTO {table} AS guard (resource, token) VALUES (%s, %s)
ON CONFLICT (resource) DO UPDATE SET token = greatest(guard.token, excluded.token)
RETURNING token"""
"""Returns the greatest token so far, including this one. If it isn't this token, the check fails.
"""

WITHIN: Final = "SELECT txid_current_if_assigned() IS NOT NULL"
"""Run after the check: returns whether its transaction is still open. It isn't if each statement
commits automatically (autocommit, a pooler in statement mode).
"""

_NAME: Final = r"[a-z_][a-z0-9_]{0,62}"
_TABLE: Final = re.compile(rf"{_NAME}(\.{_NAME})?")
_UNDEFINED_TABLE: Final = "42P01"


class Connection(Protocol):
    """A connection of the DB-API."""

    def cursor(self) -> Any:
        """Return a new cursor."""


@immutable_dataclass(frozen=True, slots=True)
class TableGuard:
    """The guard of a resource, a row of `table`. `schema` creates the table."""

    resource: str
    table: str = "schedd_fence"

    def __post_init__(self) -> None:
        fencing.named(self.resource)
        if not _TABLE.fullmatch(self.table):
            raise Misconfigured(
                f"{self.table!r:.80} isn't a valid name of the guard's table: use lower-case"
                " letters, digits and _, optionally with a schema, such as public.schedd_fence"
            )

    @property
    def schema(self) -> str:
        """Return the statement that creates the table for all resources, for your migrations."""
        return SCHEMA.format(table=self.table)

    def check(self, connection: Connection, token: int | None = None) -> None:
        """Accept only the greatest token, until the connection's transaction ends. `token`: by
        default the token of the environment.

        Raises:
            StaleToken: the row has a greater token. Roll back.
            Misconfigured: no token, no table, or the connection is in autocommit mode.
        """
        token = fencing.given(token)
        with closing(connection.cursor()) as cursor:
            seen = self._ask(cursor, CHECK.format(table=self.table), self.resource, token)
            fencing.judge(self.resource, token, seen)
            if not self._ask(cursor, WITHIN):
                raise Misconfigured(
                    "the check of the fencing token has no effect, because its transaction was"
                    " committed automatically: turn autocommit off, or begin a transaction for"
                    " the check and the writes"
                )

    def _ask(self, cursor: Any, statement: str, *values: object) -> Any:
        """Return the only value of the row: of a tuple, a mapping or the value itself."""
        try:
            cursor.execute(statement, values)
            row = cursor.fetchone()
        except Exception as error:
            code = getattr(error, "sqlstate", None) or getattr(
                error, "pgcode", None
            )  # psycopg 3, 2
            if code == _UNDEFINED_TABLE:
                raise Misconfigured(
                    f"the guard's table {self.table} doesn't exist; create this table once:"
                    f" {self.schema}"
                ) from error
            raise
        if isinstance(row, Mapping):
            return next(iter(row.values()))
        return row if isinstance(row, int) else row[0]
