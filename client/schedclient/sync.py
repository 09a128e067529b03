"""The client for programs without an event loop: each method wraps the async one.

A private thread runs one event loop and all calls. `_blocking` and `_iterating` keep the types of
the methods that they wrap; a test compares both clients.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, wait
from datetime import timedelta
from functools import update_wrapper
from typing import Any, Concatenate, Final, Generic, NoReturn, ParamSpec, Self, TypeVar, cast

from schedclient.calls.base import NamespacedCalls
from schedclient.calls.calendars import Calendars
from schedclient.calls.cluster import Access, Audit, ClusterCalls, Workers
from schedclient.calls.dead_letters import DeadLetters, Redrives
from schedclient.calls.jobs import Jobs
from schedclient.calls.pools import Pools
from schedclient.calls.runs import Runs
from schedclient.client import Client
from schedclient.errors import NO_ANSWER, DeadlineExceeded
from schedclient.transport import fork
from schedclient.transport.transport import refuse_pickle
from schedkit.errors import Misconfigured
from schedkit.net.channel import TLS

A = TypeVar("A")
N = TypeVar("N", bound=NamespacedCalls)
P = ParamSpec("P")
T = TypeVar("T")


ALIVE_WITHIN: Final = 5.0
"""Seconds for the event loop's thread to respond while a call waits for it."""
_INHERITED: Final[list[asyncio.AbstractEventLoop]] = []
"""Loops of the parent process. Never closed here: that would break the parent's loops, which share
the file descriptor of their selector.
"""


