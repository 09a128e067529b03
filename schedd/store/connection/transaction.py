"""Connections of the driver that send BEGIN with the first statement of a transaction.

    execute ──no transaction──▶ "BEGIN;statement", one message    commit ──▶ "COMMIT"
              └─in one────────▶ "statement"

The driver itself sends BEGIN in a message of its own, and waits for the answer.

Invariants (docs/protocol-rules.md, P1.1 and P1.3)
- BEGIN takes no snapshot and no lock. So the first statement of an owner's transaction is the first
  one that does, and runs alone.
- COMMIT is a message of its own. PostgreSQL answers it with ROLLBACK if a statement had failed:
  that confirms nothing.
- Whether a transaction is open is read from the server's last answer. So a statement whose values
  couldn't be sent doesn't make the next one run outside of a transaction.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

from psycopg2 import InterfaceError, extensions

_SET_AUTOCOMMIT: Final = vars(extensions.connection)["autocommit"].__set__
"""Sets the driver's own `autocommit`."""


class DriverConnection(extensions.connection):
    """A connection with the interface of the driver's own. `autocommit`: statements begin no
    transaction.
    """

    autocommit: bool = False

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        _SET_AUTOCOMMIT(self, True)
        self.cursor_factory = _Cursor
        self._begun = False

    def in_transaction(self) -> bool:
        """Return whether a transaction is open, by the server's last answer."""
        idle: bool = self.get_transaction_status() == extensions.TRANSACTION_STATUS_IDLE
        return not idle

    def before_statement(self) -> str:
        """Return what to send before the next statement, in the same message."""
        if self.autocommit or self.in_transaction():
            return ""
        self._begun = True
        return "BEGIN;"

    def commit(self) -> None:
        if not self._ended("COMMIT"):
            super().commit()

    def rollback(self) -> None:
        if not self._ended("ROLLBACK"):
            super().rollback()

    def _ended(self, how: str) -> bool:
        begun, self._begun = self._begun, False
        if begun:
            with extensions.cursor(self) as cursor:
                cursor.execute(how)
                if cursor.statusmessage != how:
                    raise InterfaceError(f"PostgreSQL answered {how}: {cursor.statusmessage}")
        return begun


class _Cursor(extensions.cursor):
    connection: DriverConnection

    def execute(self, query: Any, values: Any = None) -> None:
        super().execute(f"{self.connection.before_statement()}{query}", values)

    def _refused(self, *_: Any, **_named: Any) -> NoReturn:
        raise InterfaceError("only `execute` begins a transaction")

    callproc = executemany = _refused
