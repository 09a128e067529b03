"""How workers stand that this member doesn't hear: asked of those that do, for people to be told.

    unheard here ──PeerService.Workers, to all peers at once──→ told ──the least silent──→ views

Invariants
- A call to each peer, however many workers it is about (up to `MOST_ASKED`); none where all are
  heard here.
- A peer that hangs, or is older than this question, costs one call's deadline, and what it knows.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from schedd.core.ids import IncarnationId
from schedd.core.runs.model import Incarnation
from schedd.core.runs.records import WorkerView
from schedd.dispatch.workers.registry import WorkerRegistry
from schedd.rpc.peers.peers import Peers
from schedkit.errors import Unavailable
from schedproto.v1 import peer_service_pb2 as wire

log = logging.getLogger(__name__)

MOST_ASKED: Final = 5_000
"""Workers that a call is about: of more there are several, at the same time."""


async def asked(peers: Peers, away: Sequence[Incarnation]) -> list[WorkerView]:
    """Those of these that a peer hears, as the one says that heard it last."""
    requests = [
        wire.WorkersRequest(incarnations=[one.id.bytes for one in away[at : at + MOST_ASKED]])
        for at in range(0, len(away), MOST_ASKED)
    ]
    async with asyncio.TaskGroup() as group:
        answers = [
            group.create_task(_one(peers, endpoint, request), name=f"workers of {endpoint}")
            for endpoint in peers.endpoints()
            for request in requests
        ]
    newest: dict[bytes, wire.WorkersResponse.Heard] = {}
    for heard in (heard for answer in answers for heard in answer.result()):
        before = newest.get(heard.incarnation)
        if before is None or heard.silent < before.silent:
            newest[heard.incarnation] = heard
    return [_view(one, newest[one.id.bytes]) for one in away if one.id.bytes in newest]


def told(workers: WorkerRegistry, request: wire.WorkersRequest) -> wire.WorkersResponse:
    """Those of these that are attached to this member."""
    ids = {IncarnationId(UUID(bytes=one)) for one in request.incarnations}
    heard = [_heard(view) for view in workers.workers() if view.incarnation.id in ids]
    return wire.WorkersResponse(heard=heard)


async def _one(
    peers: Peers, endpoint: str, request: wire.WorkersRequest
) -> Sequence[wire.WorkersResponse.Heard]:
    try:
        return (await peers.workers(endpoint, request)).heard
    except Unavailable as away:
        log.debug("%s", away)
        return ()


def _heard(view: WorkerView) -> wire.WorkersResponse.Heard:
    return wire.WorkersResponse.Heard(
        incarnation=view.incarnation.id.bytes,
        draining=view.draining,
        free=view.free,
        running=view.running,
        unstored=view.unstored,
        lease_age=view.lease_age,
        silent=view.silent,
        spool_bytes=view.spool,
        disk_free_bytes=view.disk_free,
        refuses=view.refuses,
    )


def _view(one: Incarnation, heard: wire.WorkersResponse.Heard) -> WorkerView:
    return WorkerView(
        one,
        attached_here=False,
        draining=heard.draining,
        free=heard.free,
        running=heard.running,
        lease_age=heard.lease_age,
        spool=heard.spool_bytes,
        disk_free=heard.disk_free_bytes,
        refuses=heard.refuses,
        unstored=heard.unstored,
        silent=heard.silent,
    )
