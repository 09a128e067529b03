"""Services of a member's gRPC server: calls, workers' streams, wake-ups, health."""

from collections.abc import Callable, Sequence
from typing import Final

import grpc
import grpc.aio

from schedd.api.calls import SERVICES
from schedd.app.composition import MemberParts
from schedd.rpc.auth_interceptor import AuthInterceptor
from schedd.rpc.calls import serve_calls
from schedd.rpc.health import Health
from schedd.rpc.peers.peer_service import PeerService
from schedd.rpc.request_decoding import put
from schedd.rpc.server import recognize_by
from schedd.rpc.workers.attach import ClusterTerms, WorkerService
from schedproto.v1 import peer_service_pb2, worker_service_pb2

ALWAYS: Final = (
    worker_service_pb2.DESCRIPTOR.services_by_name["WorkerService"].full_name,
    peer_service_pb2.DESCRIPTOR.services_by_name["PeerService"].full_name,
)
"""Services that are healthy as long as the process runs."""


async def serve(
    server: grpc.aio.Server,
    parts: MemberParts,
    terms: ClusterTerms,
    unready: Callable[[], Sequence[str]],
    *,
    reflection: bool,
) -> Health:
    """Add the services to the server and start it; return its health service."""
    gate = AuthInterceptor(parts.services.authentication)
    recognize_by(server, gate.recognizes)
    serve_calls(server, gate, parts.services)
    _attach(parts, terms).serve(server, gate)
    PeerService(parts.owner, parts.workers, parts.checkup.examine_member, parts.ears).serve(
        server, gate
    )
    health = Health(unready, [service.full_name for service in SERVICES], ALWAYS)
    health.serve(server, gate)
    if reflection:
        _reflect(server, gate)
    await server.start()
    return health


def _attach(parts: MemberParts, terms: ClusterTerms) -> WorkerService:
    cluster = parts.member.cluster
    attach = WorkerService(
        terms,
        parts.greeting,
        parts.workers,
        parts.collector,
        cluster,
        parts.clock,
        parts.log_followers,
        parts.advances,
        parts.worker_audit,
    )
    cluster.listen(
        lambda known, view: parts.peers.members_changed() if known.members != view.members else None
    )
    cluster.listen(
        lambda known, view: (
            parts.hearing.members_changed() if known.members != view.members else None
        )
    )
    cluster.listen(
        lambda known, view: attach.members_changed() if known.members != view.members else None
    )
    cluster.listen(
        lambda known, view: parts.owner.workers_changed() if known.workers - view.workers else None
    )
    return attach


def _reflect(server: grpc.aio.Server, gate: AuthInterceptor) -> None:
    from grpc_reflection.v1alpha import reflection, reflection_pb2

    names = [*(service.full_name for service in SERVICES), reflection.SERVICE_NAME]
    handler = grpc.stream_stream_rpc_method_handler(
        reflection.aio.ReflectionServicer(names).ServerReflectionInfo,
        reflection_pb2.ServerReflectionRequest.FromString,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    put(server, gate, reflection.SERVICE_NAME, {"ServerReflectionInfo": handler})
