"""A member as a process: start, serving, hand-over and end, from its configuration.

`composition` creates the parts, connects them and serves them by gRPC. Listeners, readiness, status
for the service manager and garbage collection are here.
"""

import asyncio
import gc
import logging
import math
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

import grpc.aio
from starlette.applications import Starlette

from schedd.api.cluster.cluster import DUPLICATE_NAME
from schedd.api.views import paused
from schedd.app import composition
from schedd.app.composition import Foundations, MemberParts, serve
from schedd.app.recover import prefix_owner
from schedd.cluster.cluster_pause import ClusterPause
from schedd.cluster.member import MemberLifecycle
from schedd.cluster.prefix_claim import PrefixClaim
from schedd.config.member_config import Config
from schedd.core.cluster.dependency import Dependency, DependencyFailure, Unready
from schedd.etcd import client as etcd_client
from schedd.results.objects import StoredObjects
from schedd.rpc.connection_limit import ConnectionLimit, most_of_all, most_of_one
from schedd.rpc.server import make_server, served
from schedd.runtime.cluster_clock import DatabaseClock
from schedd.runtime.dependency_health import DependencyHealth
from schedd.store.connection.database import Database
from schedd.store.postgres import Stores
from schedd.telemetry.recorder import Telemetry
from schedd.web import app as web
from schedd.web import server as web_server
from schedkit.backoff import Backoff
from schedkit.clock import boottime
from schedkit.daemon import service
from schedkit.errors import NotNow, Rejected, Unavailable
from schedkit.net.channel import listen
from schedkit.net.http_limits import connections_for, more_descriptors
from schedkit.net.https import context_of
from schedkit.net.proxies import Proxies
from schedkit.objects import open_objects
from schedkit.records import dataclass
from schedkit.tasks import Loop, guard

# Addresses of a member, and limits on connections.
#
#     gRPC   listen.grpc (certificates), listen.grpc_tokens (tokens)   calls, workers, members
#     HTTP   listen.http                                               pages, REST, metrics, health
#
# An address is bound before anything runs: callers that connect early wait until it is served.


@dataclass(frozen=True, slots=True)
class Listeners:
    """gRPC and HTTP servers of a member, with their addresses. `connections`, `streams`: limits on
    open HTTP connections and gRPC streams.
    """

    grpc: grpc.aio.Server
    ports: tuple[int, ...]
    """Ports of gRPC: the first is advertised."""
    http: web_server.Bound
    https: ssl.SSLContext | None
    connections: int
    streams: int
    proxies: Proxies
    """Trusted proxies before HTTP."""

    def watched(self) -> list[tuple[str, Callable[[], Awaitable[object]]]]:
        """Return what runs as long as gRPC is served, by name."""
        most = most_of_one(self.streams)
        limits = [
            (f"connection limit at {port}", ConnectionLimit(port, most).run) for port in self.ports
        ]
        return [("grpc", lambda: served(self.grpc)), *limits]


@asynccontextmanager
async def open_listeners(config: Config) -> AsyncIterator[Listeners]:
    """Bind the addresses for the duration of the block.

    Raises:
        Misconfigured: an address isn't valid or can't be bound.
    """
    descriptors = more_descriptors()
    connections = connections_for(descriptors, listeners=2)
    streams = most_of_all(descriptors, connections)
    server, tls = make_server(streams), config.tls.files()
    ports = [listen(server, config.listen.grpc, tls)]
    if config.listen.grpc_tokens:
        ports.append(listen(server, config.listen.grpc_tokens, tls, certificates=False))
    https = None if tls is None else context_of(tls)
    async with web_server.bound(config.listen.http) as http:
        proxies = config.listen.proxies()
        yield Listeners(server, tuple(ports), http, https, connections, streams, proxies)


# Whether a member is ready to serve, for `/readyz`, gRPC's health service and metrics.

FRESH: Final = 5.0
"""Seconds without an answer of the database after which a member isn't ready."""


