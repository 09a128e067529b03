"""The only place that ties adapters to ports: a member of the cluster, from its configuration.

PostgresStore  EtcdClient          adapters
└────┬────────┘
DatabaseClock  Observer            time and view
│
Workers  Collect  Greeting         as long as the daemon lives: results count without a tenure
Owner (fire dispatch rescue)       within each tenure
│
gRPC: calls, Attach, nudges        HTTP: pages, REST, metrics, health
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final, NoReturn, TypeVar

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as grpc_health

from schedd.api.calls import SERVICES
from schedd.api.services import Services
from schedd.cluster_clock import DatabaseClock
from schedd.config import Config
from schedd.core.ids import SHARDS, IncarnationId, ShardId
from schedd.core.partition import owner_of
from schedd.core.zones import tzdata_version
from schedd.etcd import access as etcd_access
from schedd.etcd import client as etcd_client
from schedd.etcd.client import EtcdClient
from schedd.etcd.keeper import keep_lease
from schedd.leader.term import Leadership
from schedd.member import Identity, Member
from schedd.owner.catalogue import Catalogue
from schedd.owner.collect import Collect
from schedd.owner.greeting import Greeting
from schedd.owner.owner import Owner
from schedd.owner.watchers import Watchers
from schedd.owner.worker_leases import WorkerLeases
from schedd.owner.workers import Workers
from schedd.rpc.attach import Terms, WorkerService
from schedd.rpc.calls import handlers
from schedd.rpc.peers import Peers, PeerService
from schedd.store import migrate as schema
from schedd.store.database import Database
from schedd.store.postgres import PostgresStore
from schedd.telemetry import Telemetry
from schedd.web import app as web
from schedd.web import server as web_server
from schedkit import service
from schedkit.backoff import Backoff
from schedkit.channel import SERVER_OPTIONS, listen, split_address
from schedkit.errors import Unavailable
from schedkit.tasks import Loop, guard

log = logging.getLogger(__name__)

T = TypeVar("T")

VERSION: Final = version("schedd")
HOUSEKEEPING_EVERY: Final = 3600.0
GRACE: Final = 0.5
"""Seconds that calls in progress have when the daemon ends."""
FRESH: Final = 5.0
"""Seconds without an answer of the database after which a member isn't ready."""


