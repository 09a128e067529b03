"""Detect lost workers, with several members that look at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import cast

import pytest

from schedd.cluster import worker_leases as module
from schedd.cluster.worker_leases import AT_ONCE, STREAMS, WorkerLeases
from schedd.core.cluster.coordination import LeaseId, Listing, Revision
from schedd.core.cluster.worker_liveness import WatchedDeletions
from schedd.core.ids import IncarnationId
from schedd.ports import Coordination
from schedd.store.cluster.workers import WorkerStore
from schedkit.errors import Unavailable
from support.fakes import FakeCoordination, FakeEtcd
from support.runs import worker
from support.wait import WAIT_TIMEOUT, wait_until_async

TTL = 3.0
ONE, OTHER = worker(1).id, worker(2).id


class Empty:
    """An etcd in which there are no workers; what it is asked is answered when `open` is set."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.asked = 0

    async def list(self, _prefix: str) -> Listing:
        self.asked += 1
        await self.open.wait()
        return Listing(Revision(self.asked), 1, ())


class World:
    """The leases of one member; `now` is its boot clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.etcd = Empty()
        self.leases = WorkerLeases(
            cast("Coordination", self.etcd),
            cast("WorkerStore", None),
            "",
            TTL,
            lambda _: True,
            lambda: WatchedDeletions(1, {}),
        )

    async def gone_after(self, seconds: float) -> frozenset[IncarnationId]:
        """Return who is lost after so much time, if members look often enough."""
        end, gone = self.now + seconds, frozenset[IncarnationId]()
        while self.now < end:
            self.now += TTL / 6
            gone = await self.leases.look_again()
        return gone


async def test_a_worker_found_missing_during_a_search_stays_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A look that began before would else forget it, and its runs would wait for longer."""
    world = World()
    monkeypatch.setattr(module, "boottime", lambda: world.now)
    await world.leases.liveness({ONE})

    slow = world.etcd.open = asyncio.Event()
    looking = asyncio.create_task(world.leases.look_again(), name="look again")
    await wait_until_async(lambda: world.etcd.asked == 2, WAIT_TIMEOUT, "the list to be asked for")
    world.etcd.open = asyncio.Event()
    world.etcd.open.set()
    await world.leases.liveness({ONE, OTHER})
    slow.set()
    await looking

    assert await world.gone_after(TTL) == {ONE, OTHER}


class Halting(FakeCoordination):
    """An etcd that takes too long for streams of more than so many leases."""

    most = AT_ONCE

    async def keep_alive(self, leases: Collection[LeaseId]) -> dict[LeaseId, int]:
        if len(leases) > self.most:
            raise Unavailable("it took too long")
        return await super().keep_alive(leases)


async def test_a_failed_refresh_stream_doesnt_affect_the_others() -> None:
    etcd, store = Halting(FakeEtcd()), cast("WorkerStore", None)
    leases = WorkerLeases(etcd, store, "", TTL, lambda _: True, lambda: WatchedDeletions(1, {}))
    ones = [worker(number) for number in range(1, AT_ONCE + 3)]
    for one in ones:
        await leases.ensure(one)
    assert await leases.refresh(ones) == {one.id for one in ones}
    etcd.most = 2
    assert await leases.refresh(ones) == {one.id for one in ones[AT_ONCE:]}
    assert await leases.refresh([]) == frozenset()


class Busy(FakeCoordination):
    """An etcd that counts the streams that are under way, and how many came."""

    under_way, most, came, away = 0, 0, 0, False

    async def keep_alive(self, leases: Collection[LeaseId]) -> dict[LeaseId, int]:
        self.came += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        if self.away:
            raise Unavailable("gone")
        return await super().keep_alive(leases)


async def test_thousands_are_refreshed_by_a_few_streams_at_a_time() -> None:
    etcd, store = Busy(FakeEtcd()), cast("WorkerStore", None)
    leases = WorkerLeases(etcd, store, "", TTL, lambda _: True, lambda: WatchedDeletions(1, {}))
    ones = [worker(number) for number in range(1, AT_ONCE * (STREAMS + 3))]
    for one in ones:
        await leases.ensure(one)
    assert await leases.refresh(ones) == {one.id for one in ones}
    assert etcd.most == STREAMS
    etcd.came, etcd.away = 0, True
    assert await leases.refresh(ones) == frozenset()
    assert etcd.came == STREAMS, "an etcd that is away isn't asked for each hundred"
