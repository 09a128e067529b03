"""Workers that live through a restore of etcd under the same cluster id (P6.4).

The rule `deletion-watched` on real etcd and PostgreSQL: a snapshot, a worker that comes after it,
the restore, and revisions that have grown past all that anybody saw before anybody looks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from schedd.cluster.observer import Observer
from schedd.cluster.worker_leases import WorkerLeases
from schedd.core.cluster.worker_liveness import WatchedDeletions
from schedd.core.ids import IncarnationId, new_id
from schedd.core.runs.model import Incarnation
from schedd.etcd.access import EtcdAccess
from schedd.etcd.client import EtcdClient, connect
from schedd.store.postgres import Stores
from schedkit.clock import boottime
from schedkit.errors import Unavailable
from schedkit.tasks import Loop
from support.etcd import EtcdCluster
from support.runs import worker
from support.store import World
from support.wait import wait_until_async

TTL = 3.0


@dataclass
class Member:
    """The parts of a member that read etcd and judge which workers are lost."""

    etcd: EtcdClient
    observer: Observer
    leases: WorkerLeases

    async def gone(self, one: Incarnation) -> bool | None:
        """Whether the worker is gone; None: etcd is away."""
        try:
            return one.id in (await self.leases.liveness({one.id})).gone
        except Unavailable:
            return None

    async def stands(self, one: Incarnation) -> bool:
        """Whether the worker has its key."""
        return one.id in (await self.leases.liveness([])).live


@asynccontextmanager
async def joined(cluster: EtcdCluster, store: Stores) -> AsyncIterator[Member]:
    """A member that has just started, as soon as it has read etcd once."""
    async with connect(EtcdAccess(cluster.endpoints), deadline=TTL / 6) as etcd:
        observer = Observer(etcd)

        def watched() -> WatchedDeletions:
            return WatchedDeletions(observer.view().cluster_id, observer.view().departed)

        leases = WorkerLeases(etcd, store.workers, "", TTL, lambda _: True, watched)
        following = asyncio.create_task(observer.run(), name="observer")
        try:
            await wait_until_async(lambda: observer.view().revision, 10, "the first view")
            yield Member(etcd, observer, leases)
        finally:
            following.cancel()
            await asyncio.wait({following})


async def grow_past(etcd: EtcdClient, revision: int) -> None:
    """Write until etcd counts more than this."""
    while (await etcd.list("")).revision <= revision:
        await etcd.put("growing", b"")


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def a_worker() -> Incarnation:
    return replace(worker(), id=IncarnationId(new_id()))


async def test_deletion_watched_a_restore_that_keeps_the_cluster_id_costs_no_live_worker(
    world: World, stack: AsyncExitStack, tmp_path: Path, a_worker: Incarnation
) -> None:
    """P6.4: neither a member that has just started writes it off, nor one that was there before."""
    store = (await world.member()).store
    with EtcdCluster(1) as cluster:
        old = await stack.enter_async_context(joined(cluster, store))
        cluster_id = old.observer.view().cluster_id
        cluster.ctl("snapshot", "save", str(tmp_path / "snapshot"))
        await store.workers.register(a_worker)
        await old.leases.ensure(a_worker)
        assert await old.gone(a_worker) is False
        before = (await old.etcd.list("")).revision

        cluster.restore(tmp_path / "snapshot")
        async with connect(EtcdAccess(cluster.endpoints), deadline=TTL) as anybody:
            await grow_past(anybody, before)
        fresh = await stack.enter_async_context(joined(cluster, store))
        await wait_until_async(
            lambda: old.observer.view().revision > before, 10, "the old one to read etcd again"
        )
        assert old.observer.view().cluster_id == fresh.observer.view().cluster_id == cluster_id

        for member in (old, fresh):
            assert not await member.stands(a_worker)
            assert await member.gone(a_worker) is False
        assert await old.leases.refresh([a_worker]), "its next heartbeat creates the key again"
        for member in (old, fresh):
            assert await member.stands(a_worker)
        await stack.aclose()


async def test_a_worker_whose_expiry_was_watched_is_lost_at_once_otherwise_one_ttl_later(
    world: World, stack: AsyncExitStack, a_worker: Incarnation
) -> None:
    store = (await world.member()).store
    with EtcdCluster(1) as cluster:
        old = await stack.enter_async_context(joined(cluster, store))
        await store.workers.register(a_worker)
        await old.leases.ensure(a_worker)
        await wait_until_async(
            lambda: a_worker.id in old.observer.view().workers, 5, "the key to be seen"
        )
        await wait_until_async(
            lambda: a_worker.id not in old.observer.view().workers, 3 * TTL, "its lease to run out"
        )
        assert await old.gone(a_worker)

        fresh = await stack.enter_async_context(joined(cluster, store))
        assert await fresh.gone(a_worker) is False
        began = boottime()
        search = Loop("search", fresh.leases.look_again, TTL / 6)
        searching = asyncio.create_task(search.run(), name="search")
        try:
            await wait_until_async(lambda: fresh.gone(a_worker), 2 * TTL, "it to be gone here too")
        finally:
            searching.cancel()
        assert TTL <= boottime() - began < TTL + 1
        await stack.aclose()
