"""Workers that die, sleep, lose the members, or come twice."""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest

from faults.conftest import FaultRun
from faults.nemesis import disks
from faults.nemesis.clocks import movable_clock, moved
from faults.nemesis.cuts import cut
from faults.nemesis.duplicates import start_duplicate
from faults.nemesis.failpoints import killed_at
from faults.nemesis.processes import asked_to_end, killed, stopped
from faults.nemesis.proxies import led, spoiled
from faults.probes import MIX, DatabaseProbe
from faults.witness import has_just_begun, in_hand, stale_results, without_result
from faults.world.daemons import GRPC, WORKER_POINTS
from faults.world.world import TTL, World
from schedclient import SyncClient
from support.wait import wait_until
from support.worker_process import alive

MORTAL = DatabaseProbe(
    "mortal",
    cron="*/2 * * * * *",
    lasts=12.0,
    more={"on_lease_lost": "kill", "kill_after": "1s"},
)
"""The job runs for far longer than its worker's lease, and for a second to end, take together."""
ENDED_WITHIN = 15
"""Seconds in which a stream ends that has fallen silent (client/schedkit/net/channel.py)."""
STABLE_AFTER = 1.0
"""Seconds after which what was granted before a worker's disk was full has begun."""
DELIVERED_WITHIN = 20
"""Seconds from a worker's death to the end of its spooled results: its next life reports them."""


def test_worker_killed(fault_run: FaultRun, world: World) -> None:
    """Its runs start again elsewhere, under greater tokens."""
    with fault_run() as run, killed(run.journal, world.workers["w1"]):
        run.wait(TTL + 2)


def test_worker_stopped_past_its_lease(fault_run: FaultRun, world: World) -> None:
    """Its runs start again elsewhere; its results after it wakes are refused and audited."""
    with fault_run() as run:
        worker = world.workers[has_just_begun(run, "slow-1")]
        since = time.time()
        with stopped(run.journal, worker):
            run.wait(TTL + 3)
        wait_until(lambda: stale_results(world, worker.name, since), 10, "its result to be STALE")
        run.figures["stale_results"] = stale_results(world, worker.name, since)


@pytest.mark.full
def test_worker_stopped_with_what_dies_with_its_lease(fault_run: FaultRun, world: World) -> None:
    """`on_lease_lost: kill`: its keeper kills it, for it can't, before it starts elsewhere."""
    with fault_run(mix=(*MIX, MORTAL)) as run:
        worker = world.workers[has_just_begun(run, MORTAL.name)]
        name = f"{run.prefix}-{MORTAL.name}"
        first = max(
            (one for one in run.starts() if (one["job"], one["worker"]) == (name, worker.name)),
            key=lambda one: float(one["at"]),
        )

        def again() -> list[dict[str, object]]:
            same = (one for one in run.starts() if one["run"] == first["run"])
            return [one for one in same if one["token"] > first["token"]]

        with stopped(run.journal, worker):
            wait_until(lambda: not alive(first["pid"]), MORTAL.lasts - 1, "its keeper to kill it")
            ended = time.time()
            wait_until(again, 15, "it to start elsewhere")
            run.wait(2)
        [second, *_] = again()
        run.figures["killed_before_s"] = round(second["at"] - ended, 2)
        assert run.figures["killed_before_s"] > 0


def test_worker_cut_from_members(fault_run: FaultRun, world: World) -> None:
    """Both ways: it takes nothing new, and delivers late what it has finished."""
    with fault_run() as run:
        members = [member.host for member in world.members.values()]
        with cut(run.journal, world.network, [world.workers["w1"].host], members):
            run.wait(TTL + 3)


def test_worker_restarted_with_results_in_the_spool(fault_run: FaultRun, world: World) -> None:
    """Results it couldn't deliver before it died are delivered, or refused, when it is back."""
    with fault_run() as run:
        worker = world.workers[run.worker_with("slow-1")]
        members = [member.host for member in world.members.values()]
        with ExitStack() as death, cut(run.journal, world.network, [worker.host], members):
            wait_until(lambda: world.spooled(worker.name), 10, "results in the spool")
            run.wait(0.5)
            death.enter_context(killed(run.journal, worker))
            run.figures["spooled_batches"] = len(world.spooled(worker.name))
            run.wait(3)


