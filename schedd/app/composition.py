"""Composition of a running member: connects each adapter to the ports that need it."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from typing import Final

import grpc
import grpc.aio

from schedd.api.auth.authentication import Authentication
from schedd.api.cluster.cluster import lost_now
from schedd.api.cluster.doctor import stuck_now
from schedd.api.request_bounds import SERVICES
from schedd.api.services import Services
from schedd.app.checkup_facts import CheckupCollector
from schedd.app.owner_loops import Owner
from schedd.cluster.cluster_pause import ClusterPause
from schedd.cluster.leader.loss_recorder import LossRecorder, vitals, watching
from schedd.cluster.leader.transfer import LeadershipTransfers
from schedd.cluster.member import MemberIdentity, MemberLifecycle
from schedd.cluster.prefix_claim import PrefixClaim
from schedd.cluster.worker_leases import WorkerLeases
from schedd.config.member_config import Config
from schedd.core.cluster.membership import ClusterView
from schedd.core.cluster.partition import owner_of
from schedd.core.cluster.worker_liveness import WatchedDeletions
from schedd.core.events import ClusterWatched, ResultStoreAway
from schedd.core.ids import SHARDS, IncarnationId, ShardId
from schedd.core.jobs.notifications import DeliveryMeans
from schedd.core.schedule.zones import tzdata_version
from schedd.dispatch.workers.registry import WorkerRegistry
from schedd.dispatch.workers.worker_audit import WorkerAudit
from schedd.dispatch.workers.worker_sessions import WorkerSessions
from schedd.etcd.access import EtcdAccess
from schedd.etcd.client import EtcdClient
from schedd.etcd.lease_keeper import keep_lease
from schedd.notify.senders.by_channel import Senders
from schedd.results.log_followers import LogFollowers
from schedd.results.objects import StoredObjects
from schedd.results.progress import MemberProgress
from schedd.results.result_collector import ResultCollector
from schedd.rpc.auth_interceptor import AuthInterceptor
from schedd.rpc.calls import serve_calls
from schedd.rpc.health import Health
from schedd.rpc.peers.peer_changes import PeerStreams
from schedd.rpc.peers.peer_service import PeerService
from schedd.rpc.peers.peers import Peers
from schedd.rpc.peers.wake_ups import WakeUpSender
from schedd.rpc.request_decoding import put
from schedd.rpc.server import recognize_by
from schedd.rpc.workers.attach import ClusterTerms, WorkerService
from schedd.rpc.workers.relay import AskedRefusals, Relay
from schedd.runtime.cluster_clock import DatabaseClock
from schedd.runtime.definition_cache import DefinitionCache
from schedd.runtime.dependency_health import DependencyHealth
from schedd.store.postgres import Stores
from schedd.telemetry.recorder import Telemetry
from schedd.watch.change_bus import Watchers
from schedd.watch.subscriptions import Subscriptions
from schedd.web.guard import Reach
from schedkit.egress.policy import warn_of_ignored_proxies
from schedkit.net.channel import split_address
from schedkit.records import dataclass
from schedkit.tasks import Loop
from schedproto.v1 import peer_service_pb2, worker_service_pb2

HOUSEKEEPING_EVERY: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Foundations:
    """Dependencies that exist before the first part is created."""

    config: Config
    identity: MemberIdentity
    store: Stores
    clock: DatabaseClock
    etcd: EtcdClient
    access: EtcdAccess
    cluster_id: str
    objects: StoredObjects
    telemetry: Telemetry
    claim: PrefixClaim
    health: DependencyHealth


class MemberParts:
    """The parts of a member, connected; nothing runs yet."""

    def __init__(self, ground: Foundations) -> None:
        store, clock, config, emit = (
            ground.store,
            ground.clock,
            ground.config,
            ground.telemetry.emit,
        )
        self.ground = ground
        self.watchers, definition_cache = Watchers(), DefinitionCache(store.owner)
        self.feed = Subscriptions(store.changes, self.watchers.ears)
        silent_after = config.worker_ttl.total_seconds() / 2  # three heartbeats
        self.workers = WorkerRegistry(clock, emit, silent_after=silent_after)
        self.member = self._member()
        cluster = self.member.cluster
        self.peers = Peers(cluster, config.tls.files())
        self.hearing = PeerStreams(self.peers, self.feed)
        self.wake_ups = WakeUpSender(cluster, self.peers)
        self.relay = self.workers.elsewhere = Relay(self.peers)
        self.worker_audit = WorkerAudit(store.users)
        self.collector = ResultCollector(
            definition_cache, store.results, clock, self.wake_ups, emit, self.worker_audit
        )
        leases = self._worker_leases()
        self.sessions = WorkerSessions(
            self.workers, leases, store.workers, store.results, store.users
        )
        self.cluster_pause = ClusterPause(store.pauses, emit)
        self.sender = Senders(
            signing_key=config.notifications.signing_key,
            egress=config.egress,
            commands=config.notifications.commands,
            smtp=config.smtp,
            cluster_id=ground.cluster_id,
        )
        self.owner = Owner(
            stores=store,
            sender=self.sender,
            definition_cache=definition_cache,
            workers=self.workers,
            leases=leases,
            collector=self.collector,
            watchers=self.watchers,
            clock=clock,
            cluster_pause=self.cluster_pause,
            emit=emit,
            objects=ground.objects,
            limits=config.catch_up.limits(),
            lookahead=config.lookahead.to_lookahead(),
            retention=config.retention.to_retention(),
        )
        self.log_followers, self.progress = LogFollowers(self.workers), MemberProgress()
        self.checkup = CheckupCollector(
            store,
            ground.etcd,
            clock,
            self.member,
            self.workers,
            self.progress,
            self.peers,
            config.tls.files(),
            ground.objects,
            ground.health,
        )
        self.services = self._services()
        self._connect()

    def _connect(self) -> None:
        ground, workers, cluster = self.ground, self.workers, self.member.cluster
        self.wake_ups.move(self.owner)
        metrics = ground.telemetry.metrics
        metrics.read("schedd_slots", workers.slots)
        metrics.read("schedd_slots_free", workers.free_slots)
        metrics.held = self.owner.behind
        workers.on_attachment(self.member.attached)
        self.owner.on_cluster_changed(self.member.request_leader_check)
        ground.objects.on_away = lambda: ground.telemetry.emit(ResultStoreAway())
        for changed in (self.peers.members_changed, self.hearing.members_changed):
            cluster.listen(partial(_if_members_changed, changed))
        cluster.listen(
            lambda known, view: (
                self.owner.workers_changed() if known.workers - view.workers else None
            )
        )

    def _member(self) -> MemberLifecycle:
        ground = self.ground
        config, etcd = ground.config, ground.etcd
        return MemberLifecycle(
            ground.identity,
            coordination=etcd,
            keep_lease=lambda: keep_lease(
                etcd,
                ground.access,
                ttl=round(config.member_ttl.total_seconds()),
                deadline=config.call_deadline,
                margin=ground.telemetry.metrics.lease_margin,
            ),
            store=ground.store.membership,
            recovery=ground.store.recovery,
            clock=ground.clock,
            lanes=config.postgres.lanes,
            loops=lambda live: self.owner.loops(live, self.wake_ups),
            duties=lambda _: self._duties(),
            member_ttl=config.member_ttl.total_seconds(),
            audit=ground.store.users.audit,
            claim=ground.claim,
        )

    def _worker_leases(self) -> WorkerLeases:
        ground, cluster = self.ground, self.member.cluster

        def designated(incarnation: IncarnationId) -> bool:
            members = {one.name: 1 for one in cluster.view().members}
            return owner_of(ShardId(incarnation.number % SHARDS), members) == ground.identity.name

        def watched() -> WatchedDeletions:
            view = cluster.view()
            return WatchedDeletions(view.cluster_id, view.departed)

        ttl = ground.config.worker_ttl.total_seconds()
        return WorkerLeases(ground.etcd, ground.store.workers, "", ttl, designated, watched)

    def _services(self) -> Services:
        ground, cluster = self.ground, self.member.cluster
        store, config = ground.store, ground.config
        return Services(
            store=store.users,
            calendars=store.calendars,
            pools=store.pools,
            pauses=store.pauses,
            backfills=store.backfills,
            dead_letters=store.dead_letters,
            chains=store.chains,
            membership=store.membership,
            worker_store=store.workers,
            access_tokens=store.access_tokens,
            authentication=Authentication(
                store.access_tokens, ground.clock, demanded=config.tls.files() is not None
            ),
            clock=ground.clock,
            wake_ups=self.wake_ups,
            lines=self.workers,
            refusals=AskedRefusals(cluster, self.workers, self.peers),
            changes=self.watchers,
            feed=self.feed,
            log_followers=self.log_followers,
            advances=self.progress,
            cluster=cluster,
            succession=LeadershipTransfers(ground.etcd, cluster.until, lambda: cluster.lease),
            checkup=self.checkup,
            failures=ground.health.troubles,
            database_answered_at=lambda: store.database.answered_at,
            objects=ground.objects,
            version=VERSION,
            cluster_id=ground.cluster_id,
            late=config.catch_up.limits(),
            retention=config.retention.to_retention(),
            lost_for=config.retention.lost,
            emit=ground.telemetry.emit,
            means=DeliveryMeans(config.notifications.commands, bool(config.smtp.host)),
        )

    def _duties(self) -> list[Loop]:
        """Return the leader's loops beyond fencing and assigning, created again for each term."""
        store, emit = self.ground.store, self.ground.telemetry.emit

        async def keep_house() -> None:
            await store.keep_house()

        async def watched() -> ClusterWatched:
            lost = await lost_now(self.services)
            stuck = await stuck_now(self.services)
            return ClusterWatched(len(lost.members), len(lost.workers), len(stuck))

        return [
            Loop("housekeeping", keep_house, interval=HOUSEKEEPING_EVERY),
            vitals(store.statistics, emit),
            LossRecorder(self._worker_leases(), store.workers, store.membership).loop,
            watching(watched, emit),
        ]


