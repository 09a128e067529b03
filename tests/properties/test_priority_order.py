"""Several owners, several workers, frames that are late: between classes one order of priority.

    owners (the real dispatcher) ──demand, assignments, reach──→ workers (the real dealing, stream)
                                 ←──────────granted─────────────

Each stream keeps its order; which stream is next, whose turn it is and whose run ends is chance. So
it is while an owner dispatches its chosen runs. No worker lacks the slot for a run it receives.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedd.core.dispatch.ready_queue import QueueHead
from schedd.core.jobs.definition import Priority
from schedd.core.runs.model import DispatchedBatch, Incarnation, LiveRun, RunKey
from schedd.rpc.workers import frames
from schedd.runtime.definition_texts import CachedDefinition
from schedproto.v1 import worker_service_pb2 as pb
from support.dispatching import SHELL, World, of
from support.runs import NOW, RecordingLine, worker
from workerd import messages
from workerd.core.ids import Address
from workerd.core.slot_split import deal
from workerd.stream.streams import MemberStream

NOT_LATE = 0.0
"""When everything happens: no member takes so long that nothing is kept for it any more."""


@dataclass
class Down:
    """A frame to a worker."""

    runs: list[LiveRun] = field(default_factory=list)
    demand: pb.Demand | None = None
    reach: tuple[int, int] | None = None


class Frames(RecordingLine):
    """Down to a worker: what a member says in one step is one frame, and they keep their order."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: deque[Down] = deque()

    def assign(self, batch: DispatchedBatch, known: Sequence[CachedDefinition]) -> None:
        self._open().runs.extend([one.run for one in batch.single()])

    def demand(self, heads: Sequence[QueueHead]) -> None:
        self._open().demand = frames.demand(heads)

    def reach(self, serial: int, slots: int) -> None:
        self._open().reach = (serial, slots)

    def _open(self) -> Down:
        if not self.sent or self.sent[-1].demand is not None:
            self.sent.append(Down())
        return self.sent[-1]


@dataclass
class Stream:
    """A worker at a member: both ends and the messages between them."""

    world: World
    desk: Desk
    link: MemberStream
    line: Frames
    up: deque[pb.Granted] = field(default_factory=deque)

    def deliver_down(self) -> None:
        frame, promises = self.line.sent.popleft(), self.link.credit
        for run in frame.runs:
            promises.received += self.desk.width(run)
            assert self.desk.free >= self.desk.width(run), (
                "the worker would refuse it, and it would be dispatched again"
            )
            self.desk.running.append(run)
        if frame.reach is not None:
            promises.reached(*frame.reach, at=NOT_LATE)
        if frame.demand is not None:
            self.link.demand = messages.heads_of(frame.demand)
        self.desk.deal()

    def deliver_up(self) -> None:
        granted = self.up.popleft()
        attached = self.world.workers.attached(self.desk.identity.id)
        assert attached is not None
        last = frames.last_rank(granted)
        self.world.workers.granted(attached, granted.slots, granted.received, last, granted.serial)


@dataclass
class Desk:
    """A worker of so many slots; `blocked` of them are taken by what isn't looked at here."""

    identity: Incarnation
    slots: int
    blocked: int
    widths: dict[RunKey, int]
    """Slots that runs take, of those that take more than one."""
    streams: list[Stream] = field(default_factory=list)
    running: list[LiveRun] = field(default_factory=list)

    @property
    def free(self) -> int:
        return self.slots - self.blocked - sum(map(self.width, self.running))

    def width(self, run: LiveRun) -> int:
        return self.widths.get(run.key, 1)

    def deal(self) -> None:
        links = {stream.link.address: stream for stream in self.streams}
        demands = {address: stream.link.demand for address, stream in links.items()}
        kept = {
            address: each.link.credit.reserved_slots(NOT_LATE) for address, each in links.items()
        }
        assert sum(kept.values()) <= self.free
        for address, share in deal(self.free, demands, {}, kept=kept).items():
            stream = links[address]
            stream.link.grant(share, NOT_LATE)
            frame = stream.link.take_frame()
            if frame.HasField("granted"):
                stream.up.append(frame.granted)


