"""`overlap: skip` while no running worker can take the job's runs."""

from __future__ import annotations

import time
from collections import Counter
from itertools import pairwise

from schedclient import SyncClient
from support.wait import wait_until

FOR = 10.0
"""Seconds in which a job of each second would pile up as many runs."""


def test_runs_of_a_skip_job_dont_pile_up_while_no_running_worker_has_its_labels(
    quiet_client: SyncClient,
) -> None:
    client = quiet_client
    began = time.time()
    client.jobs.create("piles", every="1s", shell={"script": "true"}, require={"gpu": ["yes"]})

    def runs() -> list[tuple[str, str | None, float]]:
        found = client.runs.list(job="piles")
        return [(run.state, run.reason, run.due_at.timestamp()) for run in found]

    wait_until(lambda: time.time() > began + FOR, FOR + 5, "the time to pass")

    def few_wait() -> bool:
        now = time.time()
        return sum(state == "PENDING" and due < now - 3 for state, _, due in runs()) == 1

    wait_until(few_wait, 10, "one run alone to wait")
    states = Counter((state, reason) for state, reason, due in runs() if due < time.time() - 3)
    assert states.pop(("PENDING", None)) == 1
    assert set(states) == {("SKIPPED", "OVERLAP")}, states
    assert states["SKIPPED", "OVERLAP"] >= FOR - 6
    dues = sorted(due for _, _, due in runs())
    assert all(b - a < 1.5 for a, b in pairwise(dues)), "none is missing"

    client.jobs.update("piles", require={})
    wait_until(lambda: any(state == "SUCCEEDED" for state, _, _ in runs()), 15, "the run to start")
    client.jobs.delete("piles")
