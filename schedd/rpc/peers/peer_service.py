"""Serve the calls of other members: wake-ups, relayed frames, state of this member and its workers,
refusals, changes of runs.
"""

from collections.abc import AsyncIterator, Callable
from typing import Final

import grpc

from schedd.api.errors import LimitReachedError
from schedd.api.runs.stream_readers import Places
from schedd.core.ids import Id, IncarnationId, JobId, RunId, ShardId
from schedd.dispatch.workers.registry import WorkerRegistry
from schedd.rpc.auth_interceptor import AuthInterceptor
from schedd.rpc.peers import peer_changes
from schedd.rpc.peers.wake_ups import WakeUpTargets
from schedd.rpc.request_decoding import MOST_PARTS_OF_FRAME, Context, put, streaming, unary
from schedd.rpc.status import abort, abort_with
from schedd.rpc.workers import frames
from schedd.rpc.workers.relay import pass_on, reported
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
        self._here, self._workers, self._stands, self._changes = here, workers, stands, changes
        self._places = Places(MOST_LISTENING, MOST_LISTENING)

    def serve(self, server: grpc.aio.Server, gate: AuthInterceptor) -> None:
        table = {
            "WakeUp": unary(self._wake_up, wire.WakeUpRequest, wire.WakeUpResponse, bounds=FRAME),
            "Relay": unary(
                *(self._relay, wire.RelayRequest, wire.RelayResponse, MOST_PARTS_OF_FRAME),
                bounds=FRAME,
            ),
            "Examine": unary(
                self._examine, wire.ExamineRequest, wire.ExamineResponse, bounds=FRAME
            ),
            "Refusals": unary(
                self._refusals, wire.RefusalsRequest, wire.RefusalsResponse, bounds=FRAME
            ),
            "Workers": unary(
                self._attached, wire.WorkersRequest, wire.WorkersResponse, bounds=FRAME
            ),
            "Changes": streaming(
                self._stream_changes, wire.ChangesRequest, wire.ChangesResponse, bounds=FRAME
            ),
        }
        put(server, gate, "schedd.v1.PeerService", table)

    async def _examine(self, _request: object, _context: object) -> wire.ExamineResponse:
        return self._stands()

    async def _wake_up(self, request: wire.WakeUpRequest, _context: object) -> wire.WakeUpResponse:
        self._here.jobs_changed([JobId(Id.parse(text)) for text in request.job_ids])
        self._here.runs_ready([ShardId(shard) for shard in request.shards])
        self._here.runs_changed([(RunId(Id.parse(text)), None) for text in request.run_ids])
        if request.cluster:
            self._here.cluster_changed()
        return wire.WakeUpResponse()

    async def _relay(self, request: wire.RelayRequest, context: Context) -> wire.RelayResponse:
        try:
            incarnation = IncarnationId(Id.parse(request.incarnation))
            return await pass_on(self._workers, incarnation, request.frame)
        except frames.BadFrame as bad:
            await abort(context, "INVALID_ARGUMENT", str(bad), reason="BAD_FRAME")

    async def _refusals(
        self, request: wire.RefusalsRequest, _context: object
    ) -> wire.RefusalsResponse:
        said = self._workers.refusals(JobId(Id.parse(request.job_id)), request.generation)
        refused = [
            wire.RefusalsResponse.Refused(incarnation=str(incarnation), why=why)
            for incarnation, why in said.items()
        ]
        return wire.RefusalsResponse(refused=refused)

    async def _attached(
        self, request: wire.WorkersRequest, _context: object
    ) -> wire.WorkersResponse:
        ids = {IncarnationId(Id(one)) for one in request.incarnations}
        views = [view for view in self._workers.workers() if view.incarnation.id in ids]
        return wire.WorkersResponse(received=map(reported, views))

    async def _stream_changes(
        self, request: wire.ChangesRequest, context: Context
    ) -> AsyncIterator[wire.ChangesResponse]:
        try:
            with self._places.taken(context.peer()):
                async for answer in peer_changes.changes(self._changes, request):
                    yield answer
        except LimitReachedError as refused:
            await abort_with(context, refused)
