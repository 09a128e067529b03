"""The order in which ready runs get a slot: priority first, then age, with ageing.

Waiting lifts a run by one class each `CLASS_STEP`, so a LOW run overtakes HIGH ones that became
ready two steps later, and no sooner. That makes the order one static number a run,

    rank = ready_at − CLASS_STEP × class          (the smallest goes first)

so the queue is a plain heap and no clock is needed.
"""

import heapq
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from schedd.core.ids import RunId, ShardId
from schedd.core.model import LiveRun, Priority

CLASS_STEP = timedelta(seconds=60)


def rank(priority: Priority, ready_at: datetime) -> float:
    """The place in the order, in seconds since the epoch; smaller goes first."""
    return ready_at.timestamp() - CLASS_STEP.total_seconds() * priority


class ReadyQueue:
    """Runs that wait for a slot, each at most once."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, RunId]] = []
        self._runs: dict[RunId, LiveRun] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, run: RunId) -> bool:
        return run in self._runs

    def __iter__(self) -> Iterator[LiveRun]:
        """The waiting runs, in no order."""
        return iter(self._runs.values())

    def add(self, runs: Iterable[LiveRun]) -> None:
        """Have these wait; a run that is there already is replaced."""
        for run in runs:
            place = rank(run.priority, run.ready_at)
            self._runs[run.key.run_id] = run
            heapq.heappush(self._heap, (place, run.key.run_id.int, run.key.run_id))

    def pop(self) -> LiveRun | None:
        """Take out the run that goes next; None when nothing waits."""
        while self._heap:
            place, _, run_id = heapq.heappop(self._heap)
            run = self._runs.get(run_id)
            if run is not None and rank(run.priority, run.ready_at) == place:
                del self._runs[run_id]
                return run
        return None

    def discard(self, run: RunId) -> LiveRun | None:
        """Take this run out wherever it stands."""
        return self._runs.pop(run, None)

    def drop_shards(self, shards: Iterable[ShardId]) -> None:
        """Take out all runs of these shards."""
        gone = set(shards)
        self._runs = {key: run for key, run in self._runs.items() if run.shard not in gone}
