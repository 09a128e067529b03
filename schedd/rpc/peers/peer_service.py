"""Serve the calls of other members: wake-ups, relayed frames, state of this member and its workers,
refusals, changes of runs.
"""

from collections.abc import AsyncIterator, Callable
from typing import Final

import grpc

from schedd.api.errors import LimitReachedError
from schedd.api.runs.stream_readers import Places
from schedd.core.ids import Id, IncarnationId
from schedd.dispatch.workers.registry import WorkerRegistry
from schedd.rpc.auth_interceptor import AuthInterceptor
from schedd.rpc.peers import peer_changes
from schedd.rpc.peers.wake_ups import WakeUpTargets, take_nudge
from schedd.rpc.request_decoding import MOST_PARTS_OF_FRAME, put, streaming, unary
from schedd.rpc.status import abort, abort_with
from schedd.rpc.workers import frames, worker_views
from schedd.rpc.workers.relay import pass_on
from schedd.rpc.workers.worker_views import known_refusals
from schedd.watch.change_bus import ChangeBus
from schedkit.bounds import FRAME
from schedproto.v1 import peer_service_pb2 as wire

MOST_LISTENING: Final = 256
"""Streams of changes to other members."""


class PeerService:
    """Serves `PeerService`. `stands` returns the state of this member."""

    def __init__(
        self,
        here: WakeUpTargets,
        workers: WorkerRegistry,
        stands: Callable[[], wire.ExamineResponse],
        changes: ChangeBus,
    ) -> None:
        self._changes = changes
        self._places = Places(MOST_LISTENING, MOST_LISTENING)
        self._stands = stands
        self._here = here
        self._workers = workers

    def serve(self, server: grpc.aio.Server, gate: AuthInterceptor) -> None:
        table = {
            "WakeUp": unary(self.nudge, wire.WakeUpRequest, wire.WakeUpResponse, bounds=FRAME),
            "Relay": unary(
                *(self.relay, wire.RelayRequest, wire.RelayResponse, MOST_PARTS_OF_FRAME),
                bounds=FRAME,
            ),
            "Examine": unary(self.examine, wire.ExamineRequest, wire.ExamineResponse, bounds=FRAME),
            "Refusals": unary(
                self.refusals, wire.RefusalsRequest, wire.RefusalsResponse, bounds=FRAME
            ),
            "Workers": unary(self.workers, wire.WorkersRequest, wire.WorkersResponse, bounds=FRAME),
            "Changes": streaming(
                self.changes, wire.ChangesRequest, wire.ChangesResponse, bounds=FRAME
            ),
        }
        put(server, gate, "schedd.v1.PeerService", table)

    async def examine(self, _request: object, _context: object) -> wire.ExamineResponse:
        """Return the state that only this member knows."""
        return self._stands()

    async def nudge(self, request: wire.WakeUpRequest, _context: object) -> wire.WakeUpResponse:
        take_nudge(self._here, request)
        return wire.WakeUpResponse()

    async def relay(
        self,
        request: wire.RelayRequest,
        context: grpc.aio.ServicerContext[wire.RelayRequest, wire.RelayResponse],
    ) -> wire.RelayResponse:
        try:
            incarnation = IncarnationId(Id.parse(request.incarnation))
            return await pass_on(self._workers, incarnation, request.frame)
        except frames.BadFrame as bad:
            await abort(context, "INVALID_ARGUMENT", str(bad), reason="BAD_FRAME")

    async def refusals(
        self,
        request: wire.RefusalsRequest,
        _context: object,
    ) -> wire.RefusalsResponse:
        return known_refusals(self._workers, request)

    async def workers(self, request: wire.WorkersRequest, _context: object) -> wire.WorkersResponse:
        return worker_views.attached_views(self._workers, request)

    async def changes(
        self,
        request: wire.ChangesRequest,
        context: grpc.aio.ServicerContext[wire.ChangesRequest, wire.ChangesResponse],
    ) -> AsyncIterator[wire.ChangesResponse]:
        """Stream the runs that change at this member."""
        try:
            with self._places.taken(context.peer()):
                async for answer in peer_changes.changes(self._changes, request):
                    yield answer
        except LimitReachedError as refused:
            await abort_with(context, refused)
