"""Function calls of a member and of a worker for each run of a drained queue.

A measure of the work per run that other processes on the machine don't change. The limits only
fall: a change that needs fewer calls lowers them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.drain import drain
from bench.rig import HANDLERS
from support.cluster import DevCluster, dev_cluster
from support.repository import ROOT
from support.wait import wait_until

RUNS = 4_000
LIMITS = {"schedd": 290, "workerd": 55}
"""Calls of Python functions a run."""
SLACK = 0.35
"""The share of a limit by which it may exceed what was measured. Batches are smaller, and calls a
run more, where other processes take the processors: 238 to 259 in a member, 43 to 47 in a worker.
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
            name: (counts / name).read_text().split() for name in LIMITS if (counts / name).exists()
        }
        return {name: int(calls) for name, (asked, calls) in answers.items() if asked == when}

    wait_until(lambda: read().keys() == LIMITS.keys(), 30, "counts of both daemons")
    return read()


def test_a_run_takes_no_more_function_calls_than_before(cluster: DevCluster, counts: Path) -> None:
    cluster.schedctl("worker", "drain", "w1", "--reason", "queue").check_returncode()
    before: dict[str, int] = {}

    def release() -> None:
        before.update(count(counts, "before"))
        cluster.schedctl("worker", "undrain", "w1").check_returncode()

    drained = drain(cluster, RUNS, release)
    assert drained["succeeded"] == RUNS
    after = count(counts, "after")
    measured = {name: round((after[name] - before[name]) / RUNS) for name in LIMITS}
    print(f"function calls a run: {measured}; {drained['rate']} runs/s under the profiler")
    assert all(measured[name] <= limit for name, limit in LIMITS.items()), measured
    assert all(measured[name] >= limit * (1 - SLACK) for name, limit in LIMITS.items()), (
        f"lower the limits: {measured}"
    )
