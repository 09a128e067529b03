"""Function calls of a member and of a worker for each run of a drained queue.

A measure of the work per run that other processes on the machine don't change. The limits only
fall: a change that needs fewer calls lowers them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.drain import drain
from bench.rig import HANDLERS
from support.cluster import DevCluster, dev_cluster
from support.repository import ROOT
from support.wait import wait_until

RUNS, DRAINS = 10_000, 3
"""Runs of a drain, and at most so many drains: what other processes do adds calls."""
IDLE = 5.0
"""Seconds without runs after a drain: loops and heartbeats call functions at all times."""
LIMITS = {"schedd": 31, "workerd": 40}
"""Calls of Python functions a run."""
SLACK = 0.4
"""The share of a limit by which it may exceed what was measured. Calls a run depend on the sizes of
batches: 21 to 35 in a member of a busy machine, 33 to 41 in a worker.
"""


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("counts")


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, counts: Path) -> Iterator[DevCluster]:
    path = (ROOT / "tests" / "support" / "call_counts", ROOT / "tests")
    env = {"PYTHONPATH": os.pathsep.join(map(str, path)), "CALL_COUNTS": str(counts)}
    with dev_cluster(
        request.session, members=1, workers=1, slots=1_000, overrides=[HANDLERS], env=env
    ) as made:
        yield made


def count(counts: Path, when: str) -> dict[str, int]:
    """Return the calls so far, by daemon. `when` differs each time."""
    part = counts / "part"
    part.write_text(when)
    part.rename(counts / "ask")

    def read() -> dict[str, int]:
        answers = {
            name: (counts / name).read_text().rsplit(maxsplit=1)
            for name in LIMITS
            if (counts / name).exists()
        }
        return {name: int(calls) for name, (asked, calls) in answers.items() if asked == when}

    wait_until(lambda: read().keys() == LIMITS.keys(), 30, "counts of both daemons")
    return read()


def test_a_run_takes_no_more_function_calls_than_before(cluster: DevCluster, counts: Path) -> None:
    measured: list[dict[str, int]] = []
    best = dict.fromkeys(LIMITS, RUNS)
    while any(best[name] > limit for name, limit in LIMITS.items()):
        assert len(measured) < DRAINS, measured
        measured.append(drained(cluster, counts, len(measured)))
        best = {name: min(each[name] for each in measured) for name in LIMITS}
    print(f"function calls a run: {measured}")
    assert all(best[name] >= limit * (1 - SLACK) for name, limit in LIMITS.items()), (
        f"lower the limits: {measured}"
    )


def drained(cluster: DevCluster, counts: Path, number: int) -> dict[str, int]:
    """Return the calls for each run of a drain, by daemon, beyond those of an idle cluster in the
    same time.
    """
    cluster.schedctl("worker", "drain", "w1", "--reason", "queue").check_returncode()
    before: dict[str, int] = {}
    began = 0.0

    def release() -> None:
        nonlocal began
        before.update(count(counts, f"before {number}"))
        began = time.monotonic()
        cluster.schedctl("worker", "undrain", "w1").check_returncode()

    assert drain(cluster, RUNS, release)["succeeded"] == RUNS
    after, ended = count(counts, f"after {number}"), time.monotonic()
    time.sleep(IDLE)
    idle, share = count(counts, f"idle {number}"), (ended - began) / (time.monotonic() - ended)
    return {
        name: round((after[name] - before[name] - (idle[name] - after[name]) * share) / RUNS)
        for name in LIMITS
    }
