"""Connections, threads and tries: where a transaction's body runs, and what follows a failure.

    async call ─→ lane s % n, one thread and one connection at a time   owners' transactions
              └─→ small pool of threads                                 reads, results, user calls
        each: BEGIN (with the first statement) · body(connection) · COMMIT, by itself

Invariants
- Two transactions of one owner never wait for each other's shard rows: a shard has one lane.
- A body may run several times; it changes nothing but the database and what it returns.
- After COMMIT was sent nothing is tried again: `OutcomeUnknown`.
- A new connection is looked at before its first use (`lineage`); once the database isn't the one
  that was known, no call goes on until `follow`.
- There are as many connections as threads can use, so none waits for one.
- No call waits longer than `PATIENCE` for a server that stands still (`patience`).
- Connections lead to servers that weren't replaced (`servers`).
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, TypeVar, cast
from urllib.parse import unquote

import psycopg2
from psycopg2 import InterfaceError, ProgrammingError
from psycopg2.extensions import parse_dsn
from sqlalchemy import URL, Connection, Engine, RootTransaction, create_engine, event, make_url
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from schedd.core.cluster.data_loss_check import Lineage
from schedd.core.cluster.shard_map import NO_TIMELINE
from schedd.core.events import Called, Emit, Service, unheard
from schedd.core.ids import Timeline
from schedd.store.connection import type_adapters
from schedd.store.connection.database_identity import admit
from schedd.store.connection.errors import DRIVER_ERRORS, RetryRule, Unsent, judge
from schedd.store.connection.primary_selection import Servers
from schedd.store.statements.operations import PRESENT
from schedkit.clock import boottime
from schedkit.errors import Fault, Misconfigured, Rejected, Unavailable

# Waits that nobody else ends, ended here: the line of a call that takes too long is cut.
#
#     call ──over──→ [ at work on its connection ] ──→ done
#                         ├─ longer than `seconds` ──→ its socket is shut down: the call fails
#                         └─ its server was replaced ─→ the same
#
# PostgreSQL's timeouts are the server's own; one that stands still keeps none, and TCP sees nothing
# wrong as long as its host, or something in between, answers. Without this a thread that waits for
# such a server would wait for ever, and with a few of them the member would be deaf to the server
# that took its place.
#
# Invariants
# - A line is cut only while its call is at work on it: the socket of a connection that was closed
#   belongs to somebody else.


class TimedTransaction:
    """One transaction at work, on a server of this timeline. `cut`: its line was cut, so the server
    isn't to be asked again.
    """

    __slots__ = ("cut", "raw", "since", "timeline")

    def __init__(self, raw: Any, timeline: Timeline) -> None:
        self.raw = raw
        self.timeline = timeline
        self.since = boottime()
        self.cut = False

    def end(self) -> None:
        """Cut its line, once."""
        if not self.cut:
            self.cut = True
            _cut(self.raw)


class StatementTimeout:
    """Watches the calls over one engine; `seconds` each has, and may be set at any time."""

    def __init__(self, engine: Engine, seconds: float) -> None:
        self.seconds = seconds
        self._calls: set[TimedTransaction] = set()
        self._lock = threading.RLock()  # a connection may be closed by the collector, anywhere
        self._ended = threading.Event()
        event.listen(engine, "close", self._closing)
        self._thread = threading.Thread(target=self._watch, name="database-patience", daemon=True)
        self._thread.start()

    @contextmanager
    def over(self, raw: Any, timeline: Timeline = NO_TIMELINE) -> Iterator[TimedTransaction]:
        """Around the work on a connection of the driver's."""
        call = TimedTransaction(raw, timeline)
        with self._lock:
            self._calls.add(call)
        try:
            yield call
        finally:
            with self._lock:
                self._calls.discard(call)

    def end_below(self, timeline: Timeline) -> None:
        """Cut the lines of all calls at work on servers of lower timelines: what those still
        answer counts for nothing, and they may let a COMMIT wait for ever.
        """
        with self._lock:
            for call in self._calls:
                if NO_TIMELINE < call.timeline < timeline:
                    call.end()

    def end(self) -> None:
        """Watch no more."""
        self._ended.set()
        self._thread.join()

    def _closing(self, raw: Any, _record: object) -> None:
        """The pool is about to close this one: from now on its number may be another's."""
        with self._lock:
            self._calls = {call for call in self._calls if call.raw is not raw}

    def _watch(self) -> None:
        while not self._ended.wait(min(1.0, self.seconds / 4)):
            now = boottime()
            with self._lock:
                for call in self._calls:
                    if now - call.since > self.seconds:
                        call.end()


