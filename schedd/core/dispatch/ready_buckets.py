"""A bucket: the oldest ready runs of one need and class, by age. The others stay in their rows.

    add ──newest?─yes─→ queue ──oldest of both──→ out
             └──no──→ heap ──┘
              │ more than twice MOST: the newest runs are left in their rows, and all later ones
              ╰─→ cut          few runs left: a scan is requested, which sets the cut again

A scan reads rows in no order. While a scan runs, a bucket keeps the oldest of the runs it reads, by
a cut of the scan's own, which replaces the earlier cut. Runs from elsewhere are compared with that
cut, too. A bucket with room for all its runs is complete again. A refill is a scan of the rows up
to one place (`begin_refill`): that place is its first cut.

Invariants
- Runs in the bucket have priority over all that were left: they are taken in the same order as if
  all were here. Only during a scan may a run precede another that isn't read yet.
- A bucket that has left runs exists, even if empty, until a scan finds no more of its runs.
"""

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import field
from datetime import datetime
from itertools import chain
from typing import Final

from schedd.core.dispatch.placement import Need
from schedd.core.dispatch.priority_order import Place, place_at, places_of
from schedd.core.ids import RunId
from schedd.core.jobs.definition import Priority
from schedd.core.runs.model import LiveRun, RunKey
from schedd.core.runs.pools import NO_POOL, PoolKey, PoolRooms
from schedd.core.timers.catch_up_limits import CatchUpRoom
from schedkit.records import dataclass

MOST: Final = 50_000
"""Runs that a bucket keeps when it leaves some, of about 0.8 KB each; it holds up to twice as many.
A refill reads as many. To read a run again costs a fifth of its dispatch.
"""
_SLACK = 1_000
_MERGED_FOR: Final = 100
"""The heap is merged into a queue with fewer than so many places for each run to take: cheaper than
to pop from the heap.
"""


