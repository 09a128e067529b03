"""Members that die, sleep, or lose sight of etcd or of PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing

import pytest

from faults.conftest import FaultRun
from faults.nemesis import disks
from faults.nemesis.clocks import movable_clock, moved
from faults.nemesis.cuts import cut
from faults.nemesis.failpoints import killed_at, nothing, stopped_at
from faults.nemesis.processes import asked_to_end, killed, stopped
from faults.nemesis.threads import hung_main_thread
from faults.scenario import Run
from faults.witness import (
    await_succession,
    has_just_begun,
    latest,
    still_unstarted,
    tenures_of,
    unstarted_of,
)
from faults.world.daemons import MEMBER_POINTS
from faults.world.service import Service
from faults.world.world import TTL, World
from schedclient import SyncClient
from support.wait import wait_until

SUCCESSOR_WITHIN = TTL + 1.0
"""Of a leader that died: its lease, and a second for the election and the takeover."""
ASKED_BACK_WITHIN = 1.5
"""Seconds after a takeover: a scan, a worker's answer, and one transaction each way."""
LAST_BEAT = TTL / 3
"""Seconds for which a loop that has just hung still counts as alive, and its lease may be kept."""
ON_TIME = 1.0
NO_PROGRESS = "lost: the event loop made no progress"
WRONG_CLOCK = "this host's wall clock is"


def test_leader_killed(fault_run: FaultRun, world: World) -> None:
    """A successor leads within TTL + 1 s, and nothing is lost or doubled."""
    with fault_run() as run:
        leader = str(world.leader())
        with killed(run.journal, world.members[leader]):
            _, took = world.await_leader(20, other_than=leader)
            run.figures["successor_s"] = round(took, 2)
            run.wait(2)
    assert took < SUCCESSOR_WITHIN + world.slack


def test_owner_killed_between_commit_and_push(fault_run: FaultRun, world: World) -> None:
    """P4.8: its last dispatches reached no worker, which no heartbeat proves before `start_by`:
    its successor asks the workers, and dispatches them again.
    """
    with fault_run() as run, killed_at(run.journal, world, "assign.after_commit") as victim:
        died = time.monotonic()
        left = unstarted_of(world, victim.name)
        assert left, "it died with nothing dispatched"
        await_succession(world, tenures_of(world, [victim.name]), died, 20)
        taken = time.monotonic()
        wait_until(lambda: not still_unstarted(world, left), 20, "all of it to be dispatched again")
        run.figures["dispatched"] = len(left)
        run.figures["dispatched_again_after_s"] = round(time.monotonic() - taken, 2)
        run.wait(2)
    assert run.figures["dispatched_again_after_s"] < ASKED_BACK_WITHIN + world.slack


def test_owner_stopped_past_its_lease(fault_run: FaultRun, world: World) -> None:
    """Its shards are taken over while it sleeps; awake, it writes nothing of its old epochs."""
    with fault_run() as run:
        sleeper = next(name for name in world.members if name != world.leader())
        with stopped(run.journal, world.members[sleeper]):
            wait_until(lambda: sleeper not in world.owners().values(), 20, "its shards' takeover")
            run.wait(3)


def test_owner_stopped_inside_a_transaction(fault_run: FaultRun, world: World) -> None:
    """The transaction that it holds open doesn't keep its successors from taking its shards."""
    with fault_run() as run, stopped_at(run.journal, world, "fire.before_commit") as sleeper:
        wait_until(lambda: sleeper.name not in world.owners().values(), 20, "its shards' takeover")
        run.wait(3)


def test_member_cut_from_etcd(fault_run: FaultRun, world: World) -> None:
    """The leader sees PostgreSQL, workers and users, but no etcd: it stops, another leads."""
    with fault_run() as run:
        leader = str(world.leader())
        etcds = [member.host for member in world.etcds.values()]
        with cut(run.journal, world.network, [world.members[leader].host], etcds):
            world.await_leader(20, other_than=leader)
            wait_until(lambda: leader not in world.owners().values(), 20, "its shards' takeover")
            run.wait(2)