class Cluster:
    """Everybody, and chance."""

    def __init__(self, chance: random.Random, owners: int, workers: int, slots: int = 1) -> None:
        self.chance = chance
        self.given: list[RunKey] = []
        self.runs: dict[RunKey, LiveRun] = {}
        self.waiting: dict[int, list[LiveRun]] = defaultdict(list)
        self.worlds = [World() for _ in range(owners)]
        each = [worker(1 + number, slots=slots) for number in range(workers)]
        self.widths: dict[RunKey, int] = {}
        self.desks = [Desk(identity, slots, slots, self.widths) for identity in each]
        for world in self.worlds:
            world.rows.given = self.given
            world.rows.meanwhile = partial(self._meanwhile, world)
            for desk in self.desks:
                link = MemberStream(Address(f"m{id(world)}"), None, cast("Any", None))
                line = Frames()
                world.workers.attach(desk.identity, line)
                desk.streams.append(Stream(world, desk, link, line))

    @property
    def streams(self) -> list[Stream]:
        return [stream for desk in self.desks for stream in desk.streams]

    def submit(
        self, owner: int, number: int, priority: Priority, waited: float, width: int = 1
    ) -> None:
        run = replace(of(number, number, waited=waited), priority=priority)
        self.runs[run.key] = run
        self.widths[run.key] = width
        self.worlds[owner].definitions.jobs[run.job_id] = replace(SHELL, slots=width)
        self.waiting[id(self.worlds[owner])].append(run)
        self.worlds[owner].run_index.put_runs([run], NOW)

    async def run_until_idle(self) -> None:
        """Deliver all messages, until no member can do anything more."""
        while True:
            for world in self.worlds:
                await world.run_until_idle()
            if not self._deliver(all_of_them=True):
                return

    async def free(self, slots: int) -> None:
        """So many of each worker's slots become free, and are used as far as they go."""
        for desk in self.desks:
            desk.blocked = desk.slots - slots
            desk.deal()
        await self.run_until_idle()

    async def live(self) -> list[Priority]:
        """Free each worker's slots. Return the priorities in the order of dispatch."""
        for desk in self.desks:
            desk.blocked = 0
            desk.deal()
        for _ in range(10_000):
            if len(self.given) == len(self.runs):
                return [self.runs[key].priority for key in self.given]
            match self.chance.randrange(3):
                case 0:
                    self._deliver(all_of_them=False)
                case 1:
                    await self.chance.choice(self.worlds).dispatch.step()
                case _:
                    self._end_one()
        raise AssertionError(f"it stands still after {len(self.given)} of {len(self.runs)}")

    def _deliver(self, *, all_of_them: bool) -> bool:
        waiting = [s.deliver_down for s in self.streams if s.line.sent]
        waiting += [s.deliver_up for s in self.streams if s.up]
        if waiting and not all_of_them:
            waiting = [self.chance.choice(waiting)]
        for deliver in waiting:
            deliver()
        return bool(waiting)

    def _meanwhile(self, world: World) -> None:
        """While it is being written what was chosen: frames come, and a scan that read the rows as
        they were before.
        """
        while self.chance.random() < 0.5 and self._deliver(all_of_them=False):
            pass
        if self.chance.random() < 0.5:
            world.run_index.put_runs(self.waiting[id(world)], NOW)

    def _end_one(self) -> None:
        desk = self.chance.choice(self.desks)
        if desk.running:
            desk.running.pop()
            desk.deal()


_PRIORITIES = st.sampled_from([Priority.LOW, Priority.MEDIUM, Priority.HIGH])
_RUNS = st.lists(st.tuples(_PRIORITIES, st.integers(0, 2), st.integers(0, 20)), max_size=12)


