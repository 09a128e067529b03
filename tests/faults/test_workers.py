"""Workers that die, sleep, lose the members, or come twice."""

from __future__ import annotations

from contextlib import ExitStack

from faults.conftest import FaultRun
from faults.nemesis.cuts import cut
from faults.nemesis.processes import killed, stopped
from faults.nemesis.twins import second
from faults.world.world import TTL, World
from support.wait import wait_until


def test_worker_killed(fault_run: FaultRun, world: World) -> None:
    """What it ran runs again elsewhere, under a greater token."""
    with fault_run() as run, killed(run.journal, world.workers["w1"]):
        run.ride(TTL + 2)


def test_worker_stopped_past_its_lease(fault_run: FaultRun, world: World) -> None:
    """What it had is run elsewhere; the results it brings when it wakes are refused."""
    with fault_run() as run, stopped(run.journal, world.workers["w1"]):
        run.ride(TTL + 3)


def test_worker_cut_from_members(fault_run: FaultRun, world: World) -> None:
    """Both ways: it takes nothing new, and delivers late what it has finished."""
    with fault_run() as run:
        members = [member.host for member in world.members.values()]
        with cut(run.journal, world.network, [world.workers["w1"].host], members):
            run.ride(TTL + 3)


def test_worker_restarted_with_results_in_the_spool(fault_run: FaultRun, world: World) -> None:
    """What it couldn't deliver before it died is delivered, or refused, when it is back."""
    with fault_run() as run:
        worker = world.workers["w1"]
        members = [member.host for member in world.members.values()]
        with ExitStack() as death, cut(run.journal, world.network, [worker.host], members):
            wait_until(lambda: world.spooled("w1"), 10, "results in the spool")
            run.ride(0.5)
            death.enter_context(killed(run.journal, worker))
            run.figures["spooled_batches"] = len(world.spooled("w1"))


def test_two_daemons_with_one_identity(fault_run: FaultRun, world: World) -> None:
    """Neither the second worker nor the second member is served, and both say why."""
    with fault_run() as run:
        member, worker = world.twin_of_member("m1"), world.twin_of_worker("w1")
        with (
            second(run.journal, worker, "already there"),
            second(run.journal, member, "registered already"),
        ):
            run.ride(4)
            attached = worker.get("/metrics")
            assert attached is not None
            assert b"workerd_members_attached 0" in attached.body
            assert not member.ready()
