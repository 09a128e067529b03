"""Ready runs that wait for a slot, in buckets, one per need and class
(`core/dispatch/ready_buckets.py`).

    add → unsorted ──popped, need looked up──→ its bucket ──popped when a worker fits──→ out

If a bucket has more runs than memory should hold, the newest stay in their rows. A run from a scan
goes into its bucket at once if the need of that bucket (`core/dispatch/ready_bucket_ids.py`) is
known. Otherwise runs that no worker can run, looked up and left repeatedly, would block runs behind
them.

Invariants
- A bucket has only late runs or only others, and only paced runs or only others: runs without room
  block no other runs.
- `take_runs` returns the smallest ranks (`core/dispatch/priority_order.py`) among the buckets whose
  oldest run may go. A bucket that no worker fits blocks no other, whatever its length, and costs
  one check per round.
- Adding a run that is already queued costs nothing and keeps its place: a scan adds all runs each
  second.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, KeysView
from contextlib import contextmanager
from datetime import datetime
from itertools import chain
from math import inf
from typing import Final, TypeAlias

from schedd.core.dispatch.placement import Need
from schedd.core.dispatch.priority_order import CLASS_STEP, Place
from schedd.core.dispatch.ready_bucket_ids import PACED, LineId, needs_of
from schedd.core.dispatch.ready_buckets import MOST, ReadyBucket
from schedd.core.ids import JobId, RunId, ShardId
from schedd.core.jobs.definition import Priority
from schedd.core.runs.model import LiveRun, RunKey
from schedd.core.runs.pools import PoolKey, PoolRooms
from schedd.core.timers.catch_up_limits import CatchUpRoom
from schedkit.records import dataclass, replace

Fits: TypeAlias = Callable[[Need | None], bool]
"""Whether some worker can run a run of this need; None: the need isn't known yet."""
Goes: TypeAlias = Callable[[Need | None, float], bool]
"""Whether a run of this need and rank may go now."""

_Of: TypeAlias = tuple[Need | None, Priority, bool, bool]
"""Key of a bucket: need, priority, whether late, whether paced."""

MOST_NEEDS: Final = 10_000
"""Bucket ids whose needs are remembered, at most."""


def _any(_: Need | None, _rank: float = 0.0) -> bool:
    return True


def _knows_none(_: JobId) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class QueueHead:
    """Runs of one priority and width that wait. All have the need of the oldest, so a worker
    checks whether the oldest would fit.
    """

    priority: Priority
    waiting_since: datetime
    slots: int
    """Slots that all of them need together."""
    least: int = 1
    """Slots that each of them needs."""