# Services of a member's gRPC server: calls, workers' streams, wake-ups, health.

ALWAYS: Final = (
    worker_service_pb2.DESCRIPTOR.services_by_name["WorkerService"].full_name,
    peer_service_pb2.DESCRIPTOR.services_by_name["PeerService"].full_name,
)
"""Services that are healthy as long as the process runs."""


async def serve(
    server: grpc.aio.Server, parts: MemberParts, unready: Callable[[], Sequence[str]]
) -> Health:
    """Add the services to the server and start it; return its health service."""
    gate = AuthInterceptor(parts.services.authentication)
    recognize_by(server, gate.recognizes)
    serve_calls(server, gate, parts.services)
    _attach(parts).serve(server, gate)
    PeerService(
        parts.owner, parts.workers, parts.checkup.examine_member, parts.watchers.ears
    ).serve(server, gate)
    health = Health(unready, [service.full_name for service in SERVICES], ALWAYS)
    health.serve(server, gate)
    if parts.ground.config.reflection:
        _reflect(server, gate)
    await server.start()
    return health


def _attach(parts: MemberParts) -> WorkerService:
    ground, cluster = parts.ground, parts.member.cluster
    attach = WorkerService(
        ClusterTerms(ground.config.name, ground.cluster_id, VERSION, ground.config.worker_ttl),
        parts.sessions,
        parts.workers,
        parts.collector,
        cluster,
        ground.clock,
        parts.log_followers,
        parts.progress,
        parts.worker_audit,
    )
    cluster.listen(partial(_if_members_changed, attach.members_changed))
    return attach


