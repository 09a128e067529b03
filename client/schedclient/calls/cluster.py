"""Calls on the cluster: members, shards, workers, pause, audit log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from google.protobuf.message import Message

from schedclient.calls import paging, watching
from schedclient.calls.naming import member_of, worker_of
from schedclient.calls.specs import When, when_message
from schedclient.transport import methods
from schedclient.transport.transport import Transport
from schedclient.values.cluster import (
    AuditEntry,
    Checkup,
    Cluster,
    LeaderTransfer,
    Member,
    Shard,
    ShardMove,
    Worker,
)
from schedclient.values.reading import value_of
from schedproto.v1 import cluster_service_pb2 as wire


class ClusterCalls:
    """`client.cluster`."""

    def __init__(self, transport: Transport) -> None:
        self._call = transport.call

    async def status(self, *, deadline: float | None = None) -> Cluster:
        """Return leader, shards, and the number of runs in progress."""
        return value_of(
            Cluster, await self._call(methods.GET_CLUSTER, wire.GetClusterRequest(), deadline)
        )

    async def members(self, *, deadline: float | None = None) -> tuple[Member, ...]:
        """Return every member."""
        answer = await self._call(methods.LIST_MEMBERS, wire.ListMembersRequest(), deadline)
        return tuple(value_of(Member, one) for one in answer.members)

    async def shards(self, *, deadline: float | None = None) -> tuple[Shard, ...]:
        """Return every shard, with its owner."""
        answer = await self._call(methods.LIST_SHARDS, wire.ListShardsRequest(), deadline)
        return tuple(value_of(Shard, one) for one in answer.shards)

    async def transfer_leader(
        self, member: Member | str = "", *, reason: str = "", deadline: float | None = None
    ) -> LeaderTransfer:
        """Transfer leadership to this member, by default to the most suitable one."""
        request = wire.TransferLeaderRequest(member=member_of(member), reason=reason)
        answer = await self._call(methods.TRANSFER_LEADER, request, deadline)
        return value_of(LeaderTransfer, answer)

    async def rebalance(
        self, *, dry_run: bool = False, deadline: float | None = None
    ) -> tuple[ShardMove, ...]:
        """Move every shard to its target owner. Return the moves; `dry_run` only plans them."""
        request = wire.RebalanceClusterRequest(dry_run=dry_run)
        answer = await self._call(methods.REBALANCE, request, deadline)
        return tuple(value_of(ShardMove, one) for one in answer.moves)

    async def doctor(self, *, deadline: float | None = None) -> Checkup:
        """Run diagnostics: etcd, PostgreSQL, clocks, members, workers."""
        request = wire.CheckClusterRequest()
        return value_of(Checkup, await self._call(methods.CHECK_CLUSTER, request, deadline))

    async def pause(self, *, note: str = "", deadline: float | None = None) -> Cluster:
        """Pause all jobs: nothing fires and no run starts until `resume`. Returns when no run can
        start any more.
        """
        request = wire.PauseClusterRequest(note=note)
        return value_of(Cluster, await self._call(methods.PAUSE_CLUSTER, request, deadline))

    async def resume(
        self,
        *,
        catch_up: bool | None = None,
        catch_up_since: When | None = None,
        deadline: float | None = None,
    ) -> Cluster:
        """Resume all jobs. Scheduled times of the pause are SKIPPED (PAUSED). With `catch_up` each
        job's policy applies; with `catch_up_since` only to scheduled times from then on. A cluster
        whose database was restored needs one of the two.
        """
        request = wire.ResumeClusterRequest(
            catch_up=catch_up is True, catch_up_nothing=catch_up is False
        )
        if catch_up_since is not None:
            request.catch_up_since.CopyFrom(when_message(catch_up_since, "catch_up_since"))
        return value_of(Cluster, await self._call(methods.RESUME_CLUSTER, request, deadline))


class Workers:
    """`client.workers`. A worker is given by its name or as a `Worker`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._call = transport.call

    async def list(
        self, *, limit: int | None = None, deadline: float | None = None
    ) -> AsyncIterator[Worker]:
        """Yield every worker."""

        async def read(size: int, token: str) -> tuple[Sequence[Message], str]:
            request = wire.ListWorkersRequest(page_size=size, page_token=token)
            page = await self._call(methods.LIST_WORKERS, request, deadline)
            return page.workers, page.next_page_token

        async for worker in paging.paged(Worker, read, limit):
            yield worker

    async def get(self, worker: Worker | str, *, deadline: float | None = None) -> Worker:
        """Return a worker by its name."""
        request = wire.GetWorkerRequest(worker=worker_of(worker))
        return value_of(Worker, await self._call(methods.GET_WORKER, request, deadline))

    async def watch(
        self, worker: Worker | str, *, deadline: float | None = None
    ) -> AsyncIterator[Worker]:
        """Yield the worker, then each change of it. A change of only `lease_age` isn't a change. A
        broken stream is resumed at another member.

        Raises:
            NotFound: the worker doesn't exist any more. A drained worker changes to LOST instead.
            DeadlineExceeded: `deadline` seconds have passed since the call, over all streams.
                Without a deadline a watch doesn't end.
            ClusterUnavailable: no endpoint answers.
        """
        asked = watching.WatchMethod(
            methods.WATCH_WORKER,
            wire.WatchWorkerRequest(worker=worker_of(worker)),
            methods.GET_WORKER,
            wire.GetWorkerRequest(worker=worker_of(worker)),
        )
        async for one in watching.one(self._transport, asked, deadline, Worker, lambda _: False):
            yield one

    async def drain(
        self, worker: Worker | str, *, reason: str = "", deadline: float | None = None
    ) -> Worker:
        """Stop giving the worker new work, until `undrain`. Runs in progress finish. Its `state` is
        DRAINING once the worker has received the drain.
        """
        request = wire.DrainWorkerRequest(worker=worker_of(worker), reason=reason)
        return value_of(Worker, await self._call(methods.DRAIN_WORKER, request, deadline))

    async def undrain(
        self, worker: Worker | str, *, reason: str = "", deadline: float | None = None
    ) -> Worker:
        """Give the worker new work again."""
        request = wire.UndrainWorkerRequest(worker=worker_of(worker), reason=reason)
        return value_of(Worker, await self._call(methods.UNDRAIN_WORKER, request, deadline))


class Audit:
    """`client.audit`."""

    def __init__(self, transport: Transport) -> None:
        self._call = transport.call

    async def list(
        self,
        *,
        action: str = "",
        of: str = "",
        run_id: str = "",
        limit: int | None = None,
        deadline: float | None = None,
    ) -> AsyncIterator[AuditEntry]:
        """Yield changes and rejections, newest first. `of`: the name of an object."""

        async def read(size: int, token: str) -> tuple[Sequence[Message], str]:
            request = wire.ListAuditRequest(
                page_size=size, page_token=token, action=action, object=of, run_id=run_id
            )
            page = await self._call(methods.LIST_AUDIT, request, deadline)
            return page.entries, page.next_page_token

        async for entry in paging.paged(AuditEntry, read, limit):
            yield entry
