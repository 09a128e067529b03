"""Index of the offers of all workers here: a run finds its worker without a scan of all.

    kinds: workers with equal skills and equal fit ──→ the offers of each, by slots and id
    a run ──its need──→ the able kinds, best fit first ──→ the first or last offer

The cost of a round depends on its runs and on changed offers, not on the number of workers. Only
STICKY compares all offers that fit.

Invariants
- An offer without slots isn't in the index.
- A label that no run has asked for yet doesn't divide kinds: each worker may have its own label.
- The choice is the one that the rules of `placement` give among all offers.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import field
from heapq import heapify, heappop, heapreplace
from itertools import groupby
from math import inf
from operator import attrgetter
from typing import Final, TypeAlias

from schedd.core.dispatch.placement import (
    NOTHING,
    Need,
    PlacementCriteria,
    Skill,
    SlotOffer,
    able,
    refused,
    skill_of,
    weight,
)
from schedd.core.ids import IncarnationId, JobId
from schedd.core.jobs.definition import Definition, Match, Placement
from schedd.core.runs.model import Incarnation
from schedkit.records import dataclass

MOST_NEEDS: Final = 1_000
"""Needs whose able kinds are remembered, at most."""

_Wanted: TypeAlias = tuple[str, str, str, int, tuple[Match, ...], tuple[Match, ...]]


@dataclass(slots=True, eq=False)
class _Kind:
    """Offers of workers that are equal in everything that runs have asked for."""

    like: Incarnation
    """Any of these workers."""
    order: list[tuple[int, IncarnationId, SlotOffer]] = field(default_factory=list)
    """Offers by slots, then by id, the fewest slots first."""

    def put(self, offer: SlotOffer) -> None:
        insort(self.order, (offer.slots, offer.id, offer))

    def drop(self, offer: SlotOffer) -> None:
        del self.order[bisect_left(self.order, (offer.slots, offer.id))]

    def fitting(self, slots: int, rank: float, *, fewest: bool = False) -> Iterator[SlotOffer]:
        """Iterate over offers that would take such a run, those with the most slots first, or
        the fewest.
        """
        first, last = bisect_left(self.order, (slots,)), len(self.order)
        for at in range(first, last) if fewest else range(last - 1, first - 1, -1):
            offer = self.order[at][2]
            if rank <= offer.last:
                yield offer


class SlotIndex:
    """Offers that may be used now, at most one for each worker."""

    def __init__(self, offers: Iterable[SlotOffer] = ()) -> None:
        self._asked = NOTHING
        self._offers: dict[IncarnationId, SlotOffer] = {}
        self._skills: dict[IncarnationId, Skill] = {}
        self._kinds: dict[Skill, _Kind] = {}
        self._able: dict[_Wanted, list[tuple[int, _Kind]]] = {}
        self._named: dict[str, set[IncarnationId]] = {}
        self.slots = 0
        """Slots of all offers together."""
        for offer in offers:
            self.put(offer)

    def __iter__(self) -> Iterator[SlotOffer]:
        return iter(self._offers.values())

    def __len__(self) -> int:
        return len(self._offers)

    # -- offers --

    def put(self, offer: SlotOffer) -> None:
        """Set the worker's offer, in place of its earlier one."""
        before = self._offers.get(offer.id)
        if before is None or before.incarnation is not offer.incarnation or offer.slots <= 0:
            self.drop(offer.id)
            if offer.slots > 0:
                self._enter(offer)
                self._named.setdefault(offer.incarnation.worker, set()).add(offer.id)
                self._offers[offer.id] = offer
                self.slots += offer.slots
        else:
            kind = self._kinds[self._skills[offer.id]]
            kind.drop(before)
            kind.put(offer)
            self._offers[offer.id] = offer
            self.slots += offer.slots - before.slots

    def drop(self, incarnation: IncarnationId) -> None:
        """Remove the incarnation's offer."""
        if (offer := self._offers.pop(incarnation, None)) is not None:
            self.slots -= offer.slots
            self._kinds[self._skills.pop(incarnation)].drop(offer)
            named = self._named[offer.incarnation.worker]
            named.remove(incarnation)
            if not named:
                del self._named[offer.incarnation.worker]

    def is_by(self, incarnation: Incarnation) -> bool:
        """Return whether the offer is of this incarnation object, not of an earlier state of it."""
        offer = self._offers.get(incarnation.id)
        return offer is not None and offer.incarnation is incarnation

    def reserve_slots(self, incarnation: IncarnationId, slots: int) -> None:
        """Subtract slots from the incarnation's offer."""
        if (offer := self._offers.get(incarnation)) is not None:
            self._lower(offer, offer.slots - slots, offer.last)

    def lower(self, incarnation: IncarnationId, slots: int, last: float) -> None:
        """Lower the offer to at most these slots and this rank. Smaller values stay."""
        if (offer := self._offers.get(incarnation)) is not None:
            self._lower(offer, min(offer.slots, slots), min(offer.last, last))

    def _lower(self, offer: SlotOffer, slots: int, last: float) -> None:
        if slots <= 0:
            self.drop(offer.id)
        elif slots != offer.slots:
            kind = self._kinds[self._skills[offer.id]]
            kind.drop(offer)
            self.slots += slots - offer.slots
            offer.slots = slots
            kind.put(offer)
        offer.last = last

    # -- choice --

    def any(self, rank: float) -> bool:
        """Return whether any slot is for a run of this rank, whatever the run needs."""
        return any(next(kind.fitting(1, rank), None) is not None for kind in self._kinds.values())

    def free(self, need: Need, rank: float) -> bool:
        """Return whether some offer would take a run of this need and rank now."""
        if need.worker is not None:
            return next(self._of_one(need, rank), None) is not None
        kinds = self._which(need)
        return any(next(kind.fitting(need.slots, rank), None) is not None for _, kind in kinds)

    def exceeds(self, need: Need, rank: float, slots: int) -> bool:
        """Return whether workers offer more than so many slots for runs of this need and rank."""
        for _, kind in self._which(need):
            for offer in kind.fitting(need.slots, rank):
                slots -= offer.slots
                if slots < 0:
                    return True
        return False

    def choose(
        self, job: JobId, definition: Definition, need: Need, rank: float
    ) -> SlotOffer | None:
        """Choose an offer for a run of this job, by the rules of `placement`. Ties go by the
        incarnation's id.
        """
        if need.worker is not None:
            one = list(self._of_one(need, rank))
            generation = definition.generation
            willing = [offer for offer in one if not refused(offer.unable, job, generation)]
            return _best(job, definition, willing or one)
        kinds = self._which(need, definition.prefer)
        for again in (False, True):
            for _, alike in groupby(kinds, key=lambda each: each[0]):
                found = [
                    offer
                    for _, kind in alike
                    for offer in _first(kind, job, definition, need.slots, rank, again=again)
                ]
                if found:
                    return _best(job, definition, found)
        return None

    def spread(self, need: Need, count: int) -> list[SlotOffer] | None:
        """Choose an offer for each of `count` runs of this need, by SPREAD and in order, as
        `choose` would if the slots of each were reserved before the next choice. Return fewer if
        they don't suffice. None: each must be chosen singly, because the need names a worker, some
        worker has rejected a job, or some slots are for certain ranks only.
        """
        if need.worker is not None:
            return None
        offers = [
            offer
            for _, kind in self._which(need)
            for slots, _, offer in kind.order[-count:]
            if slots >= need.slots
        ]
        if any(offer.unable or offer.last != inf for offer in offers):
            return None
        offers.sort(key=attrgetter("id"), reverse=True)
        heap = [(-offer.slots, at) for at, offer in enumerate(offers)]
        heapify(heap)
        chosen: list[SlotOffer] = []
        while heap and len(chosen) < count:
            taken, at = heap[0]
            chosen.append(offers[at])
            if need.slots * 2 <= -taken:
                heapreplace(heap, (taken + need.slots, at))
            else:
                heappop(heap)
        return chosen

    def _of_one(self, need: Need, rank: float) -> Iterator[SlotOffer]:
        for incarnation in self._named.get(need.worker or "", ()):
            offer = self._offers[incarnation]
            if offer.slots >= need.slots and rank <= offer.last and able(offer.incarnation, need):
                yield offer

    def _which(self, need: Need, prefer: tuple[Match, ...] = ()) -> list[tuple[int, _Kind]]:
        """Return the able kinds, each with minus its number of preferred labels, best fit first."""
        if need.each:
            return []
        asked = need.namespace, need.action, need.handler, need.slots, need.require
        wanted = *asked, prefer
        if (found := self._able.get(wanted)) is None:
            self._tell_apart({match.key for match in (*need.require, *prefer)})
            found = [
                (-sum(one.fits(kind.like.labels) for one in prefer), kind)
                for kind in self._kinds.values()
                if able(kind.like, need)
            ]
            found.sort(key=lambda each: each[0])
            if len(self._able) >= MOST_NEEDS:
                self._able.clear()
            self._able[wanted] = found
        return found

    def _enter(self, offer: SlotOffer) -> None:
        skill = skill_of(offer.incarnation, self._asked)
        self._skills[offer.id] = skill
        kind = self._kinds.get(skill)
        if kind is None:
            self._forget_empty()
            self._able.clear()
            kind = self._kinds[skill] = _Kind(offer.incarnation)
        kind.put(offer)

    def _forget_empty(self) -> None:
        """Delete kinds without slots when they outnumber the offers. Most of them return with their
        next slot, so they are kept until then.
        """
        if len(self._kinds) > 2 * len(self._offers):
            self._kinds = {skill: kind for skill, kind in self._kinds.items() if kind.order}

    def _tell_apart(self, labels: set[str]) -> None:
        """Divide kinds by these labels too, because some run asks for them."""
        if not labels <= self._asked.labels:
            self._asked = PlacementCriteria(self._asked.labels | labels)
            self._kinds.clear()
            self._able.clear()
            for offer in self:
                self._enter(offer)


def _first(
    kind: _Kind, job: JobId, definition: Definition, slots: int, rank: float, *, again: bool
) -> list[SlotOffer]:
    """Return the first fitting offer of a kind, or all of them if the caller must compare them.
    `again`: include workers that have rejected a run of the job.
    """
    fewest = definition.placement is Placement.PACK
    fit = kind.fitting(slots, rank, fewest=fewest)
    if not again:
        generation = definition.generation
        fit = (offer for offer in fit if not refused(offer.unable, job, generation))
    if definition.placement is Placement.STICKY:
        return list(fit)
    first = next(fit, None)
    return [] if first is None else [first]


def _best(job: JobId, definition: Definition, fit: Iterable[SlotOffer]) -> SlotOffer | None:
    match definition.placement:
        case Placement.PACK:
            return min(fit, key=lambda offer: (offer.slots, offer.id), default=None)
        case Placement.STICKY:
            return max(fit, key=lambda offer: weight(offer.incarnation.worker, job), default=None)
    return max(fit, key=lambda offer: (offer.slots, offer.id), default=None)
