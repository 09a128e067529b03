"""SIGTERM, and a sleep past the lease: members and workers stop and start, runs continue."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

from acceptance.conftest import TTL, pids
from schedclient import SyncClient
from support.cluster import DevCluster
from support.each_second_jobs import BY_POLICY, start_ticking
from support.probe import DatabaseProbe
from support.wait import WAIT_TIMEOUT, wait_until

FAILOVER = TTL + 2.0
LATE = 1.0
"""Seconds: past that an instant counts as caught up, not as fired on time."""


def test_a_leader_that_gets_sigterm_hands_over_without_a_late_second(
    fault_cluster: DevCluster, client: SyncClient, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    leader = wait_until(fault_cluster.leader, WAIT_TIMEOUT, "a leader")
    ticking = start_ticking(fault_cluster, client, tmp_path, overlap="allow")
    asked = time.time()
    fault_cluster.terminate(leader)
    figure(f"leader asked to end: it ended after {time.time() - asked:.2f} s")
    ticking.until(time.time() + 3, 15)

    rows = ticking.stop()
    assert {row.state for ledger in rows.values() for row in ledger} == {"SUCCEEDED"}
    latest = max(start.lateness for start in ticking.starts())
    figure(f"leader asked to end: no instant of any job was started more than {latest:.2f} s late")
    assert latest <= LATE


def test_an_owner_that_slept_past_its_lease_changes_nothing_and_rejoins(
    fault_cluster: DevCluster, client: SyncClient, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    before = pids(fault_cluster)
    ticking = start_ticking(fault_cluster, client, tmp_path)
    leader = wait_until(fault_cluster.leader, WAIT_TIMEOUT, "a leader")
    fault_cluster.pause(leader)
    slept = time.time()
    gaps = {job: ticking.first_after(job, slept, FAILOVER + 10) for job in ticking.probes}
    ticking.until(slept + FAILOVER + 2, 20)
    fault_cluster.resume(leader)
    woke = time.time()

    def owns_again() -> bool:
        members = {one.name: one for one in client.cluster.members()}
        mine = members.get(leader)
        return mine is not None and mine.state == "LIVE" and mine.shards > 0

    wait_until(owns_again, WAIT_TIMEOUT, "it to be a member again, with shards")
    figure(f"leader stopped past its lease: it owned shards again {time.time() - woke:.2f} s after")
    ticking.until(time.time() + 2, 15)
    rows = ticking.stop()
    assert max(gaps.values()) <= FAILOVER, gaps
    states = {row.state for ledger in rows.values() for row in ledger}
    assert states <= BY_POLICY
    assert pids(fault_cluster) == before, "no daemon ended"


def test_a_worker_that_gets_sigterm_finishes_its_runs_and_leaves_the_rest_to_others(
    fault_cluster: DevCluster, client: SyncClient, tmp_path: Path
) -> None:
    probe = DatabaseProbe(tmp_path / "starts")
    runs = [client.submit(name="finishes", shell=probe.shell("sleep 3")) for _ in range(6)]
    wait_until(lambda: len(probe.starts()) == len(runs), WAIT_TIMEOUT, "all to start")
    (ending, *_) = {start.worker for start in probe.starts()}
    process = fault_cluster.process(ending)
    process.send(signal.SIGTERM)
    more = [client.submit(name="later", shell=probe.shell()) for _ in range(10)]
    for run in (*runs, *more):
        done = client.runs.wait(run, timeout=20)
        assert done.succeeded
        assert done.attempt == 1
    wait_until(lambda: not process.alive(), WAIT_TIMEOUT, "its end")
    assert probe.repeated() == []
    assert ending not in {start.worker for start in probe.starts() if start.job == "later"}
