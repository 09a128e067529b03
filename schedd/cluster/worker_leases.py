"""The leases of workers, kept in etcd on their behalf (docs/protocol-rules.md, P6.1).

A worker has no etcd credentials. A member that receives its heartbeat refreshes its lease: the
member chosen by rendezvous hashing after a third of the TTL, any other after half. So a worker's
lease survives the loss of members, few writes reach etcd, and all members see a loss the same way.

    key  <prefix>workers/<worker>/<incarnation>, value: the lease's id

Loss is a row in PostgreSQL and final; this module never re-creates the key of a lost incarnation.
`core/cluster/worker_liveness.py` decides what a missing key means.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Final
from uuid import UUID

from schedd.core.cluster.coordination import NO_LEASE, Compare, Delete, LeaseId, Listing, Put
from schedd.core.cluster.worker_liveness import Absence, Departures, LivenessLook, WorkerLiveness
from schedd.core.ids import IncarnationId
from schedd.core.runs.model import Incarnation
from schedd.ports import Coordination
from schedd.store.cluster.worker_store import WorkerStore
from schedkit.backoff import Backoff
from schedkit.clock import boottime
from schedkit.errors import Unavailable

log = logging.getLogger(__name__)

ATTEMPTS: Final = 3
AT_ONCE: Final = 100
"""Leases that one stream refreshes within the deadline of a call."""
STREAMS: Final = 4
"""Such streams at a time."""


class WorkerLeases:
    """Creates, refreshes and ends the workers' keys, and judges who is gone.

    `ttl`: the workers', in seconds. `designated`: whether it is for this member to refresh that
    one first. `watched`: what the member's watch of etcd has seen go until now.
    """

    def __init__(
        self,
        etcd: Coordination,
        store: WorkerStore,
        prefix: str,
        ttl: float,
        designated: Callable[[IncarnationId], bool],
        watched: Callable[[], Departures],
    ) -> None:
        self._etcd = etcd
        self._store = store
        self._prefix = f"{prefix}workers/"
        self.ttl = ttl
        self._designated = designated
        self._watched = watched
        self._absence = Absence(ttl)
        self._held: dict[IncarnationId, LeaseId] = {}
        self._busy: dict[IncarnationId, asyncio.Lock] = {}

    def key(self, worker: str, incarnation: IncarnationId) -> str:
        """Where an incarnation stands in etcd."""
        return f"{self._prefix}{worker}/{incarnation}"

    async def ensure(self, incarnation: Incarnation) -> bool:
        """Create the incarnation's key under a lease, unless it exists. Returns whether it was
        created. Raises Unavailable.
        """
        async with self._lock(incarnation.id):
            return await self._ensure(incarnation)

    async def standing(self, named: Collection[IncarnationId]) -> WorkerLiveness:
        """Return the workers with a key, by a linearizable list, and which of those named are lost.
        Call `look_again` at most TTL / 3 later for missing workers. Raises Unavailable.
        """
        return self._absence.judge(named, await self._look(), self._watched())

    async def live(self) -> frozenset[IncarnationId]:
        """Who has a key, by a linearizable list. Raises Unavailable."""
        return (await self._look()).live

    async def look_again(self) -> frozenset[IncarnationId]:
        """Look for those who were named last and missing; who of them is gone by now."""
        if not self._absence.missing:
            return frozenset()
        look = await self._look()  # others may be named meanwhile: they stay missing, too
        return self._absence.judge(self._absence.missing, look, self._watched()).gone

    def forget_missing(self) -> None:
        """Stop looking for missing workers."""
        self._absence.clear()

    async def others_live(self, incarnation: Incarnation) -> frozenset[IncarnationId]:
        """Other incarnations of the same worker that have a key."""
        listing = await self._etcd.list(f"{self._prefix}{incarnation.worker}/")
        return frozenset(_incarnations(listing)) - {incarnation.id}

    async def elders(self, incarnation: Incarnation) -> frozenset[IncarnationId]:
        """Those of the same worker whose keys were there before this one's. Of two newcomers that
        came at once, each seeing no other, exactly one has the other for an elder.
        """
        listing = await self._etcd.list(f"{self._prefix}{incarnation.worker}/")
        born = _incarnations(listing)
        own = born.get(incarnation.id)
        return frozenset(one for one, at in born.items() if own is not None and at < own)

    def due(self, incarnation: IncarnationId, since_refresh: float) -> bool:
        """Whether this member should refresh the lease, so many seconds after the last refresh by
        whichever member. So they share the work, and one steps in for another.
        """
        share = 1 / 3 if self._designated(incarnation) else 1 / 2
        return since_refresh >= self.ttl * share

    async def refresh(self, incarnations: Sequence[Incarnation]) -> frozenset[IncarnationId]:
        """Refresh the leases of these after their heartbeats; return those that etcd refreshed.

        A few streams at a time: with thousands of workers at once, each would be as slow as all
        together, and none would meet its deadline. The rest is refreshed at the next heartbeat.
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
        """Those whose leases were; None when etcd is away."""
        held = {one.id: lease for one in incarnations if (lease := self._held.get(one.id))}
        try:
            alive = await self._etcd.keep_alive(held.values())
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
        """Take the key away: the worker said goodbye, or a newcomer of its spool is here."""
        await self._etcd.txn([], [Delete(self.key(worker, incarnation))])
        held = self._held.pop(incarnation, None)
        if held is not None:
            await self._etcd.revoke(held)

    def forget(self, incarnation: IncarnationId) -> None:
        """Its stream to this member is gone; the lease lives on with the others."""
        self._held.pop(incarnation, None)
        self._busy.pop(incarnation, None)

    async def _look(self) -> LivenessLook:
        sent = boottime()
        listing = await self._etcd.list(self._prefix)
        live = frozenset(_incarnations(listing))
        return LivenessLook(live, listing.cluster_id, listing.revision, sent, boottime())

    def _lock(self, incarnation: IncarnationId) -> asyncio.Lock:
        return self._busy.setdefault(incarnation, asyncio.Lock())

    async def _try_to_revive(self, incarnation: Incarnation) -> bool:
        lock = self._lock(incarnation.id)
        if lock.locked():  # it is being made
            return False
        async with lock:
            try:
                return await self._revive(incarnation)
            except Unavailable as away:
                log.info("refreshing the lease of %s failed: %s", incarnation.worker, away)
                return False

    async def _revive(self, incarnation: Incarnation) -> bool:
        """Create the missing lease again, unless the incarnation is lost."""
        stored = await self._store.incarnations([incarnation.id])
        if not stored or stored[0].lost_at is not None:
            return False
        await self._ensure(incarnation)
        held = self._held.get(incarnation.id)
        return held is not None and bool(await self._etcd.keepalive_once(held))

    async def _ensure(self, incarnation: Incarnation) -> bool:
        key = self.key(incarnation.worker, incarnation.id)
        backoff = Backoff(0.05, 0.5)
        for _ in range(ATTEMPTS):
            there = await self._etcd.get(key)
            if there is not None and there.lease != NO_LEASE:
                self._held[incarnation.id] = there.lease
                return False
            if there is not None:  # no member wrote it: without a lease it would never end
                await self._etcd.txn([Compare.unchanged(there)], [Delete(key)])
                log.error("invalid etcd key deleted: %s has no lease", key)
            lease = await self._etcd.grant(round(self.ttl))
            made = await self._etcd.txn(
                [Compare.absent(key)], [Put(key, str(lease.id).encode(), lease.id)]
            )
            if made.succeeded:
                self._held[incarnation.id] = lease.id
                return True
            await self._etcd.revoke(lease.id)
            await asyncio.sleep(backoff.next())
        raise Unavailable(f"the key of worker {incarnation.worker} in etcd changes too often")


def _incarnations(listing: Listing) -> dict[IncarnationId, int]:
    """Return incarnation → create revision, of the keys that name one. The observer of etcd logs
    the others.
    """
    found: dict[IncarnationId, int] = {}
    for entry in listing:
        try:
            found[IncarnationId(UUID(entry.key.rpartition("/")[2]))] = entry.create_revision
        except ValueError:
            continue
    return found
