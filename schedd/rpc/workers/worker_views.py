"""Return the state of workers whose heartbeats only other members receive, for the CLI and pages.

    not attached here ──PeerService.Workers, to all peers at once──→ the newest heartbeat ──→ views

Invariants
- One call to each peer for up to `MOST_ASKED` workers; no call if all are attached here.
- A peer that hangs, or doesn't know the call, costs one deadline; the state it has is missing.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from schedd.cluster.observer import Observer
from schedd.core.ids import Id, IncarnationId, JobId, ShardId
from schedd.core.runs.model import Incarnation
from schedd.core.runs.records import WorkerView
from schedd.dispatch.workers.registry import WorkerRegistry
from schedd.rpc.peers.peers import Peers
from schedkit.errors import Unavailable
from schedproto.v1 import peer_service_pb2 as wire

log = logging.getLogger(__name__)

MOST_ASKED: Final = 5_000
"""Workers in one call; for more, several calls run at the same time."""

_Reported: TypeAlias = wire.WorkersResponse.Received


async def peer_views(peers: Peers, away: Sequence[Incarnation]) -> list[WorkerView]:
    """Return the state of workers that a peer has attached; of several states, the newest."""
    requests = [
        wire.WorkersRequest(incarnations=[one.id for one in away[at : at + MOST_ASKED]])
        for at in range(0, len(away), MOST_ASKED)
    ]
    newest: dict[bytes, _Reported] = {}
    for answers in await peers.call_all(requests, wire.WorkersResponse):
        for found in (one for answer in answers if answer is not None for one in answer.received):
            before = newest.get(found.incarnation)
            if before is None or found.seconds_since_heartbeat < before.seconds_since_heartbeat:
                newest[found.incarnation] = found
    return [_view(one, newest[one.id]) for one in away if one.id in newest]


def reported(view: WorkerView) -> _Reported:
    return _Reported(
        incarnation=view.incarnation.id,
        draining=view.draining,
        free=view.free,
        running=view.running,
        unstored_results=view.unstored_results,
        lease_age=view.lease_age,
        seconds_since_heartbeat=view.silent,
        spool_bytes=view.spool,
        disk_free_bytes=view.disk_free,
        refusal_reason=view.refusal_reason,
    )


def _view(one: Incarnation, reported: _Reported) -> WorkerView:
    return WorkerView(
        one,
        attached_here=False,
        draining=reported.draining,
        free=reported.free,
        running=reported.running,
        lease_age=reported.lease_age,
        spool=reported.spool_bytes,
        disk_free=reported.disk_free_bytes,
        refusal_reason=reported.refusal_reason,
        unstored_results=reported.unstored_results,
        silent=reported.seconds_since_heartbeat,
    )


# Return which workers have refused a job, from the member that dispatches its runs.
#
# A worker sends a refusal to the member that dispatched the run, and that member remembers it. So
# any other member asks the owner of the job's shard. If the owner is unavailable, or of an older
# version, this member returns the refusals that it knows itself.


class AskedRefusals:
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
            answer = await self._peers.call(owner.grpc, request, wire.RefusalsResponse)
            return {IncarnationId(Id.parse(one.incarnation)): one.why for one in answer.refused}
        except Unavailable as away:
            log.debug("%s", away)
        return here
