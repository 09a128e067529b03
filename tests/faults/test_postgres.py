"""PostgreSQL that restarts, crashes, is replaced, or keeps a table to itself."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest

from faults.conftest import FaultRun
from faults.nemesis.cuts import cut
from faults.nemesis.postgres import (
    asked_of_late,
    database_full,
    exhausted,
    failed_over,
    locked,
    pinned,
    replaced_alive,
    restarted,
)
from faults.nemesis.processes import killed
from faults.nemesis.proxies import led, spoiled
from faults.nemesis.restore import back_up, restored
from faults.witness import await_succession, epochs, leader_stays, tenures_of, terms
from faults.world.postgres import PORT
from faults.world.world import World
from schedclient import SyncClient
from support.wait import wait_until

LOST = 36.0
"""Seconds of a restore's loss: more than a fail-over's tail may have, by a mark's interval."""


def test_postgres_restarted(fault_run: FaultRun, world: World) -> None:
    """Nothing that was acknowledged is lost, and the leader stays who it is."""
    with fault_run() as run, leader_stays(run), restarted(run.journal, world.postgres):
        run.wait(2)


def test_table_locked(fault_run: FaultRun, world: World) -> None:
    """All writes of runs wait, longer than any timeout; the backlog drains, once each. No member
    is better off than the leader, so it stays who it is.
    """
    with fault_run() as run, leader_stays(run), locked(run.journal, world.postgres, "runs"):
        run.wait(8)


@pytest.mark.full
def test_postgres_crashed(fault_run: FaultRun, world: World) -> None:
    """Its sessions break in mid-air: what was on its way to COMMIT is read back, not guessed."""
    with (
        fault_run() as run,
        leader_stays(run),
        restarted(run.journal, world.postgres, crash=True),
    ):
        run.wait(2)


@pytest.mark.full
def test_table_locked_for_long(fault_run: FaultRun, world: World) -> None:
    """Half a minute, and the leader stays who it is."""
    with fault_run() as run, leader_stays(run), locked(run.journal, world.postgres, "runs"):
        run.wait(30)


@pytest.mark.full
def test_postgres_slow(fault_run: FaultRun, world: World) -> None:
    """Each answer takes two seconds longer to reach any member; the leader stays who it is."""
    members = [member.host for member in world.members.values()]
    with (
        led(world, members, [world.postgres.host], PORT) as wire,
        fault_run() as run,
        leader_stays(run),
    ):
        with spoiled(run.journal, wire, "slow", seconds=1.0) as counts:
            run.wait(10)
        run.figures["wire"] = counts


@pytest.mark.full
@pytest.mark.parametrize("way", ["stall", "truncate", "reset"])
def test_wire_between_members_and_postgres(fault_run: FaultRun, world: World, way: str) -> None:
    """Cut off between COMMIT and its answer, among others: its outcome is read back."""
    members = [member.host for member in world.members.values()]
    with led(world, members, [world.postgres.host], PORT) as wire, fault_run() as run:
        with spoiled(run.journal, wire, way, size=60_000) as counts:
            run.wait(8)
        run.figures["wire"] = counts


@pytest.mark.full
def test_connections_exhausted(fault_run: FaultRun, world: World) -> None:
    """No member can connect; when they can again, all continues without help, under the leader that
    there was: PostgreSQL was away for the others, too.
    """
    with fault_run() as run, leader_stays(run), exhausted(run.journal, world.postgres):
        run.wait(6)


@pytest.mark.full
def test_transaction_pinned(fault_run: FaultRun, world: World) -> None:
    """An old snapshot of another session keeps dead rows from being cleared; nothing gets slow."""
    with fault_run() as run, leader_stays(run), pinned(run.journal, world.postgres):
        run.wait(15)


@pytest.mark.full
def test_postgres_disk_full(fault_run: FaultRun, world: World) -> None:
    """Nothing is acknowledged that wasn't written; with space it continues, whatever had died."""
    with fault_run() as run, database_full(run.journal, world.postgres):
        run.wait(8)


@pytest.mark.full
def test_postgres_failed_over(replicated_run: FaultRun, replicated: World) -> None:
    """Its standby takes its place after 2 s in which there is none: every member takes its shards
    again on the new timeline, under one new leader.
    """
    world = replicated
    with replicated_run() as run:
        old, before = tenures_of(world, world.members), epochs(world)
        with failed_over(run.journal, world):
            run.wait(2)
        promoted = time.monotonic()
        run.figures["taken_s"] = round(await_succession(world, old, promoted, 15), 1)
        run.between_faults(2)
        _assert_shards_retaken(world, before)
        run.figures["terms"] = len(terms(run))
        assert run.figures["terms"] == 1, "the leader has flapped"


@pytest.mark.full
def test_replaced_primary_comes_back(replicated_run: FaultRun, replicated: World) -> None:
    """Cut off, it is replaced; back again, first in the members' list and ready to take writes, it
    gets none, and a restarted member leaves it.
    """
    world = replicated
    with replicated_run() as run:
        old, before = tenures_of(world, world.members), epochs(world)
        replaced = world.postgres
        members = [member.host for member in world.members.values()]
        with cut(run.journal, world.network, members, [replaced.host]):
            run.wait(2)
            world.fail_over()
            await_succession(world, old, time.monotonic(), 30)
        run.between_faults(2)
        with replaced_alive(run.journal, replaced):
            with killed(run.journal, world.members["m1"]):
                run.wait(2)
            world.await_ready(20)
            run.wait(4)
            assert not asked_of_late(replaced, 3.0), "a member still talks to it"
        _assert_shards_retaken(world, before)
        run.figures["terms"] = len(terms(run))


@pytest.mark.full
def test_postgres_restored_from_a_backup(fault_run: FaultRun, world: World) -> None:
    """Half a minute is lost. Nothing fires until a person has chosen from when on; what fell due
    before isn't run again, what fell due since is accounted for once.
    """
    with fault_run() as run:
        backup = back_up(world)
        with run.quiet_throughout():
            run.wait(LOST)
        with restored(run.journal, world, backup, run.began - 1.0, again=4.0) as restore:
            status = wait_until(lambda: _in_recovery(world), 30, "the cluster to be in recovery")
            run.figures["recovery_s"] = round(time.time() - restore.opened, 1)
            assert "went back" in status["pauseNote"]
            run.wait(4)
            with SyncClient(world.endpoints) as client:
                client.cluster.resume(catch_up_since=datetime.fromtimestamp(restore.horizon, UTC))


def _in_recovery(world: World) -> dict[str, Any] | None:
    """Return the cluster's status from a member, once one answers."""
    views = (world.view(member) for member in world.members.values())
    return next((view for view in views if view and view.get("recovering")), None)


def _assert_shards_retaken(world: World, before: dict[int, tuple[int, int]]) -> None:
    after = epochs(world)
    assert {timeline for _, timeline in after.values()} == {2}
    assert all(after[shard][0] > epoch for shard, (epoch, _) in before.items())
