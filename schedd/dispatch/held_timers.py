"""Timers that wait for free slots, to be fired as RUNNING (`store/timers/fire_running.py`).

    planned steps ──hold──→ lines by need ──choose: a slot is free──→ fired as RUNNING
                                   └──overdue: no slot in time───────→ fired as PENDING

The entry of a held timer in `loaded_timers` stays, so a timer that is changed, moved or dropped is
no longer held: its place in the line is stale.

Invariants (docs/protocol-rules.md, P3.4, P4.7)
- Free slots that runs need which wait in the ready queue, or to be pre-dispatched, are left to
  them. A due timer without a slot that has priority over a ready run at the head of a bucket is
  overdue: the ready queue orders its run among the others.
- Due timers have priority over others, in the order of the ready queue, planned or not. The others
  are fired as RUNNING by `lookahead.dispatch` before they are due. If `HERD` timers are held, that
  is too late for some: they are fired as soon as there are slots.
- A timer is held until `HOLD` after its due time, and only while slots become free or enough runs
  are ready.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import field
from datetime import UTC, datetime, timedelta
from itertools import count
from math import ceil, inf
from typing import Final

from schedd.core.dispatch.placement import Need, SlotOffer, job_need
from schedd.core.dispatch.priority_order import rank
from schedd.core.dispatch.ready_queue import QueueHead, ReadyQueue
from schedd.core.dispatch.slot_index import SlotIndex
from schedd.core.ids import scheduled_run_id
from schedd.core.jobs.definition import Priority
from schedd.core.runs.model import Firing, FiringToSlot, RunKey, Terms, Timer
from schedd.core.timers.pre_dispatch import EarlyRuns, Lookahead
from schedd.dispatch.assignment import terms_of
from schedd.dispatch.loaded_timers import Timers
from schedd.dispatch.workers.attached_slots import SlotReservation
from schedd.runtime.definition_texts import CachedDefinition
from schedkit.records import dataclass

HERD: Final = 5_000
"""Number of waiting runs or held timers from which on dispatch takes longer than the lookahead.
Runs and timers beyond it are pre-dispatched as soon as they are created or planned, and runs in
long backoffs wait in their rows only.
"""
HOLD: Final = timedelta(seconds=3)
"""How long after its due time a timer is held at most."""
QUIET: Final = timedelta(seconds=0.25)
"""If no timer got a slot for so long, timers that are overdue by as much aren't held any longer."""
NEVER: Final = datetime.min.replace(tzinfo=UTC)
EVER: Final = datetime.max.replace(tzinfo=UTC)
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
TICK: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Planned:
    """A timer with its step: one run that isn't late."""

    timer: Timer
    step: Firing
    """The step of a timer with the same schedule and times."""
    known: CachedDefinition


@dataclass(frozen=True, slots=True)
class ReadyHeads:
    """The ready runs that some worker here could run, as far as they matter to held timers."""

    last_rank: float = -inf
    """The greatest rank of the oldest runs of their buckets."""
    enough: bool = False
    """Whether so many runs are ready that more of them would start none sooner."""


@dataclass(slots=True)
class _Line:
    need: Need
    priority: Priority
    heap: list[tuple[datetime, int, Planned]] = field(default_factory=list)
    """By due time."""


