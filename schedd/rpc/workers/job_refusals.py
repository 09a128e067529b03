"""Return which workers have refused a job, from the member that dispatches its runs.

A worker sends a refusal to the member that dispatched the run, and that member remembers it. So any
other member asks the owner of the job's shard. If the owner is unavailable, or of an older version,
this member returns the refusals that it knows itself.
"""

import logging
from collections.abc import Mapping

from schedd.cluster.observer import Observer
from schedd.core.ids import Id, IncarnationId, JobId, ShardId
from schedd.dispatch.workers.registry import WorkerRegistry
from schedd.rpc.peers.peers import Peers
from schedkit.errors import Unavailable
from schedproto.v1 import peer_service_pb2 as wire

log = logging.getLogger(__name__)


class AskedRefusals:
    """`Refusals` over the peers."""

    def __init__(self, cluster: Observer, workers: WorkerRegistry, peers: Peers) -> None:
        self._cluster = cluster
        self._workers = workers
        self._peers = peers

    async def refusals_of_job(
        self, shard: ShardId, job: JobId, generation: int
    ) -> Mapping[IncarnationId, str]:
        """Return the reason of each worker that has refused the job."""
        view = self._cluster.view()
        owner = view.member(view.assigned.get(shard))
        here = self._workers.refusals(job, generation)
        if owner is None or owner.tenure == self._cluster.tenure:
            return here
        request = wire.RefusalsRequest(job_id=str(job), generation=generation)
        try:
            answer = await self._peers.refusals(owner.grpc, request)
            return {IncarnationId(Id.parse(one.incarnation)): one.why for one in answer.refused}
        except Unavailable as away:
            log.debug("%s", away)
        return here


def known_refusals(workers: WorkerRegistry, request: wire.RefusalsRequest) -> wire.RefusalsResponse:
    """Return the refusals that this member received."""
    job = JobId(Id.parse(request.job_id))
    said = workers.refusals(job, request.generation)
    refused = [
        wire.RefusalsResponse.Refused(incarnation=str(incarnation), why=why)
        for incarnation, why in said.items()
    ]
    return wire.RefusalsResponse(refused=refused)