def _if_members_changed(changed: Callable[[], None], known: ClusterView, view: ClusterView) -> None:
    if known.members != view.members:
        changed()


def _reflect(server: grpc.aio.Server, gate: AuthInterceptor) -> None:
    from grpc_reflection.v1alpha import reflection, reflection_pb2

    names = [*(service.full_name for service in SERVICES), reflection.SERVICE_NAME]
    handler = grpc.stream_stream_rpc_method_handler(
        reflection.aio.ReflectionServicer(names).ServerReflectionInfo,
        reflection_pb2.ServerReflectionRequest.FromString,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    put(server, gate, reflection.SERVICE_NAME, {"ServerReflectionInfo": handler})


# Settings of this member, derived from its configuration.

log = logging.getLogger(__name__)

VERSION: Final = version("schedd")


def tell_who_is_asked(config: Config) -> None:
    """Log once which callers this member serves without authentication."""
    if config.tls.files() is not None:
        log.info("TLS is set: callers must show a certificate or send a token")
    elif config.listen.insecure:
        log.warning("insecure = true: everybody who reaches this member may do everything")
    else:
        log.info("TLS isn't set: everybody on this host may do everything")
    warn_of_ignored_proxies(config.egress)


def reach(config: Config) -> Reach:
    in_the_clear = config.tls.files() is None
    return Reach(
        config.listen.proxies(),
        config.listen.host_names,
        loopback_alone=in_the_clear and not config.listen.insecure,
    )


def identity(config: Config, grpc_port: int, http_port: int) -> MemberIdentity:
    return MemberIdentity(
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
