"""Timers that wait for free slots, to be fired as RUNNING (`store/timers/fire_running.py`).

    planned steps ──hold──→ lines by need ──choose: a slot is free──→ fired as RUNNING
                                   └──overdue: no slot in time───────→ fired as PENDING

Timers of one definition that take the same step are held as one batch (`Planned`). Their entries in
`loaded_timers` stay, so a timer that is changed, moved or dropped is no longer held: its place in
the batch is stale.

Invariants (docs/protocol-rules.md, P3.4, P4.7)
- Free slots that runs need which wait in the ready queue, or to be pre-dispatched, are left to
  them.
- Due timers have priority over others, planned or not, in the order of the ready queue: late ones
  are one class lower, by the time when their steps were planned. The others are fired as RUNNING by
  `lookahead.dispatch` before they are due. If `HERD` timers are held, that is too late for some:
  they are fired as soon as there are slots.
- A due timer for which there is no slot is overdue once a run is ready, which the ready queue
  orders, or after `HOLD`. So each step is written while the next time of its timer isn't late.
- The work between two awaits is bounded, however many needs are held.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from datetime import UTC, datetime, timedelta
from itertools import chain, count, groupby, islice, repeat
from math import ceil, inf
from typing import Final, TypeAlias

from schedd.core.dispatch.placement import Need, SlotOffer
from schedd.core.dispatch.priority_order import CLASS_STEP, rank
from schedd.core.dispatch.ready_queue import QueueHead, ReadyQueue
from schedd.core.dispatch.slot_index import SlotIndex
from schedd.core.ids import JobId, ShardId, scheduled_run_ids
from schedd.core.jobs.definition import Priority
from schedd.core.runs.model import Firing, FiringToSlot, RunKey, SlotBatch, Terms, Timer
from schedd.core.timers.pre_dispatch import EarlyRuns, Lookahead
from schedd.dispatch.assignment import terms_of
from schedd.dispatch.loaded_timers import Timers
from schedd.dispatch.workers.attached_slots import SlotReservation
from schedd.runtime.definition_texts import CachedDefinition
from schedkit.records import dataclass, named_tuples

HERD: Final = 5_000
"""Number of waiting runs or held timers from which on dispatch takes longer than the lookahead.
Runs and timers beyond it are pre-dispatched as soon as they are created or planned, and runs in
long backoffs wait in their rows only.
"""
LOOKS: Final = 1_000
"""For how many lines one choice looks for slots, at most. The next choice looks for the others when
these are gone.
"""
HOLD: Final = timedelta(seconds=0.5)
"""How long after its due time a timer is held for a slot, while no run is ready: less than `GRACE`
of `fire_plan`, so that the timer's next time isn't late.
"""
EVER: Final = datetime.max.replace(tzinfo=UTC)


Defined: TypeAlias = tuple[Timer, CachedDefinition]
"""A timer, and its job's definition."""


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """Timers with the same step, which is one run, and definitions of one text."""

    timers: list[Defined]
    step: Firing
    """The step of one of them, or of another timer with the same schedule and times."""

    @property
    def late(self) -> bool:
        """Whether the run is late."""
        return self.step.runs[0].ready_at is not None


@dataclass(slots=True, eq=False)
class _Line:
    need: Need
    priority: Priority
    late: bool
    number: int
    order: list[tuple[datetime, datetime, int, Planned]] = field(default_factory=list)
    """By the time when the run is ready, then by due time; some timers are no longer held."""
    size: int = 0
    """Number of timers."""
    ready: Counter[datetime] = field(default_factory=Counter)
    """Number of timers by the time when the run is ready."""

    @property
    def its_class(self) -> int:
        """The number of the priority, less one for late runs (`priority_order.class_of`)."""
        return self.priority - self.late


_Head: TypeAlias = tuple[bool, float, int, _Line]
"""Whether the first timer of a line isn't due yet, its rank, the number of the line, the line."""