class ReadyQueue:
    """Runs that wait for a slot, each at most once. `most`: runs that a bucket keeps if it
    leaves some.
    """

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self._lines: dict[_Of, ReadyBucket] = {}
        self._where: dict[RunId, ReadyBucket] = {}
        self._needs: dict[int, Need | None] = {}
        """Needs by the number in the bucket id; None: members don't agree on the need."""
        self._scanning = False

    def __len__(self) -> int:
        return len(self._where)

    def ids(self) -> KeysView[RunId]:
        return self._where.keys()

    def __contains__(self, run: RunId) -> bool:
        return run in self._where

    def get(self, run: RunId) -> LiveRun | None:
        line = self._where.get(run)
        return None if line is None else line.runs[run]

    def __iter__(self) -> Iterator[LiveRun]:
        return chain.from_iterable([line.runs.values() for line in self._lines.values()])

    @property
    def leaves_some(self) -> bool:
        """Whether some runs may wait in rows only."""
        return any(line.leaves_some for line in self._lines.values())

    @property
    def short(self) -> bool:
        """Whether a scan is due: some bucket that has left runs has few here."""
        return not self._scanning and any(line.short for line in self._lines.values())

    @property
    def first_left(self) -> RunKey | None:
        """When the first run that a short bucket has left became ready, and its id; None if no
        bucket is short.
        """
        cuts = [line.cut for line in self._lines.values() if line.short and line.cut is not None]
        return min((RunKey(cut.since, cut.run) for cut in cuts), default=None)

    @property
    def late(self) -> int:
        return sum(len(line.runs) for line in self._lines.values() if line.late)

    @property
    def paced(self) -> int:
        return sum(len(line.runs) for line in self._lines.values() if line.paced)

    @property
    def unsorted_late(self) -> int:
        """Number of late runs whose need isn't known."""
        lines = self._lines.values()
        return sum(len(line.runs) for line in lines if line.late and line.need is None)

    def add(
        self, runs: Iterable[LiveRun], need: Need | None = None, *, paced: bool | None = None
    ) -> int:
        """Queue these runs; return how many are new. A queued run is replaced in its place, unless
        `need` or `paced` (if not given: its job's bucket id) puts it into another bucket. If its
        job's bucket id has changed to an unknown one, its need must be looked up.
        """
        fresh = 0
        moved: set[RunId] = set()
        new: dict[tuple[LineId | None, Priority, bool, bool], list[LiveRun]] = defaultdict(list)
        for run_id, run in {run.key.run_id: run for run in runs}.items():
            line = self._where.get(run_id)
            if line is not None and not self._moves(run, line, need, paced):
                line.runs[run_id] = run
                continue
            if line is not None:
                self.discard(run_id)
                moved.add(run_id)
            late = run.ready_at > run.due_at and run.late
            new[_line_of_job(run), run.priority, late, late and run.paced].append(run)
        for (job_line, priority, late, slow), same in new.items():
            its, known = (need, paced) if need else self._need_by_line(job_line, paced)
            line = self._line((its, priority, late, late and (slow if known is None else known)))
            added = line.add(same, scanning=self._scanning)
            self._where.update(dict.fromkeys(added, line))
            fresh += len(added) - len(moved.intersection(added))
            self._forget_runs(line.remove_excess(scanning=self._scanning))
        return fresh

    def _moves(
        self, run: LiveRun, line: ReadyBucket, need: Need | None, paced: bool | None
    ) -> bool:
        """Return whether a queued run belongs into another bucket or another place."""
        stood, job_line = line.runs[run.key.run_id], _line_of_job(run)
        its, slow = (need, paced) if need else self._need_by_line(job_line, paced)
        unknown = its is None and line.need and job_line is not None
        return (
            line.priority != run.priority
            or line.late != run.late
            or stood.ready_at != run.ready_at
            or (line.pool and stood.shard != run.shard)  # into another pool, or out of one
            or (its and its != line.need)
            or (unknown and job_line != stood.line)
            or (run.late and slow is not None and slow != line.paced)
        )

    def learnt(self, run_id: RunId) -> bool:
        """Return whether the need of a run that is queued unsorted is known by now."""
        line = self._where.get(run_id)
        if line is None or line.need is not None:
            return False
        return self._need_by_line(_line_of_job(line.runs[run_id]), None)[0] is not None

    def unsorted(self) -> dict[RunId, LiveRun]:
        """Return the queued runs whose need isn't known."""
        lines = [line.runs for line in self._lines.values() if line.need is None]
        return lines[0] if len(lines) == 1 else dict(chain.from_iterable(map(dict.items, lines)))

    def is_unsorted(self, run_id: RunId) -> bool:
        line = self._where.get(run_id)
        return line is not None and line.need is None

    def learn(self, run: LiveRun, need: Need, generation: int) -> bool:
        """Record a need by the definition of this generation, for all runs with the job's bucket
        id if it is of the same generation. Return False if the definition is an old one.
        """
        if (line := _line_of_job(run)) is None:
            return True
        if generation == run.line_generation:
            needs = needs_of(line)
            known = self._needs.setdefault(needs, need)
            if known is not need and known != need:
                self._needs[needs] = None
            if len(self._needs) > MOST_NEEDS:
                del self._needs[next(iter(self._needs))]
        return generation >= run.line_generation

    @contextmanager
    def refilling(self, since: datetime, end: RunKey) -> Iterator[None]:
        """Surround a read of the rows before `end` whose runs become ready at `since` or later."""
        for line in self._lines.values():
            line.begin_refill(since, end)
        with self.scanning():
            yield

    @contextmanager
    def scanning(self) -> Iterator[None]:
        """Surround a scan. If the scan completes, the runs that it left are all that are left."""
        self._scanning = True
        try:
            yield
        except BaseException:
            for line in self._lines.values():
                self._forget_runs(line.break_scan_off())
            raise
        else:
            for line in [*self._lines.values()]:
                line.end_scan()
                self._drop_if_over(line)
        finally:
            self._scanning = False

    def pop(
        self,
        goes: Goes = _any,
        room: CatchUpRoom | None = None,
        least: int = 0,
        knows: Callable[[JobId], bool] = _knows_none,
    ) -> LiveRun | None:
        """Remove and return the next run that may go; None when no such run waits."""
        return next(iter(self.take_runs(1, goes, room, least, knows)), None)

    def take_runs(
        self,
        count: int,
        goes: Goes = _any,
        room: CatchUpRoom | None = None,
        least: int = 0,
        knows: Callable[[JobId], bool] = _knows_none,
        pools: PoolRooms | None = None,
    ) -> list[LiveRun]:
        """Remove and return the next runs that may go, in order, at most `count`. Late runs and
        runs of pools need room, and use it up; None: unlimited. `least`: only this class and those
        above (`class_of`). `knows`: whether the need of a job is known without a lookup.

        If a run can't go or has no room, the rest of its bucket isn't examined: later runs can't go
        sooner. So each bucket has at most one unsuccessful check, however many runs are taken.
        """
        room = CatchUpRoom() if room is None else room
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
            several = count - len(taken) > 1 and len(line.runs) > 1
            if several and not (line.late or line.pool) and goes(line.need, inf):
                until = min(heads[1:3], default=None)  # the next head
                taken += self._take(line, count - len(taken), until and until[0])
            else:
                if line.late:
                    room.use_room(line.width, paced=line.paced, known=known)
                if pools is not None:
                    pools.use_room(line.pool)
                run = self.discard(place.run)
                assert run is not None, "it stood in its line"
                taken.append(replace(run, paced=line.paced) if run.paced != line.paced else run)
            following = line.oldest()
            if following is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (following, at))
        return taken

    def _take(self, line: ReadyBucket, count: int, until: Place | None) -> list[LiveRun]:
        """Remove and return the next runs of a bucket, which isn't late, up to this place."""
        taken = line.take(count, until)
        for run in taken:
            del self._where[run.key.run_id]
        self._drop_if_over(line)
        return [replace(run, paced=False) if run.paced else run for run in taken]

    def count(self, fits: Fits) -> int:
        """Return how many runs wait in buckets that fit, except paced runs and runs of pools."""
        lines = (line for line in self._lines.values() if not line.paced and not line.pool)
        return sum(len(line.runs) for line in lines if fits(line.need))

    def slots(self, fits: Fits) -> float:
        """Return how many slots the runs of `count` need; infinity if some need several, which must
        be on one worker.
        """
        lines = (line for line in self._lines.values() if not line.paced and not line.pool)
        return sum(
            len(line.runs) if line.width == 1 else inf
            for line in lines
            if line.runs and fits(line.need)
        )

    @property
    def needs(self) -> list[Need]:
        """Return the known needs of waiting runs, some of them more than once."""
        return [line.need for line in self._lines.values() if line.need]

    @property
    def has_pool_runs(self) -> bool:
        return any(line.pool for line in self._lines.values())

    @property
    def pool_runs(self) -> int:
        return sum(len(line.runs) for line in self._lines.values() if line.pool)

    def pools(self) -> set[PoolKey]:
        """Return the pools that some runs wait for."""
        return {line.pool for line in self._lines.values() if line.pool}

    def of_pools(self) -> Counter[PoolKey]:
        """Return the number of waiting runs by pool, as far as known."""
        found: Counter[PoolKey] = Counter()
        for line in self._lines.values():
            if line.pool:
                found[line.pool] += len(line.runs)
        return found

    def oldest(self) -> datetime | None:
        """Return when the oldest waiting run began to wait; None if no run waits."""
        places = (line.oldest() for line in self._lines.values())
        return min((place.since for place in places if place is not None), default=None)

    def heads(
        self, fits: Fits = _any, room: CatchUpRoom | None = None, pools: PoolRooms | None = None
    ) -> list[QueueHead]:
        """Return a head for each priority and width of waiting runs that fit, HIGH first, then
        the widest.

        A run of unknown need counts for one slot. Late runs have heads of their own, in their place
        of this order: as if they had waited less. Heads ask only for slots that room and pools
        allow. Of buckets that share a pool, or the room for late runs, the one with the oldest run
        gets it first.
        """
        left = CatchUpRoom() if room is None else replace(room)
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
                    places.use_room(line.pool, runs)
                if line.late:
                    left.take_all(runs, line.width, paced=line.paced)
                since, slots = found.get(line.of, (oldest.since, 0))
                found[line.of] = (min(oldest.since, since), slots + runs * line.width)
        return [
            QueueHead(Priority(priority), since if on_time else since + CLASS_STEP, slots, width)
            for (priority, width, on_time), (since, slots) in sorted(found.items(), reverse=True)
        ]

    def unsort(self, which: Fits) -> set[JobId]:
        """Forget the needs of runs in these buckets whose job's bucket id no scan has read, because
        their definitions may have changed. Return their jobs.
        """
        lines = [line for line in self._lines.values() if which(line.need)]
        runs = [run for line in lines for run in line.runs.values() if run.line is None]
        for run in runs:
            self.discard(run.key.run_id)
        self.add(runs)
        return {run.job_id for run in runs}

    def unsort_pooled(self, jobs: Collection[JobId]) -> None:
        """Forget the needs of these jobs' runs that wait for pools: the pools may have changed."""
        lines = [line for line in self._lines.values() if line.pool]
        runs = [run for line in lines for run in line.runs.values() if run.job_id in jobs]
        for run in runs:
            self.discard(run.key.run_id)
        self.add(replace(run, line=None) for run in runs)

    def discard(self, run: RunId) -> LiveRun | None:
        line = self._where.pop(run, None)
        if line is None:
            return None
        gone = line.runs.pop(run)
        self._drop_if_over(line)
        return gone

    def drop_shards(self, shards: Iterable[ShardId]) -> None:
        gone = set(shards)
        for run in [run for run in self if run.shard in gone]:
            self.discard(run.key.run_id)

    def _need_by_line(
        self, line: LineId | None, paced: bool | None
    ) -> tuple[Need | None, bool | None]:
        """Return the need of a job's runs, and whether late ones are paced, by its bucket id."""
        need = None if line is None else self._needs.get(needs_of(line))
        return need, paced if need is None or line is None else bool(line & PACED)

    def _line(self, of: _Of) -> ReadyBucket:
        line = self._lines.get(of)
        if line is None:
            line = self._lines[of] = ReadyBucket(*of, most=self.most)
        return line

    def _drop_if_over(self, line: ReadyBucket) -> None:
        if not line.runs and not line.leaves_some:
            self._lines.pop((line.need, line.priority, line.late, line.paced), None)

    def _forget_runs(self, runs: Iterable[LiveRun]) -> None:
        for run in runs:
            del self._where[run.key.run_id]


def _line_of_job(run: LiveRun) -> LineId | None:
    """Return the job's bucket id if the run's need is its job's: it isn't a broadcast's child."""
    return run.line if run.parent is None and run.target is None else None