def _cut(raw: Any) -> None:
    """Whoever reads from this connection finds its end."""
    try:
        with socket.socket(fileno=os.dup(raw.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)
    except (OSError, InterfaceError):
        return  # it has ended by itself, and its call is about to find that out


T = TypeVar("T")
Body = Callable[[Connection], T]

PATIENCE = 20.0
"""Seconds that one try may take: more than all of the server's own timeouts together, and than a
transaction over a line that takes two seconds each way.
"""

CLOSE_WITHIN = 1.0
"""Seconds that what is under way has when the database is closed."""

TRIES = 4
"""How often a transaction that was rolled back is begun in all."""

TIMELINE, POOL = "timeline", "pool"
"""Of a connection's server when it was made, and whose it is: keys of what is known of it."""

CONNECTION = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 3,
    "keepalives_interval": 1,
    "keepalives_count": 2,
    "tcp_user_timeout": 5000,
}
"""A peer that went silent is noticed within 5 s (RELIABILITY, Timings)."""


class RolledBack(Exception):
    """Raised by a body: roll back, and give this value as the call's answer."""

    def __init__(self, answer: object) -> None:
        super().__init__(answer)
        self.answer = answer


class StartOver(Exception):
    """Raised by a body: what it locked isn't what it thought; roll back and begin anew."""


def url_of(dsn: str) -> URL:
    """The DSN with its driver named: a bare `postgresql://` means psycopg2.

    Hosts are read as libpq reads them: a percent-encoded socket directory, or several with ports.

    Raises Misconfigured when it isn't a URL of PostgreSQL.
    """
    try:
        url = _several(dsn) if "," in _authority(dsn) else make_url(dsn)
        url = url.set(host=unquote(url.host)) if url.host else url
    except (ArgumentError, ValueError) as error:  # the latter for a port that is no number
        raise Misconfigured(f"not a PostgreSQL URL: {error}") from error
    if url.drivername in {"postgresql", "postgres"}:
        url = url.set(drivername="postgresql+psycopg2")
    if url.drivername != "postgresql+psycopg2":
        raise Misconfigured(f"not a PostgreSQL URL: it begins with {url.drivername}://")
    return url


def _authority(dsn: str) -> str:
    """`HOST:PORT,HOST:PORT` of a URL."""
    return dsn.partition("://")[2].partition("?")[0].rpartition("@")[2].partition("/")[0]


def _several(dsn: str) -> URL:
    """A URL with several hosts, by libpq; SQLAlchemy takes them behind the `?` only."""
    scheme, _, rest = dsn.partition("://")
    try:
        found = parse_dsn(f"postgresql://{rest}")
    except ProgrammingError:  # its message repeats the password
        raise ValueError("libpq can't parse it") from None
    user, password, name = (found.pop(key, None) for key in ("user", "password", "dbname"))
    return URL.create(scheme, user, password, database=name, query=found)


