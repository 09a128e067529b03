"""The order in which ready runs get a slot: priority first, then age, with ageing.

Waiting lifts a run by one class each `CLASS_STEP`, so a LOW run overtakes HIGH ones that became
ready two steps later, and no sooner. That makes the order one static number a run,

    rank = ready_at − CLASS_STEP × class          (the smallest goes first)

so no clock is needed. What is late (`core/late.py`) goes as if it were of the class below, the
oldest due first. Runs stand in lines, one for each priority and need, each a heap by age:

    add → unsorted ──popped, its need looked up──→ its line ──popped when a worker fits──→ out

Invariants
- A line is of late runs or of others, and of paced ones or not: what there is no room for holds
  nobody up.
- `take` gives the smallest ranks among the lines whose oldest may go. A line that no worker fits
  holds nobody up, however long it is, and costs one look a round.
- Adding a run that stands there already costs nothing and leaves its place: a scan adds all runs
  each second.
"""

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple, TypeAlias

from schedd.core.ids import JobId, RunId, ShardId
from schedd.core.late import Room
from schedd.core.model import LiveRun, Priority
from schedd.core.placement import Need
from schedd.core.pools import NO_POOL, PoolKey, Rooms

CLASS_STEP = timedelta(seconds=60)

LEEWAY = CLASS_STEP / 2
"""By so much a run may go after what another member has: a head tells its oldest alone."""

Fits: TypeAlias = Callable[[Need | None], bool]
"""Whether some worker can do a run of this need; None: its need isn't known yet."""
Goes: TypeAlias = Callable[[Need | None, float], bool]
"""Whether a run of this need and rank may go now."""

_Of: TypeAlias = tuple[Need | None, Priority, bool, bool]
"""A line is of equal ones: need, priority, whether late, and then whether paced."""

_SLACK = 1_000


def rank(priority: int, ready_at: datetime) -> float:
    """The place in the order, in seconds since the epoch; smaller goes first."""
    return ready_at.timestamp() - CLASS_STEP.total_seconds() * priority


def last_rank(priority: int, waiting_since: datetime) -> float:
    """The greatest rank of a run that needn't wait for such a head of another member."""
    return rank(priority, waiting_since) + LEEWAY.total_seconds()


def _any(_: Need | None, _rank: float = 0.0) -> bool:
    return True


def _knows_none(_: JobId) -> bool:
    return False


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
    order: float
    """Of late runs of equal ranks, for they are made many at once: when they were due."""
    number: int
    """The run's id: of equal ranks the smaller goes first."""
    run: RunId
    since: datetime


