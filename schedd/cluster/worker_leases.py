"""The leases of workers, kept in etcd on their behalf (docs/protocol-rules.md, P6.1).

A worker has no etcd credentials. A member that receives its heartbeat refreshes its lease. The
member chosen by rendezvous hashing does so after a third of the TTL, any other after half. So a
worker's lease survives the loss of members, and few writes reach etcd. All members see the same
losses.

    key  <prefix>workers/<worker>/<incarnation>, value: the lease's id

A loss is a row in PostgreSQL and final. This module never recreates the key of a lost incarnation.
`core/cluster/worker_liveness.py` decides what a missing key means.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import InitVar, dataclass
from typing import Final

from schedd.core.cluster.coordination import NO_LEASE, Compare, Delete, LeaseId, Listing, Put
from schedd.core.cluster.worker_liveness import (
    AbsenceTracker,
    LivenessSnapshot,
    WatchedDeletions,
    WorkerLiveness,
)
from schedd.core.ids import Id, IncarnationId
from schedd.core.runs.model import Incarnation
from schedd.ports import Coordination
from schedd.store.cluster.workers import WorkerStore
from schedkit.backoff import Backoff
from schedkit.clock import boottime
from schedkit.errors import Unavailable

log = logging.getLogger(__name__)

ATTEMPTS: Final = 3
AT_ONCE: Final = 100
"""Leases that one stream refreshes within the deadline of a call."""
STREAMS: Final = 4
"""Maximum number of such streams at a time."""


@dataclass(eq=False)
class WorkerLeases:
    """The keys of workers in etcd: created, refreshed, deleted, and checked for lost workers.

    `ttl`: the workers' TTL, in seconds. `designated`: whether this member is the first choice to
    refresh that incarnation's lease. `watched`: the deletions that this member's watch of etcd has
    reported until now.
    """

    etcd: Coordination
    store: WorkerStore
    prefix: InitVar[str]
    ttl: float
    designated: Callable[[IncarnationId], bool]
    watched: Callable[[], WatchedDeletions]

    def __post_init__(self, prefix: str) -> None:
        self._prefix = f"{prefix}workers/"
        self._absence = AbsenceTracker(self.ttl)
        self._held: dict[IncarnationId, LeaseId] = {}
        self._busy: dict[IncarnationId, asyncio.Lock] = {}

    def key(self, worker: str, incarnation: IncarnationId) -> str:
        return f"{self._prefix}{worker}/{incarnation}"

    async def ensure(self, incarnation: Incarnation) -> bool:
        """Create the incarnation's key under a lease, unless it exists. Return whether it was
        created. Raises Unavailable.
        """
        async with self._lock(incarnation.id):
            return await self._ensure(incarnation)

    async def liveness(self, named: Collection[IncarnationId]) -> WorkerLiveness:
        """Return the workers with a key, by a linearizable list, and which of `named` are lost.
        Call `look_again` at most TTL / 3 later for missing workers. Raises Unavailable.
        """
        return self._absence.judge(named, await self._read_leases(), self.watched())

    async def live(self) -> frozenset[IncarnationId]:
        """Return the incarnations with a key, by a linearizable list. Raises Unavailable."""
        return (await self._read_leases()).live

    @property
    def missing(self) -> frozenset[IncarnationId]:
        """The workers that were missing from the last list, lost ones included."""
        return self._absence.missing

    @property
    def deleted(self) -> frozenset[IncarnationId]:
        return frozenset(self.watched().departed)

    async def look_again(self) -> frozenset[IncarnationId]:
        """List the keys again, and return the missing workers that are lost by now."""
        if not self._absence.missing:
            return frozenset()
        look = await self._read_leases()  # others may be missing meanwhile: they stay in the set
        return self._absence.judge(self._absence.missing, look, self.watched()).gone

    def forget_missing(self) -> None:
        self._absence.clear()

    async def others_live(self, incarnation: Incarnation) -> frozenset[IncarnationId]:
        listing = await self.etcd.list(f"{self._prefix}{incarnation.worker}/")
        return frozenset(_incarnations(listing)) - {incarnation.id}

    async def elders(self, incarnation: Incarnation) -> frozenset[IncarnationId]:
        """Return the incarnations of the same worker whose keys are older than this one's. If two
        incarnations register at once and neither sees the other, exactly one is the older.
        """
        listing = await self.etcd.list(f"{self._prefix}{incarnation.worker}/")
        born = _incarnations(listing)
        own = born.get(incarnation.id)
        return frozenset(one for one, at in born.items() if own is not None and at < own)

    def due(self, incarnation: IncarnationId, since_refresh: float) -> bool:
        """Return whether this member should refresh the lease now. `since_refresh`: seconds since
        the last refresh by any member. So members share the work, and one replaces another.
        """
        share = 1 / 3 if self.designated(incarnation) else 1 / 2
        return since_refresh >= self.ttl * share

    async def refresh(self, incarnations: Sequence[Incarnation]) -> frozenset[IncarnationId]:
        """Refresh the leases of these incarnations; return those with a refreshed lease.

        Only a few streams run at a time. With thousands of workers at once, each stream would be as
        slow as all together, and none would meet its deadline. The rest is refreshed at the next
        heartbeat.
        """
        parts = deque(
            incarnations[at : at + AT_ONCE] for at in range(0, len(incarnations), AT_ONCE)
        )
        refreshed: set[IncarnationId] = set()

        async def some() -> None:
            while parts:
                done = await self._refresh(parts.popleft())
                if done is None:
                    return
                refreshed.update(done)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(STREAMS, len(parts))):
                group.create_task(some(), name="refresh")
        return frozenset(refreshed)

    async def _refresh(self, incarnations: Sequence[Incarnation]) -> set[IncarnationId] | None:
        """Return the incarnations with a refreshed or new lease; None: etcd is unavailable."""
        held = {one.id: lease for one in incarnations if (lease := self._held.get(one.id))}
        try:
            alive = await self.etcd.keep_alive(held.values())
        except Unavailable as away:
            log.info("refreshing the leases of %d workers failed: %s", len(incarnations), away)
            return None
        lives = {one for one, lease in held.items() if alive.get(lease)}
        async with asyncio.TaskGroup() as group:
            revived = {
                one.id: group.create_task(self._try_to_revive(one), name=f"revive {one.worker}")
                for one in incarnations
                if one.id not in lives
            }
        return lives | {one for one, task in revived.items() if task.result()}

    async def end(self, worker: str, incarnation: IncarnationId) -> None:
        """Delete the key: the worker signed off, or a newer incarnation has its spool."""
        await self.etcd.txn([], [Delete(self.key(worker, incarnation))])
        held = self._held.pop(incarnation, None)
        if held is not None:
            await self.etcd.revoke(held)

    def forget(self, incarnation: IncarnationId) -> None:
        """Forget an incarnation whose stream to this member ended; other members keep its lease."""
        self._held.pop(incarnation, None)
        self._busy.pop(incarnation, None)

    async def _read_leases(self) -> LivenessSnapshot:
        sent = boottime()
        listing = await self.etcd.list(self._prefix)
        live = frozenset(_incarnations(listing))
        return LivenessSnapshot(live, listing.cluster_id, listing.revision, sent, boottime())

    def _lock(self, incarnation: IncarnationId) -> asyncio.Lock:
        return self._busy.setdefault(incarnation, asyncio.Lock())

    async def _try_to_revive(self, incarnation: Incarnation) -> bool:
        lock = self._lock(incarnation.id)
        if lock.locked():  # another task is creating it
            return False
        async with lock:
            try:
                return await self._revive(incarnation)
            except Unavailable as away:
                log.info("refreshing the lease of %s failed: %s", incarnation.worker, away)
                return False

    async def _revive(self, incarnation: Incarnation) -> bool:
        stored = await self.store.incarnations([incarnation.id])
        if not stored or stored[0].lost_at is not None:
            return False
        await self._ensure(incarnation)
        held = self._held.get(incarnation.id)
        return held is not None and bool(await self.etcd.keepalive_once(held))

    async def _ensure(self, incarnation: Incarnation) -> bool:
        key = self.key(incarnation.worker, incarnation.id)
        backoff = Backoff(0.05, 0.5)
        for _ in range(ATTEMPTS):
            there = await self.etcd.get(key)
            if there is not None and there.lease != NO_LEASE:
                self._held[incarnation.id] = there.lease
                return False
            if there is not None:  # no member wrote it: without a lease it would never expire
                await self.etcd.txn([Compare.unchanged(there)], [Delete(key)])
                log.error("invalid etcd key deleted: %s has no lease", key)
            lease = await self.etcd.grant(round(self.ttl))
            made = await self.etcd.txn(
                [Compare.absent(key)], [Put(key, str(lease.id).encode(), lease.id)]
            )
            if made.succeeded:
                self._held[incarnation.id] = lease.id
                return True
            await self.etcd.revoke(lease.id)
            await asyncio.sleep(backoff.next())
        raise Unavailable(
            f"etcd: the key of worker {incarnation.worker} can't be written, because other"
            " members change this key at the same time; the worker registers again"
        )


def _incarnations(listing: Listing) -> dict[IncarnationId, int]:
    """Return incarnation → create revision for all valid keys. The observer logs invalid keys."""
    found: dict[IncarnationId, int] = {}
    for entry in listing:
        try:
            found[IncarnationId(Id.parse(entry.key.rpartition("/")[2]))] = entry.create_revision
        except ValueError:
            continue
    return found