async def test_a_run_too_wide_for_the_free_slots_delays_no_run_of_any_owner() -> None:
    """Its owner couldn't use the slot, and the others weren't given it."""
    cluster = Cluster(random.Random(1), owners=2, workers=1, slots=2)
    cluster.submit(0, 1, Priority.HIGH, waited=1, width=2)
    cluster.submit(0, 2, Priority.LOW, waited=1)
    cluster.submit(1, 3, Priority.MEDIUM, waited=1)
    await cluster.run_until_idle()

    await cluster.free(1)

    assert [key.run_id.number for key in cluster.given] == [3]


async def test_a_wide_run_lends_its_age_to_no_younger_narrow_one_of_its_owner() -> None:
    """Announced as one head, as old as the one and as narrow as the other, they got all slots:
    the wide run lacked one more, the narrow ones had to wait for the other owner's, which got none.
    """
    cluster = Cluster(random.Random(1), owners=2, workers=1, slots=4)
    cluster.submit(0, 1, Priority.MEDIUM, waited=300, width=4)
    cluster.submit(0, 2, Priority.MEDIUM, waited=100)
    cluster.submit(0, 3, Priority.MEDIUM, waited=100)
    cluster.submit(1, 4, Priority.MEDIUM, waited=200)
    await cluster.run_until_idle()

    await cluster.free(3)

    assert {key.run_id.number for key in cluster.given} == {2, 3, 4}


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(_PRIORITIES, st.integers(0, 2), st.integers(0, 400), st.integers(1, 4)),
        max_size=12,
    ),
    st.integers(1, 3),
    st.integers(0, 4),
    st.integers(0),
)
def test_no_slot_is_idle_while_a_run_that_fits_waits(
    runs: list[tuple[Priority, int, int, int]], workers: int, free: int, chance: int
) -> None:
    async def rest() -> Cluster:
        cluster = Cluster(random.Random(chance), owners=3, workers=workers, slots=4)
        for number, (priority, owner, waited, width) in enumerate(runs, 1):
            cluster.submit(owner, number, priority, waited, width)
        await cluster.run_until_idle()
        await cluster.free(free)
        return cluster

    cluster = asyncio.run(rest())
    waiting = {*cluster.runs} - {*cluster.given}
    narrowest = min((cluster.widths[key] for key in waiting), default=5)
    assert all(desk.free < narrowest for desk in cluster.desks)


@pytest.mark.slow
@given(
    st.lists(st.tuples(_PRIORITIES, st.integers(0, 2), st.integers(1, 3)), max_size=12),
    st.integers(1, 3),
    st.integers(0),
)
def test_no_run_is_forgotten_however_many_slots_it_takes(
    runs: list[tuple[Priority, int, int]], workers: int, chance: int
) -> None:
    async def lived() -> Cluster:
        cluster = Cluster(random.Random(chance), owners=3, workers=workers, slots=3)
        for number, (priority, owner, width) in enumerate(runs, 1):
            cluster.submit(owner, number, priority, waited=0, width=width)
        await cluster.run_until_idle()
        await cluster.live()
        return cluster

    cluster = asyncio.run(lived())
    assert {*cluster.given} == {*cluster.runs}
    assert len(cluster.given) == len(runs), "none is dispatched twice"


@pytest.mark.slow
@given(_RUNS, st.integers(1, 3), st.integers(0))
def test_no_class_is_dispatched_before_a_better_one_that_waits_at_any_owner(
    runs: list[tuple[Priority, int, int]], workers: int, chance: int
) -> None:
    async def order() -> list[Priority]:
        cluster = Cluster(random.Random(chance), owners=3, workers=workers)
        for number, (priority, owner, waited) in enumerate(runs, 1):
            cluster.submit(owner, number, priority, waited)
        await cluster.run_until_idle()
        assert not cluster.given
        return await cluster.live()

    handed = asyncio.run(order())
    assert handed == sorted(handed, reverse=True)
