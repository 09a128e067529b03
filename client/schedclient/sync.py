"""The same client for programs without an event loop: each method wraps the async one.

A private thread runs one event loop; a call is handed to it and waited for. Nothing is written
twice: `_blocking` and `_iterating` keep the types of what they wrap, and a test walks both faces.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from datetime import timedelta
from functools import update_wrapper
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast

from schedclient.access import Access
from schedclient.calendars import Calendars
from schedclient.client import Client
from schedclient.cluster import Audit, ClusterCalls, Workers
from schedclient.dead_letters import DeadLetters, Redrives
from schedclient.jobs import Jobs
from schedclient.pools import Pools
from schedclient.runs import Runs
from schedkit.channel import TLS
from schedkit.errors import Misconfigured

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")


class _Loop:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="schedclient", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def wait_for(self, work: Awaitable[T]) -> T:
        """Run it there; cancelled there if the caller is interrupted here."""
        if self._loop.is_closed():
            if isinstance(work, Coroutine):
                work.close()
            raise Misconfigured("the client is closed")
        future = asyncio.run_coroutine_threadsafe(_awaited(work), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


async def _awaited(work: Awaitable[T]) -> T:
    return await work


class _Face(Generic[A]):
    """Blocking methods over an async object."""

    def __init__(self, loop: _Loop, wrapped: A) -> None:
        self.loop = loop
        self.wrapped = wrapped


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


class SyncJobs(_Face[Jobs]):
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

    def in_namespace(self, namespace: str) -> SyncJobs:
        """The same calls, for jobs of another namespace."""
        return SyncJobs(self.loop, self.wrapped.in_namespace(namespace))


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


class SyncCalendars(_Face[Calendars]):
    """`client.calendars`, blocking."""

    apply = _blocking(Calendars.apply)
    get = _blocking(Calendars.get)
    list = _iterating(Calendars.list)
    delete = _blocking(Calendars.delete)

    def in_namespace(self, namespace: str) -> SyncCalendars:
        """The same calls, for calendars of another namespace."""
        return SyncCalendars(self.loop, self.wrapped.in_namespace(namespace))


class SyncPools(_Face[Pools]):
    """`client.pools`, blocking."""

    set = _blocking(Pools.set)
    get = _blocking(Pools.get)
    list = _iterating(Pools.list)
    delete = _blocking(Pools.delete)
    pause = _blocking(Pools.pause)
    resume = _blocking(Pools.resume)

    def in_namespace(self, namespace: str) -> SyncPools:
        """The same calls, for pools of another namespace."""
        return SyncPools(self.loop, self.wrapped.in_namespace(namespace))


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
        patience: float | None = None,
    ) -> None:
        client = Client(
            endpoints,
            tls=tls,
            token=token,
            namespace=namespace,
            timeout=timeout,
            patience=patience,
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection and end the thread."""
        self.loop.wait_for(self.wrapped.close())
        self.loop.stop()
