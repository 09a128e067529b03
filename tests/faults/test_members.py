"""Members that die, sleep, or lose sight of etcd or of PostgreSQL."""

from __future__ import annotations

from faults.conftest import FaultRun
from faults.nemesis.cuts import cut
from faults.nemesis.failpoints import stopped_at
from faults.nemesis.processes import killed, stopped
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
