"""The port `Coordination` over a real etcd: keys, transactions, leases, `follow`.

Invariants
- Reads are linearizable; a listing is one revision's state, however many pages it took.
- Everything that writes keys is a transaction, so there is one way in and one answer out.
- A lease that is already gone is no error: not for a keepalive (0), not for a revoke.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from schedd.core.cluster.coordination import (
    NO_LEASE,
    Compare,
    CoordinationEntry,
    Delete,
    Followed,
    Lease,
    LeaseId,
    Listing,
    Op,
    Put,
    Revision,
    TxnResult,
)
from schedd.core.events import Emit, unheard
from schedd.etcd import wire_pb2 as wire
from schedd.etcd.access import EtcdAccess
from schedd.etcd.codec import Codec
from schedd.etcd.connection import EtcdConnection
from schedd.etcd.errors import LeaseGone, RevisionGone
from schedd.etcd.follow import follow
from schedd.etcd.last_answer import Silence
from schedd.etcd.methods import (
    COMPACT,
    LEASE_GRANT,
    LEASE_KEEP_ALIVE,
    LEASE_REVOKE,
    LEASE_TIME_TO_LIVE,
    RANGE,
    STATUS,
    TXN,
)
from schedkit.errors import Rejected, Unavailable

_PAGE: Final = 2_000
_NEVER: Final = 2**62
"""A version that no key reaches."""
_LISTING_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class EndpointStatus:
    """One etcd member, as it sees itself. `size` and `in_use` in bytes; `problems`: its alarms."""

    endpoint: str
    version: str
    size: int
    in_use: int
    is_leader: bool
    has_leader: bool
    problems: tuple[str, ...]


class EtcdClient:
    """A client of one etcd cluster, for one event loop.

    `deadline`: seconds, for every call (a sixth of the member TTL). `root`: prefix of all keys in
    etcd; callers neither pass nor see it. `emit` receives how long each call took.

    Each call raises `Unavailable` when etcd is away, `OutcomeUnknown` (a kind of it) when what was
    asked may have been applied, and `AccessDenied` when etcd doesn't allow it.
    """

    def __init__(
        self, access: EtcdAccess, *, deadline: float, root: str = "schedd/", emit: Emit = unheard
    ) -> None:
        self._connection = EtcdConnection(access, deadline=deadline, emit=emit)
        self.emit = emit
        self._codec = Codec(root)

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Those that were configured, as `status` answers of them."""
        return tuple(self._connection.targets)

    @property
    def silence(self) -> Silence:
        """For how long no call was answered, keepalives included."""
        return self._connection.silence

    def on_rejected(self, report: Callable[[Rejected], None]) -> None:
        """Call this for each rejection by etcd."""
        self._connection.on_rejected = report

    async def close(self) -> None:
        """Close the connections; calls and followers have to be ended before."""
        await self._connection.close()

    # ── keys ─────────────────────────────────────────────────────────────────────────────────

    async def get(self, key: str) -> CoordinationEntry | None:
        """The key's entry as of now."""
        reply = await self._connection.call(RANGE, wire.RangeRequest(key=self._codec.key(key)))
        return self._codec.entry(reply.kvs[0]) if reply.kvs else None

    async def list(self, prefix: str) -> Listing:
        """All entries under the prefix as of now."""
        for _ in range(_LISTING_TRIES):
            try:
                return await self._list(prefix)
            except RevisionGone:
                continue  # compacted between two pages
        raise Unavailable(f"etcd: {prefix!r} is compacted faster than it can be listed")

    async def _list(self, prefix: str) -> Listing:
        start, end = self._codec.span(prefix)
        request = wire.RangeRequest(key=start, range_end=end, limit=_PAGE)
        reply = await self._connection.call(RANGE, request)
        header, entries = reply.header, [self._codec.entry(kv) for kv in reply.kvs]
        while reply.more:
            request.key = reply.kvs[-1].key + b"\0"
            request.revision = header.revision
            reply = await self._connection.call(RANGE, request)
            entries += (self._codec.entry(kv) for kv in reply.kvs)
        return Listing(Revision(header.revision), header.cluster_id, tuple(entries))

    async def txn(
        self, compare: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op] = ()
    ) -> TxnResult:
        """If all of `compare` hold do `then`, else `otherwise`, in one step.

        Raises:
            LeaseGone: a `Put` names a lease that doesn't exist; nothing was written.
        """
        request = self._codec.txn(compare, then, otherwise)
        return self._codec.result(await self._connection.call(TXN, request))

    async def put(self, key: str, value: bytes, lease: LeaseId = NO_LEASE) -> Revision:
        """Write the key whatever it holds; the revision of the write."""
        return (await self.txn((), (Put(key, value, lease),))).revision

    async def delete(self, key: str) -> bool:
        """Delete the key; whether it existed."""
        return (await self.txn((), (Delete(key),))).deleted > 0

    def follow(self, prefix: str) -> AsyncIterator[Followed]:
        """The state under the prefix, at once and after each change (several may come as one), and
        what of it was watched.

        Outages, compactions and restores of etcd are handled, never shown: after each the next
        state is simply the newest. Never ends on its own. Close it with `aclosing` or by
        canceling the task that iterates.

        Raises:
            AccessDenied: the user may not read the prefix.
        """
        return follow(self._connection, self._codec, self.list, prefix)

    async def compact(self, revision: Revision) -> None:
        """Forget all history before `revision`."""
        await self._connection.call(COMPACT, wire.CompactionRequest(revision=revision))

    # ── leases ───────────────────────────────────────────────────────────────────────────────

    async def grant(self, ttl: int) -> Lease:
        """A new lease of `ttl` seconds, or of more if etcd's own minimum is greater."""
        reply = await self._connection.call(LEASE_GRANT, wire.LeaseGrantRequest(ttl=ttl))
        return Lease(LeaseId(reply.id), reply.ttl)

    async def revoke(self, lease: LeaseId) -> None:
        """End the lease and delete its keys, now."""
        try:
            await self._connection.call(LEASE_REVOKE, wire.LeaseRevokeRequest(id=lease))
        except LeaseGone:
            return

    async def keepalive_once(self, lease: LeaseId) -> int:
        """Renew the lease; return the seconds granted, 0 if the lease has expired."""
        request = wire.LeaseKeepAliveRequest(id=lease)
        return (await self._connection.call(LEASE_KEEP_ALIVE, request)).ttl

    async def keep_alive(self, leases: Collection[LeaseId]) -> dict[LeaseId, int]:
        """Renew each lease; return the seconds granted, 0 if it has expired. A stream for
        all of them costs a third of as many calls.
        """
        requests = [wire.LeaseKeepAliveRequest(id=lease) for lease in leases]
        replies = await self._connection.call_each(LEASE_KEEP_ALIVE, requests) if requests else []
        return dict.fromkeys(leases, 0) | {LeaseId(reply.id): reply.ttl for reply in replies}

    async def time_to_live(self, lease: LeaseId) -> int | None:
        """Whole seconds that the lease has left, None if it is gone."""
        request = wire.LeaseTimeToLiveRequest(id=lease)
        ttl = (await self._connection.call(LEASE_TIME_TO_LIVE, request)).ttl
        return ttl if ttl >= 0 else None

    async def probe_write(self, key: str) -> None:
        """Learn whether etcd takes writes, without one: a transaction whose condition never holds
        needs the permission, the quota and a majority as any other.
        """
        await self.txn([Compare.version_is(key, _NEVER)], [Put(key, b"")])

    # ── health ───────────────────────────────────────────────────────────────────────────────

    async def status(self) -> tuple[EndpointStatus | Unavailable, ...]:
        """Each configured endpoint's status, or why it has none."""
        return tuple([await self._status(at) for at in range(len(self._connection.targets))])

    async def _status(self, position: int) -> EndpointStatus | Unavailable:
        try:
            reply = await self._connection.call_one(position, STATUS, wire.StatusRequest())
        except Unavailable as error:
            return error
        return EndpointStatus(
            endpoint=self._connection.targets[position],
            version=reply.version,
            size=reply.db_size,
            in_use=reply.db_size_in_use,
            is_leader=reply.leader == reply.header.member_id,
            has_leader=reply.leader != 0,
            problems=tuple(reply.errors),
        )


@asynccontextmanager
async def connect(
    access: EtcdAccess, *, deadline: float, root: str = "schedd/", emit: Emit = unheard
) -> AsyncIterator[EtcdClient]:
    """A client for the time of the block. Connections are made when first used."""
    client = EtcdClient(access, deadline=deadline, root=root, emit=emit)
    try:
        yield client
    finally:
        await client.close()
