"""etcd that loses its leader, its majority, its history."""

from __future__ import annotations

from faults.conftest import FaultRun
from faults.nemesis import etcd
from faults.nemesis.cuts import cut
from faults.world.world import TTL, World


def test_etcd_leader_killed(fault_run: FaultRun, world: World) -> None:
    """The cluster's own leader stays who it is."""
    with fault_run() as run:
        leader = world.leader()
        with etcd.all_lost(run.journal, world, 1):
            run.ride(5)
        assert world.leader() == leader


def test_etcd_majority_lost(fault_run: FaultRun, world: World) -> None:
    """Firing stops when trust ends; after healing every instant is accounted for."""
    with fault_run() as run, etcd.all_lost(run.journal, world, 2):
        run.ride(TTL + 4)


def test_etcd_compacted_under_the_watches(fault_run: FaultRun, world: World) -> None:
    """Who was away for a moment, and finds the revisions gone that it missed, lists anew."""
    with fault_run() as run:
        etcds = [member.host for member in world.etcds.values()]
        members = [member.host for member in world.members.values()]
        with (
            cut(run.journal, world.network, members, etcds),
            run.journal.fault("etcd compacted", "etcd") as fault,
        ):
            etcd.compact(fault, world)
        run.ride(4)