def test_member_cut_from_postgres(fault_run: FaultRun, world: World) -> None:
    """The leader sees etcd, but no PostgreSQL: it gives up leadership and shards."""
    with fault_run() as run:
        leader = str(world.leader())
        gone = tenures_of(world, [leader])
        with cut(run.journal, world.network, [world.members[leader].host], [world.postgres.host]):
            began = time.monotonic()
            _, took = world.await_leader(30, other_than=leader)
            run.figures["successor_s"] = round(took, 2)
            taken = await_succession(world, gone, began, 20)
            run.figures["taken_s"] = round(taken, 2)
            run.wait(2)
    assert took < 2 * run.timings.failover
    assert taken < 2 * run.timings.failover


@pytest.mark.full
@pytest.mark.parametrize("point", MEMBER_POINTS)
def test_member_killed_at(fault_run: FaultRun, world: World, point: str) -> None:
    """The first to pass dies: leader or owner, before a commit or after it, in a takeover. All
    that was the dead's is with others, or with its own next life, a lease and a second later.
    """
    with fault_run() as run, ExitStack() as before:
        dead, provoke = _lead_up(run, point, before)
        with killed_at(run.journal, world, point, provoke) as victim:
            died = time.monotonic()
            gone = tenures_of(world, [*dead, victim.name])
            took = await_succession(world, gone, died, 20)
            run.figures["successor_s"] = round(took, 2)
            run.wait(2)
    assert took < SUCCESSOR_WITHIN + world.slack


def _lead_up(run: Run, point: str, before: ExitStack) -> tuple[list[str], Callable[[], object]]:
    """Make a process pass this point, if that takes something: the members that
    are dead by then, and what is still to be done when the ticket lies.
    """
    world = run.world
    match point.partition(".")[0]:
        case "take" | "lead" | "fence":  # a member has departed
            leader = str(world.leader())
            before.enter_context(killed(run.journal, world.members[leader]))
            return [leader], nothing
        case "give_back":  # an assignment has never reached its worker
            before.enter_context(killed_at(run.journal, world, "assign.after_commit"))
        case "rescue":  # a worker is lost with what it runs
            worker = world.workers[has_just_begun(run, "slow-1")]
            before.enter_context(killed(run.journal, worker))
        case "join" | "release" as what:  # a member joins; then others give shards up for it
            comer = next(m for name, m in world.members.items() if name != world.leader())
            death = before.enter_context(killed(run.journal, comer))
            if what == "release":
                gone = tenures_of(world, [comer.name])
                await_succession(world, gone, time.monotonic(), 20)

            def come() -> None:
                death.end()
                comer.start()

            return [], come
    return [], nothing


@pytest.mark.full
@pytest.mark.parametrize("seconds", [60])
def test_owner_stopped_for_long(fault_run: FaultRun, world: World, seconds: int) -> None:
    """Also with its transaction open; awake after a minute, it writes nothing of its old epochs."""
    with fault_run() as run, stopped_at(run.journal, world, "fire.before_commit") as sleeper:
        wait_until(lambda: sleeper.name not in world.owners().values(), 20, "its shards' takeover")
        run.wait(seconds)


@pytest.mark.full
def test_member_receives_nothing_from_etcd(fault_run: FaultRun, world: World) -> None:
    """Its messages arrive, no answer comes back: it can't know that its lease is kept."""
    with fault_run() as run:
        leader = str(world.leader())
        etcds = [member.host for member in world.etcds.values()]
        with cut(run.journal, world.network, etcds, [world.members[leader].host], back=False):
            run.wait(TTL + 3)


@pytest.mark.full
def test_member_cut_from_members(fault_run: FaultRun, world: World) -> None:
    """No nudge and no relay passes; the periodic scans are enough."""
    with fault_run() as run:
        one, *others = world.members.values()
        hosts = [member.host for member in others]
        with cut(run.journal, world.network, [one.host], hosts):
            run.wait(TTL + 3)


