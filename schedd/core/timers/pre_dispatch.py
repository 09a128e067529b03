"""Create runs and pre-dispatch them to workers before they are due. Pure.

    timer ──`fire` before due──→ PENDING ──`arm` before due──→ at a worker (ARMED) ──due──→ starts
                                   └─ not pre-dispatched: dispatched when it is ready

Queued runs start one after the other. A pre-dispatched run starts by its worker's own timer
(P4.7), even if its owner or the database fails meanwhile. A run is pre-dispatched if it was
dispatched before it was ready; its `start_by` counts from `ready_at`, and shows this.

Invariants
- A ready run never waits for one that isn't: pre-dispatch uses only free slots, after all ready
  runs of every class.
- An `at_most_once` run is dispatched when it is due: if its worker were lost before, it couldn't be
  known whether the run had started.
- A run is pre-dispatched only if nothing known can still prevent it: no run of its job waits or may
  pause the job by its failure, it is in no pool, and its time is one of the current schedule. If
  the dispatch statement finds an obstacle, the run waits until it is due and is checked again then:
  pre-dispatch ends no run early.
"""

import heapq
from collections.abc import Callable, Collection
from dataclasses import field
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from schedd.core.dispatch.placement import Need
from schedd.core.dispatch.priority_order import rank
from schedd.core.dispatch.ready_queue import QueueHead
from schedd.core.ids import NO_TOKEN, RunId, ShardId, scheduled_run_id
from schedd.core.jobs.definition import Definition, Delivery, Overlap, Placement, Priority
from schedd.core.runs.deadlines import START_WITHIN
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import LiveRun
from schedd.core.runs.overlap import LINED_UP, policy_of
from schedd.core.runs.pools import NO_POOL
from schedd.core.schedule.compiled_schedule import CompiledSchedule
from schedd.core.timers.fire_plan import NOT_EARLY
from schedkit.records import dataclass

MOST: Final = timedelta(seconds=30)
"""Before it is due. What is prepared so early holds its slot as long, and an edit or a pause has
the more to take back: it is for herds that can't be prepared in less.
"""
GUARD: Final = timedelta(seconds=5)
"""How early the database lets a timer be fired at the least, by its own clock (P3.4)."""
BEYOND: Final = timedelta(seconds=2.5)
"""The guard is that much further off than anything is made: clocks differ."""


@dataclass(frozen=True, slots=True)
class Lookahead:
    """How long before it is due a run is made, and handed to its worker."""

    fire: timedelta = NOT_EARLY
    arm: timedelta = NOT_EARLY

    def __post_init__(self) -> None:
        if not NOT_EARLY <= self.arm <= self.fire <= MOST:
            raise ValueError(f"arm is from 0 s to fire, and fire at most {MOST.seconds} s")

    @property
    def guard(self) -> timedelta:
        """How early, by its own clock, the database is to let a timer be fired."""
        return max(GUARD, self.fire + BEYOND)


NEVER: Final = Lookahead()
AT_MOST_ONCE: Final = Delivery.AT_MOST_ONCE


def may_go_early(run: LiveRun) -> bool:
    """Whether it is a schedule's own run that waits for its instant and nothing else."""
    fresh = run.state is State.PENDING and run.token == NO_TOKEN
    return fresh and run.parent is None and run.ready_at == run.due_at


def armable(run: LiveRun, definition: Definition, schedule: CompiledSchedule) -> bool:
    """Whether nothing that is known here could still forbid it at its instant."""
    policy = policy_of(run, definition)
    if policy in LINED_UP or definition.pool != NO_POOL:
        return False
    if policy is Overlap.ALLOW and definition.pause_after_failures:
        return False  # one beside it may be the failure that pauses the job
    if definition.placement is Placement.BROADCAST or definition.delivery is AT_MOST_ONCE:
        return False
    return run.generation == definition.generation or schedule.runs_at(run.key.scheduled_at)


def armed_until(run: LiveRun) -> datetime | None:
    """Return when a pre-dispatched run may start; None: it isn't pre-dispatched."""
    if run.start_by is None or run.start_by - START_WITHIN != run.ready_at:
        return None
    return run.ready_at