def readiness(
    member: MemberLifecycle,
    clock: DatabaseClock,
    etcd_away: Callable[[], float],
    leaving: Callable[[], bool],
    failures: Callable[[], Sequence[DependencyFailure]],
) -> Callable[[], dict[Unready, str]]:
    """Return a function that gives the reasons why this member isn't ready, in words; none: ready.

    `etcd_away`: seconds since etcd last answered a call. `leaving`: whether the process was asked
    to end. `failures`: failures of dependencies; a known cause is given in place of "doesn't
    answer".
    """

    def reasons() -> dict[Unready, str]:
        found: dict[Unready, str] = {}
        if leaving():
            found[Unready.LEAVING] = "the member is shutting down"
        cluster = member.cluster
        if cluster.duplicate:
            found[Unready.DUPLICATE_NAME] = DUPLICATE_NAME.format(cluster.duplicate)
        elif cluster.foreign:
            found[Unready.ANOTHER_CLUSTER] = cluster.foreign
        elif cluster.tenure is None:
            found[Unready.NO_TENURE] = "the member hasn't joined the cluster yet"
        elif not cluster.trusted():
            found[Unready.UNTRUSTED] = "the member's lease in etcd may have expired"
        failed = {failure.dependency: failure for failure in failures()}
        if (failure := failed.get(Dependency.ETCD)) is not None:
            found[Unready.ETCD] = str(failure)
        elif not cluster.trusted() and (silent := etcd_away()):
            found[Unready.ETCD] = f"etcd hasn't answered for {silent:.1f} s"
        away = clock.away_for()
        if (failure := failed.get(Dependency.POSTGRESQL)) is not None:
            found[Unready.DATABASE] = str(failure)
        elif away > FRESH:
            found[Unready.DATABASE] = f"PostgreSQL hasn't answered for {away:.1f} s"
        if cluster.view().leader is None:
            found[Unready.NO_LEADER] = "the cluster has no leader"
        return found

    return reasons


def notes(
    cluster_pause: ClusterPause, lock_waits: Callable[[], Sequence[DependencyFailure]]
) -> Callable[[], list[str]]:
    """Return remarks for people on a member that is ready."""

    def remarks() -> list[str]:
        pause = cluster_pause.pauses.present
        pauses = [f"the cluster is {paused(pause)}"] if pause else []
        return [*pauses, *map(str, lock_waits())]

    return remarks


# The start of a daemon, also before its database, and its notifications to the service manager.
#
# waiting for PostgreSQL ──▶ waiting for etcd ──READY──▶ serving │ serving; not ready: why

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_EVERY: Final = 1.0
"""Seconds between two checks whether a daemon is ready to serve."""


async def once_available(
    step: Callable[[], Coroutine[Any, Any, T]], what: str, daemon: service.Daemon
) -> T | None:
    """Run a step of the start, again until its dependency answers: a daemon may start before its
    database.

    Returns None if the process was asked to end before.

    Raises:
        NotNow: the dependency rejects this process. The start ends, so that the operator sees why;
            the service manager tries again.
    """
    backoff = Backoff(0.2, 5.0)
    while not daemon.draining.is_set():
        try:
            return await _unless_draining(step(), daemon)
        except Rejected as rejected:
            raise NotNow(str(rejected)) from rejected
        except Unavailable as away:
            log.warning("waiting for %s: %s", what, away)
            daemon.status(f"waiting for {what}")
        await _unless_draining(asyncio.sleep(backoff.next()), daemon)
    return None


async def _unless_draining(work: Coroutine[Any, Any, T], daemon: service.Daemon) -> T | None:
    """Return the result of the work; None as soon as the daemon is asked to end."""
    doing = asyncio.create_task(work, name="start")
    asked = asyncio.create_task(daemon.draining.wait(), name="asked to end")
    try:
        await asyncio.wait({doing, asked}, return_when=asyncio.FIRST_COMPLETED)
        return doing.result() if doing.done() else None
    finally:
        doing.cancel()
        asked.cancel()
        await asyncio.gather(doing, asked, return_exceptions=True)


@dataclass(eq=False)
class ServingStatus:
    """Status of a running daemon, for its service manager.

    `answered`: whether etcd has answered. Until then the daemon accepts calls but isn't reported as
    started. `unready`: why it isn't ready to serve.
    """

    daemon: service.Daemon
    serving: str
    answered: Callable[[], bool]
    unready: Callable[[], Sequence[str]]

    def __post_init__(self) -> None:
        self._started = asyncio.Event()

    async def start(self) -> NoReturn:
        """Report READY once etcd has answered, then answer reloads."""
        await self._started.wait()
        self.daemon.ready(self.serving)
        await service.answer_reloads(self.daemon, self.serving)

    async def tell(self) -> NoReturn:
        """Report the status when it changes, and repeatedly while the daemon isn't ready. `run`
        reports the end.
        """
        sent = ""
        while True:
            started = self._started.is_set()
            if self.answered():
                self._started.set()
            status = self._status()
            again = started and status != self.serving  # a reload may have sent another one
            if (again or status != sent) and not self.daemon.draining.is_set():
                sent = status
                self.daemon.status(status)
            await asyncio.sleep(LOOK_EVERY if self._started.is_set() else LOOK_EVERY / 10)

    def _status(self) -> str:
        if not self.answered():
            return f"{self.serving}; waiting for etcd"
        reasons = self.unready()
        return f"{self.serving}; not ready: {', '.join(reasons)}" if reasons else self.serving


