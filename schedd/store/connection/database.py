"""Run transactions on PostgreSQL: connections, threads and retries.

    async call ─→ lane s % n, one thread and one connection at a time   owners' transactions
              └─→ small pool of threads                                 reads, results, user calls
        each: BEGIN, with the first statement · body(connection) · COMMIT, sent separately
        `read`: without BEGIN and COMMIT

Invariants
- Two transactions of one owner never wait for each other's shard rows: a shard has one lane.
- A body may run several times. It changes only the database and the value that it returns.
- After COMMIT was sent nothing is retried: `OutcomeUnknown`.
- A new connection is checked before its first use (`lineage`). If the database isn't the known one,
  every call fails until `follow`.
- The pool has as many connections as the threads can use, so no thread waits for a connection.
- A thread of a lane or of the small pool keeps its connection between calls: taking one from the
  pool takes longer than a short statement. An error of the driver, or `reconnect`, renews them all.
- No call waits longer than `TRY_TIMEOUT` for a server that hangs (`StatementTimeout`).
- Connections lead only to servers that weren't replaced (`Servers`).
- No session stays in the pool after a statement was rejected as read-only: a session keeps the
  `default_transaction_read_only` that it began with.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast
from urllib.parse import unquote

import psycopg2
from psycopg2 import ProgrammingError
from psycopg2.extensions import parse_dsn
from sqlalchemy import URL, Connection, RootTransaction, create_engine, event, make_url
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from schedd.core.cluster.data_loss_check import Lineage
from schedd.core.events import Called, Emit, Service, discard
from schedd.core.ids import Timeline
from schedd.store.connection import type_adapters
from schedd.store.connection.database_identity import admit
from schedd.store.connection.errors import (
    DRIVER_ERRORS,
    LOCK_TIMEOUT,
    READ_ONLY,
    WAITED_REMEDY,
    RetryRule,
    Unsent,
    judge,
)
from schedd.store.connection.primary_selection import Servers, accepting
from schedd.store.connection.statement_timeout import StatementTimeout, TimedTransaction
from schedd.store.connection.transaction import DriverConnection
from schedd.store.statements.operations import PRESENT
from schedkit.clock import boottime
from schedkit.errors import Fault, Misconfigured, Rejected, ScheddError, Unavailable

T = TypeVar("T")
P = ParamSpec("P")
Body = Callable[[Connection], T]

TRY_TIMEOUT = 20.0
"""Seconds that one try may take. It exceeds the sum of the server's timeouts, and a transaction
over a network with two seconds of delay each way.
"""

CLOSE_WITHIN = 1.0
"""Seconds that running calls get when the database is closed."""

SILENT_REMEDY = (
    "{} accepts connections and doesn't answer: see whether PostgreSQL's processes are stopped or"
    " wait for disk or memory, read its log, and check a proxy in front of it, if there is one"
)

TRIES = 4
"""How often a transaction is tried in all, if it was rolled back."""

TIMELINE, POOL = "timeline", "pool"
"""Keys of a connection record's `info`: the server's timeline at connect, and the owning pool."""

CONNECTION = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 3,
    "keepalives_interval": 1,
    "keepalives_count": 2,
    "tcp_user_timeout": 5000,
}
"""A silent peer is detected within 5 s."""


class RolledBack(Exception):
    """Raised by a body: roll back, and return this value from the call."""

    def __init__(self, answer: object) -> None:
        super().__init__(answer)
        self.answer = answer


class StartOver(Exception):
    """Raised by a body whose locked rows changed since it read them: roll back and try again."""


def url_of(dsn: str) -> URL:
    """Return the DSN as a URL with its driver: a bare `postgresql://` means psycopg2. Hosts are
    read as libpq reads them: a percent-encoded socket directory, or several with ports. Raises
    Misconfigured if it isn't a valid URL of PostgreSQL.
    """
    try:
        url = _several(dsn) if "," in _authority(dsn) else make_url(dsn)
        url = url.set(host=unquote(url.host)) if url.host else url
    except (ArgumentError, ValueError) as error:  # ValueError: a port that isn't a number
        raise Misconfigured(
            f"invalid PostgreSQL URL: {error}; write postgresql://USER@HOST:PORT/DATABASE"
        ) from error
    if url.drivername in {"postgresql", "postgres"}:
        url = url.set(drivername="postgresql+psycopg2")
    if url.drivername != "postgresql+psycopg2":
        raise Misconfigured(
            f"invalid PostgreSQL URL: the scheme is {url.drivername}://, but must be postgresql://"
        )
    return url


def _authority(dsn: str) -> str:
    return dsn.partition("://")[2].partition("?")[0].rpartition("@")[2].partition("/")[0]


def _several(dsn: str) -> URL:
    """Return a URL with several hosts, parsed by libpq: SQLAlchemy accepts them as options only."""
    scheme, _, rest = dsn.partition("://")
    try:
        found = parse_dsn(f"postgresql://{rest}")
    except ProgrammingError:  # its message repeats the password
        raise ValueError("the list of hosts in the URL isn't valid: libpq can't parse it") from None
    user, password, name = (found.pop(key, None) for key in ("user", "password", "dbname"))
    return URL.create(scheme, user, password, database=name, query=found)


class Database:
    """Access of one member to PostgreSQL. Blocking work runs in its own threads."""

    def __init__(
        self,
        dsn: str,
        *,
        lanes: int = 2,
        readers: int = 4,
        name: str = "schedd",
        timeout: float = TRY_TIMEOUT,
        emit: Emit = discard,
    ) -> None:
        """`emit` receives the duration of each call, from the call's thread."""
        self.on_rejected: Callable[[Rejected], None] = lambda _: None
        """Called for each call that PostgreSQL rejects, from the call's thread."""
        self.on_lock_timeout: Callable[[Unavailable], None] = lambda _: None
        """The same for each try that waited for a lock until `lock_timeout`."""
        self.name = name
        self._emit = emit
        self.lanes = lanes
        self._url = url_of(dsn)
        self._engine = create_engine(
            self._url,
            pool_size=lanes
            + 2 * readers  # a call that takes shards or fences uses a second connection
            + 1,  # of `inspect`
            max_overflow=0,
            pool_timeout=10,
            connect_args=dict(CONNECTION),
        )
        self._keepers = set[int]()
        """Threads that keep their connection between calls."""
        self._kept: dict[int, tuple[object, Connection]] = {}
        """The idle connections of those threads, each with the `_renewed` of its last call."""
        self._renewed = object()
        """Replaced when every thread must take another connection."""
        event.listen(self._engine, "do_connect", self._connect)
        event.listen(self._engine, "connect", type_adapters.register)
        event.listen(self._engine, "handle_error", _renew_read_only)
        event.listen(self._engine, "handle_error", _mark_unsent)
        event.listen(self._engine, "checkin", self._close_if_old)
        self.lineage = Lineage()
        self._timeouts = StatementTimeout(self._engine, timeout)
        dialect = self._engine.dialect
        self._servers = Servers(
            lambda params: dialect.connect(**params, connection_factory=DriverConnection),
            self._timeouts.limit_connection,
        )
        self.answered_at = boottime()
        """When PostgreSQL last completed a transaction, in seconds of CLOCK_BOOTTIME."""
        self._closed = False
        self._lanes = [
            ThreadPoolExecutor(1, f"database-lane-{n}", self._keep) for n in range(lanes)
        ]
        self._readers = ThreadPoolExecutor(readers, "database", self._keep)
        self._inspector = ThreadPoolExecutor(1, "database-inspector")
        self._pause = threading.Event()

    def rename(self, name: str) -> None:
        """Connect under this `application_name` from now on. Fencing finds sessions by it."""
        self.name = name
        self.reconnect()

    def take_login(self, dsn: str) -> bool:
        """Use the user and password of this DSN from the next connection on. Returns False, and
        changes nothing, if the DSN differs in more than those.
        """
        url = url_of(dsn)
        if url.set(username="", password="") != self._url.set(username="", password=""):
            return False
        self._url = url
        return True

    def follow(self) -> None:
        """Accept the database as it is now. Called when no member knows the old one any more."""
        self.reconnect()
        self.lineage.follow()

    def reconnect(self) -> None:
        """Use new connections from the next call on. A running call keeps its connection, which is
        closed afterwards.
        """
        self._engine.dispose()
        self._discard_kept()

    def expect(self, timeline: Timeline) -> None:
        """Record a timeline that was seen: servers of lower ones were replaced. Their connections
        are closed, with the calls that run on them, and no new ones are opened.
        """
        if self._servers.expect(timeline):
            self._timeouts.end_below(timeline)
            self.reconnect()

    async def silence_remedy(self, since: float) -> str:
        """Return what to check after a call got no answer since this time of CLOCK_BOOTTIME; empty
        if no host of the DSN accepts a connection.
        """
        if self.answered_at > since:
            return WAITED_REMEDY
        hosts = await accepting(self._engine.dialect.create_connect_args(self._url)[1])
        return SILENT_REMEDY.format(", ".join(hosts)) if hosts else ""

    def close(self) -> None:
        """End the threads, soon even if the server hangs, and close the connections."""
        self._closed = True
        executors = (*self._lanes, self._readers, self._inspector)
        for executor in executors:
            executor.shutdown(wait=False)
        self._timeouts.seconds = min(self._timeouts.seconds, CLOSE_WITHIN)
        for executor in executors:
            executor.shutdown(wait=True)
        self._timeouts.end()
        self.reconnect()

    async def on_lane(self, shards: Iterable[int], body: Body[T]) -> T:
        """Run an owner's transaction on the one lane of these shards."""
        lanes = {shard % self.lanes for shard in shards} or {0}
        if len(lanes) != 1:
            raise Fault(f"an owner's transaction has shards of several lanes: {sorted(lanes)}")
        return await self._run(self._lanes[lanes.pop()], body)

    async def call(
        self,
        body: Callable[Concatenate[Connection, P], T],
        /,
        *arguments: P.args,
        **named: P.kwargs,
    ) -> T:
        """Run `body(connection, …)` as a transaction on any free thread of the small pool."""
        return await self._run(self._readers, lambda c: body(c, *arguments, **named))

    async def read(
        self,
        body: Callable[Concatenate[Connection, P], T],
        /,
        *arguments: P.args,
        **named: P.kwargs,
    ) -> T:
        """Run `body(connection, …)` as `call` does, without BEGIN and COMMIT. For statements that
        only read and take no lock: in a transaction each would have a snapshot of its own, too.
        """
        return await self._run(
            self._readers, lambda c: body(c, *arguments, **named), autocommit=True
        )

    async def inspect(self, body: Body[T]) -> T:
        """Run `body(connection)` once, on a thread of its own and without the check of a new
        connection. So it waits for no other call, nor for a lock of schedd's tables. Raises: as
        `transact`.
        """
        return await asyncio.get_running_loop().run_in_executor(
            self._inspector, partial(self._inspect, body)
        )

    def _inspect(self, body: Body[T]) -> T:
        try:
            with (
                self._engine.connect() as connection,
                self._watched(connection),
                connection.begin(),
            ):
                return body(connection)
        except DRIVER_ERRORS as error:
            raise judge(error, committing=False)[0] from error

    async def _run(self, executor: Executor, body: Body[T], *, autocommit: bool = False) -> T:
        timed = partial(self._timed, body, autocommit, PRESENT.get(), boottime())
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[T] = loop.create_future()
        executor.submit(_answer, loop, answered, timed)
        return await answered

    def _timed(self, body: Body[T], autocommit: bool, call: str, asked_at: float) -> T:
        failed = True
        try:
            answer = self.transact(body, autocommit=autocommit)
            failed = False
            self.answered_at = boottime()
            return answer
        finally:
            self._emit(Called(Service.DATABASE, call, boottime() - asked_at, failed))

    def transact(self, body: Body[T], *, autocommit: bool = False) -> T:
        """Run one transaction in this thread. It is tried again if PostgreSQL rolled it back.
        `autocommit`: as `read`.

        Raises:
            Unavailable: the database is unavailable, or a statement timed out; nothing was
                committed.
            OutcomeUnknown: COMMIT was sent and not answered.
            Rejected: PostgreSQL rejects the login, a privilege, the schema or every write.
            BrokenData: PostgreSQL or its driver rejects a value.
            Fault: the statement itself is wrong.
        """
        left = TRIES
        while True:
            if self._closed:
                raise Unavailable(
                    "PostgreSQL: this schedd has closed its connections, because it is stopping"
                )
            if self.lineage.broken:
                raise Unavailable(f"PostgreSQL: {self.lineage.broken}")
            try:
                return self._once(body, autocommit)
            except _Failed as failed:
                left -= 2 if failed.remedy is RetryRule.ONCE_MORE else 1
                if failed.remedy is RetryRule.NONE or left <= 0:
                    raise failed.error from failed.__cause__
                self._pause.wait(random.uniform(0.005, 0.05) * (TRIES - left))

    def _once(self, body: Body[T], autocommit: bool) -> T:
        committing = False
        call: TimedTransaction | None = None
        try:
            with self._connected() as connection, self._watched(connection) as call:
                admit(connection, self.lineage)
                with (
                    _autocommit(connection) if autocommit else nullcontext(),
                    connection.begin() as transaction,
                ):
                    try:
                        answer = body(connection)
                    except RolledBack as refused:
                        transaction.rollback()
                        return cast("T", refused.answer)
                    committing = not autocommit
                    _commit(connection, transaction)
                    return answer
        except StartOver as moved:
            raise _Failed(Unavailable(f"PostgreSQL: {moved}"), RetryRule.AT_ONCE) from moved
        except DRIVER_ERRORS as error:
            meant, remedy = judge(error, committing=committing)
            if isinstance(meant, Rejected):
                self.on_rejected(meant)
            elif isinstance(meant, Unavailable) and meant.reason == LOCK_TIMEOUT:
                self.on_lock_timeout(meant)
            cut = call is not None and call.cut
            raise _Failed(meant, RetryRule.NONE if cut else remedy) from error

    def _keep(self) -> None:
        self._keepers.add(threading.get_ident())

    def _discard_kept(self) -> None:
        """Have every thread take a connection from the pool, which knows those to renew."""
        self._renewed = object()
        while self._kept:
            with suppress(KeyError):  # its thread took it meanwhile
                self._kept.popitem()[1][1].close()

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        thread, renewed = threading.get_ident(), self._renewed
        since, kept = self._kept.pop(thread, (renewed, None))
        if kept is not None and since is not renewed:
            kept.close()
            kept = None
        connection = kept or self._engine.connect()
        try:
            yield connection
        except BaseException as error:
            if connection.invalidated or not isinstance(error, StartOver | ScheddError):
                self._discard_kept()
            raise
        finally:
            if thread in self._keepers and thread not in self._kept:
                self._kept[thread] = renewed, connection
                if renewed is not self._renewed and (old := self._kept.pop(thread, None)):
                    old[1].close()
            else:
                connection.close()

    def _watched(self, connection: Connection) -> AbstractContextManager[TimedTransaction]:
        raw = connection.connection.dbapi_connection
        return self._timeouts.limit_connection(raw, connection.info[TIMELINE])

    def _connect(
        self, _: object, record: Any, _arguments: object, params: Mapping[str, Any]
    ) -> object:
        pool = self._engine.pool  # read before connecting: the pool may be replaced meanwhile
        login = {"user": self._url.username, "password": self._url.password}
        given = {key: value for key, value in params.items() if key not in login}
        given |= {key: value for key, value in login.items() if value is not None}
        raw, timeline = self._servers.connect({**given, "application_name": self.name})
        record.info[TIMELINE] = timeline
        record.info[POOL] = pool
        return raw

    def _close_if_old(self, raw: Any, record: Any) -> None:
        """Close a connection whose pool was disposed of: it would stay open until collected."""
        if raw is not None and record.info.get(POOL) is not self._engine.pool:
            record.invalidate()


