"""A planned change of leader on real processes: it happens at once, and no run is late for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from schedclient import SyncClient
from support.cluster import DevCluster
from support.each_second_jobs import start_ticking
from support.wait import WAIT_TIMEOUT, wait_until

LATE = 1.0
"""Seconds: past that an instant counts as caught up, not as fired on time."""


def test_leadership_moves_to_the_chosen_member_and_delays_no_run(
    quiet_cluster: DevCluster,
    quiet_client: SyncClient,
    tmp_path: Path,
    figure: Callable[[str], None],
) -> None:
    ticking = start_ticking(quiet_cluster, quiet_client, tmp_path, overlap="allow")
    first = wait_until(quiet_cluster.leader, WAIT_TIMEOUT, "a leader")
    names = [
        member["name"] for member in quiet_cluster.record["members"] if member["name"] != first
    ]
    before = {shard.shard: shard.epoch for shard in quiet_client.cluster.shards()}
    for old, new in zip([first, *names], [*names, first], strict=True):
        moved = quiet_cluster.json("cluster", "transfer-leader", new, "--reason", "upgrade")
        assert (moved["oldLeader"], moved["newLeader"]) == (old, new)
        assert moved["newTerm"] > moved["oldTerm"]
        figure(f"leadership handed to {new}: took {moved['duration']}")
        assert {one.name for one in quiet_client.cluster.members() if one.role == "LEADER"} == {new}
    assert {shard.shard: shard.epoch for shard in quiet_client.cluster.shards()} == before, (
        "no shard was taken again"
    )
    chosen = quiet_cluster.schedctl("cluster", "transfer-leader")
    assert chosen.returncode == 0, chosen.stderr
    assert chosen.stdout.startswith(f"{first} → ")

    assert quiet_cluster.json("cluster", "rebalance") == [], "it is balanced under any leader"
    assert quiet_cluster.schedctl("cluster", "rebalance", "--dry-run").returncode == 0
    unknown = quiet_cluster.schedctl("cluster", "transfer-leader", "m9")
    assert unknown.returncode == 3
    assert "member 'm9' not found" in unknown.stderr
    leader = wait_until(quiet_cluster.leader, WAIT_TIMEOUT, "a leader")
    again = quiet_cluster.schedctl("cluster", "transfer-leader", leader)
    assert again.returncode == 5
    assert "is already the leader" in again.stderr

    rows = ticking.stop()
    assert {row.state for ledger in rows.values() for row in ledger} == {"SUCCEEDED"}
    latest = max(start.lateness for start in ticking.starts())
    figure(f"leadership handed over {len(names) + 2} times: no run more than {latest:.2f} s late")
    assert latest <= LATE
    outcomes = [one.outcome for one in quiet_client.audit.list(action="transfer-leader")]
    assert outcomes[:2] == ["refused", "refused"]
    assert outcomes.count("ok") >= len(names) + 2
