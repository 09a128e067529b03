"""When the leader lists the workers' keys, on a clock that the test sets."""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

import pytest

from schedd.cluster import worker_leases
from schedd.cluster.leader import loss_recorder as module
from schedd.cluster.leader.loss_recorder import LOOK_EVERY, LossRecorder
from schedd.cluster.worker_leases import WorkerLeases
from schedd.core.cluster.cluster_events import EventKind, RegisteredWorker
from schedd.core.cluster.coordination import CoordinationEntry, LeaseId, Listing, Revision
from schedd.core.cluster.worker_liveness import WatchedDeletions
from schedd.core.ids import IncarnationId
from schedd.ports import Coordination
from schedd.store.cluster.membership import MembershipStore
from schedd.store.cluster.workers import WorkerStore
from support.runs import worker

SHORT, MEDIUM, DEFAULT = 3.0, 10.0, 15.0
ONE, TWO = worker(1).id, worker(2).id


class World:
    """A leader's recorder, its rows, and the workers' keys."""

    def __init__(self, ttl: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.rows = [ONE, TWO]
        self.keys = {ONE, TWO}
        self.deleted: dict[IncarnationId, Revision] = {}
        self.revision = 1
        self.lists: list[float] = []
        self.losses: list[float] = []
        monkeypatch.setattr(module, "boottime", lambda: self.now)
        monkeypatch.setattr(worker_leases, "boottime", lambda: self.now)
        leases = WorkerLeases(
            cast("Coordination", self),
            cast("WorkerStore", self),
            "",
            ttl,
            lambda _: True,
            lambda: WatchedDeletions(1, self.deleted),
        )
        store, membership = cast("WorkerStore", self), cast("MembershipStore", self)
        self.recorder = LossRecorder(leases, store, membership)

    async def run(self, until: float) -> None:
        """Take the loop's steps until then."""
        while self.now < until:
            pause = await self.recorder.loop.step()
            self.now += self.recorder.loop.interval if pause is None else pause

    def expire(self, one: IncarnationId, *, watched: bool) -> None:
        """Delete the worker's key."""
        self.revision += 1
        self.keys.discard(one)
        if watched:
            self.deleted = {**self.deleted, one: Revision(self.revision)}

    async def list(self, _prefix: str) -> Listing:
        self.lists.append(self.now)
        entries = tuple(
            CoordinationEntry(f"workers/w/{one}", b"", 1, self.revision, LeaseId(1))
            for one in sorted(self.keys)
        )
        return Listing(Revision(self.revision), 1, entries)

    async def registered(self) -> list[RegisteredWorker]:
        return [RegisteredWorker(one, "w", seen=True) for one in self.rows]

    async def lose(self, lost: Collection[IncarnationId], _kind: EventKind) -> None:
        self.losses.append(self.now)
        self.rows = [one for one in self.rows if one not in lost]

    async def event_before_term(self) -> int:
        return 0

    async def events_after(self, _since: int) -> list[object]:
        return []


@pytest.mark.parametrize("ttl", [SHORT, MEDIUM, DEFAULT])
async def test_the_keys_are_listed_every_two_seconds_for_leases_of_any_length(
    ttl: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(ttl, monkeypatch)
    await world.run(120.0)
    gaps = {round(b - a, 6) for a, b in zip(world.lists, world.lists[1:], strict=False)}
    assert gaps == {LOOK_EVERY}


async def test_a_watched_deletion_is_recorded_by_the_next_look_and_not_by_the_next_regular_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(SHORT, monkeypatch)
    await world.run(100.1)
    world.expire(ONE, watched=True)
    at = world.now
    await world.run(at + SHORT / 6)
    assert world.losses == [at]


async def test_while_a_key_is_missing_each_look_lists_the_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(SHORT, monkeypatch)
    await world.run(100.1)
    world.expire(ONE, watched=False)
    await world.run(100.1 + LOOK_EVERY + SHORT + 2 * SHORT / 6)
    [lost] = world.losses
    first = world.lists[1]
    assert first == pytest.approx(100.0 + LOOK_EVERY)
    assert lost == pytest.approx(first + SHORT)