class HasDatabase(Protocol):
    @property
    def database(self) -> Database: ...


def in_transaction(
    body: Callable[Concatenate[Connection, P], T],
) -> Callable[Concatenate[HasDatabase, P], Coroutine[Any, Any, T]]:
    """Return the method of a store that runs this body in one transaction, by `Database.call`."""

    @wraps(body)
    async def method(store: HasDatabase, /, *arguments: P.args, **named: P.kwargs) -> T:
        return await store.database.call(body, *arguments, **named)

    return method


def in_autocommit(
    body: Callable[Concatenate[Connection, P], T],
) -> Callable[Concatenate[HasDatabase, P], Coroutine[Any, Any, T]]:
    """Return the method of a store that runs this body, which only reads, by `Database.read`."""

    @wraps(body)
    async def method(store: HasDatabase, /, *arguments: P.args, **named: P.kwargs) -> T:
        return await store.database.read(body, *arguments, **named)

    return method


@contextmanager
def _autocommit(connection: Connection) -> Iterator[None]:
    """Send neither BEGIN nor COMMIT."""
    raw = connection.connection.dbapi_connection
    assert raw is not None, "a connection of the pool"
    raw.autocommit = True
    try:
        yield
    finally:
        if not raw.closed:
            raw.autocommit = False


