"""Create runs and pre-dispatch them to workers before they are due
(docs/semantics/pre-dispatch.md). Pure.

A pre-dispatched run is started by its worker's own timer (P4.7), even if its owner or the database
fails meanwhile. A run is pre-dispatched if it was dispatched before it was ready. Its `start_by`
counts from `ready_at`, which shows this.

Invariants
- A ready run never waits for one that isn't: pre-dispatch uses only free slots, after all ready
  runs of every class.
- An `at_most_once` run is dispatched only when it is due. If its worker were lost before, it would
  be unknown whether the run had started.
- A run is pre-dispatched only if nothing known can still prevent it: no run of its job waits or may
  pause the job by its failure, the job has no pool, and the time is in the current schedule. If the
  dispatch statement finds an obstacle, the run waits until it is due. Pre-dispatch ends no run
  early.
"""

import heapq
from collections.abc import Callable, Collection
from dataclasses import field
from datetime import datetime, timedelta
from math import inf
from typing import Final, NamedTuple

from schedd.core.dispatch.placement import Need
from schedd.core.dispatch.priority_order import rank
from schedd.core.dispatch.ready_queue import QueueHead
from schedd.core.ids import NO_TOKEN, RunId, ShardId, scheduled_run_id
from schedd.core.jobs.definition import Definition, Delivery, Overlap, Placement, Priority
from schedd.core.runs.deadlines import START_WITHIN, hurried
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import LiveRun
from schedd.core.runs.overlap import LINED_UP, policy_of
from schedd.core.runs.pools import NO_POOL
from schedd.core.schedule.compiled_schedule import CompiledSchedule
from schedd.core.timers.fire_plan import NOT_EARLY
from schedkit.records import dataclass

MOST: Final = timedelta(seconds=30)
"""The longest lookahead. A long lookahead holds slots longer, and an edit or a pause must take back
more runs. It is for bursts that can't be pre-dispatched in less time.
"""
GUARD: Final = timedelta(seconds=5)
"""The smallest guard: how early, by its own clock, the database allows a timer to fire (P3.4)."""
BEYOND: Final = timedelta(seconds=2.5)
"""The difference between the guard and the lookahead, as a margin for clock differences."""


@dataclass(frozen=True, slots=True)
class Lookahead:
    """How long before the due time a run is created (`fire`) and pre-dispatched (`dispatch`)."""

    fire: timedelta = NOT_EARLY
    dispatch: timedelta = NOT_EARLY

    def __post_init__(self) -> None:
        if not NOT_EARLY <= self.dispatch <= self.fire <= MOST:
            raise ValueError(
                f"lookahead.dispatch must be from 0 s to lookahead.fire, and lookahead.fire at most"
                f" {MOST.seconds} s"
            )

    @property
    def guard(self) -> timedelta:
        """How early, by its own clock, the database allows a timer to fire."""
        return max(GUARD, self.fire + BEYOND)


NEVER: Final = Lookahead()


def may_go_early(run: LiveRun) -> bool:
    """Return whether the run was never dispatched and waits only for its due time. False for a
    broadcast's child.
    """
    fresh = run.state is State.PENDING and run.token == NO_TOKEN
    return fresh and run.parent is None and run.ready_at == run.due_at


def may_be_pre_dispatched(run: LiveRun, definition: Definition, schedule: CompiledSchedule) -> bool:
    """Return whether nothing known here can prevent the run's start at its due time."""
    if _may_be_prevented(definition, policy_of(run, definition)):
        return False
    if definition.placement is Placement.BROADCAST:
        return False
    return run.generation == definition.generation or schedule.runs_at(run.key.scheduled_at)


def may_be_fired_running(definition: Definition) -> bool:
    """Return whether a run of this job may be dispatched by the statement that fires it, if its job
    has no other live run: nothing else can prevent its start, nothing limits it, and it may go to
    any able worker.
    """
    if _may_be_prevented(definition, definition.overlap) or definition.max_runs:
        return False
    if definition.placement is not Placement.SPREAD or definition.prefer:
        return False
    return not hurried(definition)


def _may_be_prevented(definition: Definition, policy: Overlap) -> bool:
    """Return whether another run, or a lost worker, may decide about a start that isn't due."""
    # Under ALLOW a concurrent run may fail and so pause the job.
    paused = policy is Overlap.ALLOW and definition.pause_after_failures
    lined_up = policy in LINED_UP or definition.pool != NO_POOL
    return bool(lined_up or paused) or definition.delivery is Delivery.AT_MOST_ONCE


def start_not_before(run: LiveRun) -> datetime | None:
    """Return when a pre-dispatched run may start; None: it isn't pre-dispatched."""
    if run.start_by is None or run.start_by - START_WITHIN != run.ready_at:
        return None
    return run.ready_at


def edited_away(
    run: LiveRun, definition: Definition, schedule: CompiledSchedule, edited_at: datetime
) -> bool:
    """Return whether an edit removed or excluded the time of a run that was created early, before
    the run was due. A run that was already due, or may have started, isn't affected.
    """
    if run.state is not State.PENDING:
        return False
    if run.generation >= definition.generation or edited_at > run.due_at:
        return False
    nominal = run.key.scheduled_at
    of_schedule = run.key.run_id == scheduled_run_id(run.job_id, nominal)
    return of_schedule and run.parent is None and not schedule.runs_at(nominal)


def early_rank(run: LiveRun) -> float:
    """Return the rank of a run to pre-dispatch: as if LOW, so that ready runs have priority."""
    return rank(Priority.LOW, run.ready_at)


class _Place(NamedTuple):
    """The position of a run: by due time, then by priority, high first."""

    ready_at: datetime
    below: int
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
    """Runs that may be pre-dispatched now, each at most once, the soonest due first."""

    def __init__(self) -> None:
        self._lines: dict[Need, _Line] = {}
        self._where: dict[RunId, Need] = {}

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, run: RunId) -> bool:
        return run in self._where

    def add(self, run: LiveRun, need: Need) -> None:
        run_id = run.key.run_id
        if self._where.get(run_id, need) != need:
            self.discard(run_id)
        line = self._lines.setdefault(need, _Line())
        known = line.runs.get(run_id)
        line.runs[run_id] = run
        self._where[run_id] = need
        if known is None or known.ready_at != run.ready_at:
            heapq.heappush(line.heap, _Place(run.ready_at, -run.priority, run_id))

    def discard(self, run: RunId) -> None:
        """Remove the run, if it is in the index."""
        need = self._where.pop(run, None)
        if need is None:
            return
        line = self._lines[need]
        del line.runs[run]
        if not line.runs:
            del self._lines[need]

    def take_runs(self, count: int, goes: Callable[[Need], bool]) -> list[LiveRun]:
        """Remove and return at most `count` runs whose needs satisfy `goes`, soonest due first."""
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

    def slots(self, fits: Callable[[Need], bool]) -> float:
        """Return how many slots these runs need; infinity if some need several on one worker."""
        return sum(
            len(line.runs) if need.slots == 1 else inf
            for need, line in self._lines.items()
            if fits(need)
        )

    @property
    def needs(self) -> list[Need]:
        return [*self._lines]

    def heads(self, fits: Callable[[Need], bool]) -> list[QueueHead]:
        """Return one queue head per number of slots, LOW as they are behind all ready runs."""
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
        runs = [run for line in self._lines.values() for run in line.runs.values()]
        for run in runs:
            if run.shard in shards:
                self.discard(run.key.run_id)