@dataclass(slots=True)
class _Line:
    """Runs of one need and priority: by age in a heap, whose entries are stale unless in `runs`."""

    need: Need | None
    priority: Priority
    late: bool = False
    paced: bool = False
    runs: dict[RunId, LiveRun] = field(default_factory=dict)
    heap: list[_Place] = field(default_factory=list)
    of: tuple[int, int, bool] = field(init=False)
    """Priority, width and whether it is on time: by these a head is told. Plain values, for each
    look hashes them.
    """

    def __post_init__(self) -> None:
        self.of = int(self.priority), self.need.slots if self.need else 1, not self.late

    @property
    def width(self) -> int:
        """Slots of each; one where the need isn't known."""
        return self.of[1]

    @property
    def pool(self) -> PoolKey:
        """That its runs go in; none where the need isn't known."""
        return self.need.pool if self.need else NO_POOL

    def asks(self, room: Room, pools: Rooms | None) -> int:
        """How many of its runs may go now."""
        count = len(self.runs)
        if pools is not None:
            count = pools.most(count, self.pool)
        return room.most(count, self.width, paced=self.paced) if self.late else count

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
        self._lines: dict[_Of, _Line] = {}
        self._where: dict[RunId, _Line] = {}

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, run: RunId) -> bool:
        return run in self._where

    def __iter__(self) -> Iterator[LiveRun]:
        """The waiting runs, in no order."""
        return (run for line in self._lines.values() for run in line.runs.values())

    @property
    def late(self) -> int:
        """How many of them are late."""
        return sum(len(line.runs) for line in self._lines.values() if line.late)

    @property
    def paced(self) -> int:
        """How many are known to be paced."""
        return sum(len(line.runs) for line in self._lines.values() if line.paced)

    @property
    def unsorted_late(self) -> int:
        """How many late ones nobody knows the need of."""
        lines = self._lines.values()
        return sum(len(line.runs) for line in lines if line.late and line.need is None)

    def add(
        self, runs: Iterable[LiveRun], need: Need | None = None, *, paced: bool | None = None
    ) -> None:
        """Have these wait. One that is there already is replaced where it stands, unless a `need`,
        or whether it is `paced`, says that it belongs elsewhere.
        """
        for run in runs:
            line = self._where.get(run.key.run_id)
            if line is not None and line.pool and line.runs[run.key.run_id].shard != run.shard:
                self.discard(run.key.run_id)  # its job has moved, into another pool or out of it
                line = None
            if (
                line is None
                or line.priority != run.priority
                or line.late != run.late
                or (need and need != line.need)
                or (run.late and paced is not None and paced != line.paced)
            ):
                self.discard(run.key.run_id)
                slow = run.late and (run.paced if paced is None else paced)
                line = self._line((need, run.priority, run.late, slow))
                self._where[run.key.run_id] = line
            line.add(run)

    def pop(
        self,
        goes: Goes = _any,
        room: Room | None = None,
        least: int = 0,
        knows: Callable[[JobId], bool] = _knows_none,
    ) -> LiveRun | None:
        """Take out the run that goes next among those that may; None when no such run waits."""
        return next(iter(self.take(1, goes, room, least, knows)), None)

    def take(
        self,
        count: int,
        goes: Goes = _any,
        room: Room | None = None,
        least: int = 0,
        knows: Callable[[JobId], bool] = _knows_none,
        pools: Rooms | None = None,
    ) -> list[LiveRun]:
        """Take out the runs that go next among those that may, in order, at most `count`. What is
        late goes as far as there is room, and takes it; None: as much as likes; so does what is in
        a pool. `least`: of this class and those above (`class_of`). `knows`: whether what a job
        needs can be told at once.

        What doesn't go, or has no room, asks the rest of its line nothing: what comes after it goes
        no sooner. So each line is asked once in vain, however many are taken.
        """
        room = Room() if room is None else room
        lines = [line for line in self._lines.values() if line.priority - line.late >= least]
        heads = [(place, at) for at, line in enumerate(lines) if (place := line.oldest())]
        heapq.heapify(heads)
        taken: list[LiveRun] = []
        while heads and len(taken) < count:
            place, at = heads[0]
            line = lines[at]
            known = not line.late or line.need is not None or knows(line.runs[place.run].job_id)
            fits = not line.late or room.fits(line.width, paced=line.paced, known=known)
            fits = fits and (pools is None or pools.fits(line.pool))
            if not fits or not goes(line.need, place.rank):
                heapq.heappop(heads)
                continue
            if line.late:
                room.take(line.width, paced=line.paced, known=known)
            if pools is not None:
                pools.take(line.pool)
            run = self.discard(place.run)
            assert run is not None, "it stood in its line"
            taken.append(replace(run, paced=line.paced) if run.paced != line.paced else run)
            following = line.oldest()
            if following is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (following, at))
        return taken

    def count(self, fits: Fits) -> int:
        """How many wait in the lines that fit, but for paced ones and those in pools."""
        lines = (line for line in self._lines.values() if not line.paced and not line.pool)
        return sum(len(line.runs) for line in lines if fits(line.need))

    @property
    def needs(self) -> list[Need]:
        """Those that are known of what waits, some of them more than once."""
        return [line.need for line in self._lines.values() if line.need]

    @property
    def has_pooled(self) -> bool:
        """Whether any is known to be of a pool."""
        return any(line.pool for line in self._lines.values())

    @property
    def pooled(self) -> int:
        """How many are known to be of pools."""
        return sum(len(line.runs) for line in self._lines.values() if line.pool)

    def pools(self) -> set[PoolKey]:
        """Those that some of them wait for."""
        return {line.pool for line in self._lines.values() if line.pool}

    def oldest(self) -> datetime | None:
        """Since when the one waits that waits longest; None: nothing waits."""
        places = (line.oldest() for line in self._lines.values())
        return min((place.since for place in places if place is not None), default=None)

    def heads(
        self, fits: Fits = _any, room: Room | None = None, pools: Rooms | None = None
    ) -> list[Head]:
        """What waits and fits, a head for each priority and width, HIGH first and then the widest.
        A run whose need isn't known yet counts for one slot. What is late has heads of its own, in
        the place that it has here: as if it had waited less. They ask for what there is room for,
        in their pools too; of lines that share a pool, or room for what is late, the one whose
        oldest goes first has it first.
        """
        left = Room() if room is None else replace(room)
        places = None if pools is None else pools.copy()
        found: dict[tuple[int, int, bool], tuple[datetime, int]] = {}
        lines = [
            (place, line)
            for line in self._lines.values()
            if (place := line.oldest()) is not None and fits(line.need)
        ]
        lines.sort(key=lambda each: each[0].rank)
        for oldest, line in lines:
            if runs := line.asks(left, places):
                if places is not None:
                    places.take(line.pool, runs)
                if line.late:
                    left.take_all(runs, line.width, paced=line.paced)
                since, slots = found.get(line.of, (oldest.since, 0))
                found[line.of] = (min(oldest.since, since), slots + runs * line.width)
        return [
            Head(
                Priority(priority),
                since if on_time else since + CLASS_STEP,
                slots,
                width,
            )
            for (priority, width, on_time), (since, slots) in sorted(found.items(), reverse=True)
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

    def unsort_pooled(self, jobs: Collection[JobId]) -> None:
        """Forget what runs of these jobs need that wait in pools: they may be in others by now."""
        lines = [line for line in self._lines.values() if line.pool]
        runs = [run for line in lines for run in line.runs.values() if run.job_id in jobs]
        for run in runs:
            self.discard(run.key.run_id)
        self.add(runs)

    def discard(self, run: RunId) -> LiveRun | None:
        """Take this run out wherever it stands."""
        line = self._where.pop(run, None)
        if line is None:
            return None
        gone = line.runs.pop(run)
        if not line.runs:
            del self._lines[line.need, line.priority, line.late, line.paced]
        return gone

    def drop_shards(self, shards: Iterable[ShardId]) -> None:
        """Take out all runs of these shards."""
        gone = set(shards)
        for run in [run for run in self if run.shard in gone]:
            self.discard(run.key.run_id)

    def _line(self, of: _Of) -> _Line:
        return self._lines.setdefault(of, _Line(*of))


def class_of(run: LiveRun) -> int:
    """Its priority's number, less one for a late run."""
    return run.priority - run.late


def rank_of(run: LiveRun) -> float:
    """Its place in the order."""
    return rank(run.priority - run.late, run.ready_at)


def _place(run: LiveRun) -> _Place:
    order = run.due_at.timestamp() if run.late else 0.0
    return _Place(rank_of(run), order, run.key.run_id.int, run.key.run_id, run.ready_at)
