"""etcd that loses its leader, its majority, its history."""

from __future__ import annotations

import pytest

from faults.conftest import FaultRun
from faults.nemesis import etcd
from faults.nemesis.processes import killed, stopped
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
    with fault_run() as run, etcd.compacted_unseen(run.journal, world):
        run.ride(3)


@pytest.mark.full
def test_etcd_member_stopped(fault_run: FaultRun, world: World) -> None:
    """One of three stands still with all its connections open."""
    with fault_run() as run, stopped(run.journal, world.etcds["e1"]):
        run.ride(TTL + 4)


@pytest.mark.full
def test_etcd_full(fault_run: FaultRun, world: World) -> None:
    """NOSPACE: no lease is granted and no key written, but those that live are kept."""
    with fault_run() as run, etcd.full(run.journal, world):
        run.ride(8)


@pytest.mark.full
def test_etcd_restored_without_bumped_revisions(fault_run: FaultRun, world: World) -> None:
    """Its revisions go back; epochs, terms and tokens, which PostgreSQL counts, go on."""
    with fault_run() as run:
        file = world.work / f"{run.prefix}.snapshot"
        saved = etcd.snapshot(world, file)
        with killed(run.journal, world.members[str(world.leader())]):
            run.ride(TTL + 2)  # so that there is something the snapshot knows nothing of
        with etcd.restored(run.journal, world, file, saved):
            run.ride(TTL + 4)