class HeldTimers:
    """Held timers of one tenure, in lines of one need and priority."""

    def __init__(self, timers: Timers, lookahead: Lookahead) -> None:
        self._timers = timers
        self._lookahead = lookahead
        self._lines: dict[tuple[Need, Priority, bool], _Line] = {}
        self._count = count()
        self._without: list[_Line] = []
        """Lines of due timers for which the last choice found no slots, first by rank."""
        self._left_room = False
        """Whether the last choice was of one class only, and had room for others."""

    def __len__(self) -> int:
        return sum(line.size for line in self._lines.values())

    @property
    def needs(self) -> list[Need]:
        """The needs of held timers."""
        return [line.need for line in self._lines.values()]

    def hold(self, planned: Iterable[Planned]) -> None:
        """Hold these timers until each has a slot, or is overdue."""
        for each in planned:
            known, timers = each.timers[0][1], [timer for timer, _ in each.timers]
            line = self._line(known.text.need, known.text.definition.priority, each.late)
            self._timers.keep_all([timer.job_id for timer in timers], timers)
            ready_at = each.step.ready_at
            insort(line.order, (ready_at, each.step.due_at, next(self._count), each))
            line.size += len(timers)
            line.ready[ready_at] += len(timers)

    def release(self, now: datetime) -> None:
        """Hold nothing: a pause or resume of the cluster has made the steps invalid."""
        for line in self._lines.values():
            for *_, each in line.order:
                timers = [timer for timer, _ in self._timers.pop_same(each.timers)]
                self._timers.come_up(timers, now=now)
        self._lines.clear()
        self._without.clear()

    def choose(
        self,
        most: int,
        now: datetime,
        offers: SlotIndex,
        choice: SlotReservation,
        queues: tuple[ReadyQueue, EarlyRuns],
    ) -> list[tuple[FiringToSlot, CachedDefinition]]:
        """Remove and return timers for which slots are free, beyond those that waiting runs need,
        and reserve these slots. At most `most`, of one class. If that leaves room, the next choice
        isn't limited to one class: a timer with a free slot waits for no stream of others.
        """
        waiting = _slots_needed(offers, now, *queues)
        free = waiting < offers.slots
        last = self._early(now) if free and self._due_are_held(now) else now
        heads = [head for line in [*self._lines.values()] if (head := self._head(line, now, last))]
        heapq.heapify(heads)
        self._without.clear()
        chosen: list[tuple[FiringToSlot, CachedDefinition]] = []
        terms: dict[object, Terms] = {}
        full: set[Need] = set()
        looked, its_class = 0, None
        apart, self._left_room = not self._left_room, False
        while heads and len(chosen) < most and looked < LOOKS:
            looked += 1
            early, _, _, line = head = heapq.heappop(heads)
            if apart and chosen and its_class != line.its_class:
                self._left_room = True
                break
            went: list[tuple[Planned, list[SlotOffer]]] = []
            if free and line.need not in full:
                until = _until(head, heads, now, last)
                went = self._choose(head, until, most - len(chosen), ceil(waiting), offers)
            if went:
                for offer, taken in Counter(chain.from_iterable([its for _, its in went])).items():
                    choice.reserve_slots(offer, taken * line.need.slots)
                chosen += _to_slots(went, terms)
                its_class = line.its_class
                if (following := self._head(line, now, last)) is not None:
                    heapq.heappush(heads, following)
            else:
                full.add(line.need)
                if not early:
                    self._without.append(line)
        return chosen

    def _choose(
        self, head: _Head, until: datetime, most: int, waiting: int, offers: SlotIndex
    ) -> list[tuple[Planned, list[SlotOffer]]]:
        """Remove and return the first timers of a line, ready by `until`, with an offer for
        each.
        """
        early, its_rank, _, line = head
        need, first = line.need, line.order[0][-1]
        spare = -(-waiting // need.slots)
        found, free = offers.spread(need, most + spare), most
        if found is not None:
            free = len(found) - spare
        else:
            its_rank = rank(Priority.LOW, line.order[0][0]) if early else its_rank
            if not offers.exceeds(need, its_rank, waiting + need.slots - 1):
                return []
            timer, known = first.timers[0]
            one = offers.choose(timer.job_id, known.definition, need, its_rank)
            found, free = ([], 0) if one is None else ([one], 1)
        left = iter(found)
        taken = self._take(line, free, until)
        return [(each, [*islice(left, len(each.timers))]) for each in taken]

    def overdue(self, most: int, until: datetime, above: float | None = None) -> list[Planned]:
        """Remove and return timers ready by `until` for which the last choice found no slots: at
        most `most`, of one class, above `above`.
        """
        lines = [e for e in self._without if above is None or e.its_class > above]
        found: list[Planned] = []
        for line in lines:
            if line.its_class == lines[0].its_class:
                found += self._take(line, most - sum(len(each.timers) for each in found), until)
        return found

    def next_at(self) -> datetime | None:
        """Return when a held timer may be fired as RUNNING next; None: no timer is held. A time
        that has passed: some timers wait for slots.
        """
        firsts = [first for line in [*self._lines.values()] if (first := self._first(line))]
        return min(firsts) - self._lookahead.dispatch if firsts else None

    def any_due(self, now: datetime, fits: Callable[[Need], bool]) -> bool:
        """Return whether a timer is due whose need fits."""
        lines = [line for line in self._lines.values() if fits(line.need)]
        return any((first := self._first(line)) is not None and first <= now for line in lines)

    def heads(self, now: datetime, fits: Callable[[Need], bool]) -> list[QueueHead]:
        """Return queue heads for each line whose need fits: of its due timers, and of others that
        may be fired now. The latter have LOW priority, behind all ready runs.
        """
        until = self._early(now)
        found: list[QueueHead] = []
        for line in [*self._lines.values()]:
            if not fits(line.need) or self._first(line) is None:
                continue
            due = {at: timers for at, timers in line.ready.items() if at <= now}
            early = {at: timers for at, timers in line.ready.items() if now < at <= until}
            for priority, its in (line.priority, due), (Priority.LOW, early):
                if its:
                    since = min(its) + line.late * CLASS_STEP
                    slots = sum(its.values()) * line.need.slots
                    found.append(QueueHead(priority, since, slots, line.need.slots))
        return found

    def _line(self, need: Need, priority: Priority, late: bool) -> _Line:
        of = need, priority, late
        line = self._lines.get(of)
        if line is None:
            line = self._lines[of] = _Line(*of, next(self._count))
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

    def _head(self, line: _Line, now: datetime, last: datetime) -> _Head | None:
        """Return the head of a line; None: no timer in it is ready by `last`."""
        first = self._first(line)
        if first is None or first > last:
            return None
        return first > now, rank(line.its_class, first), line.number, line

    def _first(self, line: _Line) -> datetime | None:
        """Return when the line's first timer is ready; None: there is none."""
        while line.order:
            ready_at, *_, each = line.order[0]
            held = (at for at, (timer, _) in enumerate(each.timers) if self._is_held(timer))
            stale = next(held, len(each.timers))
            if not stale:
                return ready_at
            self._pop(line, each, stale)
            if not each.timers:
                self._remove(line, 1)
        return None

    def _take(self, line: _Line, most: int, until: datetime) -> list[Planned]:
        """Remove and return the first timers of a line, ready by `until`."""
        taken: list[Planned] = []
        emptied = 0
        for ready_at, *_, each in line.order:
            if ready_at > until:
                break
            while each.timers and most > 0:
                timers = self._timers.pop_same(self._pop(line, each, most))
                if timers:
                    taken.append(Planned(timers, each.step))
                    most -= len(timers)
            if each.timers:
                break
            emptied += 1
        self._remove(line, emptied)
        return taken

    def _pop(self, line: _Line, each: Planned, count: int) -> list[Defined]:
        """Remove and return the first timers of a batch in a line. The batch stays, if empty."""
        first = each.timers[:count]
        del each.timers[:count]
        line.size -= len(first)
        ready_at = each.step.ready_at
        line.ready[ready_at] -= len(first)
        if not line.ready[ready_at]:
            del line.ready[ready_at]
        return first

    def _remove(self, line: _Line, emptied: int) -> None:
        """Remove the first batches of a line, which are empty, and the line if none is left."""
        del line.order[:emptied]
        if emptied and not line.order:
            self._lines.pop((line.need, line.priority, line.late), None)

    def _is_held(self, timer: Timer) -> bool:
        found = self._timers.get(timer.job_id)
        return found is not None and found[1] is timer


def _until(head: _Head, others: list[_Head], now: datetime, last: datetime) -> datetime:
    """Return until when timers of this line are ready that go before those of other lines."""
    early, its_rank, _, line = head
    last = last if early else now
    if not others or others[0][0] != early:
        return last
    return min(last, line.order[0][0] + timedelta(seconds=others[0][1] - its_rank))


def _slots_needed(offers: SlotIndex, now: datetime, ready: ReadyQueue, early: EarlyRuns) -> float:
    """Return how many slots waiting runs need, of those that some free slot could serve."""
    first = rank(Priority.LOW, now)

    def serves(need: Need | None) -> bool:
        return offers.slots > 0 if need is None else offers.free(need, -inf)

    return ready.slots(serves) + early.slots(lambda need: offers.free(need, first))


def _to_slots(
    went: Sequence[tuple[Planned, Sequence[SlotOffer]]], terms: dict[object, Terms]
) -> list[tuple[FiringToSlot, CachedDefinition]]:
    """Return timers with a slot of these offers for each, and their definitions."""
    rows: list[tuple[Timer, JobId, ShardId, RunKey, SlotBatch]] = []
    for at, some in groupby(went, lambda each: each[0].step.runs[0].key.scheduled_at):
        same = [*some]
        timers = [timer for each, _ in same for timer, _ in each.timers]
        keys = zip(repeat(at), scheduled_run_ids([timer.job_id for timer in timers], at))
        batches = chain.from_iterable([_batches(each, offers, terms) for each, offers in same])
        rows += [
            (timer, timer.job_id, timer.shard, key, batch)
            for timer, key, batch in zip(timers, named_tuples(RunKey, keys), batches, strict=True)
        ]
    known = [its for each, _ in went for _, its in each.timers]
    return [*zip(named_tuples(FiringToSlot, rows), known, strict=True)]


def _batches(
    each: Planned, offers: Sequence[SlotOffer], terms: dict[object, Terms]
) -> list[SlotBatch]:
    """Return the common part of the timer of each of these offers."""
    text = each.timers[0][1].text
    batches: dict[SlotOffer, SlotBatch] = {}
    for offer in {*offers}:
        of = id(text), offer.id
        its = terms.get(of)
        if its is None:
            its = terms[of] = terms_of(text.definition, offer.incarnation)
        batches[offer] = SlotBatch(each.step, text.definition.priority, its)
    return [batches[offer] for offer in offers]
