"""Faults just before the due time of pre-dispatched runs.

Their owner is killed, their job is paused, or their worker is drained or killed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from acceptance.conftest import TTL
from schedclient import Run, SyncClient
from support.cluster import DevCluster, dev_cluster
from support.each_second_jobs import WRITTEN, Ticking, start_ticking
from support.ledger import covered
from support.probe import DatabaseProbe, Start
from support.wait import WAIT_TIMEOUT, wait_until

pytestmark = pytest.mark.alone

ON_TIME = 0.5
"""Seconds past its instant by which a pre-dispatched run has begun, on a busy machine."""
NEARLY = 1.0
"""Seconds past its instant by which one has begun that was given back just before."""
RESCUED = TTL + 3.0
"""Seconds within which a lost worker's run is dispatched again."""

EXPIRED = 8.0
"""Seconds after which `ok` of a delete waits for nothing that the killed worker had."""

PRE_DISPATCHED = """
SELECT r.run_id::text, j.name, r.worker FROM runs r JOIN jobs j USING (job_id)
WHERE j.name = ANY (%s) AND r.state = 'RUNNING' AND r.due_at = to_timestamp(%s)
  AND r.started_at IS NULL AND r.due_at > clock_timestamp()
"""


def test_a_pre_dispatched_run_starts_on_time_although_its_owner_was_just_killed(
    fault_cluster: DevCluster, client: SyncClient, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """P4.7: by their worker's own timer."""
    ticking = start_ticking(fault_cluster, client, tmp_path, overlap="allow")
    leader = wait_until(fault_cluster.leader, WAIT_TIMEOUT, "a leader")
    owner = min(set(ticking.owners.values()) - {leader})
    jobs = [job for job, its in ticking.owners.items() if its == owner]

    instant, pre_dispatched = pre_dispatched_soon(fault_cluster, jobs)
    await_time(instant - 0.2)
    fault_cluster.kill(owner)
    assert time.time() < instant, "it was dead by then"

    begun = starts_of(ticking, set(pre_dispatched), instant + ON_TIME + WRITTEN)
    latest = max(start.lateness for start in begun.values())
    figure(f"owner killed: {len(begun)} pre-dispatched runs began {latest:.3f} s late at most")
    assert latest < ON_TIME
    ticking.until(instant + TTL, 20)
    assert_never_early(ticking)
    ticking.stop()


def test_a_pause_just_before_the_due_time_revokes_pre_dispatched_runs_and_a_trigger_still_works(
    fault_cluster: DevCluster, client: SyncClient, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    probe = DatabaseProbe(tmp_path / "paused")
    client.jobs.create("pausing", cron="* * * * * *", shell=probe.shell())
    wait_until(lambda: len(probe.starts()) >= 3, WAIT_TIMEOUT, "firing to begin")

    instant, _ = pre_dispatched_soon(fault_cluster, ["pausing"])
    await_time(instant - 0.3)
    asked = time.time()
    client.jobs.pause("pausing", note="just before")
    figure(f"paused while pre-dispatched: ok after {time.time() - asked:.3f} s")
    assert time.time() < instant, "ok came before the instant"
    wait_until(lambda: not running(client, "pausing"), WAIT_TIMEOUT, "the run before it to end")
    before = len(probe.starts())
    triggered = client.jobs.trigger("pausing")
    assert client.runs.wait(triggered, timeout=20).succeeded
    await_time(instant + WRITTEN)
    assert [start.run_id for start in probe.starts()[before:]] == [triggered.run_id]
    client.jobs.resume("pausing")
    wait_until(lambda: len(probe.starts()) >= before + 3, WAIT_TIMEOUT, "firing to continue")

    assert_no_start_at(probe, instant)
    rows = [row for row in client.runs.list(job="pausing") if row.run_id != triggered.run_id]
    at = datetime.fromtimestamp(instant, UTC)
    there = [row for row in rows if covered([row])[at]]
    assert [(row.state, row.reason) for row in there] == [("SKIPPED", "PAUSED")]
    assert max(covered(rows).values()) == 1, "each instant is in one row"
    assert probe.repeated() == []
    client.jobs.delete("pausing")


def test_runs_pre_dispatched_to_a_worker_that_drains_or_is_killed_run_elsewhere(
    fault_cluster: DevCluster, client: SyncClient, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    ticking = start_ticking(fault_cluster, client, tmp_path, overlap="allow")
    jobs = list(ticking.probes)

    instant, pre_dispatched = pre_dispatched_soon(fault_cluster, jobs)
    drained, given_back = busiest(pre_dispatched)
    client.workers.drain(drained)
    begun = starts_of(ticking, given_back, instant + NEARLY + WRITTEN)
    latest = max(start.lateness for start in begun.values())
    elsewhere = sum(start.worker != drained for start in begun.values())
    figure(f"worker drained: {elsewhere} of {len(begun)} began elsewhere, {latest:.3f} s late")
    assert latest < NEARLY, "runs that started before the worker received the drain started on time"

    instant, pre_dispatched = pre_dispatched_soon(fault_cluster, jobs)
    killed, lost = busiest(pre_dispatched)
    await_time(instant - 0.2)
    fault_cluster.kill(killed)
    assert time.time() < instant, "it was dead by then"
    begun = starts_of(ticking, lost, instant + RESCUED + WRITTEN)
    latest = max(start.lateness for start in begun.values())
    figure(f"worker killed: {len(begun)} runs began elsewhere {latest:.2f} s late at most")
    assert killed not in {start.worker for start in begun.values()}
    assert latest < RESCUED
    client.workers.undrain(drained)
    ticking.until(instant + EXPIRED, 20)
    assert_never_early(ticking)
    ticking.stop()


def test_a_run_pre_dispatched_long_ahead_can_still_be_paused_moved_and_deleted(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """`ahead` at its most, for herds: the database's guard and what is loaded follow it."""
    overrides = ["schedd.lookahead.fire=30s", "schedd.lookahead.dispatch=29s"]
    with (
        dev_cluster(members=1, workers=1, overrides=overrides) as cluster,
        SyncClient(cluster.endpoints) as client,
    ):
        probes = {
            name: DatabaseProbe(tmp_path / name) for name in ("goes", "paused", "moved", "deleted")
        }
        due = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=24)
        for name, probe in probes.items():
            client.jobs.create(name, at=due, shell=probe.shell())
        wait_until(
            lambda: [run.reason for run in client.runs.list()] == ["PRE_DISPATCHED"] * 4 or None,
            WAIT_TIMEOUT,
            "all to be pre-dispatched",
        )
        left = due.timestamp() - time.time()
        figure(f"pre-dispatched long ahead: {left:.1f} s before it was due")
        assert left > 12, "long before it is as usual"

        later = due + timedelta(seconds=2)
        client.jobs.pause("paused", note="too early")
        client.jobs.update("moved", at=later)
        client.jobs.delete("deleted")
        assert time.time() < due.timestamp() - 8, "no call waited for the scheduled time"
        await_time(later.timestamp() + NEARLY + WRITTEN)

        (went,), (moved,) = probes["goes"].starts(), probes["moved"].starts()
        assert went.scheduled_at == due
        assert 0 <= went.lateness < ON_TIME
        assert moved.scheduled_at == later
        assert 0 <= moved.lateness < ON_TIME
        assert probes["paused"].starts() == probes["deleted"].starts() == []
        ends = {
            (run.job, run.state, run.reason) for run in client.runs.list() if run.state != "PENDING"
        }
        assert ends >= {("goes", "SUCCEEDED", None), ("moved", "SUCCEEDED", None)}
        assert ("moved", "SKIPPED", "EDITED") in ends


def pre_dispatched_soon(cluster: DevCluster, jobs: list[str]) -> tuple[float, dict[str, str]]:
    """Return the next due time, half a second or more away, and the workers of the runs of these
    jobs that are pre-dispatched for it, by run.
    """
    instant = math.ceil(time.time() + 1.0)
    await_time(instant - 0.7)
    pre_dispatched = {run: worker for run, _, worker in cluster.sql(PRE_DISPATCHED, jobs, instant)}
    assert pre_dispatched, "nothing is pre-dispatched"
    return instant, pre_dispatched


def busiest(pre_dispatched: dict[str, str]) -> tuple[str, set[str]]:
    """The worker that has most of them, and those."""
    workers = list(pre_dispatched.values())
    worker = max(sorted(set(workers)), key=workers.count)
    return worker, {run for run, its in pre_dispatched.items() if its == worker}


def starts_of(ticking: Ticking, runs: set[str], until: float) -> dict[str, Start]:
    """The first start of each of these runs; all must have one by then."""

    def found() -> dict[str, Start] | None:
        firsts: dict[str, Start] = {}
        for start in ticking.starts():
            if start.run_id in runs:
                firsts.setdefault(start.run_id, start)
        return firsts if firsts.keys() == runs else None

    return wait_until(found, until - time.time(), f"{len(runs)} runs to begin", every=0.05)


def await_time(at: float) -> None:
    wait_until(lambda: time.time() >= at, 30, f"{at}", every=0.005)


def assert_never_early(ticking: Ticking) -> None:
    assert min(start.lateness for start in ticking.starts()) >= 0


def running(client: SyncClient, job: str) -> list[Run]:
    return [run for run in client.runs.list(job=job) if run.state == "RUNNING"]


def assert_no_start_at(probe: DatabaseProbe, instant: float) -> None:
    assert instant not in {start.scheduled_at.timestamp() for start in probe.starts()}