def test_two_daemons_with_one_identity(fault_run: FaultRun, world: World) -> None:
    """Neither the second worker nor the second member is served, both say why, and callers who ask
    for the cluster's status sees both.
    """
    with fault_run() as run:
        member, worker = world.duplicate_of_member("m1"), world.duplicate_of_worker("w1")
        with (
            start_duplicate(run.journal, worker, "already exists on host"),
            start_duplicate(run.journal, member, "waiting until its lease expires"),
        ):
            run.wait(4)
            attached = worker.get("/metrics")
            assert attached is not None
            assert b"workerd_members_attached 0" in attached.body
            assert not member.ready()
            wait_until(lambda: _taken_names(world) == {"m1", "w1"}, 15, "the doctor to name both")
            readiness = member.get("/readyz")
            assert readiness is not None
            assert b"another daemon uses this member's name" in readiness.body


def _taken_names(world: World) -> set[str | None]:
    """Of which a second daemon was turned away, as any member has it."""
    with SyncClient(world.endpoints) as client:
        findings = client.cluster.doctor().findings
    return {one.subject for one in findings if (one.check, one.severity) == ("names", "WARN")}


@pytest.mark.full
@pytest.mark.parametrize("point", WORKER_POINTS)
def test_worker_killed_at(fault_run: FaultRun, world: World, point: str) -> None:
    """The first to pass dies: before it starts what it took, or with a result that no member has
    seen. What it had has one accepted result all the same, its own or another's; what was in its
    spool is delivered, or refused.
    """
    with fault_run() as run, killed_at(run.journal, world, point) as victim:
        held, spooled = in_hand(world, victim.name), world.spooled(victim.name)
        run.figures |= {"held_runs": len(held), "spooled_batches": len(spooled)}
        wait_until(
            lambda: not any(batch.exists() for batch in spooled),
            DELIVERED_WITHIN,
            "what was spooled to be acknowledged",
        )
        run.wait(2)
    assert held, "it died with something in hand"
    assert spooled or point != "worker.after_fsync"
    owed = {probe.name for probe in run.mix if not probe.at_most_once}
    assert owed.isdisjoint(without_result(world, held))


@pytest.mark.full
def test_worker_heartbeats_not_received(fault_run: FaultRun, world: World) -> None:
    """Messages of members arrive, its answers don't: its lease ends, its work runs again."""
    with fault_run() as run:
        members = [member.host for member in world.members.values()]
        with cut(run.journal, world.network, [world.workers["w1"].host], members, back=False):
            run.wait(TTL + 3)


@pytest.mark.full
def test_workers_asked_to_end_one_after_another(fault_run: FaultRun, world: World) -> None:
    """A rolling restart: each finishes what it has, or gives it back."""
    with fault_run() as run:
        for worker in world.workers.values():
            with asked_to_end(run.journal, worker):
                pass


@pytest.mark.full
@pytest.mark.parametrize(
    ("way", "seconds"),
    # A silent stream is ended after 15 s at most; before, what was held back comes after all.
    [("slow", 8), ("stall", 8), ("stall", 20), ("truncate", 8), ("reset", 8)],
)
def test_wire_between_workers_and_members(
    fault_run: FaultRun, world: World, way: str, seconds: int
) -> None:
    """Slow, silent, cut off in mid-frame, reset: streams come back, and nothing comes twice."""
    workers = [worker.host for worker in world.workers.values()][:2]
    members = [member.host for member in world.members.values()]
    with led(world, workers, members, GRPC) as wire, fault_run() as run:
        with spoiled(run.journal, wire, way, seconds=0.5, size=2000) as counts:
            run.wait(seconds)
        run.figures["wire"] = counts
    if way in ("truncate", "reset") or seconds > ENDED_WITHIN:
        assert counts["came"], "streams that ended are opened again meanwhile"


@pytest.mark.full
def test_spool_disk_full(fault_run: FaultRun, world: World) -> None:
    """A worker that can't keep results takes no work, and none is lost."""
    worker = world.workers["w1"]
    with fault_run() as run:
        mark = worker.mark()

        def refused() -> bool:
            return "spool rejects writes" in worker.said_since(mark)

        with disks.full(run.journal, world.work / "w1", refused):
            since = time.time() + STABLE_AFTER
            run.wait(6)
        begun = [line for line in run.starts() if line["worker"] == "w1"]
        assert not [line for line in begun if since < line["at"] < since + 6 - STABLE_AFTER]


@pytest.mark.full
@pytest.mark.parametrize("how", ["+3600s", "-3600s"])
def test_worker_clock_moved(fault_run: FaultRun, world: World, how: str) -> None:
    """An hour ahead, or behind: it takes work on, and starts nothing early and nothing late."""
    with movable_clock(world.workers["w1"]) as clock:
        world.await_ready(30)
        with fault_run(faketime=f"w1 {how}") as run, moved(run.journal, clock, how, 3000):
            since = time.time()
            run.wait(8)
            begun = [line for line in run.starts() if line["worker"] == "w1"]
            assert [line for line in begun if line["at"] > since + STABLE_AFTER]
