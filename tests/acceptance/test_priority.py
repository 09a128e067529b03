"""Priority where it shows: many wait, one slot is free."""

from __future__ import annotations

import re
from pathlib import Path

from acceptance.conftest import QUIET_SLOTS
from schedclient import SyncClient
from support.cluster import DevCluster
from support.probe import DatabaseProbe
from support.wait import wait_until

EACH = 5
"""Runs of each priority; enough that three owners all have some of both."""


def queued(cluster: DevCluster) -> int:
    """Return the count of runs in the owners' queues: an owner receives the wake-up of a new one
    within milliseconds, or its scan finds the run within a second.
    """
    answers = [cluster.get(member["name"], "/metrics") for member in cluster.record["members"]]
    texts = [answer.body.decode() for answer in answers if answer]
    found = [re.search(r"^schedd_queue_ready (\S+)$", text, re.MULTILINE) for text in texts]
    return sum(int(float(match[1])) for match in found if match)


def test_high_has_priority_over_low_when_one_slot_is_free(
    quiet_cluster: DevCluster, quiet_client: SyncClient, tmp_path: Path
) -> None:
    blocked = DatabaseProbe(tmp_path / "blocked")
    waiting = DatabaseProbe(tmp_path / "waiting")
    slots = 2 * QUIET_SLOTS
    gates = [tmp_path / f"gate-{number}" for number in range(slots)]
    blockers = [
        quiet_client.submit(
            name="blocker",
            shell=blocked.shell(f"while [ ! -e {gate} ]; do sleep 0.2; done"),
        )
        for gate in gates
    ]
    try:
        wait_until(lambda: len(blocked.starts()) == slots, 10, "all slots to be taken")
        runs = [
            quiet_client.submit(name=priority, priority=priority, shell=waiting.shell("sleep 0.1"))
            for priority in ("low", "high")
            for _ in range(EACH)
        ]
        assert {quiet_client.runs.get(run.run_id).state for run in runs} == {"PENDING"}
        wait_until(lambda: queued(quiet_cluster) == len(runs), 10, "the owners to know what waits")
        assert waiting.starts() == []
        gates[0].touch()  # one slot, for all waiting runs
        for run in runs:
            assert quiet_client.runs.wait(run, timeout=20).succeeded
    finally:
        for gate in gates:
            gate.touch()
        for blocker in blockers:
            quiet_client.runs.wait(blocker, timeout=20)
    assert [start.job for start in waiting.starts()] == ["high"] * EACH + ["low"] * EACH
    assert len({start.worker for start in waiting.starts()}) == 1
