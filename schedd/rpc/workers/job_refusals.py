"""Which workers have refused a job: asked of the member that hands its runs out.

What a worker says goes to whoever handed the run to it, and is remembered there, beside the
worker's stream. So another member, which may be the one that a person asks, asks the owner of the
run's shard. Where that is away, or older than this question, this member tells what it knows.
"""

import logging
from collections.abc import Mapping
from uuid import UUID

from schedd.core.ids import IncarnationId, JobId, ShardId
from schedd.dispatch.workers.registry import WorkerRegistry
from schedd.ports import Cluster
from schedd.rpc.peers.peers import Peers
from schedkit.errors import Unavailable
from schedproto.v1 import peer_service_pb2 as wire

log = logging.getLogger(__name__)


class AskedRefusals:
    """`Refusals` over the peers."""

    def __init__(self, cluster: Cluster, workers: WorkerRegistry, peers: Peers) -> None:
        self._cluster = cluster
        self._workers = workers
        self._peers = peers

    async def of(self, shard: ShardId, job: JobId, generation: int) -> Mapping[IncarnationId, str]:
        """Of the workers that have refused it, why."""
        view = self._cluster.view()
        owner = view.member(view.assigned.get(shard))
        here = self._workers.refusals(job, generation)
        if owner is None or owner.tenure == self._cluster.tenure:
            return here
        request = wire.RefusalsRequest(job_id=str(job), generation=generation)
        try:
            answer = await self._peers.refusals(owner.grpc, request)
            return {IncarnationId(UUID(one.incarnation)): one.why for one in answer.refused}
        except Unavailable as away:
            log.debug("%s", away)
        return here


def told(workers: WorkerRegistry, request: wire.RefusalsRequest) -> wire.RefusalsResponse:
    """What this member was told."""
    job = JobId(UUID(request.job_id))
    said = workers.refusals(job, request.generation)
    refused = [
        wire.RefusalsResponse.Refused(incarnation=str(incarnation), why=why)
        for incarnation, why in said.items()
    ]
    return wire.RefusalsResponse(refused=refused)
