"""The offers in their order give what a look at all of them would, whatever happened to them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import inf

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from schedd.core.dispatch.placement import Need, SlotOffer, Unable, able, need_of, refused, weight
from schedd.core.dispatch.slot_index import SlotIndex
from schedd.core.ids import Id, IncarnationId, JobId
from schedd.core.jobs.definition import Definition, Match, Placement
from schedd.core.runs.model import Incarnation
from support.runs import run, worker

LABELS = ("gpu", "region", "host")
VALUES = ("a", "b")
WORKERS = range(1, 9)
RANKS = (0.0, 5.0, inf)

matches = st.lists(
    st.builds(Match, st.sampled_from(LABELS), st.sampled_from((("a",), ("b",), VALUES))),
    max_size=2,
).map(tuple)
definitions = st.builds(
    Definition,
    st.just(1),
    st.just("default"),
    action=st.just("shell"),
    slots=st.integers(1, 3),
    require=matches,
    prefer=matches,
    placement=st.sampled_from([Placement.SPREAD, Placement.PACK, Placement.STICKY]),
)
jobs = st.sampled_from([JobId(Id.from_int(number)) for number in (1, 2)])
names = st.sampled_from([None, "w1", "w2", "w9"])


def best_by_rules(
    job: JobId, definition: Definition, need: Need, rank: float, offers: Iterable[SlotOffer]
) -> SlotOffer | None:
    """The rules of `placement`, word for word."""
    fit = [one for one in offers if one.slots >= need.slots and rank <= one.last]
    fit = [one for one in fit if able(one.incarnation, need)]
    fit = [one for one in fit if not refused(one.unable, job, definition.generation)] or fit
    suits = {one.id: sum(m.fits(one.incarnation.labels) for m in definition.prefer) for one in fit}
    fit = [one for one in fit if suits[one.id] == max(suits.values())]
    if definition.placement is Placement.STICKY:
        return max(fit, key=lambda one: weight(one.incarnation.worker, job), default=None)
    order = min if definition.placement is Placement.PACK else max
    return order(fit, key=lambda one: (one.slots, one.id.number), default=None)


class OffersThatChange(RuleBasedStateMachine):
    """Beside a plain dict of them."""

    def __init__(self) -> None:
        super().__init__()
        self.offers = SlotIndex()
        self.plain: dict[IncarnationId, SlotOffer] = {}
        self.who: dict[int, Incarnation] = {}

    @rule(
        number=st.sampled_from(WORKERS),
        slots=st.integers(0, 5),
        last=st.sampled_from(RANKS),
        values=st.tuples(*[st.sampled_from((None, *VALUES))] * len(LABELS)),
        unable=st.booleans(),
    )
    def grants(
        self, number: int, slots: int, last: float, values: tuple[str | None, ...], unable: bool
    ) -> None:
        labels = {key: value for key, value in zip(LABELS, values, strict=True) if value}
        one = self.who.setdefault(number, replace(worker(number, slots=5), labels=labels))
        said = {JobId(Id.from_int(1)): Unable(1)} if unable else {}
        self.plain[one.id] = SlotOffer(one, slots, last, said)
        self.offers.put(SlotOffer(one, slots, last, said))

    @rule(number=st.sampled_from(WORKERS))
    def goes(self, number: int) -> None:
        one = worker(number)
        self.plain.pop(one.id, None)
        self.who.pop(number, None)
        self.offers.drop(one.id)

    @rule(number=st.sampled_from(WORKERS), slots=st.integers(0, 5), last=st.sampled_from(RANKS))
    def grants_less(self, number: int, slots: int, last: float) -> None:
        offer = self.plain.get(worker(number).id)
        if offer is not None:
            offer.slots, offer.last = min(slots, offer.slots), min(last, offer.last)
        self.offers.lower(worker(number).id, slots, last)

    @rule(job=jobs, definition=definitions, name=names, rank=st.sampled_from(RANKS))
    def is_taken_by_a_run(
        self, job: JobId, definition: Definition, name: str | None, rank: float
    ) -> None:
        need = need_of(definition, run(1, target=name))
        expected = best_by_rules(job, definition, need, rank, self.plain.values())
        found = self.offers.choose(job, definition, need, rank)
        assert self.offers.free(need, rank) == (expected is not None)
        assert (found and found.id) == (expected and expected.id)
        if expected is not None:
            expected.slots -= definition.slots
            self.offers.reserve_slots(expected.id, definition.slots)

    @rule(job=jobs, definition=definitions, count=st.integers(1, 20))
    def are_taken_by_a_batch(self, job: JobId, definition: Definition, count: int) -> None:
        definition = replace(definition, placement=Placement.SPREAD, prefer=())
        need = need_of(definition, run(1))
        found = self.offers.spread(need, count)
        if found is None:
            assert any(one.unable or one.last < inf for one in self.plain.values())
            return
        for one in found:
            expected = best_by_rules(job, definition, need, 0.0, self.plain.values())
            assert expected is not None
            assert one.id == expected.id
            expected.slots -= definition.slots
        if len(found) < count:
            assert best_by_rules(job, definition, need, 0.0, self.plain.values()) is None
        for one in found:
            self.offers.reserve_slots(one.id, definition.slots)

    @invariant()
    def all_are_there(self) -> None:
        left = {(one.id, one.slots, one.last) for one in self.plain.values() if one.slots > 0}
        assert {(one.id, one.slots, one.last) for one in self.offers} == left
        assert self.offers.slots == sum(slots for _, slots, _ in left)
        for rank in RANKS:
            assert self.offers.any(rank) == any(rank <= last for _, _, last in left)


TestOffers = OffersThatChange.TestCase
