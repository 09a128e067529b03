"""The whole cluster paused and resumed on real processes, with a leader killed in between."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from schedclient import SyncClient
from support.cluster import DevCluster
from support.each_second_jobs import WRITTEN, start_ticking
from support.probe import DatabaseProbe
from support.wait import WAIT_TIMEOUT, wait_until


def test_while_the_cluster_is_paused_nothing_starts_and_each_second_of_it_is_accounted_for(
    fault_cluster: DevCluster, client: SyncClient, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    ticking = start_ticking(fault_cluster, client, tmp_path)
    asked = time.time()
    status = fault_cluster.json("cluster", "pause", "--note", "new disks")
    paused = time.time()
    figure(f"cluster paused: ok after {paused - asked:.2f} s")
    assert (status["paused"], status["pauseNote"]) == (True, "new disks")
    probe = DatabaseProbe(tmp_path / "submitted")
    submitted = client.submit(name="submitted", shell=probe.shell())
    leader = wait_until(fault_cluster.leader, WAIT_TIMEOUT, "a leader")
    fault_cluster.kill(leader)
    wait_until(lambda: fault_cluster.leader() not in (None, leader), WAIT_TIMEOUT, "another leader")
    for member in (one["name"] for one in fault_cluster.record["members"] if one["name"] != leader):
        answer = fault_cluster.get(member, "/readyz")
        assert answer is not None
        assert b"paused by" in answer.body
        assert b"new disks" in answer.body
        page = fault_cluster.get(member, "/")
        assert page is not None
        assert b"The cluster is paused by" in page.body
    assert "paused by" in client.runs.why(submitted.run_id).answer
    wait_until(lambda: time.time() > paused + 2 * WRITTEN, 10, "a while of the pause")
    assert max(start.at for start in ticking.starts()) < paused + WRITTEN
    assert probe.starts() == []

    began_to_resume = time.time()
    assert fault_cluster.json("cluster", "resume")["paused"] is False
    resumed = time.time()
    assert client.runs.wait(submitted, timeout=20).succeeded
    ticking.until(time.time() + 2, 20)
    first = min(s.at for s in ticking.starts() if s.scheduled_at.timestamp() > resumed)
    figure(f"cluster resumed: the first run {first - began_to_resume:.2f} s after")

    for job, rows in ticking.stop().items():
        ran = [row.scheduled_at for row in rows if row.started_at is not None]
        within = datetime.fromtimestamp(paused, UTC), datetime.fromtimestamp(began_to_resume, UTC)
        assert not [at for at in ran if at is not None and within[0] < at <= within[1]], job
        skipped = [row for row in rows if row.reason == "PAUSED"]
        assert {row.state for row in skipped} == {"SKIPPED"}
        assert sum(row.count for row in skipped) >= int(began_to_resume - paused), job
    lines = [one for one in client.audit.list(of="cluster") if one.at.timestamp() > asked - 1]
    assert [one.action for one in lines] == ["resume", "pause"]
    assert all(one.actor and one.source and one.before and one.after for one in lines)