def edited_away(
    run: LiveRun, definition: Definition, schedule: CompiledSchedule, edited_at: datetime
) -> bool:
    """Whether a run that was made early is of an instant that an edit has taken out, or excluded,
    before it was due. One that was due before runs, however long it waits; so does one that may
    have begun.
    """
    if run.state is not State.PENDING:
        return False
    if run.generation >= definition.generation or edited_at > run.due_at:
        return False
    nominal = run.key.scheduled_at
    of_schedule = run.key.run_id == scheduled_run_id(run.job_id, nominal)
    return of_schedule and run.parent is None and not schedule.runs_at(nominal)


def early_rank(run: LiveRun) -> float:
    """Its place in the order of all that waits: as if it were LOW, for what is ready goes first."""
    return rank(Priority.LOW, run.ready_at)


class _Place(NamedTuple):
    """Of what is due at one instant the higher priority goes first."""

    ready_at: datetime
    below: int
    number: int
    run: RunId


@dataclass(slots=True)
class _Line:
    runs: dict[RunId, LiveRun] = field(default_factory=dict)
    heap: list[_Place] = field(default_factory=list)
    """Entries are stale unless in `runs`."""

    def first(self) -> _Place | None:
        while self.heap:
            place = self.heap[0]
            run = self.runs.get(place.run)
            if run is not None and run.ready_at == place.ready_at:
                return place
            heapq.heappop(self.heap)
        return None


class EarlyRuns:
    """Runs that may be armed now, each at most once, the soonest due first."""

    def __init__(self) -> None:
        self._lines: dict[Need, _Line] = {}
        self._where: dict[RunId, Need] = {}

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, run: RunId) -> bool:
        return run in self._where

    def add(self, run: LiveRun, need: Need) -> None:
        """Have it go with the others of this need; one that is there already is replaced."""
        run_id = run.key.run_id
        if self._where.get(run_id, need) != need:
            self.discard(run_id)
        line = self._lines.setdefault(need, _Line())
        known = line.runs.get(run_id)
        line.runs[run_id] = run
        self._where[run_id] = need
        if known is None or known.ready_at != run.ready_at:
            heapq.heappush(line.heap, _Place(run.ready_at, -run.priority, run_id.int, run_id))

    def discard(self, run: RunId) -> None:
        """Take this run out, if it is there."""
        need = self._where.pop(run, None)
        if need is None:
            return
        line = self._lines[need]
        del line.runs[run]
        if not line.runs:
            del self._lines[need]

    def take(self, count: int, goes: Callable[[Need], bool]) -> list[LiveRun]:
        """Take out the soonest due of the needs that go, at most so many."""
        lines = [line for need, line in self._lines.items() if goes(need)]
        heads = [(place, at) for at, line in enumerate(lines) if (place := line.first())]
        heapq.heapify(heads)
        taken: list[LiveRun] = []
        while heads and len(taken) < count:
            place, at = heads[0]
            taken.append(lines[at].runs[place.run])
            self.discard(place.run)
            following = lines[at].first()
            if following is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (following, at))
        return taken

    @property
    def needs(self) -> list[Need]:
        """Those of what waits here."""
        return [*self._lines]

    def heads(self, fits: Callable[[Need], bool]) -> list[QueueHead]:
        """What waits here and fits, one head a width: behind all that is ready."""
        found: dict[int, tuple[datetime, int]] = {}
        for need, line in self._lines.items():
            place = line.first()
            if place is None or not fits(need):
                continue
            since, slots = found.get(need.slots, (place.ready_at, 0))
            slots += len(line.runs) * need.slots
            found[need.slots] = min(since, place.ready_at), slots
        return [
            QueueHead(Priority.LOW, since, slots, width)
            for width, (since, slots) in sorted(found.items(), reverse=True)
        ]

    def drop_shards(self, shards: Collection[ShardId]) -> None:
        """Take out all runs of these shards."""
        runs = [run for line in self._lines.values() for run in line.runs.values()]
        for run in runs:
            if run.shard in shards:
                self.discard(run.key.run_id)
