"""The port `Coordination` over a real etcd: keys, transactions, leases, `follow`.

Invariants
- Reads are linearizable. A listing is the state of one revision, however many pages it took.
- Every write of keys is a transaction, so there is one kind of request and one kind of answer.
- A lease that has expired is not an error: a keepalive returns 0, a revoke does nothing.
"""

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Final

from schedd.core.checkup.facts import EtcdEndpoint
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
from schedd.core.events import Emit, discard
from schedd.etcd import wire_pb2 as wire
from schedd.etcd.access import EtcdAccess
from schedd.etcd.codec import (
    COMPACT,
    LEASE_GRANT,
    LEASE_KEEP_ALIVE,
    LEASE_REVOKE,
    RANGE,
    STATUS,
    TXN,
    Codec,
)
from schedd.etcd.connection import EtcdConnection
from schedd.etcd.errors import LeaseGone, RevisionGone
from schedd.etcd.follow import follow
from schedkit.clock import boottime
from schedkit.errors import Rejected, Unavailable

_PAGE: Final = 2_000
_NEVER: Final = 2**62
"""A version that no key reaches."""
_LISTING_TRIES: Final = 3


class EtcdClient:
    """A client of one etcd cluster, for one event loop.

    `deadline`: seconds, for every call (a sixth of the member TTL). `root`: prefix of all keys in
    etcd; callers neither pass nor see it. `emit` receives the duration of each call.

    Each call raises `Unavailable` when etcd is unavailable, and `AccessDenied` when etcd doesn't
    allow it. `OutcomeUnknown`, a kind of `Unavailable`: the write may have been applied.
    """

    def __init__(
        self, access: EtcdAccess, *, deadline: float, root: str = "schedd/", emit: Emit = discard
    ) -> None:
        self._connection = EtcdConnection(access, deadline=deadline, emit=emit)
        self.emit = emit
        self.endpoints = self._connection.targets
        """The configured endpoints, in the order of the answers of `status`."""
        self.silence = self._connection.silence
        self._codec = Codec(root)

    def on_rejected(self, report: Callable[[Rejected], None]) -> None:
        self._connection.on_rejected = report

    async def close(self) -> None:
        """Close the connections. End calls and followers first."""
        await self._connection.close()

    # ── keys ─────────────────────────────────────────────────────────────────────────────────

    async def get(self, key: str) -> CoordinationEntry | None:
        reply = await self._connection.call(RANGE, wire.RangeRequest(key=self._codec.key(key)))
        return self._codec.entry(reply.kvs[0]) if reply.kvs else None

    async def list(self, prefix: str) -> Listing:
        for _ in range(_LISTING_TRIES):
            try:
                return await self._list(prefix)
            except RevisionGone:
                continue  # compacted between two pages
        raise Unavailable(
            f"etcd: the keys under {prefix!r} weren't read completely: etcd compacted"
            " (deleted) their revision meanwhile; schedd reads them again"
        )

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
        """Do `then` if all of `compare` hold, else `otherwise`, in one step. Raises LeaseGone: a
        `Put` names a lease that doesn't exist; nothing was written.
        """
        request = self._codec.txn(compare, then, otherwise)
        return self._codec.result(await self._connection.call(TXN, request))

    async def put(self, key: str, value: bytes, lease: LeaseId = NO_LEASE) -> Revision:
        """Write the key whatever it holds; return the revision of the write."""
        return (await self.txn((), (Put(key, value, lease),))).revision

    async def delete(self, key: str) -> bool:
        return (await self.txn((), (Delete(key),))).deleted > 0

    def follow(self, prefix: str) -> AsyncIterator[Followed]:
        """Yield the state under the prefix at once and after each change, with watched deletions.

        Several changes may come as one. Outages, compactions and restores of etcd are handled and
        never shown: the next state after each is the newest. The iteration never ends. Close it
        with `aclosing`, or cancel the task that iterates.

        Raises:
            AccessDenied: the user may not read the prefix.
        """
        return follow(self._connection, self._codec, self.list, prefix)

    async def compact(self, revision: Revision) -> None:
        await self._connection.call(COMPACT, wire.CompactionRequest(revision=revision))

    # ── leases ───────────────────────────────────────────────────────────────────────────────

    async def grant(self, ttl: int) -> Lease:
        """Return a new lease of `ttl` seconds, or more if etcd's minimum is greater."""
        reply = await self._connection.call(LEASE_GRANT, wire.LeaseGrantRequest(ttl=ttl))
        return Lease(LeaseId(reply.id), reply.ttl)

    async def revoke(self, lease: LeaseId) -> None:
        """End the lease now and delete its keys."""
        try:
            await self._connection.call(LEASE_REVOKE, wire.LeaseRevokeRequest(id=lease))
        except LeaseGone:
            return

    async def keepalive_once(self, lease: LeaseId) -> int:
        """Renew the lease; return the seconds granted, 0 if the lease has expired."""
        request = wire.LeaseKeepAliveRequest(id=lease)
        return (await self._connection.call(LEASE_KEEP_ALIVE, request)).ttl

    async def keep_alive(self, leases: Collection[LeaseId]) -> dict[LeaseId, int]:
        """Renew each lease; return the seconds granted, 0 if the lease has expired. One stream for
        all of them costs a third of as many calls.
        """
        requests = [wire.LeaseKeepAliveRequest(id=lease) for lease in leases]
        replies = await self._connection.call_each(LEASE_KEEP_ALIVE, requests) if requests else []
        return dict.fromkeys(leases, 0) | {LeaseId(reply.id): reply.ttl for reply in replies}

    async def probe_write(self, key: str) -> None:
        """Check that etcd accepts writes, without writing. The condition of this transaction never
        holds. It needs the permission, the quota and a majority like any other.
        """
        await self.txn([Compare.version_is(key, _NEVER)], [Put(key, b"")])

    # ── health ───────────────────────────────────────────────────────────────────────────────

    async def status(self) -> tuple[EtcdEndpoint, ...]:
        return tuple([await self._status(*one) for one in enumerate(self.endpoints)])

    async def _status(self, position: int, endpoint: str) -> EtcdEndpoint:
        began = boottime()
        try:
            reply = await self._connection.call_one(position, STATUS, wire.StatusRequest())
        except Unavailable as error:
            return EtcdEndpoint(endpoint, away=str(error))
        return EtcdEndpoint(
            endpoint,
            version=reply.version,
            size=reply.db_size,
            in_use=reply.db_size_in_use,
            leads=reply.leader == reply.header.member_id,
            has_leader=reply.leader != 0,
            problems=tuple(reply.errors),
            took=boottime() - began,
        )


@asynccontextmanager
async def connect(
    access: EtcdAccess, *, deadline: float, root: str = "schedd/", emit: Emit = discard
) -> AsyncIterator[EtcdClient]:
    """Yield a client for the time of the block. Connections are opened when first used."""
    client = EtcdClient(access, deadline=deadline, root=root, emit=emit)
    try:
        yield client
    finally:
        await client.close()
