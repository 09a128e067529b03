"""The only place that ties adapters to ports: a member of the cluster, from its configuration.

PostgresStore  EtcdClient          adapters
└────┬────────┘
DatabaseClock  Observer            time and view
│
Workers  Collect  Greeting         as long as the daemon lives: results count without a tenure
Owner (fire dispatch rescue)       within each tenure
│
gRPC: calls, Attach, nudges        HTTP: pages, REST, metrics, health

`doors` has the addresses, `parts` makes the parts and ties them, `serving` puts them on gRPC,
`lifecycle` is how a daemon starts and answers its service manager.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Final

from starlette.applications import Starlette

from schedd.app import member_settings
from schedd.app.claim_prefix import prefix_owner
from schedd.app.composition import Ground, Parts, build
from schedd.app.garbage_collection import Sweeper
from schedd.app.grpc_services import serve
from schedd.app.lifecycle import ServingStatus, once_available
from schedd.app.listeners import Doors, opened
from schedd.app.readiness import notes, readiness
from schedd.cluster.prefix_claim import PrefixClaim
from schedd.config import Config
from schedd.core.cluster.dependency import Dependency
from schedd.etcd import client as etcd_client
from schedd.results.objects import StoredObjects
from schedd.rpc.workers.attach import ClusterTerms
from schedd.runtime.cluster_clock import DatabaseClock
from schedd.runtime.dependency_health import DependencyHealth
from schedd.store.connection.database import Database
from schedd.store.postgres import PostgresStore
from schedd.telemetry.recorder import Telemetry
from schedd.web import app as web
from schedkit.daemon import service
from schedkit.errors import Unavailable
from schedkit.objects import open_objects
from schedkit.tasks import Loop, guard

SWITCH_EVERY: Final = 0.001
"""Seconds after which a thread that computes lets another have the interpreter. The event loop
waits so long each time it comes back from the system while a thread reads thousands of rows: with
the usual 5 ms, for half a second in a hundred small steps.
"""
WRITE_PROBE: Final = "write-probe"
"""A key of etcd that is never written: see `EtcdClient.probe_write`."""
GRACE: Final = 0.5
"""Seconds that calls in progress have when the daemon ends."""


def migrate(config: Config) -> str:
    """Bring the database to this version's schema; gives its revision, and the daemons' grants."""
    from schedd.store.schema import migrate  # slow to load, and daemons don't need it

    return f"{migrate.upgrade(config.postgres.dsn)}\n{migrate.daemon_grants(config.postgres.dsn)}"


class MemberDaemon:
    """One `schedd` process."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._access = config.etcd.access()
        self._database: Database | None = None

    def take_logins(self, found: Config) -> frozenset[str]:
        """Use these logins of PostgreSQL and etcd from the next login on. Returns their keys.
        Another server or database takes a restart: the member is one of the cluster there.
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
            cluster_id = await once_available(partial(_look, store, clock), "PostgreSQL", daemon)
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
            with suppress(Unavailable):  # compared when it joins, too
                await claim.check_at_start(cluster_id)
            doors = await stack.enter_async_context(opened(config))
            member_settings.tell_who_is_asked(config)
            identity = member_settings.identity(config, doors.ports[0], doors.http.port)
            objects = StoredObjects(open_objects(config.results.url, config.results.options))
            stack.callback(objects.close)
            health = _dependency_health(store, etcd)
            ground = Ground(
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
            parts = build(ground)
            stack.push_async_callback(parts.peers.close)
            stack.push_async_callback(parts.sender.close)
            terms = ClusterTerms(
                config.name, cluster_id, member_settings.VERSION, config.worker_ttl
            )
            telemetry.observe_etcd(etcd.silence.seconds)
            failures = ground.health.failures
            judged = readiness(
                parts.member, clock, etcd.silence.seconds, daemon.draining.is_set, failures
            )
            telemetry.observe_readiness(judged, failures)

            def unready() -> list[str]:
                return list(judged().values())

            grpc_health = await serve(
                doors.grpc, parts, terms, unready, reflection=config.reflection
            )
            stack.push_async_callback(doors.grpc.stop, GRACE)
            probes = [
                health.probe(Dependency.POSTGRESQL, store.probe_write),
                health.probe(Dependency.ETCD, lambda: etcd.probe_write(WRITE_PROBE)),
            ]
            sweeper = Sweeper()
            sweeper.take_over()
            reach = member_settings.reach(config)
            page = web.build(parts.services, telemetry, unready, notes(parts.brake), reach)
            serving = f"{identity.name}: gRPC {identity.grpc}, HTTP {identity.http}"
            standing = ServingStatus(daemon, serving, lambda: etcd.silence.answered_once, unready)
            await _live(
                daemon, standing, parts, [*probes, grpc_health.loop, sweeper.loop], doors, page
            )


def _store(config: Config, telemetry: Telemetry) -> PostgresStore:
    database = Database(config.postgres.dsn, lanes=config.postgres.lanes, emit=telemetry.emit)
    return PostgresStore(database, config.ahead.kept().guard)


def _dependency_health(store: PostgresStore, etcd: etcd_client.EtcdClient) -> DependencyHealth:
    health = DependencyHealth()
    store.database.on_rejected = partial(health.rejected, Dependency.POSTGRESQL)
    etcd.on_rejected(partial(health.rejected, Dependency.ETCD))
    return health


def _clock(store: PostgresStore) -> DatabaseClock:
    database = store.database
    return DatabaseClock(
        store.membership.probe,
        reconnect=database.reconnect,
        expects=database.expect,
        lineage=database.lineage,
        follow=database.follow,
    )


async def _look(store: PostgresStore, clock: DatabaseClock) -> str:
    """The first look at the database: its schema, its time, whose it is."""
    await store.check()
    await clock.step()
    return await store.membership.cluster_id()


async def _live(
    daemon: service.Daemon,
    standing: ServingStatus,
    parts: Parts,
    loops: Sequence[Loop],
    doors: Doors,
    page: Starlette,
) -> None:
    eternal: list[tuple[str, Callable[[], Awaitable[object]]]] = [
        ("collect", parts.collect.loop.run),
        ("audit of workers", parts.worker_audit.loop.run),
        ("brake", parts.brake.loop.run),
        ("peers", parts.peers.run),
        ("nudges", parts.nudges.run),
        ("relay", parts.relay.run),
        ("hearing", parts.hearing.run),
        ("run feed", parts.feed.loop.run),
        *doors.watched(),
        ("pulse", parts.telemetry.pulse.run),
        ("standing", standing.start),
        ("status", standing.tell),
        *((loop.name, loop.run) for loop in (*loops, *parts.greeting.loops)),
        *((loop.name, loop.run) for loop in parts.services.authentication.loops),
    ]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(guard(run, name), name=name) for name, run in eternal]
        tasks.append(group.create_task(doors.serve_http(page), name="http"))
        await parts.member.run(daemon.draining)
        for task in tasks:
            task.cancel()