class _Loop:
    """An event loop on its own thread, started by the first call.

    A forked child, and a process whose thread has ended, get a new loop with the next call.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def wait_for(self, work: Awaitable[T]) -> T:
        """Run the call on the loop and return its result. An interrupt of the caller cancels it."""
        future = self._begin(work)
        try:
            return self._result(future)
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        with self._lock:
            self._closed = True
            loop, thread = self._loop, self._thread
        if loop is not None and thread is not None and thread.is_alive():
            loop.call_soon_threadsafe(loop.stop)
            thread.join(ALIVE_WITHIN)

    @property
    def idle(self) -> bool:
        return self._process != os.getpid() or self._thread is None

    def _begin(self, work: Awaitable[T]) -> Future[T]:
        try:
            fork.check()
            loop = self._running()
            return asyncio.run_coroutine_threadsafe(_awaited(work), loop)
        except BaseException:
            if isinstance(work, Coroutine):
                work.close()
            raise

    def _running(self) -> asyncio.AbstractEventLoop:
        if sys.is_finalizing():
            raise Misconfigured(
                "SyncClient can't be used: the Python interpreter is shutting down; make the call"
                " before the program ends"
            )
        if self._process != os.getpid():
            if self._loop is not None:
                _INHERITED.append(self._loop)
            self._lock, self._process = threading.Lock(), os.getpid()
            self._loop, self._thread = None, None
        with self._lock:
            if self._closed:
                raise Misconfigured("this SyncClient is closed: create a new one")
            if self._thread is threading.current_thread():
                raise Misconfigured(
                    "SyncClient was called in its own event loop's thread (from __del__ or a"
                    " callback); call it from another thread"
                )
            if self._loop is None or self._thread is None or not self._thread.is_alive():
                self._loop, self._thread = _start()
            return self._loop

    def _result(self, future: Future[T]) -> T:
        loop, thread = self._loop, self._thread
        assert loop is not None
        assert thread is not None
        reacted = threading.Event()
        while True:
            if wait([future], ALIVE_WITHIN).done:
                return future.result()
            if not thread.is_alive() or sys.is_finalizing():
                raise _no_thread(
                    "the outcome of the call isn't known: the SyncClient's thread ended during"
                    " the call"
                )
            reacted.clear()
            loop.call_soon_threadsafe(reacted.set)
            if not reacted.wait(ALIVE_WITHIN) and not future.done():
                raise _no_thread(
                    "the outcome of the call isn't known: the SyncClient's thread hasn't"
                    f" responded for {ALIVE_WITHIN:g} s"
                )


def _start() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    _check_threads()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=_run, args=(loop,), name="schedclient", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # "can't create new thread at interpreter shutdown", or a limit
        loop.close()
        raise Misconfigured(
            f"SyncClient can't start its thread: {error}; raise the limit of threads, or call"
            " before the program ends"
        ) from error
    return loop, thread


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _check_threads() -> None:
    """Reject threads that a library has replaced: gRPC would block all of them."""
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    by = (
        "gevent"
        if gevent is not None and gevent.is_module_patched("threading")
        else "eventlet"
        if eventlet is not None and eventlet.is_monkey_patched("thread")
        else ""
    )
    if by:
        raise Misconfigured(
            f"SyncClient can't be used: {by} has replaced Python's threads, and gRPC would block"
            " all of them; call the REST API, or run your server with processes or real threads"
        )


def _no_thread(why: str) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"the call has no result: {why}",
        reason=NO_ANSWER,
        remedy="check whether the call took effect, then call again: the next call starts a new"
        " thread",
    )


async def _awaited(work: Awaitable[T]) -> T:
    return await work


class _Face(Generic[A]):
    """Blocking methods over an async object."""

    def __init__(self, loop: _Loop, wrapped: A) -> None:
        self.loop = loop
        self.wrapped = wrapped

    def __reduce__(self) -> NoReturn:
        refuse_pickle()


def _blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    def call(face: _Face[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return face.loop.wait_for(method(face.wrapped, *args, **kwargs))

    return update_wrapper(call, method)


def _iterating(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[Any, P], Iterator[T]]:
    def iterate(face: _Face[Any], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        stream = method(face.wrapped, *args, **kwargs)
        try:
            while True:
                try:
                    yield face.loop.wait_for(anext(stream))
                except StopAsyncIteration:
                    return
        finally:
            face.loop.wait_for(cast("Any", stream).aclose())

    return update_wrapper(iterate, method)


class _NamespacedFace(_Face[N]):
    def in_namespace(self, namespace: str) -> Self:
        """Return the same calls for objects of another namespace."""
        return type(self)(self.loop, self.wrapped.in_namespace(namespace))


class SyncJobs(_NamespacedFace[Jobs]):
    """`client.jobs`, blocking."""

    create = _blocking(Jobs.create)
    create_many = _blocking(Jobs.create_many)
    get = _blocking(Jobs.get)
    list = _iterating(Jobs.list)
    update = _blocking(Jobs.update)
    delete = _blocking(Jobs.delete)
    pause = _blocking(Jobs.pause)
    resume = _blocking(Jobs.resume)
    trigger = _blocking(Jobs.trigger)
    next = _blocking(Jobs.next)
    explain = _blocking(Jobs.explain)
    backfill = _blocking(Jobs.backfill)
    get_backfill = _blocking(Jobs.get_backfill)
    watch_backfill = _iterating(Jobs.watch_backfill)
    backfills = _iterating(Jobs.backfills)
    cancel_backfill = _blocking(Jobs.cancel_backfill)


class SyncRuns(_Face[Runs]):
    """`client.runs`, blocking."""

    get = _blocking(Runs.get)
    list = _iterating(Runs.list)
    watch = _iterating(Runs.watch)
    events = _iterating(Runs.events)
    wait = _blocking(Runs.wait)
    cancel = _blocking(Runs.cancel)
    retry = _blocking(Runs.retry)
    logs = _iterating(Runs.logs)
    attempts = _blocking(Runs.attempts)
    why = _blocking(Runs.why)
    result = _blocking(Runs.result)


class SyncCalendars(_NamespacedFace[Calendars]):
    """`client.calendars`, blocking."""

    apply = _blocking(Calendars.apply)
    get = _blocking(Calendars.get)
    list = _iterating(Calendars.list)
    delete = _blocking(Calendars.delete)


class SyncPools(_NamespacedFace[Pools]):
    """`client.pools`, blocking."""

    set = _blocking(Pools.set)
    get = _blocking(Pools.get)
    list = _iterating(Pools.list)
    delete = _blocking(Pools.delete)
    pause = _blocking(Pools.pause)
    resume = _blocking(Pools.resume)


class SyncClusterCalls(_Face[ClusterCalls]):
    """`client.cluster`, blocking."""

    status = _blocking(ClusterCalls.status)
    members = _blocking(ClusterCalls.members)
    shards = _blocking(ClusterCalls.shards)
    transfer_leader = _blocking(ClusterCalls.transfer_leader)
    rebalance = _blocking(ClusterCalls.rebalance)
    doctor = _blocking(ClusterCalls.doctor)
    pause = _blocking(ClusterCalls.pause)
    resume = _blocking(ClusterCalls.resume)


class SyncWorkers(_Face[Workers]):
    """`client.workers`, blocking."""

    list = _iterating(Workers.list)
    get = _blocking(Workers.get)
    watch = _iterating(Workers.watch)
    drain = _blocking(Workers.drain)
    undrain = _blocking(Workers.undrain)


class SyncAudit(_Face[Audit]):
    """`client.audit`, blocking."""

    list = _iterating(Audit.list)


class SyncAccess(_Face[Access]):
    """`client.access`, blocking."""

    create_token = _blocking(Access.create_token)
    tokens = _iterating(Access.tokens)
    revoke_token = _blocking(Access.revoke_token)
    identity = _blocking(Access.identity)


class SyncDeadLetters(_Face[DeadLetters]):
    """`client.dead_letters`, blocking."""

    list = _iterating(DeadLetters.list)
    get = _blocking(DeadLetters.get)
    groups = _blocking(DeadLetters.groups)
    discard = _blocking(DeadLetters.discard)
    redrive = _blocking(DeadLetters.redrive)


class SyncRedrives(_Face[Redrives]):
    """`client.redrives`, blocking."""

    get = _blocking(Redrives.get)
    watch = _iterating(Redrives.watch)
    list = _iterating(Redrives.list)
    stop = _blocking(Redrives.stop)
    resume = _blocking(Redrives.resume)


class SyncClient(_Face[Client]):
    """`Client` for programs without an event loop; safe to use from several threads.

    with SyncClient("host:7420") as c: run = c.runs.wait(c.submit(shell={"argv": ["date"]}))
    """

    def __init__(
        self,
        endpoints: str | Sequence[str] = "127.0.0.1:7420",
        *,
        tls: TLS | None = None,
        token: str | None = None,
        namespace: str = "default",
        timeout: float | timedelta = 20.0,
        connect_timeout: float | None = None,
    ) -> None:
        client = Client(
            endpoints,
            tls=tls,
            token=token,
            namespace=namespace,
            timeout=timeout,
            connect_timeout=connect_timeout,
        )
        loop = _Loop()
        super().__init__(loop, client)
        self.namespace = namespace
        self.jobs = SyncJobs(loop, client.jobs)
        self.runs = SyncRuns(loop, client.runs)
        self.calendars = SyncCalendars(loop, client.calendars)
        self.pools = SyncPools(loop, client.pools)
        self.cluster = SyncClusterCalls(loop, client.cluster)
        self.workers = SyncWorkers(loop, client.workers)
        self.audit = SyncAudit(loop, client.audit)
        self.access = SyncAccess(loop, client.access)
        self.dead_letters = SyncDeadLetters(loop, client.dead_letters)
        self.redrives = SyncRedrives(loop, client.redrives)

    submit = _blocking(Client.submit)
    submit_many = _blocking(Client.submit_many)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection and end the thread."""
        if not self.loop.idle:
            self.loop.wait_for(self.wrapped.close())
        self.loop.stop()