@pytest.mark.full
def test_member_cut_from_workers(fault_run: FaultRun, world: World) -> None:
    """Its shards' work reaches workers by way of the others, or moves to them."""
    with fault_run() as run:
        member = world.members["m1"]
        hosts = [worker.host for worker in world.workers.values()]
        with cut(run.journal, world.network, [member.host], hosts):
            run.wait(2 * TTL + 2)


@pytest.mark.full
def test_event_loop_hung(fault_run: FaultRun, world: World) -> None:
    """The thread that keeps the lease lives on, and lets it go: it calls it lost within TTL, and so
    does etcd, TTL after the last keepalive that the loop had a part in. Then another leads.
    """
    with fault_run() as run:
        leader = world.members[str(world.leader())]
        mark = leader.mark()
        with hung_main_thread(run.journal, leader):
            began = time.monotonic()
            wait_until(lambda: NO_PROGRESS in leader.said_since(mark), 20, "it to let its lease go")
            lost = time.monotonic() - began
            wait_until(lambda: not _registered(world, leader), 20, "its key to go", every=0.1)
            gone = time.monotonic() - began
            world.await_leader(20, other_than=leader.name)
            took = time.monotonic() - began
            run.figures |= {"lost_s": round(lost, 2), "key_gone_s": round(gone, 2)}
            run.figures["successor_s"] = round(took, 2)
            run.wait(2)
    assert lost < TTL + world.slack
    assert gone < LAST_BEAT + TTL + world.slack
    assert took < 2 * TTL + world.slack


def _registered(world: World, member: Service) -> bool:
    key = f"schedd/members/{member.name}"
    return key in world.etcdctl("get", key, "--keys-only").split()


@pytest.mark.full
def test_members_asked_to_end_one_after_another(fault_run: FaultRun, world: World) -> None:
    """A rolling restart: each hands over, and no run is later than a second."""
    with fault_run() as run:
        began = time.time()
        for member in world.members.values():
            with asked_to_end(run.journal, member):
                pass
            world.await_ready(20)
        ended = time.time()
        run.wait(ON_TIME)  # so that what fell due last has begun
        late = latest(run, began, ended)
        run.figures["latest_s"] = round(late, 2)
    assert late <= ON_TIME


@pytest.mark.full
@pytest.mark.parametrize(
    ("how", "least"),
    [("+3600s", 3000), ("-3600s", 3000), ("+5s", 3), ("-5s", 3), ("+0 x2", 3)],
)
def test_wall_clock_moved(fault_run: FaultRun, world: World, how: str, least: float) -> None:
    """Of the leader: it says so. Cluster time decides: nothing fires early, twice, or not at all,
    and it stays leader.
    """
    leader = world.members["m1"]
    with movable_clock(leader) as clock:
        world.await_ready(30)
        _have_lead(world, leader)
        offset = f"{leader.name} {how}"
        with fault_run(faketime=offset) as run:
            mark = leader.mark()
            with moved(run.journal, clock, how, least):
                wait_until(lambda: WRONG_CLOCK in leader.said_since(mark), 10, "it to say so")
                run.wait(8)
            assert world.leader() == leader.name


def _have_lead(world: World, member: Service) -> None:
    """Make this member leader: a daemon that was restarted doesn't lead."""
    if world.leader() != member.name:
        with closing(SyncClient(world.endpoints)) as client:
            client.cluster.transfer_leader(member.name, reason="its clock will be moved")
    wait_until(lambda: world.leader() == member.name, 20, f"{member.name} to lead")


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
            silent, seen = leader.mark(), witness.mark()
            with killed(run.journal, world.workers["w1"]):  # something to tell of
                run.wait(5)
            assert leader.alive()
            assert "w1" in witness.said_since(seen)
            assert leader.mark() == silent
