"""Nudges between members: hints that save a scan's wait, gathered for a moment and sent in one go.

calls, loops ──→ Peers ──own shard──→ this member's loops
└──another's────→ PeerService.Nudge at its owner
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol
from uuid import UUID

import grpc

from schedd.core.ids import SHARDS, JobId, RunId, ShardId
from schedd.ports import Cluster
from schedkit.channel import TLS, connect
from schedkit.tasks import Waker
from schedproto.v1 import peer_service_pb2 as wire

log = logging.getLogger(__name__)

DEADLINE: Final = 1.0
MOST: Final = 1000
"""Ids in one nudge; what is more is left to the scan."""


class Nudged(Protocol):
    """What a nudge moves: this member's loops."""

    def jobs_changed(self, jobs: Iterable[JobId]) -> None: ...
    def runs_ready(self, shards: Iterable[ShardId]) -> None: ...
    def runs_changed(self, runs: Iterable[RunId]) -> None: ...
    def cluster_changed(self) -> None: ...


class _Nobody:
    """Before there are loops to move."""

    def jobs_changed(self, jobs: Iterable[JobId]) -> None:
        """Nothing to do."""

    def runs_ready(self, shards: Iterable[ShardId]) -> None:
        """Nothing to do."""

    def runs_changed(self, runs: Iterable[RunId]) -> None:
        """Nothing to do."""

    def cluster_changed(self) -> None:
        """Nothing to do."""


@dataclass(slots=True)
class _Gathered:
    jobs: set[JobId] = field(default_factory=set)
    shards: set[ShardId] = field(default_factory=set)
    runs: set[RunId] = field(default_factory=set)
    cluster: bool = False


class Peers:
    """Sends and takes nudges. `Nudges` for calls and loops."""

    def __init__(self, cluster: Cluster, tls: TLS | None) -> None:
        self._cluster = cluster
        self._here: Nudged = _Nobody()
        self._tls = tls
        self._waker = Waker()
        self._gathered: dict[str, _Gathered] = defaultdict(_Gathered)
        self._channels: dict[str, grpc.aio.Channel] = {}

    def move(self, here: Nudged) -> None:
        """What nudges for this member move."""
        self._here = here

    # -- Nudges --

    def jobs_changed(self, changed: Sequence[tuple[JobId, ShardId]]) -> None:
        """Timers of these jobs were written."""
        own = self._cluster.owned()
        self._here.jobs_changed([job for job, shard in changed if shard in own])
        for job, shard in changed:
            self._for(self._owner(shard), jobs={job})

    def runs_ready(self, shards: Sequence[ShardId]) -> None:
        """Runs of these shards became ready."""
        own = self._cluster.owned()
        self._here.runs_ready([shard for shard in shards if shard in own])
        for shard in shards:
            if shard not in own:
                self._for(self._owner(shard), shards={shard})

    def runs_changed(self, runs: Sequence[RunId]) -> None:
        """These runs changed; only those who watch them care, and they look by themselves soon."""
        self._here.runs_changed(runs)

    def cluster_changed(self) -> None:
        """The cluster was paused or resumed, or its map is to be looked at."""
        self._here.cluster_changed()
        for member in self._cluster.view().members:
            if member.tenure != self._cluster.tenure:
                self._gathered[member.grpc].cluster = True
        self._waker.wake()

    # -- sending --

    async def run(self) -> None:
        """Send what has gathered, for ever."""
        while True:
            await self._waker.wait(60.0)
            gathered, self._gathered = self._gathered, defaultdict(_Gathered)
            async with asyncio.TaskGroup() as group:
                for endpoint, what in gathered.items():
                    group.create_task(self._send(endpoint, what), name=f"nudge {endpoint}")

    async def close(self) -> None:
        """Close the channels to the peers."""
        for channel in self._channels.values():
            await channel.close()

    def _owner(self, shard: ShardId) -> str | None:
        view = self._cluster.view()
        member = view.member(view.assigned.get(shard))
        return None if member is None or member.tenure == self._cluster.tenure else member.grpc

    def _for(
        self,
        endpoint: str | None,
        jobs: Iterable[JobId] = (),
        shards: Iterable[ShardId] = (),
    ) -> None:
        if endpoint is not None:
            self._gathered[endpoint].jobs.update(jobs)
            self._gathered[endpoint].shards.update(shards)
            self._waker.wake()

    async def _send(self, endpoint: str, what: _Gathered) -> None:
        channel = self._channels.get(endpoint)
        if channel is None:
            channel = self._channels[endpoint] = connect(endpoint, tls=self._tls)
        request = wire.NudgeRequest(
            job_ids=[str(job) for job in list(what.jobs)[:MOST]],
            shards=sorted(what.shards),
            run_ids=[str(run) for run in list(what.runs)[:MOST]],
            cluster=what.cluster,
        )
        nudge = channel.unary_unary(
            "/schedd.v1.PeerService/Nudge",
            request_serializer=wire.NudgeRequest.SerializeToString,
            response_deserializer=wire.NudgeResponse.FromString,
        )
        try:
            await nudge(request, timeout=DEADLINE)
        except grpc.aio.AioRpcError as error:
            log.debug("nudge to %s: %s", endpoint, error.code())


class PeerService:
    """Takes nudges."""

    def __init__(self, here: Nudged) -> None:
        self._here = here

    def handler(self) -> grpc.GenericRpcHandler:
        """For `server.add_generic_rpc_handlers`."""
        nudge = grpc.unary_unary_rpc_method_handler(
            self.nudge, wire.NudgeRequest.FromString, wire.NudgeResponse.SerializeToString
        )
        return grpc.method_handlers_generic_handler("schedd.v1.PeerService", {"Nudge": nudge})

    async def nudge(self, request: wire.NudgeRequest, _context: object) -> wire.NudgeResponse:
        """Look at these rows now. Ids that can't be read are left out: it is only a hint."""
        self._here.jobs_changed([JobId(found) for found in _uuids(request.job_ids)])
        self._here.runs_ready([ShardId(s) for s in request.shards if 0 <= s < SHARDS])
        self._here.runs_changed([RunId(found) for found in _uuids(request.run_ids)])
        if request.cluster:
            self._here.cluster_changed()
        return wire.NudgeResponse()


def _uuids(texts: Iterable[str]) -> Iterable[UUID]:
    for text in texts:
        try:
            yield UUID(text)
        except ValueError:
            log.debug("a nudge names %r, which isn't an id", text[:60])