def migrate(config: Config) -> str:
    """Bring the database to this version's schema; gives its revision."""
    return schema.upgrade(config.postgres.dsn)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a running member is made of."""

    store: PostgresStore
    clock: DatabaseClock
    member: Member
    workers: Workers
    collect: Collect
    greeting: Greeting
    peers: Peers
    owner: Owner
    leases: WorkerLeases
    services: Services
    telemetry: Telemetry


class Daemon:
    """One `schedd` process."""

    def __init__(self, config: Config) -> None:
        self._config = config

    async def run(self, daemon: service.Daemon) -> None:
        """Serve until asked to drain, then hand over and end."""
        config = self._config
        access = _access(config)
        deadline = config.call_deadline
        async with AsyncExitStack() as stack:
            store = PostgresStore(Database(config.postgres.dsn, lanes=config.postgres.lanes))
            stack.callback(store.close)
            clock = DatabaseClock(store.membership.probe)

            async def first_look() -> str:
                await store.check()
                await clock.step()
                return await store.membership.cluster_id()

            cluster_id = await _once_available(first_look, "PostgreSQL", daemon)
            if cluster_id is None:
                return
            etcd = await stack.enter_async_context(
                etcd_client.connect(access, deadline=deadline, root=config.etcd.prefix)
            )
            grpc_server = grpc.aio.server(options=SERVER_OPTIONS)
            port = listen(grpc_server, config.listen.grpc, config.tls.files())
            http = await stack.enter_async_context(web_server.bound(config.listen.http))
            identity = _identity(config, port, http.port)
            parts = self._parts(identity, store, clock, etcd, access, cluster_id)
            stack.push_async_callback(parts.peers.close)
            await self._serve(grpc_server, parts, cluster_id)
            stack.push_async_callback(grpc_server.stop, GRACE)
            await self._live(daemon, parts, http, identity)

    async def _live(
        self,
        daemon: service.Daemon,
        parts: Parts,
        http: web_server.Bound,
        identity: Identity,
    ) -> None:
        page = web.build(parts.services, parts.telemetry, _readiness(parts))
        serving = f"{identity.name}: gRPC {identity.grpc}, HTTP {identity.http}"
        eternal: list[tuple[str, Callable[[], Awaitable[object]]]] = [
            ("collect", parts.collect.loop.run),
            ("peers", parts.peers.run),
            ("reload", lambda: _reload(daemon, serving)),
            *((loop.name, loop.run) for loop in parts.greeting.loops),
        ]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(guard(run, name), name=name) for name, run in eternal]
            tasks.append(group.create_task(http.serve(page), name="http"))
            daemon.ready(serving)
            await parts.member.run(daemon.draining)
            for task in tasks:
                task.cancel()

    def _parts(
        self,
        identity: Identity,
        store: PostgresStore,
        clock: DatabaseClock,
        etcd: EtcdClient,
        access: etcd_access.Access,
        cluster_id: str,
    ) -> Parts:
        config = self._config
        telemetry = Telemetry()
        emit = telemetry.emit
        silent_after = config.worker_ttl.total_seconds() / 2  # three heartbeats
        workers = Workers(clock, emit, silent_after=silent_after)
        watchers = Watchers()
        catalogue = Catalogue(store.owner)
        owners: list[Owner] = []
        member = Member(
            identity,
            coordination=etcd,
            keep_lease=lambda: keep_lease(
                etcd,
                access,
                ttl=round(config.member_ttl.total_seconds()),
                deadline=config.call_deadline,
            ),
            store=store.membership,
            clock=clock,
            lanes=config.postgres.lanes,
            loops=lambda live: owners[0].loops(live, peers),
            duties=_duties(store),
        )
        peers = Peers(member.cluster, config.tls.files())
        collect = Collect(catalogue, store.results, clock, peers, emit)

        def designated(incarnation: IncarnationId) -> bool:
            members = {one.name: 1 for one in member.cluster.view().members}
            return owner_of(ShardId(incarnation.int % SHARDS), members) == identity.name

        leases = WorkerLeases(
            etcd, store.workers, "", config.worker_ttl.total_seconds(), designated
        )
        greeting = Greeting(workers, leases, store.workers, store.results, store.users)
        owner = Owner(
            store=store.owner,
            catalogue=catalogue,
            workers=workers,
            leases=leases,
            collect=collect,
            watchers=watchers,
            clock=clock,
            emit=emit,
        )
        owners.append(owner)
        peers.move(owner)
        services = Services(
            store=store.users,
            membership=store.membership,
            worker_store=store.workers,
            clock=clock,
            nudges=peers,
            lines=workers,
            changes=watchers,
            cluster=member.cluster,
            version=VERSION,
            cluster_id=cluster_id,
        )
        workers.on_attachment(member.attached)
        return Parts(
            store=store,
            clock=clock,
            member=member,
            workers=workers,
            collect=collect,
            greeting=greeting,
            peers=peers,
            owner=owner,
            leases=leases,
            services=services,
            telemetry=telemetry,
        )

    async def _serve(self, server: grpc.aio.Server, parts: Parts, cluster_id: str) -> None:
        """Start gRPC: calls, the workers' streams, nudges, health."""
        terms = Terms(parts.member.identity.name, cluster_id, VERSION, self._config.worker_ttl)
        attach = WorkerService(
            terms,
            parts.greeting,
            parts.workers,
            parts.collect,
            parts.member.cluster,
            parts.clock,
        )
        parts.member.cluster.listen(
            lambda known, view: attach.members_changed() if known.members != view.members else None
        )
        parts.member.cluster.listen(
            lambda known, view: (
                parts.owner.workers_changed() if known.workers - view.workers else None
            )
        )
        health = grpc_health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(health, server)
        await health.set("", health_pb2.HealthCheckResponse.SERVING)
        server.add_generic_rpc_handlers(
            (*handlers(parts.services), attach.handler(), PeerService(parts.owner).handler())
        )
        if self._config.reflection:
            _reflect(server)
        await server.start()