# Garbage collection of cycles: often while few objects exist, rarely while many do.
#
# Everything stops while the interpreter examines all objects, which it would do each time their
# number has grown by a quarter. An owner of 33,000 runs has half a million objects: 0.15 s of a
# processor every few seconds, ten times that on a busy machine, to free a handful of objects.
# Nearly all memory here is freed by reference counting. Cycles come from failures, and can wait.
#
# Invariants
# - Young objects are examined after `YOUNG` new ones: most cycles never grow old.
# - Old objects are examined each minute while they are fewer than `FEW`, otherwise after
#   `AT_LATEST`.

EVERY: Final = 60.0
YOUNG: Final = 20_000
"""Objects. A run creates about thirty. At the interpreter's default of 700, young objects were
examined for each twenty runs, for a tenth of the loop's time.
"""
FEW: Final = 100_000
"""Objects that are examined in about 30 ms."""
AT_LATEST: Final = 900.0
"""Seconds. A burst of runs ends in less; an owner of very many objects stops four times an hour."""
NEVER: Final = 2**31 - 1


class Sweeper:
    def __init__(self, clock: Callable[[], float] = boottime) -> None:
        self._clock = clock
        self._swept = -math.inf
        self.loop = Loop("garbage", self.step, interval=EVERY)

    def take_over(self) -> None:
        """Take over full collections, and exempt the objects that exist now."""
        _, middle, _ = gc.get_threshold()
        gc.set_threshold(YOUNG, middle, NEVER)
        gc.freeze()
        self._swept = self._clock()

    async def step(self) -> None:
        now = self._clock()
        if now - self._swept >= AT_LATEST or len(gc.get_objects(generation=2)) <= FEW:
            gc.collect()
            self._swept = now


SWITCH_EVERY: Final = 0.001
"""Seconds after which a computing thread must let another use the interpreter. While a thread reads
thousands of rows, the event loop waits this long after each system call. With the default of 5 ms,
that was half a second in a hundred small steps.
"""
WRITE_PROBE: Final = "write-probe"
"""Key of etcd that is never written: see `EtcdClient.probe_write`."""
GRACE: Final = 0.5
"""Seconds that calls in progress may take when the daemon ends."""


def migrate(config: Config) -> str:
    """Migrate the database to this version; return its revision and the daemons' grants."""
    from schedd.store.schema import migrate  # slow to load, and daemons don't need it

    return f"{migrate.upgrade(config.postgres.dsn)}\n{migrate.daemon_grants(config.postgres.dsn)}"