def _commit(connection: Connection, transaction: RootTransaction) -> None:
    """Commit. If that fails, discard the connection: after a rejected COMMIT (a statement timeout)
    the server may keep the failed transaction open, while psycopg2 counts it as ended.
    """
    try:
        transaction.commit()
    except DRIVER_ERRORS:
        connection.invalidate()
        raise


def _renew_read_only(context: ExceptionContext) -> None:
    """Discard the pool's sessions if one is read-only: a session that began while
    `default_transaction_read_only` was on stays read-only after the setting is off again.
    """
    if getattr(context.original_exception, "pgcode", None) == READ_ONLY:
        context.is_disconnect = True


def _mark_unsent(context: ExceptionContext) -> None:
    """Raise `Unsent` for Python errors of the driver: a value that it can't encode
    (UnicodeEncodeError, ValueError, TypeError, OverflowError …), or an answer that it can't decode.
    Only statements get here, so a bug in a transaction's body isn't mistaken for one.
    """
    found = context.original_exception
    ours = isinstance(found, (psycopg2.Error, SQLAlchemyError))
    if ours or not isinstance(found, Exception):
        return
    if context.connection is None:
        raise psycopg2.OperationalError(
            f"can't connect to PostgreSQL: {type(found).__name__}: {found}"
        )
    raise Unsent(found)


def _answer(
    loop: asyncio.AbstractEventLoop, answered: asyncio.Future[T], call: Callable[[], T]
) -> None:
    """Make the call in this thread, unless its caller was canceled before. The same as
    `run_in_executor`, which passes each answer on from one future to another.
    """
    if answered.cancelled():
        return
    try:
        resolve = partial(answered.set_result, call())
    except BaseException as error:  # noqa: BLE001 - raised to the caller
        resolve = partial(answered.set_exception, error)
    with suppress(RuntimeError):  # the loop was closed meanwhile
        loop.call_soon_threadsafe(_unless_done, answered, resolve)
    del answered, resolve  # an error's traceback refers to this frame


def _unless_done(answered: asyncio.Future[T], resolve: Callable[[], None]) -> None:
    if not answered.done():
        resolve()


class _Failed(Exception):
    """Failure of one try, with the classified error and whether to retry."""

    def __init__(self, error: Exception, remedy: RetryRule) -> None:
        super().__init__(str(error))
        self.error = error
        self.remedy = remedy
