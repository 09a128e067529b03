"""Calls on the cluster: members, shards, workers, pause, audit log."""

from collections.abc import AsyncIterator, Sequence

from schedclient.calls import watching
from schedclient.calls.base import ClientCalls, id_of
from schedclient.calls.specs import Length, When, length_message, when_message
from schedclient.errors import InvalidArgument, Violation
from schedclient.values.cluster import (
    AccessToken,
    AuditEntry,
    Checkup,
    Cluster,
    Identity,
    LeaderTransfer,
    Member,
    NewToken,
    Shard,
    ShardMove,
    Worker,
)
from schedproto.v1 import auth_service_pb2 as auth
from schedproto.v1 import cluster_service_pb2 as wire


class ClusterCalls(ClientCalls):
    """`client.cluster`."""

    async def status(self, *, deadline: float | None = None) -> Cluster:
        """Return leader, shards, and the number of runs in progress."""
        return await self._one(Cluster, wire.GetClusterRequest(), deadline)

    async def members(self, *, deadline: float | None = None) -> tuple[Member, ...]:
        """Return every member."""
        return await self._all(Member, wire.ListMembersRequest(), deadline)

    async def shards(self, *, deadline: float | None = None) -> tuple[Shard, ...]:
        """Return every shard, with its owner."""
        return await self._all(Shard, wire.ListShardsRequest(), deadline)

    async def transfer_leader(
        self, member: Member | str = "", *, reason: str = "", deadline: float | None = None
    ) -> LeaderTransfer:
        """Transfer leadership to this member, by default to the most suitable one."""
        request = wire.TransferLeaderRequest(member=id_of(member, Member), reason=reason)
        return await self._one(LeaderTransfer, request, deadline)

    async def rebalance(
        self, *, dry_run: bool = False, deadline: float | None = None
    ) -> tuple[ShardMove, ...]:
        """Move every shard to its target owner. Return the moves; `dry_run` only plans them."""
        return await self._all(ShardMove, wire.RebalanceClusterRequest(dry_run=dry_run), deadline)

    async def doctor(self, *, deadline: float | None = None) -> Checkup:
        """Run diagnostics: etcd, PostgreSQL, clocks, members, workers."""
        return await self._one(Checkup, wire.CheckClusterRequest(), deadline)

    async def pause(self, *, note: str = "", deadline: float | None = None) -> Cluster:
        """Pause all jobs: nothing fires and no run starts until `resume`. Returns when no run can
        start any more.
        """
        return await self._one(Cluster, wire.PauseClusterRequest(note=note), deadline)

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
        return await self._one(Cluster, request, deadline)


class Workers(ClientCalls):
    """`client.workers`. A worker is given by its name or as a `Worker`."""

    def list(
        self, *, limit: int | None = None, deadline: float | None = None
    ) -> AsyncIterator[Worker]:
        """Yield every worker."""
        return self._pages(Worker, wire.ListWorkersRequest(), limit, deadline)

    async def get(self, worker: Worker | str, *, deadline: float | None = None) -> Worker:
        """Return a worker by its name."""
        request = wire.GetWorkerRequest(worker=id_of(worker, Worker))
        return await self._one(Worker, request, deadline)

    def watch(
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
        request = wire.WatchWorkerRequest(worker=id_of(worker, Worker))
        return watching.one(self._transport, request, deadline, Worker, lambda _: False)

    async def drain(
        self, worker: Worker | str, *, reason: str = "", deadline: float | None = None
    ) -> Worker:
        """Stop giving the worker new work, until `undrain`. Runs in progress finish. Its `state` is
        DRAINING once the worker has received the drain.
        """
        request = wire.DrainWorkerRequest(worker=id_of(worker, Worker), reason=reason)
        return await self._one(Worker, request, deadline)

    async def undrain(
        self, worker: Worker | str, *, reason: str = "", deadline: float | None = None
    ) -> Worker:
        """Give the worker new work again."""
        request = wire.UndrainWorkerRequest(worker=id_of(worker, Worker), reason=reason)
        return await self._one(Worker, request, deadline)


class Audit(ClientCalls):
    """`client.audit`."""

    def list(
        self,
        *,
        action: str = "",
        of: str = "",
        run_id: str = "",
        limit: int | None = None,
        deadline: float | None = None,
    ) -> AsyncIterator[AuditEntry]:
        """Yield changes and rejections, newest first. `of`: the name of an object."""
        request = wire.ListAuditRequest(action=action, object=of, run_id=run_id)
        return self._pages(AuditEntry, request, limit, deadline)


class Access(ClientCalls):
    """`client.access`."""

    async def create_token(
        self,
        name: str,
        role: str,
        *,
        namespaces: Sequence[str] = (),
        lifetime: Length | None = None,
        deadline: float | None = None,
    ) -> NewToken:
        """Create a token: `viewer`, `operator` or `admin` in these namespaces (default: all).
        `lifetime` is from a minute to 366 days (default: 30 days).
        """
        request = auth.CreateTokenRequest(
            name=name,
            role=_role(role),
            namespaces=namespaces,
            lifetime=length_message(lifetime, "lifetime"),
        )
        return await self._one(NewToken, request, deadline)

    def tokens(
        self, *, limit: int | None = None, deadline: float | None = None
    ) -> AsyncIterator[AccessToken]:
        """Yield tokens, newest first; also tokens that ended in the last 30 days."""
        return self._pages(AccessToken, auth.ListTokensRequest(), limit, deadline)

    async def revoke_token(
        self, token: AccessToken | str, *, deadline: float | None = None
    ) -> AccessToken:
        """Revoke a token and all tokens created with it: within five seconds, on all members.
        Revoking twice is fine.
        """
        request = auth.RevokeTokenRequest(token_id=id_of(token, AccessToken))
        return await self._one(AccessToken, request, deadline)

    async def identity(self, *, deadline: float | None = None) -> Identity:
        """Return the identity that this client is authenticated as."""
        return await self._one(Identity, auth.GetIdentityRequest(), deadline)


def _role(word: str) -> auth.Role.ValueType:
    known = auth.Role.DESCRIPTOR.values_by_name
    found = known.get(f"ROLE_{word.upper()}")
    if found is None or not found.number:
        problem = f"{word[:60]!r} isn't a role: use viewer, operator or admin"
        raise InvalidArgument(f"role: {problem}", violations=[Violation("role", problem)])
    return auth.Role.ValueType(found.number)