class MemberDaemon:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._access = config.etcd.access()
        self._database: Database | None = None

    def take_logins(self, found: Config) -> frozenset[str]:
        """Use these logins of PostgreSQL and etcd from the next login on; return their keys.

        Another server or database needs a restart: the member belongs to the cluster of the present
        one.
        """
        self._access.login = found.etcd.access().login
        taken = {"etcd.user", "etcd.password"}
        if self._database is not None and self._database.take_login(found.postgres.dsn):
            taken.add("postgres.dsn")
        return frozenset(taken)

    async def run(self, daemon: service.Daemon) -> None:
        """Serve until asked to drain, then hand over and end."""
        sys.setswitchinterval(SWITCH_EVERY)
        config = self._config
        access, telemetry = self._access, Telemetry()
        async with AsyncExitStack() as stack:
            store = _store(config, telemetry)
            stack.callback(store.close)
            self._database = store.database
            clock = _clock(store)
            cluster_id = await once_available(
                partial(_check_database, store, clock), "PostgreSQL", daemon
            )
            if cluster_id is None:
                return
            etcd = await stack.enter_async_context(
                etcd_client.connect(
                    access,
                    deadline=config.call_deadline,
                    root=config.etcd.prefix,
                    emit=telemetry.emit,
                )
            )
            claim = PrefixClaim(
                etcd, prefix_owner(config, cluster_id), config.etcd.prefix, store.database.lineage
            )
            with suppress(Unavailable):  # also compared when it joins
                await claim.check_at_start(cluster_id)
            doors = await stack.enter_async_context(open_listeners(config))
            composition.tell_who_is_asked(config)
            identity = composition.identity(config, doors.ports[0], doors.http.port)
            objects = StoredObjects(open_objects(config.results.url, config.results.options))
            stack.callback(objects.close)
            health = _dependency_health(store, etcd)
            ground = Foundations(
                config,
                identity,
                store,
                clock,
                etcd,
                access,
                cluster_id,
                objects,
                telemetry,
                claim,
                health,
            )
            parts = MemberParts(ground)
            stack.push_async_callback(parts.peers.close)
            stack.push_async_callback(parts.sender.close)
            telemetry.observe_etcd(etcd.silence.seconds)
            judged = readiness(
                parts.member, clock, etcd.silence.seconds, daemon.draining.is_set, health.failures
            )
            telemetry.observe_readiness(judged, health.failures)

            def unready() -> list[str]:
                return list(judged().values())

            grpc_health = await serve(doors.grpc, parts, unready)
            stack.push_async_callback(doors.grpc.stop, GRACE)
            sweeper = Sweeper()
            sweeper.take_over()
            loops = [
                health.probe(
                    Dependency.POSTGRESQL, store.probe_write, store.database.silence_remedy
                ),
                health.probe(Dependency.ETCD, lambda: etcd.probe_write(WRITE_PROBE)),
                grpc_health.loop,
                sweeper.loop,
            ]
            page = web.build(
                parts.services,
                telemetry,
                unready,
                notes(parts.cluster_pause, health.lock_waits),
                composition.reach(config),
            )
            serving = f"{identity.name}: gRPC {identity.grpc}, HTTP {identity.http}"
            status = ServingStatus(daemon, serving, lambda: etcd.silence.answered_once, unready)
            await _live(daemon, status, parts, loops, doors, page)


def _store(config: Config, telemetry: Telemetry) -> Stores:
    database = Database(config.postgres.dsn, lanes=config.postgres.lanes, emit=telemetry.emit)
    return Stores(database, config.lookahead.to_lookahead().guard)


def _dependency_health(store: Stores, etcd: etcd_client.EtcdClient) -> DependencyHealth:
    health = DependencyHealth()
    store.database.on_rejected = partial(health.rejected, Dependency.POSTGRESQL)
    store.database.on_lock_timeout = health.lock_timed_out
    etcd.on_rejected(partial(health.rejected, Dependency.ETCD))
    return health


def _clock(store: Stores) -> DatabaseClock:
    database = store.database
    return DatabaseClock(
        store.membership.probe,
        reconnect=database.reconnect,
        expects=database.expect,
        lineage=database.lineage,
        follow=database.follow,
    )


async def _check_database(store: Stores, clock: DatabaseClock) -> str:
    """Check the database first: its schema, its time, and its cluster."""
    await store.check()
    await clock.step()
    return await store.membership.cluster_id()


async def _live(
    daemon: service.Daemon,
    status: ServingStatus,
    parts: MemberParts,
    loops: Sequence[Loop],
    doors: Listeners,
    page: Starlette,
) -> None:
    eternal: list[tuple[str, Callable[[], Awaitable[object]]]] = [
        ("collect", parts.collector.loop.run),
        ("worker audit", parts.worker_audit.loop.run),
        ("cluster pause", parts.cluster_pause.loop.run),
        ("peers", parts.peers.run),
        ("wake_ups", parts.wake_ups.run),
        ("relay", parts.relay.run),
        ("hearing", parts.hearing.run),
        ("run feed", parts.feed.loop.run),
        *doors.watched(),
        ("pulse", parts.ground.telemetry.metrics.pulse.run),
        ("serving status", status.start),
        ("status", status.tell),
        *((loop.name, loop.run) for loop in (*loops, *parts.sessions.loops)),
        *((loop.name, loop.run) for loop in parts.services.authentication.readers.loops),
    ]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(guard(run, name), name=name) for name, run in eternal]
        serving = doors.http.serve(page, doors.connections, doors.https, doors.proxies)
        tasks.append(group.create_task(serving, name="http"))
        await parts.member.run(daemon.draining)
        for task in tasks:
            task.cancel()