class Database:
    """One member's way to PostgreSQL. Blocking work happens in its own threads."""

    def __init__(
        self,
        dsn: str,
        *,
        lanes: int = 2,
        readers: int = 4,
        name: str = "schedd",
        patience: float = PATIENCE,
        emit: Emit = unheard,
    ) -> None:
        """`emit` is told how long each call took, from its own thread."""
        self.on_rejected: Callable[[Rejected], None] = lambda _: None
        """Called for each call that PostgreSQL rejects, from its own thread."""
        self.name = name
        self._emit = emit
        self.lanes = lanes
        self._url = url_of(dsn)
        self._engine = create_engine(
            self._url,
            pool_size=lanes + 2 * readers,  # a call that takes or fences has a watch beside it
            max_overflow=0,
            pool_timeout=10,
            connect_args=dict(CONNECTION),
        )
        event.listen(self._engine, "do_connect", self._connect)
        event.listen(self._engine, "connect", type_adapters.register)
        event.listen(self._engine, "handle_error", _mark_unsent)
        event.listen(self._engine, "checkin", self._close_if_old)
        self.lineage = Lineage()
        self._patience = StatementTimeout(self._engine, patience)
        dialect = self._engine.dialect
        self._servers = Servers(lambda params: dialect.connect(**params), self._patience.over)
        self.answered_at = boottime()
        """When PostgreSQL last completed a transaction, in seconds of CLOCK_BOOTTIME."""
        self._closed = False
        self._lanes = [ThreadPoolExecutor(1, f"database-lane-{n}") for n in range(lanes)]
        self._readers = ThreadPoolExecutor(readers, "database")
        self._pause = threading.Event()

    def rename(self, name: str) -> None:
        """Connect under this `application_name` from now on; the fencer's guard reads it."""
        self.name = name
        self.reconnect()

    def take_login(self, dsn: str) -> bool:
        """Log in as this DSN says from the next connection on. Returns False, and changes nothing,
        if it differs in more than user and password.
        """
        url = url_of(dsn)
        if url.set(username="", password="") != self._url.set(username="", password=""):
            return False
        self._url = url
        return True

    def follow(self) -> None:
        """Take the database as it is now, whatever it was: nobody is left who knew the old one."""
        self.reconnect()
        self.lineage.follow()

    def reconnect(self) -> None:
        """Connect anew from the next call on; what is under way ends on the connection it has, and
        that is closed then.
        """
        self._engine.dispose()

    def expect(self, timeline: Timeline) -> None:
        """This timeline was seen: servers of lower ones were replaced. Connections to those end,
        with what is under way on them, and none is made any more.
        """
        if self._servers.expect(timeline):
            self._patience.end_below(timeline)
            self.reconnect()

    def close(self) -> None:
        """End the threads, soon even if the server stands still, and close the connections."""
        self._closed = True
        executors = (*self._lanes, self._readers)
        for executor in executors:
            executor.shutdown(wait=False)
        self._patience.seconds = min(self._patience.seconds, CLOSE_WITHIN)
        for executor in executors:
            executor.shutdown(wait=True)
        self._patience.end()
        self._engine.dispose()

    async def on_lane(self, shards: Iterable[int], body: Body[T]) -> T:
        """Run an owner's transaction on the one lane of these shards."""
        lanes = {shard % self.lanes for shard in shards} or {0}
        if len(lanes) != 1:
            raise Fault(f"a transaction of an owner keeps to one lane, not {sorted(lanes)}")
        return await self._run(self._lanes[lanes.pop()], body)

    async def call(self, body: Body[T]) -> T:
        """Run a transaction on any free thread of the small pool."""
        return await self._run(self._readers, body)

    async def _run(self, executor: Executor, body: Body[T]) -> T:
        timed = partial(self._timed, body, PRESENT.get(), boottime())
        return await asyncio.get_running_loop().run_in_executor(executor, timed)

    def _timed(self, body: Body[T], call: str, asked_at: float) -> T:
        failed = True
        try:
            answer = self.transact(body)
            failed = False
            self.answered_at = boottime()
            return answer
        finally:
            self._emit(Called(Service.DATABASE, call, boottime() - asked_at, failed))

    def transact(self, body: Body[T]) -> T:
        """One transaction, in this thread. Begun anew when it was rolled back by the world.

        Raises:
            Unavailable: the database is away, or busy past its timeouts; nothing was committed.
            OutcomeUnknown: COMMIT was sent and not answered.
            Rejected: PostgreSQL rejects the login, a right, the schema or every write.
            BrokenData: PostgreSQL or its driver rejects a value.
            Fault: the statement is wrong in itself.
        """
        left = TRIES
        while True:
            if self._closed:
                raise Unavailable("PostgreSQL: the store was closed")
            if self.lineage.broken:
                raise Unavailable(f"PostgreSQL: {self.lineage.broken}")
            try:
                return self._once(body)
            except _Failed as failed:
                left -= 2 if failed.remedy is RetryRule.ONCE_MORE else 1
                if failed.remedy is RetryRule.NONE or left <= 0:
                    raise failed.error from failed.__cause__
                self._pause.wait(random.uniform(0.005, 0.05) * (TRIES - left))

    def _once(self, body: Body[T]) -> T:
        committing = False
        call: TimedTransaction | None = None
        try:
            with (
                self._engine.connect() as connection,
                self._watched(connection) as call,
            ):
                admit(connection, self.lineage)
                with connection.begin() as transaction:
                    try:
                        answer = body(connection)
                    except RolledBack as refused:
                        transaction.rollback()
                        return cast("T", refused.answer)
                    committing = True
                    _commit(connection, transaction)
                    return answer
        except StartOver as moved:
            raise _Failed(Unavailable(f"PostgreSQL: {moved}"), RetryRule.AT_ONCE) from moved
        except DRIVER_ERRORS as error:
            meant, remedy = judge(error, committing=committing)
            if isinstance(meant, Rejected):
                self.on_rejected(meant)
            cut = call is not None and call.cut
            raise _Failed(meant, RetryRule.NONE if cut else remedy) from error

    def _watched(self, connection: Connection) -> AbstractContextManager[TimedTransaction]:
        raw = connection.connection.dbapi_connection
        return self._patience.over(raw, connection.info[TIMELINE])

    def _connect(
        self, _: object, record: Any, _arguments: object, params: Mapping[str, Any]
    ) -> object:
        pool = self._engine.pool  # as it is now: connecting may take longer than this one lasts
        login = {"user": self._url.username, "password": self._url.password}
        given = {key: value for key, value in params.items() if key not in login}
        given |= {key: value for key, value in login.items() if value is not None}
        raw, timeline = self._servers.connect({**given, "application_name": self.name})
        record.info[TIMELINE] = timeline
        record.info[POOL] = pool
        return raw

    def _close_if_old(self, raw: Any, record: Any) -> None:
        """Its pool was disposed of meanwhile, and would hold it until the collector comes."""
        if raw is not None and record.info.get(POOL) is not self._engine.pool:
            record.invalidate()


def _commit(connection: Connection, transaction: RootTransaction) -> None:
    """Commit. Where that fails, give the connection up: the server may reject a COMMIT and leave
    the transaction open as failed (a statement timeout), and psycopg2 takes it for ended.
    """
    try:
        transaction.commit()
    except DRIVER_ERRORS:
        connection.invalidate()
        raise


def _mark_unsent(context: ExceptionContext) -> None:
    """Mark what the driver raises in Python, instead of its own errors: a value that it can't
    encode (UnicodeEncodeError, ValueError, TypeError, OverflowError …), or an answer that it can't
    decode. Only statements get here, so a bug in a transaction's body isn't taken for one.
    """
    found = context.original_exception
    ours = isinstance(found, (psycopg2.Error, SQLAlchemyError))
    if ours or not isinstance(found, Exception):
        return
    if context.connection is None:
        raise psycopg2.OperationalError(f"can't connect: {type(found).__name__}: {found}")
    raise Unsent(found)


class _Failed(Exception):
    """One try failed; carries what that means."""

    def __init__(self, error: Exception, remedy: RetryRule) -> None:
        super().__init__(str(error))
        self.error = error
        self.remedy = remedy
