"""Ageing where it shows: what waits behind a stream of HIGH runs that never lets the slot be free.

AGEING_RUNS=1000 make test TESTS=tests/acceptance/test_aging.py: LOW ones, a thousand, two steps.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from schedclient import Run, SyncClient
from schedd.core.dispatch.priority_order import CLASS_STEP
from support.cluster import DevCluster
from support.probe import DatabaseProbe, Start
from support.wait import WAIT_TIMEOUT, wait_until
from support.worker_process import WorkerProcess

FULL = int(os.environ.get("AGEING_RUNS", "0"))
COUNT = FULL or 12
PRIORITY = "low" if FULL else "medium"
STEP = CLASS_STEP.total_seconds()
BOUND = STEP * (2 if FULL else 1)
"""Seconds after which a run that becomes ready goes after them, though it is HIGH."""

AHEAD, LASTS = (40, 0.02) if FULL else (5, 1.0)
"""HIGH runs that always wait, and the seconds that each takes: so many are done before one that has
just become ready. Some seconds of work, that they never run out while the submitter waits for a
processor.
"""

SWAP = 0.1
"""Runs that became ready within so many seconds of each other may swap."""

ORDERED_WITHIN = 1.0
"""Seconds from the answer to a submit to the run's place in every order: until then, others may
start.
"""


@dataclass(frozen=True, slots=True)
class Submitted:
    """A run, and when its submitter had its answer."""

    run: Run
    answered: float

    @property
    def run_id(self) -> str:
        return self.run.run_id

    @property
    def ready_at(self) -> float:
        assert self.run.due_at is not None
        return self.run.due_at.timestamp()


class Stream:
    """HIGH runs without end, so that the slot is never free for want of one."""

    def __init__(self, cluster: DevCluster, probe: DatabaseProbe) -> None:
        self.runs: list[Submitted] = []
        self._cluster, self._probe = cluster, probe
        self._over = threading.Event()

    @contextmanager
    def flowing(self) -> Iterator[None]:
        """Submit runs during the block; the first one has started."""
        thread = threading.Thread(target=self._flow, name="high runs")
        thread.start()
        try:
            wait_until(lambda: len(self.runs) > AHEAD, 20, "HIGH runs to wait")
            yield
        finally:
            self._over.set()
            thread.join()

    def _flow(self) -> None:
        with SyncClient(self._cluster.endpoints) as client:
            while not self._over.is_set():
                started = sum(start.job == "high" for start in self._probe.starts())
                for _ in range(started + AHEAD + 1 - len(self.runs)):
                    self.runs.append(submit_one(client, "high", self._probe))
                self._over.wait(0.2)


def submit_one(client: SyncClient, priority: str, probe: DatabaseProbe) -> Submitted:
    run = client.submit(
        name=priority,
        priority=priority,
        require={"test": "ageing"},
        shell=probe.shell(f"sleep {LASTS}"),
    )
    return Submitted(run, time.time())


@contextmanager
def one_slot(cluster: DevCluster, home: Path) -> Iterator[None]:
    """A worker that takes one run at a time, and none but these, attached to all members: the one
    that it reaches first would have its first slot.
    """
    worker = WorkerProcess(home, cluster.endpoints, name="one-slot", slots="1")
    worker.config = '[labels]\ntest = "ageing"\n'
    worker.start()
    try:
        wait_until(
            lambda: attachments(worker) == len(cluster.endpoints), WAIT_TIMEOUT, "its streams"
        )
        yield
    finally:
        worker.kill()


def attachments(worker: WorkerProcess) -> int:
    """To how many members it has had a stream."""
    return len(set(re.findall(r"attached to member (\S+)", worker.log.read_text())))


@pytest.mark.timeout(2 * BOUND + COUNT + 120)
def test_a_run_that_waits_long_enough_has_priority_over_all_later_runs(
    quiet_cluster: DevCluster,
    quiet_client: SyncClient,
    tmp_path: Path,
    figure: Callable[[str], None],
) -> None:
    probe = DatabaseProbe(tmp_path / "starts")
    stream = Stream(quiet_cluster, probe)

    def started(name: str) -> list[Start]:
        return [start for start in probe.starts() if start.job == name]

    with one_slot(quiet_cluster, tmp_path / "worker"):
        with stream.flowing():
            waiting = [submit_one(quiet_client, PRIORITY, probe) for _ in range(COUNT)]
            aged = BOUND + 30
            wait_until(lambda: started(PRIORITY), aged, "the first to have aged", every=0.5)
            wait_until(lambda: len(started(PRIORITY)) == COUNT, COUNT + 60.0, "all of them")
        everything = len(waiting) + len(stream.runs)
        wait_until(lambda: len(probe.starts()) == everything, COUNT + 60.0, "the rest")
        for run in (waiting[-1], *stream.runs[-AHEAD:]):
            assert quiet_client.runs.wait(run.run_id, timeout=20).succeeded
    starts = probe.starts()

    firsts = {start.run_id: start.at for start in started(PRIORITY)}
    waits = [firsts[run.run_id] - run.ready_at for run in waiting]
    first, last = min(waits), max(waits)
    between = sum(
        min(firsts.values()) < start.at < max(firsts.values()) for start in started("high")
    )
    figure(
        f"ageing: {COUNT} {PRIORITY.upper()} runs behind {len(stream.runs)} HIGH ones waited"
        f" {first:.1f} to {last:.1f} s; {between} HIGH ones started between them"
    )
    assert first >= BOUND - SWAP
    assert first <= BOUND + 15
    found = disorder(starts, waiting, stream.runs)
    assert not found, "\n".join(found)


def disorder(starts: list[Start], waiting: list[Submitted], high: list[Submitted]) -> list[str]:
    """Starts that another run, known in time, should have had: by priority, then by age."""
    ranks = {run.run_id: run.ready_at for run in waiting}
    ranks |= {run.run_id: run.ready_at - BOUND for run in high}
    by_id = {run.run_id: run for run in (*waiting, *high)}
    found = []
    for place, start in enumerate(starts):
        later = starts[place + 1 :]
        known = [one for one in later if by_id[one.run_id].answered < start.at - ORDERED_WITHIN]
        best = min(known, key=lambda one: ranks[one.run_id], default=None)
        if best is not None and ranks[start.run_id] > ranks[best.run_id] + SWAP:
            found.append(f"{_summary(start, by_id, ranks)} before {_summary(best, by_id, ranks)}")
    return found


def _summary(start: Start, runs: Mapping[str, Submitted], ranks: Mapping[str, float]) -> str:
    waited = start.at - runs[start.run_id].ready_at
    return (
        f"{start.job} {start.run_id} of rank {ranks[start.run_id]:.3f}, which waited {waited:.3f} s"
        f" until {start.at:.3f}"
    )
