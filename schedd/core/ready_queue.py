"""The order in which ready runs get a slot: priority first, then age, with ageing.

Waiting lifts a run by one class each `CLASS_STEP`, so a LOW run overtakes HIGH ones that became
ready two steps later, and no sooner. That makes the order one static number a run,

    rank = ready_at − CLASS_STEP × class          (the smallest goes first)

so no clock is needed: one heap a priority, and the least of their heads goes next.
"""

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from schedd.core.ids import RunId, ShardId
from schedd.core.model import LiveRun, Priority

CLASS_STEP = timedelta(seconds=60)


def rank(priority: Priority, ready_at: datetime) -> float:
    """The place in the order, in seconds since the epoch; smaller goes first."""
    return ready_at.timestamp() - CLASS_STEP.total_seconds() * priority


@dataclass(slots=True)
class _Class:
    """The runs of one priority: by age in a heap, whose entries are stale unless in `runs`."""

    heap: list[tuple[datetime, int, RunId]] = field(default_factory=list)
    runs: dict[RunId, LiveRun] = field(default_factory=dict)

    def add(self, run: LiveRun) -> None:
        self.runs[run.key.run_id] = run
        heapq.heappush(self.heap, (run.ready_at, run.key.run_id.int, run.key.run_id))

    def oldest(self) -> LiveRun | None:
        while self.heap:
            ready_at, _, run_id = self.heap[0]
            run = self.runs.get(run_id)
            if run is not None and run.ready_at == ready_at:
                return run
            heapq.heappop(self.heap)
        return None


class ReadyQueue:
    """Runs that wait for a slot, each at most once."""

    def __init__(self) -> None:
        self._classes = {priority: _Class() for priority in sorted(Priority, reverse=True)}
        self._where: dict[RunId, Priority] = {}

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, run: RunId) -> bool:
        return run in self._where

    def __iter__(self) -> Iterator[LiveRun]:
        """The waiting runs, in no order."""
        return (run for each in self._classes.values() for run in each.runs.values())

    def add(self, runs: Iterable[LiveRun]) -> None:
        """Have these wait; a run that is there already is replaced."""
        for run in runs:
            if self._where.get(run.key.run_id, run.priority) is not run.priority:
                self.discard(run.key.run_id)
            self._where[run.key.run_id] = run.priority
            self._classes[run.priority].add(run)

    def pop(self) -> LiveRun | None:
        """Take out the run that goes next; None when nothing waits."""
        oldest = self.heads()
        if not oldest:
            return None
        first, _ = min(oldest, key=lambda head: rank(head[0].priority, head[0].ready_at))
        return self.discard(first.key.run_id)

    def discard(self, run: RunId) -> LiveRun | None:
        """Take this run out wherever it stands."""
        priority = self._where.pop(run, None)
        return None if priority is None else self._classes[priority].runs.pop(run)

    def drop_shards(self, shards: Iterable[ShardId]) -> None:
        """Take out all runs of these shards."""
        gone = set(shards)
        for run in [run for run in self if run.shard in gone]:
            self.discard(run.key.run_id)

    def heads(self) -> list[tuple[LiveRun, int]]:
        """The oldest run of each priority, highest first, with how many wait in that priority."""
        found = ((each.oldest(), len(each.runs)) for each in self._classes.values())
        return [(run, count) for run, count in found if run is not None]