async def _reload(daemon: service.Daemon, serving: str) -> NoReturn:
    """Answer SIGHUP: the service manager waits for it, though nothing can be reloaded yet."""
    while True:
        await daemon.reload.wait()
        daemon.reload.clear()
        log.warning("nothing can be reloaded yet: restart to read the configuration anew")
        daemon.ready(serving)


def _reflect(server: grpc.aio.Server) -> None:
    from grpc_reflection.v1alpha import reflection

    names = [service.full_name for service in SERVICES]
    reflection.enable_server_reflection([*names, reflection.SERVICE_NAME], server)


def _access(config: Config) -> etcd_access.Access:
    etcd = config.etcd
    files = (etcd.ca, etcd.cert, etcd.key)
    tls = etcd_access.Tls(*files) if any(files) else None
    return etcd_access.Access(
        etcd.endpoints, tls=tls, user=etcd.user or None, password=etcd.password or None
    )


def _identity(config: Config, grpc_port: int, http_port: int) -> Identity:
    return Identity(
        name=config.name,
        grpc=config.listen.advertise_grpc or _reached(config.listen.grpc, grpc_port),
        http=config.listen.advertise_http or _reached(config.listen.http, http_port),
        weight=config.weight,
        version=VERSION,
        tzdata=tzdata_version(),
    )


def _reached(address: str, port: int) -> str:
    host, _ = split_address(address)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _duties(store: PostgresStore) -> Callable[[Leadership], Sequence[Loop]]:
    async def keep_house() -> None:
        await store.keep_house()

    return lambda _: [Loop("housekeeping", keep_house, interval=HOUSEKEEPING_EVERY)]


def _readiness(parts: Parts) -> Callable[[], list[str]]:
    """Why this member isn't ready to serve; nothing: it is."""

    def reasons() -> list[str]:
        found = []
        cluster = parts.member.cluster
        if cluster.tenure is None:
            found.append("it has no tenure")
        elif not cluster.trusted():
            found.append("its lease in etcd is no longer trusted")
        away = parts.clock.away_for()
        if away > FRESH:
            found.append(f"the database hasn't answered for {away:.1f} s")
        if cluster.view().leader is None:
            found.append("the cluster has no leader")
        return found

    return reasons


async def _once_available(
    step: Callable[[], Coroutine[Any, Any, T]], what: str, daemon: service.Daemon
) -> T | None:
    """Do this as soon as the world is there; a daemon starts before its database if it must.

    None: it was asked to end before.
    """
    backoff = Backoff(0.2, 5.0)
    while not daemon.draining.is_set():
        try:
            return await _unless_draining(step(), daemon)
        except Unavailable as away:
            log.warning("waiting for %s: %s", what, away)
            daemon.status(f"waiting for {what}")
        await _unless_draining(asyncio.sleep(backoff.next()), daemon)
    return None


async def _unless_draining(work: Coroutine[Any, Any, T], daemon: service.Daemon) -> T | None:
    """What the work gives; None as soon as the daemon is asked to end."""
    doing = asyncio.create_task(work, name="start")
    asked = asyncio.create_task(daemon.draining.wait(), name="asked to end")
    try:
        await asyncio.wait({doing, asked}, return_when=asyncio.FIRST_COMPLETED)
        return doing.result() if doing.done() else None
    finally:
        doing.cancel()
        asked.cancel()
        await asyncio.gather(doing, asked, return_exceptions=True)
