"""Every fault that can be drawn at random, and the drawing: one seed, one plan.

A plan is made before anything runs and doesn't ask the cluster, so the same seed draws the same
faults, on the same targets, of the same length. `leader` as a target is the leader when its turn
has come.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from faults.nemesis import etcd, postgres
from faults.nemesis.cuts import cut
from faults.nemesis.failpoints import killed_at
from faults.nemesis.journal import Journal
from faults.nemesis.processes import asked_to_end, killed, stopped
from faults.world.daemons import MEMBER_POINTS
from faults.world.service import Service
from faults.world.world import World
from support.wait import wait_until

MEMBERS = ("leader", "m1", "m2", "m3")
WORKERS = ("w1", "w2", "w3", "w4")
ETCDS = ("e1", "e2", "e3")
OFTEN_PASSED = (
    *("fire.in_transaction", "fire.mid_batch", "fire.after_commit"),
    *("assign.before_commit", "assign.after_commit", "assign.after_push"),
    *("accept.before_commit", "accept.after_commit", "acknowledge.before"),
)
"""Failpoints that some process passes each second; none of them needs another fault first."""

Begin = Callable[[Journal, World, str], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Kind:
    """Kind of fault: its targets, how long it lasts (seconds, from and to), how it begins.

    The shortest meets more than the twenty instants without which it would prove nothing.
    """

    targets: Sequence[str]
    lasts: tuple[float, float]
    begin: Begin


@dataclass(frozen=True, slots=True)
class Planned:
    """Fault of a plan."""

    fault: str
    target: str
    seconds: float

    def begin(self, journal: Journal, world: World) -> AbstractContextManager[object]:
        """The fault itself, as a context manager."""
        return KINDS[self.fault].begin(journal, world, self.target)


def draw(seed: int, count: int) -> list[Planned]:
    """Return the first `count` faults of a seed; each kind is drawn once before any repeats."""
    dice = random.Random(seed)
    plan: list[Planned] = []
    names: list[str] = []
    for _ in range(count):
        if not names:
            names = sorted(KINDS)
            dice.shuffle(names)
        name = names.pop()
        kind = KINDS[name]
        seconds = round(dice.uniform(*kind.lasts), 1)
        plan.append(Planned(name, dice.choice(list(kind.targets)), seconds))
    return plan


def _member(world: World, name: str) -> Service:
    if name == "leader":
        name = wait_until(lambda: world.leader() or "", 30, "a leader to be there")
    return world.members[name]


def _cut(
    hosts: Callable[[World], Sequence[Service]], *, back: bool = True, workers: bool = False
) -> Begin:
    """Cut a member (or a worker) from these services."""

    def begin(journal: Journal, world: World, target: str) -> AbstractContextManager[object]:
        one = world.workers[target] if workers else _member(world, target)
        others = [service.host for service in hosts(world) if service is not one]
        return cut(journal, world.network, [one.host], others, back=back)

    return begin


def _postgres(world: World) -> list[Service]:
    return [world.postgres.service]


def _etcds(world: World) -> list[Service]:
    return list(world.etcds.values())


def _members(world: World) -> list[Service]:
    return list(world.members.values())


def _workers(world: World) -> list[Service]:
    return list(world.workers.values())


KINDS: Mapping[str, Kind] = {
    "member killed": Kind(MEMBERS, (2.5, 6), lambda j, w, t: killed(j, _member(w, t))),
    "member stopped": Kind(MEMBERS, (2.5, 9), lambda j, w, t: stopped(j, _member(w, t))),
    "member asked to end": Kind(MEMBERS, (2.5, 3), lambda j, w, t: asked_to_end(j, _member(w, t))),
    "member killed in the midst": Kind(OFTEN_PASSED, (2.5, 3), lambda j, w, t: killed_at(j, w, t)),
    "member cut from etcd": Kind(MEMBERS, (2.5, 9), _cut(_etcds)),
    "member inbound cut from etcd": Kind(MEMBERS, (2.5, 9), _cut(_etcds, back=False)),
    "member cut from PostgreSQL": Kind(MEMBERS, (2.5, 9), _cut(_postgres)),
    "member cut from members": Kind(MEMBERS, (2.5, 9), _cut(_members)),
    "member cut from workers": Kind(MEMBERS, (2.5, 9), _cut(_workers)),
    "worker killed": Kind(WORKERS, (2.5, 6), lambda j, w, t: killed(j, w.workers[t])),
    "worker stopped": Kind(WORKERS, (2.5, 9), lambda j, w, t: stopped(j, w.workers[t])),
    "worker asked to end": Kind(WORKERS, (2.5, 3), lambda j, w, t: asked_to_end(j, w.workers[t])),
    "worker cut from members": Kind(WORKERS, (2.5, 9), _cut(_members, workers=True)),
    "worker outbound cut": Kind(WORKERS, (2.5, 9), _cut(_members, workers=True, back=False)),
    "etcd member killed": Kind(ETCDS, (2.5, 8), lambda j, w, t: etcd.members_lost(j, [w.etcds[t]])),
    "etcd member stopped": Kind(ETCDS, (2.5, 8), lambda j, w, t: stopped(j, w.etcds[t])),
    "etcd majority lost": Kind(("",), (2.5, 8), lambda j, w, _: etcd.all_lost(j, w, 2)),
    "etcd compacted": Kind(("",), (2.5, 3), lambda j, w, _: etcd.compacted_unseen(j, w)),
    "PostgreSQL restarted": Kind(
        ("",), (2.5, 3), lambda j, w, _: postgres.restarted(j, w.postgres)
    ),
    "PostgreSQL crashed": Kind(
        ("",), (2.5, 3), lambda j, w, _: postgres.restarted(j, w.postgres, crash=True)
    ),
    "table locked": Kind(
        ("runs", "live", "timers", "shards"),
        (2.5, 8),
        lambda j, w, t: postgres.locked(j, w.postgres, t),
    ),
    "connections exhausted": Kind(
        ("",), (2.5, 6), lambda j, w, _: postgres.exhausted(j, w.postgres)
    ),
}

assert set(OFTEN_PASSED) <= set(MEMBER_POINTS)