@dataclass(slots=True)
class ReadyBucket:
    """Runs of one need and priority, by age. Places of the queue and the heap are stale unless
    their runs are in `runs`.
    """

    need: Need | None
    priority: Priority
    late: bool = False
    paced: bool = False
    most: int = MOST
    runs: dict[RunId, LiveRun] = field(default_factory=dict)
    queue: list[Place] = field(default_factory=list)
    """Places in order, from `head` on."""
    head: int = 0
    heap: list[Place] = field(default_factory=list)
    """Places of runs that were added when newer ones were here."""
    cut: Place | None = None
    """Place of the first run that was left, or would have been; None: all are here."""
    scanned: Place | None = None
    """The same as `cut`, for the runs that the present scan has read."""
    of: tuple[int, int, bool] = field(init=False)
    """Priority, width and whether it is on time: the key of a head in `demand`. Plain values,
    because each lookup hashes them.
    """

    def __post_init__(self) -> None:
        self.of = int(self.priority), self.need.slots if self.need else 1, not self.late

    @property
    def width(self) -> int:
        """Slots of each run; 1 if the need isn't known."""
        return self.of[1]

    @property
    def pool(self) -> PoolKey:
        """Pool of the runs; none if the need isn't known."""
        return self.need.pool if self.need else NO_POOL

    @property
    def leaves_some(self) -> bool:
        """Whether some of its runs may be in rows only."""
        return self.cut is not None or self.scanned is not None

    @property
    def short(self) -> bool:
        """Whether runs that were left must be read now. A refill takes about as long as the
        dispatch of half the runs that a bucket keeps.
        """
        return self.cut is not None and 4 * len(self.runs) < 3 * self.most

    def asks(self, room: CatchUpRoom, pools: PoolRooms | None) -> int:
        """Return how many of its runs may go now."""
        count = len(self.runs)
        if pools is not None:
            count = pools.most(count, self.pool)
        return room.most(count, self.width, paced=self.paced) if self.late else count

    def add(self, runs: Sequence[LiveRun], *, scanning: bool = False) -> list[RunId]:
        """Add runs that aren't here; return the ids of those that aren't left in their rows
        instead. `scanning`: all rows are being read.
        """
        places = self._places_of(runs)
        cut = self.scanned if scanning else self.cut
        if cut is not None:
            kept = [each for each in zip(runs, places, strict=True) if each[1] < cut]
            runs, places = [run for run, _ in kept], [place for _, place in kept]
        ids = [place.run for place in places]
        self.runs.update(zip(ids, runs, strict=True))
        places.sort()
        newer = bisect_right(places, self.queue[-1]) if self.queue else 0
        for place in places[:newer]:
            heapq.heappush(self.heap, place)
        self.queue += places[newer:]
        if len(self.queue) + len(self.heap) > 2 * len(self.runs) + _SLACK:
            self._set_queue(sorted(self._places_of(self.runs.values())))
        return ids

    def oldest(self) -> Place | None:
        queue, heap = self.queue, self.heap
        while self.head < len(queue) and not self._is_here(queue[self.head]):
            self.head += 1
        while heap and not self._is_here(heap[0]):
            heapq.heappop(heap)
        if self.head == len(queue):
            return heap[0] if heap else None
        return min(queue[self.head], heap[0]) if heap else queue[self.head]

    def take(self, count: int, until: Place | None) -> list[LiveRun]:
        """Remove and return the next runs, at most `count`, up to this place."""
        taken: list[LiveRun] = []
        places = len(self.queue) - self.head + len(self.heap)
        if len(self.heap) > count and places < _MERGED_FOR * count:
            self._set_queue(sorted([*self.queue[self.head :], *sorted(self.heap)]))
        queue, heap, runs, head = self.queue, self.heap, self.runs, self.head
        while len(taken) < count:
            end = min(head + count - len(taken), len(queue))
            for bound in (heap[0] if heap else None, until):
                if bound is not None:
                    end = bisect_right(queue, bound, head, end)
            some = queue[head:end]
            head = end
            if not some and heap and (until is None or heap[0] <= until):
                some.append(heapq.heappop(heap))
            if not some:
                break
            for _, _, run_id, since in some:
                run = runs.get(run_id)
                if run is not None and run.ready_at == since:
                    del runs[run_id]
                    taken.append(run)
        del queue[:head]
        self.head = 0
        return taken

    def _places_of(self, runs: Iterable[LiveRun]) -> list[Place]:
        return places_of(runs, self.priority, late=self.late)

    def _set_queue(self, places: list[Place]) -> None:
        """Keep these places, which are sorted."""
        self.queue, self.head, self.heap = places, 0, []

    def _places(self) -> list[Place]:
        """Return the places of all runs, some of them twice."""
        return [place for place in chain(self.queue, self.heap) if self._is_here(place)]

    def remove_excess(self, *, scanning: bool) -> list[LiveRun]:
        """Remove and return the runs above the limit: they are left in their rows."""
        if len(self.runs) <= 2 * self.most:
            return []
        places = sorted(self._places())
        if len(places) > len(self.runs):  # some runs have two entries
            places = [*dict.fromkeys(places)]
        gone = places[self.most :]
        self._set_queue(places[: self.most])
        if scanning:
            self.scanned = sooner(self.scanned, gone[0])
        else:
            self.cut = sooner(self.cut, gone[0])
        return [self.runs.pop(place.run) for place in gone]

    def begin_refill(self, since: datetime, end: RunKey) -> None:
        """Begin a read of the rows before `end`, as far as their runs become ready at `since` or
        later. No run is ready before its scheduled time, so other rows have later runs.
        """
        if self.cut is not None:
            place = place_at(end, self.priority, late=self.late)
            self.scanned = max(self.cut, place) if self.cut.since >= since else self.cut

    def end_scan(self) -> None:
        """End a complete scan: the runs left during the scan are all that are left."""
        self.cut, self.scanned = self.scanned, None

    def break_scan_off(self) -> list[LiveRun]:
        """End an incomplete scan: the earlier cut counts too. Remove and return runs beyond the
        cut.
        """
        cut = sooner(self.cut, self.scanned)
        self.cut, self.scanned = cut, None
        if cut is None:
            return []
        beyond = {place.run for place in self._places() if place >= cut}
        return [self.runs.pop(run_id) for run_id in beyond]

    def _is_here(self, place: Place) -> bool:
        run = self.runs.get(place.run)
        return run is not None and run.ready_at == place.since


def sooner(one: Place | None, other: Place | None) -> Place | None:
    """Return the place that goes first; None stands for no place."""
    if one is None or other is None:
        return one or other
    return min(one, other)
