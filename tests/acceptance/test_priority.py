"""Priority where it shows: many wait, one slot is free."""

from __future__ import annotations

from pathlib import Path

from acceptance.conftest import CALM_SLOTS
from schedclient import SyncClient
from support.probe import Probe
from support.wait import wait_until

EACH = 5
"""Runs of each priority; enough that three owners all have some of both."""


def test_high_goes_before_low_when_one_slot_is_free(
    calm_client: SyncClient, tmp_path: Path
) -> None:
    blocked = Probe(tmp_path / "blocked")
    waiting = Probe(tmp_path / "waiting")
    slots = 2 * CALM_SLOTS
    gates = [tmp_path / f"gate-{number}" for number in range(slots)]
    blockers = [
        calm_client.submit(
            name="blocker",
            shell=blocked.shell(f"while [ ! -e {gate} ]; do sleep 0.05; done"),
        )
        for gate in gates
    ]
    try:
        wait_until(lambda: len(blocked.starts()) == slots, 10, "all slots to be taken")
        runs = [
            calm_client.submit(name=priority, priority=priority, shell=waiting.shell("sleep 0.1"))
            for priority in ("low", "high")
            for _ in range(EACH)
        ]
        assert {calm_client.runs.get(run.run_id).state for run in runs} == {"PENDING"}
        assert waiting.starts() == []
        gates[0].touch()  # one slot, for all that wait
        for run in runs:
            assert calm_client.runs.wait(run, timeout=20).succeeded
    finally:
        for gate in gates:
            gate.touch()
        for blocker in blockers:
            calm_client.runs.wait(blocker, timeout=20)
    assert [start.job for start in waiting.starts()] == ["high"] * EACH + ["low"] * EACH
    assert len({start.worker for start in waiting.starts()}) == 1
