"""The order in which ready runs get a slot: priority first, then age, with ageing.

Waiting lifts a run by one class each `CLASS_STEP`, so a LOW run overtakes HIGH ones that became
ready two steps later, and no sooner. That makes the order one static number a run,

    rank = ready_at − CLASS_STEP × class          (the smallest goes first)

so no clock is needed. Runs stand in lines, one for each priority and need, each a heap by age:

    add → unsorted ──popped, its need looked up──→ its line ──popped when a worker fits──→ out

Invariants
- `pop` gives the smallest rank among the lines whose oldest may go. A line that no worker fits
  holds nobody up, however long it is, and costs nothing.
- Adding a run that stands there already costs nothing and leaves its place: a scan adds all runs
  each second.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple, TypeAlias

from schedd.core.ids import JobId, RunId, ShardId
from schedd.core.model import LiveRun, Priority
from schedd.core.placement import Need

CLASS_STEP = timedelta(seconds=60)

LEEWAY = CLASS_STEP / 2
"""By so much a run may go after what another member has: a head tells its oldest alone."""

Fits: TypeAlias = Callable[[Need | None], bool]
"""Whether some worker can do a run of this need; None: its need isn't known yet."""
Goes: TypeAlias = Callable[[Need | None, float], bool]
"""Whether a run of this need and rank may go now."""

_SLACK = 1_000


def rank(priority: int, ready_at: datetime) -> float:
    """The place in the order, in seconds since the epoch; smaller goes first."""
    return ready_at.timestamp() - CLASS_STEP.total_seconds() * priority


def last_rank(priority: int, waiting_since: datetime) -> float:
    """The greatest rank of a run that needn't wait for such a head of another member."""
    return rank(priority, waiting_since) + LEEWAY.total_seconds()


def _any(_: Need | None, _rank: float = 0.0) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Head:
    """What waits in one priority of runs that take equally many slots. All of it is of the same
    runs: a worker asks whether the oldest would fit.
    """

    priority: Priority
    waiting_since: datetime
    slots: int
    """That all of them ask for."""
    least: int = 1
    """That each of them takes."""


class _Place(NamedTuple):
    """Where a run stands in the order, reckoned once: each pop looks at one of every line."""

    rank: float
    number: int
    """The run's id: of equal ranks the smaller goes first."""
    run: RunId
    since: datetime


@dataclass(slots=True)
class _Line:
    """Runs of one need and priority: by age in a heap, whose entries are stale unless in `runs`."""

    need: Need | None
    priority: Priority
    runs: dict[RunId, LiveRun] = field(default_factory=dict)
    heap: list[_Place] = field(default_factory=list)
    of: tuple[int, int] = field(init=False)
    """Priority and width: by these a head is told. Plain numbers, for each look hashes them."""

    def __post_init__(self) -> None:
        self.of = int(self.priority), self.need.slots if self.need else 1

    def add(self, run: LiveRun) -> None:
        run_id = run.key.run_id
        known = self.runs.get(run_id)
        self.runs[run_id] = run
        if known is None or known.ready_at != run.ready_at:
            heapq.heappush(self.heap, _place(run))
            if len(self.heap) > 2 * len(self.runs) + _SLACK:
                self.heap = [_place(each) for each in self.runs.values()]
                heapq.heapify(self.heap)

    def oldest(self) -> _Place | None:
        while self.heap:
            place = self.heap[0]
            run = self.runs.get(place.run)
            if run is not None and run.ready_at == place.since:
                return place
            heapq.heappop(self.heap)
        return None


class ReadyQueue:
    """Runs that wait for a slot, each at most once."""

    def __init__(self) -> None:
        self._lines: dict[tuple[Need | None, Priority], _Line] = {}
        self._where: dict[RunId, _Line] = {}

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, run: RunId) -> bool:
        return run in self._where

    def __iter__(self) -> Iterator[LiveRun]:
        """The waiting runs, in no order."""
        return (run for line in self._lines.values() for run in line.runs.values())

    def add(self, runs: Iterable[LiveRun], need: Need | None = None) -> None:
        """Have these wait. One that is there already is replaced where it stands, unless a `need`
        says that it belongs elsewhere.
        """
        for run in runs:
            line = self._where.get(run.key.run_id)
            if line is None or line.priority != run.priority or (need and need != line.need):
                self.discard(run.key.run_id)
                line = self._where[run.key.run_id] = self._line(need, run.priority)
            line.add(run)

    def pop(self, goes: Goes = _any, least: Priority = Priority.LOW) -> LiveRun | None:
        """Take out the run that goes next among those that may, of this priority and those above;
        None when no such run waits.
        """
        lines = [line for line in self._lines.values() if line.priority >= least]
        oldest = [(place, line.need) for line in lines if (place := line.oldest()) is not None]
        oldest.sort()  # no two places are equal, so needs aren't compared
        for place, need in oldest:
            if goes(need, place.rank):
                return self.discard(place.run)
        return None

    def count(self, fits: Fits) -> int:
        """How many wait in the lines that fit."""
        return sum(len(line.runs) for line in self._lines.values() if fits(line.need))

    def heads(self, fits: Fits = _any) -> list[Head]:
        """What waits and fits, a head for each priority and width, HIGH first and then the widest.
        A run whose need isn't known yet counts for one slot.
        """
        found: dict[tuple[int, int], tuple[datetime, int]] = {}
        for line in self._lines.values():
            oldest = line.oldest()
            if oldest is not None and fits(line.need):
                since, slots = found.get(line.of, (oldest.since, 0))
                asked = slots + len(line.runs) * line.of[1]
                found[line.of] = (min(oldest.since, since), asked)
        return [
            Head(Priority(priority), *found[priority, width], width)
            for priority, width in sorted(found, reverse=True)
        ]

    def unsort(self, which: Fits) -> set[JobId]:
        """Forget what the runs of these lines need, for their definitions may have changed; gives
        their jobs.
        """
        lines = [line for line in self._lines.values() if which(line.need)]
        runs = [run for line in lines for run in line.runs.values()]
        for run in runs:
            self.discard(run.key.run_id)
        self.add(runs)
        return {run.job_id for run in runs}

    def discard(self, run: RunId) -> LiveRun | None:
        """Take this run out wherever it stands."""
        line = self._where.pop(run, None)
        if line is None:
            return None
        gone = line.runs.pop(run)
        if not line.runs:
            del self._lines[line.need, line.priority]
        return gone

    def drop_shards(self, shards: Iterable[ShardId]) -> None:
        """Take out all runs of these shards."""
        gone = set(shards)
        for run in [run for run in self if run.shard in gone]:
            self.discard(run.key.run_id)

    def _line(self, need: Need | None, priority: Priority) -> _Line:
        return self._lines.setdefault((need, priority), _Line(need, priority))


def rank_of(run: LiveRun) -> float:
    """Its place in the order."""
    return rank(run.priority, run.ready_at)


def _place(run: LiveRun) -> _Place:
    return _Place(rank_of(run), run.key.run_id.int, run.key.run_id, run.ready_at)
