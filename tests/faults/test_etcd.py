"""etcd that loses its leader, its majority, its history."""

from __future__ import annotations

import time

import pytest

from faults.conftest import FaultRun
from faults.nemesis import etcd
from faults.nemesis.processes import killed, stopped
from faults.witness import fired, leader_stays
from faults.world.world import TTL, World

TRUST = TTL - max(1.0, TTL / 5)
"""Seconds for which a lease is trusted after its last keepalive was sent: TTL less the margin."""
ON_ITS_WAY = 0.5
"""Seconds that what was begun within the trust may take to its commit."""


def test_etcd_leader_killed(fault_run: FaultRun, world: World) -> None:
    """The cluster's own leader stays who it is."""
    with fault_run() as run, leader_stays(run), etcd.all_lost(run.journal, world, 1):
        run.wait(5)


def test_etcd_majority_lost(fault_run: FaultRun, world: World) -> None:
    """Firing stops when trust ends; after healing every instant is accounted for."""
    with fault_run() as run, etcd.all_lost(run.journal, world, 2):
        lost = time.time()
        run.wait(TTL + 4)
        assert fired(world, lost - 2, lost), "until then owners fired"
        assert not fired(world, lost + TRUST + ON_ITS_WAY, time.time())


def test_etcd_compacted_under_the_watches(fault_run: FaultRun, world: World) -> None:
    """A member that was away for a moment, and missed compacted revisions, lists again."""
    with fault_run() as run, etcd.compacted_unseen(run.journal, world):
        run.wait(3)


@pytest.mark.full
def test_etcd_member_stopped(fault_run: FaultRun, world: World) -> None:
    """A stopped member of three keeps its connections open: the leader stays the leader."""
    with fault_run() as run, leader_stays(run), stopped(run.journal, world.etcds["e1"]):
        run.wait(TTL + 4)


@pytest.mark.full
def test_etcd_full(fault_run: FaultRun, world: World) -> None:
    """NOSPACE: no lease is granted and no key written, but existing leases and keys are kept. After
    an operator has made room, everything continues automatically.
    """
    with fault_run() as run, etcd.full(run.journal, world):
        run.wait(8)


@pytest.mark.full
def test_etcd_restored_without_bumped_revisions(fault_run: FaultRun, world: World) -> None:
    """Its revisions go back; epochs, terms and tokens, which PostgreSQL counts, still grow."""
    with fault_run() as run:
        file = world.work / f"{run.prefix}.snapshot"
        saved = etcd.snapshot(world, file)
        with killed(run.journal, world.members[str(world.leader())]):
            run.wait(TTL + 2)  # so that there is something the snapshot knows nothing of
        with etcd.restored(run.journal, world, file, saved):
            run.wait(TTL + 4)
