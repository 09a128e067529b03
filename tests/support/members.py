"""Whole members over fakes, in one event loop: a cluster in a few lines.

async with FakeCluster("a", "b") as cluster:
    await cluster.wait_until_stable()
    cluster["a"].leases.kept[-1].lost.set()
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from schedd.cluster.member import MemberIdentity, MemberLifecycle
from schedd.core.cluster.etcd_values import InvalidValue
from schedd.core.cluster.membership import LEADER, decode_leader
from schedd.core.ids import ShardId, TenureId
from schedd.runtime.cluster_clock import DatabaseClock
from support.fakes import (
    FakeCoordination,
    FakeDatabase,
    FakeEtcd,
    FakeLeases,
    FakeMembershipStore,
)
from support.wait import WAIT_TIMEOUT, wait_until_async


@dataclass(slots=True)
class Daemon:
    """A member that runs."""

    member: MemberLifecycle
    client: FakeCoordination
    store: FakeMembershipStore
    leases: FakeLeases
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    @property
    def tenure(self) -> TenureId | None:
        """Its tenure; None while it has none."""
        return self.member.cluster.tenure

    @property
    def owned(self) -> frozenset[ShardId]:
        """The shards it believes to own."""
        return frozenset(self.member.cluster.owned())

    async def ended(self) -> None:
        """Wait until it has left."""
        assert self.task is not None
        async with asyncio.timeout(WAIT_TIMEOUT):
            await self.task


class FakeCluster:
    """Members by name, over one etcd and one database."""

    def __init__(self, *names: str, **weights: int) -> None:
        self.etcd = FakeEtcd()
        self.rows = FakeDatabase()
        self._daemons: dict[str, Daemon] = {}
        self._first = {**dict.fromkeys(names, 100), **weights}

    def __getitem__(self, name: str) -> Daemon:
        return self._daemons[name]

    def start(
        self,
        name: str,
        *,
        weight: int = 100,
        identity: str | None = None,
        store: FakeMembershipStore | None = None,
    ) -> Daemon:
        """Start a daemon; `identity`: the member's name, if it isn't the daemon's."""
        client = FakeCoordination(self.etcd)
        store = store or FakeMembershipStore(self.rows)
        leases = FakeLeases(client)
        member = MemberLifecycle(
            MemberIdentity(identity or name, f"{name}:7420", f"{name}:7421", weight),
            coordination=client,
            keep_lease=leases,
            store=store,
            recovery=store,
            clock=DatabaseClock(store.probe, lineage=store.lineage, follow=store.lineage.follow),
            lanes=4,
        )
        daemon = Daemon(member, client, store, leases)
        daemon.task = asyncio.create_task(member.run(daemon.draining), name=f"member {name}")
        self._daemons[name] = daemon
        return daemon

    def cut(self, name: str, *, etcd: bool = True, database: bool = True) -> None:
        """Cut a daemon off."""
        self[name].client.cut = etcd
        self[name].store.cut = database

    def kill(self, name: str) -> None:
        """End it without a goodbye. Its lease lasts until `expire`."""
        daemon = self._daemons.pop(name)
        daemon.client.cut = daemon.store.cut = True
        assert daemon.task is not None
        daemon.task.cancel()

    def leader(self) -> str | None:
        """The daemon whose tenure leads."""
        entry = self.etcd.entries.get(LEADER)
        try:
            tenure = decode_leader(entry) if entry else None
        except InvalidValue:
            tenure = None
        return next((name for name, each in self._daemons.items() if each.tenure == tenure), None)

    def owners(self) -> Mapping[str, int]:
        """How many shards each daemon owns by the rows; "" for shards without an owner here."""
        names = {each.tenure: name for name, each in self._daemons.items() if each.tenure}
        return Counter(names.get(owner, "") for owner in self.rows.owners().values())

    async def wait_until_stable(self, *names: str, timeout: float = WAIT_TIMEOUT) -> None:
        """Wait until these (or all) own all shards, each exactly what its row says."""
        wanted = set(names or self._daemons)

        def stable() -> bool:
            believed = {name: len(self[name].owned) for name in wanted}
            return set(self.owners()) == wanted and believed == self.owners()

        await wait_until_async(stable, timeout, f"{wanted} to own all shards")

    async def __aenter__(self) -> Self:
        for name, weight in self._first.items():
            self.start(name, weight=weight)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        tasks = [each.task for each in self._daemons.values() if each.task]
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end