class HeldTimers:
    """Held timers of one tenure, in lines of one need and priority."""

    def __init__(self, timers: Timers, lookahead: Lookahead) -> None:
        self._timers = timers
        self._lookahead = lookahead
        self._lines: dict[tuple[Need, Priority], _Line] = {}
        self._count = count()
        self._went_at = NEVER
        """When timers got slots last."""

    def __len__(self) -> int:
        return sum(len(line.heap) for line in self._lines.values())

    @property
    def needs(self) -> list[Need]:
        """The needs of held timers."""
        return [line.need for line in self._lines.values()]

    def hold(self, planned: Iterable[Planned]) -> None:
        """Hold these timers until each has a slot, or is overdue."""
        line = _Line(Need(""), Priority.LOW)
        for each in planned:
            timer, priority = each.timer, each.known.definition.priority
            assert timer.due_at is not None, "its step has a run"
            need = each.known.need or job_need(each.known.definition)
            if need is not line.need or priority != line.priority:
                line = self._line(need, priority)
            self._timers.keep(timer.job_id, timer)
            heapq.heappush(line.heap, (timer.due_at, next(self._count), each))

    def release(self) -> None:
        """Hold nothing: a pause or resume of the cluster has made the steps invalid."""
        for line in self._lines.values():
            for _, _, each in line.heap:
                if self._is_held(each):
                    self._timers.discard(each.timer.job_id)
                    self._timers.come_up([each.timer])
        self._lines.clear()

    def choose(
        self,
        most: int,
        now: datetime,
        offers: SlotIndex,
        choice: SlotReservation,
        queues: tuple[ReadyQueue, EarlyRuns],
    ) -> list[tuple[FiringToSlot, CachedDefinition]]:
        """Remove and return timers for which slots are free, beyond those that waiting runs need,
        and reserve these slots. At most `most`, of one priority.
        """
        if not self._lines or not offers.slots:
            return []
        waiting = sum(queue.slots(lambda need: _some(offers, need)) for queue in queues)
        if waiting >= offers.slots:
            return []
        chosen: list[tuple[FiringToSlot, CachedDefinition]] = []
        terms: dict[object, Terms] = {}
        for until in (now, self._early(now)) if self._due_are_held(now) else (now,):
            full: set[Need] = set()
            while (head := self._next(until, offers, full)) is not None and len(chosen) < most:
                line, limit = head
                if chosen and chosen[0][0].priority != line.priority:
                    break
                left = most - len(chosen)
                went = self._choose(line, limit, left, ceil(waiting), offers, due=until <= now)
                if not went:
                    full.add(line.need)
                for offer, taken in Counter(offer for _, offer in went).items():
                    choice.reserve_slots(offer, taken * line.need.slots)
                chosen += [(_to_slot(each, offer, terms), each.known) for each, offer in went]
        if chosen:
            self._went_at = now
        return chosen

    def _choose(
        self,
        line: _Line,
        until: datetime,
        most: int,
        waiting: int,
        offers: SlotIndex,
        *,
        due: bool,
    ) -> list[tuple[Planned, SlotOffer]]:
        """Remove and return the first timers of a line, due by `until`, with offers for them.

        `due`: whether they are due now. Others have LOW priority.
        """
        spare = -(-waiting // line.need.slots)
        found = offers.spread(line.need, most + spare)
        if found is not None:
            return list(zip(self._take(line, len(found) - spare, until), found, strict=False))
        if spare:
            return []
        first_at, _, first = line.heap[0]
        its_rank = rank(line.priority if due else Priority.LOW, first_at)
        one = offers.choose(first.known.definition, line.need, its_rank)
        return [] if one is None else [(each, one) for each in self._take(line, 1, until)]

    def overdue(self, most: int, now: datetime, ready: ReadyHeads) -> list[Planned]:
        """Remove and return due timers that can't wait for slots any longer, at most `most`."""
        quiet = self._went_at <= now - QUIET and not ready.enough
        until = now - QUIET if quiet else now - HOLD
        found: list[Planned] = []
        for line in self._lines.values():
            ahead = min(now, _due_before(ready.last_rank, line.priority))
            found += self._take(line, most - len(found), max(until, ahead))
        self._lines = {of: line for of, line in self._lines.items() if line.heap}
        return found

    def next_at(self) -> datetime | None:
        """Return when a held timer may be fired as RUNNING next; None: no timer is held. A time
        that has passed: some timers wait for slots.
        """
        firsts = [first for line in self._lines.values() if (first := self._first(line))]
        return min(firsts) - self._lookahead.dispatch if firsts else None

    def heads(self, now: datetime, fits: Callable[[Need], bool]) -> list[QueueHead]:
        """Return a queue head for each line whose need fits, if its first timer may be fired now.
        A timer that isn't due has LOW priority, behind all ready runs.
        """
        until = self._early(now)
        return [
            QueueHead(
                line.priority if first <= now else Priority.LOW,
                first,
                len(line.heap) * line.need.slots,
                line.need.slots,
            )
            for line in self._lines.values()
            if fits(line.need) and (first := self._first(line)) is not None and first <= until
        ]

    def _line(self, need: Need, priority: Priority) -> _Line:
        line = self._lines.get((need, priority))
        if line is None:
            line = self._lines[need, priority] = _Line(need, priority)
        return line

    def _early(self, now: datetime) -> datetime:
        """Return until which due time timers may be fired now."""
        if not self._lookahead.dispatch:
            return now
        return EVER if len(self) >= HERD else now + self._lookahead.dispatch

    def _due_are_held(self, now: datetime) -> bool:
        """Return whether no timer that is due waits for its step to be planned."""
        following = self._timers.next_at()
        return following is None or following > now - self._lookahead.fire

    def _next(
        self, until: datetime, offers: SlotIndex, full: Collection[Need]
    ) -> tuple[_Line, datetime] | None:
        """Return the line of the timer that goes first, of those for which a slot is free; and the
        last due time for which that is so.
        """
        heads = sorted(
            (rank(line.priority, first), number, line)
            for number, line in enumerate(self._lines.values())
            if (first := self._first(line)) is not None
            and first <= until
            and line.need not in full
            and offers.free(line.need, -inf)
        )
        if not heads:
            return None
        (head, _, line), *others = heads
        if not others:
            return line, until
        ahead = timedelta(seconds=others[0][0] - head)
        return line, min(until, line.heap[0][0] + ahead)

    def _first(self, line: _Line) -> datetime | None:
        """Return the due time of the line's first timer; None: there is none."""
        heap = line.heap
        while heap and not self._is_held(heap[0][2]):
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def _take(self, line: _Line, most: int, until: datetime) -> list[Planned]:
        """Remove and return the first timers of a line, due by `until`."""
        taken: list[Planned] = []
        heap = line.heap
        while heap and len(taken) < most and heap[0][0] <= until:
            _, _, each = heapq.heappop(heap)
            if self._is_held(each):
                self._timers.discard(each.timer.job_id)
                taken.append(each)
        return taken

    def _is_held(self, each: Planned) -> bool:
        found = self._timers.get(each.timer.job_id)
        return found is not None and found[1] is each.timer


def _due_before(last: float, priority: Priority) -> datetime:
    """Return the last due time of timers that rank before the given rank."""
    if last == -inf:
        return NEVER
    return datetime.fromtimestamp(last - rank(priority, EPOCH), UTC) - TICK


def _some(offers: SlotIndex, need: Need | None) -> bool:
    """Return whether a free slot could serve a waiting run of this need."""
    return offers.slots > 0 if need is None else offers.free(need, -inf)


def _to_slot(each: Planned, offer: SlotOffer, terms: dict[object, Terms]) -> FiringToSlot:
    timer, known = each.timer, each.known
    of = id(known.spec), known.definition.generation, offer.id
    its = terms.get(of)
    if its is None:
        its = terms[of] = terms_of(known.definition, offer.incarnation)
    at = each.step.runs[0].key.scheduled_at
    key = RunKey(at, scheduled_run_id(timer.job_id, at))
    priority = known.definition.priority
    return FiringToSlot(timer, timer.job_id, timer.shard, key, priority, each.step, its)
