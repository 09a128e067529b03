"""Two members as far as they talk to each other: another one, and the cluster as this one sees it.

async with a_peer() as peer:
cluster.members[OTHER] = peer.endpoint
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio

from schedd.core.cluster.membership import ClusterView, MemberView
from schedd.core.ids import Id, ShardId, TenureId, Term
from schedd.dispatch.workers.registry import WorkerRegistry
from schedd.rpc.auth_interceptor import AuthInterceptor
from schedd.rpc.peers.peer_service import PeerService
from schedd.watch.change_bus import ChangeBus
from schedproto.v1 import peer_service_pb2
from support.runs import SetClock

ME, OTHER, THIRD = (TenureId(Id.from_int(n)) for n in (1, 2, 3))


class Loops:
    """The parts of a member that wake-ups reach."""

    def __init__(self) -> None:
        self.shards: set[ShardId] = set()

    def jobs_changed(self, jobs: object) -> None: ...
    def runs_changed(self, runs: object) -> None: ...
    def cluster_changed(self) -> None: ...

    def runs_created(self, runs: object, definitions: object = ()) -> None: ...

    def runs_ready(self, shards: set[ShardId]) -> None:
        self.shards |= set(shards)


class Peer:
    """Another member: real gRPC, no more behind it than a test looks at."""

    def __init__(self) -> None:
        self.loops = Loops()
        self.workers = WorkerRegistry(SetClock(), lambda _event: None)
        self.ears = ChangeBus()
        self.server = grpc.aio.server()
        service = PeerService(self.loops, self.workers, peer_service_pb2.ExamineResponse, self.ears)
        service.serve(self.server, AuthInterceptor())
        self.port = self.server.add_insecure_port("127.0.0.1:0")

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"


class Cluster:
    """The port, as seen by the member under test."""

    def __init__(self) -> None:
        self.tenure = ME
        self.members: dict[TenureId, str] = {}
        self.assigned: dict[ShardId, TenureId] = {}

    def view(self) -> ClusterView:
        members = tuple(
            MemberView(str(tenure), tenure, at, "", 100, "", "", draining=False)
            for tenure, at in self.members.items()
        )
        return ClusterView(members, ME, Term(1), self.assigned, frozenset(), 1)

    def owned(self) -> dict[ShardId, object]:
        return {}

    def trusted(self) -> bool:
        return True


@asynccontextmanager
async def a_peer() -> AsyncIterator[Peer]:
    """Yield a peer that serves for the block."""
    made = Peer()
    await made.server.start()
    yield made
    await made.server.stop(None)
