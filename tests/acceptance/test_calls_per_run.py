"""Function calls of a member and of a worker for each run of a drained queue, and for each of many
timers that are due at one time.

A measure of the work per run that other processes on the machine don't change. The limits only
fall: a change that needs fewer calls lowers them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bench import copies
from bench.copies import TEMPLATE
from bench.drain import drain
from bench.rig import HANDLERS, NOOP, ended
from schedclient import SyncClient
from support.cluster import DevCluster, dev_cluster
from support.repository import ROOT
from support.wait import wait_until

RUNS, DRAINS = int(os.environ.get("COUNTED_RUNS", "5000")), 3
"""Runs of a drain, and at most so many drains: what other processes do adds calls."""
IDLE = 5.0
"""Seconds without runs after a drain: loops and heartbeats call functions at all times."""
LIMITS = {
    "submitted": {"schedd": 25, "workerd": 25},
    "due": {"schedd": 45, "workerd": 25},
}
"""Calls of Python functions a run, by the origin of the runs."""
DAEMONS = LIMITS["due"].keys()
AHEAD = 15.0
"""Seconds before their due time at which timers are stored: a member loads them later."""
SLACK = 0.4
"""The share of a limit by which it may exceed what was measured. Calls a run depend on the sizes of
batches and on scans: 17 to 30 in a member of a busy machine, 20 to 25 in a worker.
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
            for name in DAEMONS
            if (counts / name).exists()
        }
        return {name: int(calls) for name, (asked, calls) in answers.items() if asked == when}

    wait_until(lambda: read().keys() == DAEMONS, 30, "counts of both daemons")
    return read()


Measured = Callable[[DevCluster, Path, int], dict[str, int]]


def drained(cluster: DevCluster, counts: Path, number: int) -> dict[str, int]:
    """Return the calls for each run of a queue."""
    calls = Calls(counts, f"drained {number}")
    assert drain(cluster, RUNS, calls.begin)["succeeded"] == RUNS
    return calls.for_each_run()


def fired(cluster: DevCluster, counts: Path, number: int) -> dict[str, int]:
    """Return the calls for each of many timers that are due at one time."""
    due = (datetime.now(UTC) + timedelta(seconds=2 * AHEAD)).replace(microsecond=0)
    with SyncClient(cluster.endpoints) as client:
        client.jobs.create(f"{TEMPLATE}{number}", at=due, python=NOOP)
    copies.copy(cluster, RUNS - 1, range(number, number + 1))
    calls, already = Calls(counts, f"fired {number}"), ended(cluster)
    left = (due - datetime.now(UTC)).total_seconds()
    assert left > AHEAD, "the timers were stored too late"
    time.sleep(left - AHEAD)
    calls.begin()
    time.sleep(AHEAD)
    wait_until(lambda: ended(cluster) >= already + RUNS, 60, "the end of all runs", every=1.0)
    return calls.for_each_run()


@pytest.mark.parametrize(
    ("origin", "measure"), [("submitted", drained), ("due", fired)], ids=["submitted", "due"]
)
def test_a_run_takes_no_more_function_calls_than_before(
    cluster: DevCluster, counts: Path, origin: str, measure: Measured
) -> None:
    limits = LIMITS[origin]
    measured: list[dict[str, int]] = []
    best = dict.fromkeys(limits, RUNS)
    while any(best[name] > limit for name, limit in limits.items()):
        assert len(measured) < DRAINS, measured
        measured.append(measure(cluster, counts, len(measured)))
        best = {name: min(each[name] for each in measured) for name in limits}
    print(f"function calls a run: {measured}")
    assert all(best[name] >= limit * (1 - SLACK) for name, limit in limits.items()), (
        f"lower the limits: {measured}"
    )


class Calls:
    """Calls of the daemons for `RUNS` runs, beyond those of an idle cluster in the same time."""

    def __init__(self, counts: Path, name: str) -> None:
        self._counts, self._name = counts, name
        self._before: dict[str, int] = {}
        self._began = 0.0

    def begin(self) -> None:
        """Count from here on."""
        self._before = count(self._counts, f"before {self._name}")
        self._began = time.monotonic()

    def for_each_run(self) -> dict[str, int]:
        """Return the calls for each run, by daemon: all runs have ended."""
        after, ended_at = count(self._counts, f"after {self._name}"), time.monotonic()
        time.sleep(IDLE)
        idle = count(self._counts, f"idle {self._name}")
        share = (ended_at - self._began) / (time.monotonic() - ended_at)
        return {
            name: round(
                (after[name] - self._before[name] - (idle[name] - after[name]) * share) / RUNS
            )
            for name in DAEMONS
        }
