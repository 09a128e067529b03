"""Sessions of a PostgreSQL that may wait for one another, and a look at them from outside.

one, two = postgres.session(), postgres.session()
one.run("SELECT 1 FROM shards WHERE id = 0 FOR UPDATE")
waiting = two.begin("UPDATE shards SET owner = NULL WHERE id = 0")
postgres.wait_until_blocked(two)
one.commit()
waiting.result(5)
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import psycopg2

from support.wait import WAIT_TIMEOUT, wait_until

Rows = list[tuple[Any, ...]]
_NO_LIMITS = " ".join(
    f"-c {timeout}=0"
    for timeout in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
)
"""The limits of the daemons' role would end statements that wait here on purpose."""


class Session:
    """A connection, in a transaction from its first statement until `commit`."""

    def __init__(self, dsn: str, threads: ThreadPoolExecutor) -> None:
        self.connection = psycopg2.connect(dsn, options=_NO_LIMITS)
        self.pid = self.connection.get_backend_pid()
        self._threads = threads

    def run(self, statement: str, *arguments: object, **named: object) -> Rows:
        """Run a statement and return its rows."""
        with self.connection.cursor() as cursor:
            cursor.execute(statement, named or arguments or None)
            return list(cursor.fetchall()) if cursor.description else []

    def begin(self, statement: str, *arguments: object, **named: object) -> Future[Rows]:
        """The same in a thread, for what may have to wait."""
        return self._threads.submit(self.run, statement, *arguments, **named)

    def commit(self) -> None:
        """End the transaction."""
        self.connection.commit()


class Postgres:
    """Opens sessions, and looks at them from outside."""

    def __init__(self, dsn: str, stack: ExitStack) -> None:
        self.dsn = dsn
        self._stack = stack
        self._threads = stack.enter_context(ThreadPoolExecutor(8))
        self._outside = self.session()
        self._outside.connection.autocommit = True

    def session(self) -> Session:
        """A new one."""
        session = Session(self.dsn, self._threads)
        self._stack.callback(session.connection.close)
        return session

    def now(self, statement: str, *arguments: object) -> Rows:
        """Run a statement outside all transactions: it sees committed rows."""
        return self._outside.run(statement, *arguments)

    def wait_until_blocked(self, session: Session) -> None:
        """Until this session waits for a lock."""
        wait_until(
            lambda: self.now("SELECT cardinality(pg_blocking_pids(%s)) > 0", session.pid)[0][0],
            WAIT_TIMEOUT,
            "a session to wait for a lock",
        )

    def alive(self, session: Session) -> bool:
        """Whether the server still has it."""
        return bool(self.now("SELECT 1 FROM pg_stat_activity WHERE pid = %s", session.pid))
