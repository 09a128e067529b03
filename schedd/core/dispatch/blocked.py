"""Runs that wait for other runs of their jobs, in the order in which the rows release them.

The assign statement accepts the run that was due first, by class (`store/dispatch/overlap.py`,
NEXT), and blocks any other again. So this order is that one, whatever else has delayed a run: a run
that was given back without a start is ready later than it was due.
"""

import heapq
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime

from schedd.core.dispatch.priority_order import CLASS_STEP
from schedd.core.ids import JobId, RunId, ShardId
from schedd.core.runs.model import LiveRun

_SLACK = 100


class BlockedRuns:
    """Blocked runs by job. A job without blocked runs takes no memory."""

    def __init__(self) -> None:
        self._of: dict[JobId, Held] = {}

    def __iter__(self) -> Iterator[LiveRun]:
        return (run for held in self._of.values() for run in held)

    @property
    def jobs(self) -> list[JobId]:
        return [*self._of]

    @property
    def some(self) -> bool:
        return bool(self._of)

    def holds(self, job: JobId) -> bool:
        return job in self._of

    def contains(self, run: RunId, job: JobId) -> bool:
        return self.get(run, job) is not None

    def get(self, run: RunId, job: JobId) -> LiveRun | None:
        held = self._of.get(job)
        return None if held is None else held.get(run)

    def add(self, run: LiveRun) -> None:
        """Add a run. A run that is already here is replaced in its place."""
        self._of.setdefault(run.job_id, Held()).add(run)

    def pop(self, job: JobId, count: int) -> list[LiveRun]:
        held = self._of.get(job)
        popped: list[LiveRun] = []
        while held is not None and len(popped) < count and (run := held.pop()) is not None:
            popped.append(run)
        self._drop_if_empty(job)
        return popped

    def discard(self, run: RunId, job: JobId) -> LiveRun | None:
        """Remove and return this run; None if it isn't here."""
        held = self._of.get(job)
        found = held.discard(run) if held is not None else None
        self._drop_if_empty(job)
        return found

    def drop_shards(self, shards: Collection[ShardId]) -> None:
        for job, held in [*self._of.items()]:
            held.drop_shards(shards)
            self._drop_if_empty(job)

    def _drop_if_empty(self, job: JobId) -> None:
        if job in self._of and not self._of[job]:
            del self._of[job]


class Held:
    """Blocked runs of one job, each once, in order."""

    def __init__(self) -> None:
        self._runs: dict[RunId, LiveRun] = {}
        self._heap: list[tuple[datetime, RunId]] = []
        """Entries are stale unless their run is here."""

    def __len__(self) -> int:
        return len(self._runs)

    def get(self, run: RunId) -> LiveRun | None:
        return self._runs.get(run)

    def __iter__(self) -> Iterator[LiveRun]:
        return iter(self._runs.values())

    def add(self, run: LiveRun) -> None:
        """Add a run. A run that is already here is replaced in its place."""
        run_id = run.key.run_id
        if run_id not in self._runs:
            heapq.heappush(self._heap, _place(run))
        self._runs[run_id] = run
        if len(self._heap) > 2 * len(self._runs) + _SLACK:
            self._heap = [_place(each) for each in self._runs.values()]
            heapq.heapify(self._heap)

    def pop(self) -> LiveRun | None:
        while self._heap:
            run = self._runs.pop(heapq.heappop(self._heap)[1], None)
            if run is not None:
                return run
        return None

    def discard(self, run: RunId) -> LiveRun | None:
        """Remove and return this run; None if it isn't here."""
        return self._runs.pop(run, None)

    def drop_shards(self, shards: Iterable[ShardId]) -> None:
        gone = set(shards)
        self._runs = {at: run for at, run in self._runs.items() if run.shard not in gone}


def _place(run: LiveRun) -> tuple[datetime, RunId]:
    return run.due_at - CLASS_STEP * run.priority, run.key.run_id
