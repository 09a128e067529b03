"""Members that die, sleep, or lose sight of etcd or of PostgreSQL."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from faults.conftest import FaultRun
from faults.nemesis import disks
from faults.nemesis.clocks import movable_clock, moved
from faults.nemesis.cuts import cut
from faults.nemesis.failpoints import killed_at, stopped_at
from faults.nemesis.processes import asked_to_end, killed, stopped
from faults.nemesis.threads import hung_main_thread
from faults.world.daemons import MEMBER_POINTS
from faults.world.world import TTL, World
from support.wait import wait_until

SUCCESSOR_WITHIN = TTL + 1.0
"""Of a leader that died: its lease, and a second for the election and the takeover."""


def test_leader_killed(fault_run: FaultRun, world: World) -> None:
    """A successor leads within TTL + 1 s, and nothing is lost or doubled."""
    with fault_run() as run:
        leader = str(world.leader())
        with killed(run.journal, world.members[leader]):
            _, took = world.await_leader(20, other_than=leader)
            run.figures["successor_s"] = round(took, 2)
            run.ride(2)
    assert took < SUCCESSOR_WITHIN + world.slack


def test_owner_stopped_past_its_lease(fault_run: FaultRun, world: World) -> None:
    """Its shards are taken over while it sleeps; awake, it writes nothing of its old epochs."""
    with fault_run() as run:
        sleeper = next(name for name in world.members if name != world.leader())
        with stopped(run.journal, world.members[sleeper]):
            wait_until(lambda: sleeper not in world.owners().values(), 20, "its shards' takeover")
            run.ride(3)


def test_owner_stopped_inside_a_transaction(fault_run: FaultRun, world: World) -> None:
    """The transaction that it holds open doesn't keep its successors from taking its shards."""
    with fault_run() as run, stopped_at(run.journal, world, "fire.before_commit") as sleeper:
        wait_until(lambda: sleeper.name not in world.owners().values(), 20, "its shards' takeover")
        run.ride(3)


def test_member_cut_from_etcd(fault_run: FaultRun, world: World) -> None:
    """The leader sees PostgreSQL, workers and users, but no etcd: it stops, another leads."""
    with fault_run() as run:
        leader = str(world.leader())
        etcds = [member.host for member in world.etcds.values()]
        with cut(run.journal, world.network, [world.members[leader].host], etcds):
            world.await_leader(20, other_than=leader)
            wait_until(lambda: leader not in world.owners().values(), 20, "its shards' takeover")
            run.ride(2)


def test_member_cut_from_postgres(fault_run: FaultRun, world: World) -> None:
    """The leader sees etcd, but no PostgreSQL: it gives up leadership and shards."""
    with fault_run() as run:
        leader = str(world.leader())
        with cut(run.journal, world.network, [world.members[leader].host], [world.postgres.host]):
            _, took = world.await_leader(30, other_than=leader)
            run.figures["successor_s"] = round(took, 2)
            wait_until(lambda: leader not in world.owners().values(), 20, "its shards' takeover")
            run.ride(2)
    assert took < 2 * run.timings.failover


@pytest.mark.full
@pytest.mark.parametrize("point", [p for p, act in MEMBER_POINTS.items() if act == "kill"])
def test_member_killed_at(fault_run: FaultRun, world: World, point: str) -> None:
    """Whoever passes dies there: leader or owner, before a commit or after it, in a takeover."""
    with fault_run() as run, ExitStack() as cause:
        if point.startswith(("take.", "lead.", "fence.")):  # it takes a departure to pass there
            cause.enter_context(killed(run.journal, world.members[str(world.leader())]))
        with killed_at(run.journal, world, point):
            run.ride(2)


@pytest.mark.full
@pytest.mark.parametrize("seconds", [60])
def test_owner_stopped_for_long(fault_run: FaultRun, world: World, seconds: int) -> None:
    """Also with its transaction open; awake after a minute, it writes nothing of its old epochs."""
    with fault_run() as run, stopped_at(run.journal, world, "fire.before_commit") as sleeper:
        wait_until(lambda: sleeper.name not in world.owners().values(), 20, "its shards' takeover")
        run.ride(seconds)


@pytest.mark.full
def test_member_hears_no_etcd(fault_run: FaultRun, world: World) -> None:
    """What it sends arrives, no answer comes back: it can't know that its lease lives."""
    with fault_run() as run:
        leader = str(world.leader())
        etcds = [member.host for member in world.etcds.values()]
        with cut(run.journal, world.network, etcds, [world.members[leader].host], back=False):
            run.ride(TTL + 3)


@pytest.mark.full
def test_member_cut_from_members(fault_run: FaultRun, world: World) -> None:
    """No nudge and no relay passes; the periodic scans are enough."""
    with fault_run() as run:
        one, *others = world.members.values()
        hosts = [member.host for member in others]
        with cut(run.journal, world.network, [one.host], hosts):
            run.ride(TTL + 3)


@pytest.mark.full
def test_member_cut_from_workers(fault_run: FaultRun, world: World) -> None:
    """Its shards' work reaches workers by way of the others, or moves to them."""
    with fault_run() as run:
        member = world.members["m1"]
        hosts = [worker.host for worker in world.workers.values()]
        with cut(run.journal, world.network, [member.host], hosts):
            run.ride(2 * TTL + 2)


@pytest.mark.full
def test_event_loop_hung(fault_run: FaultRun, world: World) -> None:
    """The thread that keeps the lease lives on, and lets it go: another leads within TTL."""
    with fault_run() as run:
        leader = str(world.leader())
        with hung_main_thread(run.journal, world.members[leader]):
            _, took = world.await_leader(20, other_than=leader)
            run.figures["successor_s"] = round(took, 2)
            run.ride(2)
    assert took < 2 * TTL + world.slack


@pytest.mark.full
def test_members_asked_to_end_one_after_another(fault_run: FaultRun, world: World) -> None:
    """A rolling restart: each hands over, and no run is later than a second."""
    with fault_run() as run:
        for member in world.members.values():
            with asked_to_end(run.journal, member):
                pass
            world.await_ready(20)


@pytest.mark.full
@pytest.mark.parametrize(
    ("how", "least"), [("+3600s", 3000), ("-3600s", 3000), ("+5s", 3), ("+0 x2", 3)]
)
def test_wall_clock_moved(fault_run: FaultRun, world: World, how: str, least: float) -> None:
    """Of the leader: cluster time decides, so nothing fires early, twice, or not at all."""
    leader = str(world.leader())
    with movable_clock(world.members[leader]) as clock:
        world.await_ready(30)
        told = f"{leader} {how}"
        with fault_run(faketime=told) as run, moved(run.journal, clock, how, least):
            run.ride(8)


@pytest.mark.full
def test_log_disk_full(fault_run: FaultRun, world: World) -> None:
    """The leader can't write a line of its log any more, and works on."""
    leader = world.members[str(world.leader())]
    with disks.log_disk(world, leader) as folder:
        world.await_ready(30)
        witness = next(member for member in world.members.values() if member is not leader)
        with (
            fault_run() as run,
            disks.full(
                run.journal, folder, lambda: disks.refuses(leader.log), last_page=leader.log
            ),
        ):
            silent, heard = leader.mark(), witness.mark()
            with killed(run.journal, world.workers["w1"]):  # something to tell of
                run.ride(5)
            assert leader.alive()
            assert "w1" in witness.said_since(heard)
            assert leader.mark() == silent
