"""Dispatch submitted runs by the transaction that stores them, while slots are free.

    submits ──choose: a slot is free, no run waits for it──→ one transaction: fence, all submits
       │                                                        └──COMMIT──→ push ──→ worker
       └── no run has a slot ──→ stored by `UserStore`, dispatched by the loop

Invariants (docs/protocol-rules.md, P1.1, P1.4, P3.5)
- A run is dispatched here only if its shard is owned here, and if it may be fired as RUNNING
  (`may_be_fired_running`). Its job is new, so it has no other live run.
- Slots that waiting runs may use are left to them, so the order of the ready queue holds. Within a
  batch, slots are reserved for its other runs too, which wait for dispatch.
- A batch of submits stays one transaction. It runs on one lane: runs of other lanes, and runs
  without a slot, are stored as PENDING. The lane is idle, so no submit waits behind a large batch.
- A run is pushed only after its COMMIT was seen, and no call is answered before. If the outcome is
  unknown, the scan finds the runs, and makes those ready again that never started.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Final

from schedd.cluster.owner_transactions import Failed
from schedd.core.dispatch.placement import Need, SlotOffer
from schedd.core.dispatch.priority_order import rank
from schedd.core.dispatch.slot_index import SlotIndex
from schedd.core.ids import JobId, RunId, ShardId
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import Claim, DispatchedBatch, LiveRun, Terms, alike
from schedd.core.runs.records import Submit, SubmitOutcome, SubmitToSlot
from schedd.core.runs.run_records import RunRecord
from schedd.dispatch.assigner import Assigner
from schedd.dispatch.assignment import Handed, terms_of
from schedd.dispatch.dispatch import Dispatch
from schedd.dispatch.owner_context import OwnerContext, OwnerPart
from schedd.dispatch.workers.attached_slots import SlotReservation
from schedd.runtime.definition_texts import CachedDefinition
from schedkit import failpoints
from schedkit.errors import Unavailable
from schedkit.records import dataclass

log = logging.getLogger(__name__)

MOST_BYTES: Final = 128 * 1024
"""Bytes of submits in one transaction, approximately. The shard's row is locked while they are sent
to PostgreSQL (docs/protocol-rules.md, P1.5).
"""

AFTER_COMMIT: Final = failpoints.awaited("submit.after_commit")


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A submit of a batch whose run is due now and gets a slot."""

    place: int
    job_id: JobId
    shard: ShardId
    rank: float
    goes: bool
    """Whether it may be dispatched at once; otherwise it waits for dispatch."""
    known: CachedDefinition
    need: Need


class SubmitDispatch(OwnerPart):
    """Stores the submits of one tenure whose runs have a slot."""

    def __init__(self, context: OwnerContext, dispatch: Dispatch, assigner: Assigner) -> None:
        super().__init__(context)
        self._dispatch = dispatch
        self._assigner = assigner

    async def store(self, submits: Sequence[Submit]) -> dict[int, RunRecord] | None:
        """Store these submits, and dispatch those runs that have a slot. Returns records by place,
        without calls that need their own transaction. None: no run has a slot, and nothing was
        stored.
        """
        await asyncio.sleep(0)  # callers of the batch before have queued their waiting runs then
        if not self._may_dispatch(self._workers.offers()):
            return None
        if sum([each.size for each in submits]) > MOST_BYTES:
            return None
        with self._workers.choosing() as choice:
            chosen = self._choose(submits, choice)
            if not chosen:
                return None
            known = {each.job_id: each.known for each, _ in chosen}
            terms = _terms(chosen)
            try:
                outcome = await self._write(submits, terms)
            except BaseException:
                self._definition_cache.forget(known)
                raise
            self._transactor.lost(outcome.lost, "submit")
            stored = {record.run.job_id for record in outcome.records.values()}
            self._definition_cache.forget(known.keys() - stored)  # repeated calls
            try:
                await self._assigner.push_fired(
                    _batches(submits, outcome.records, terms, known), choice
                )
            except Unavailable as error:  # the calls succeeded: the scan finds these runs
                log.warning("submitted runs not sent: error=%s", error)
        return outcome.records

    async def _write(
        self, submits: Sequence[Submit], terms: Mapping[int, SubmitToSlot]
    ) -> SubmitOutcome:
        async def write(claim: Claim, to_slots: Sequence[SubmitToSlot]) -> SubmitOutcome:
            next_token = self._transactor.ownership.sequencer(claim)
            outcome = await self._store.submit(claim, submits, to_slots, next_token)
            await AFTER_COMMIT()
            return outcome

        [answer] = await self._transactor.by_lane(terms.values(), write)
        if isinstance(answer, Failed):
            raise answer.error
        return answer

    def _may_dispatch(self, offers: SlotIndex) -> bool:
        """Return whether there are slots that no waiting run may use, as far as known."""
        if not offers.slots or self._cluster_pause.is_paused or not self._transactor.trusted():
            return False
        return self._run_index.all_read and not self._dispatch.may_use(offers)

    def _choose(
        self, submits: Sequence[Submit], choice: SlotReservation
    ) -> list[tuple[_Candidate, SlotOffer]]:
        """Reserve slots for runs in the order of the ready queue. Return those that go."""
        offers = self._workers.offers()
        candidates = self._candidates(submits, offers.slots)
        placed: list[tuple[_Candidate, SlotOffer]] = []
        for need, alike_needs in groupby(candidates, key=attrgetter("need")):
            those = [*alike_needs]
            spread = offers.spread(need, len(those))
            if spread is not None:
                for offer, taken in Counter(spread).items():
                    choice.reserve_slots(offer, taken * need.slots)
                placed += zip(those, spread, strict=False)
                continue
            for each in those:
                one = offers.choose(each.job_id, each.known.definition, need, each.rank)
                if one is not None:
                    choice.reserve_slots(one, need.slots)
                    placed.append((each, one))
        chosen = [each for each in placed if each[0].goes]
        waiting = {each.job_id for each in candidates} - {each.job_id for each, _ in chosen}
        self._definition_cache.forget(waiting)  # cached within their limit when they are queued
        return chosen

    def _candidates(self, submits: Sequence[Submit], most: int) -> list[_Candidate]:
        """Return due runs of this member's shards, first by rank, at most `most`. Those of one idle
        lane may go.
        """
        ownership, now = self._run_index.ownership, self._clock.now()
        here = [
            (rank(each.priority, each.run.due_at), place, each)
            for place, each in enumerate(submits)
            if each.record.shard in ownership.epochs and each.run.due_at <= now
        ]
        here = sorted(here, key=itemgetter(0))[:most]
        lanes = [ownership.lane_of(each.record.shard) for _, _, each in here]
        idle = next((lane for lane in lanes if not ownership.is_busy(lane)), None)
        if idle is None:
            return []
        self._definition_cache.add_stored(
            [each.record.definition for _, _, each in here], dispatched=True
        )
        found: list[_Candidate] = []
        for (its_rank, place, each), lane in zip(here, lanes, strict=True):
            job_id = each.record.definition.job_id
            known = self._definition_cache.known_of(job_id)
            if known is not None:
                goes = lane == idle and known.text.fires_running
                of = place, job_id, each.record.shard, its_rank, goes, known, known.text.need
                found.append(_Candidate(*of))
        return found


def _terms(chosen: Sequence[tuple[_Candidate, SlotOffer]]) -> dict[int, SubmitToSlot]:
    """Return the terms of each run, by place. Runs of one text and one worker share their terms."""
    terms: dict[tuple[int, int], Terms] = {}
    found: dict[int, SubmitToSlot] = {}
    for each, offer in chosen:
        of = id(each.known.text), id(offer.incarnation)
        if of not in terms:
            terms[of] = terms_of(each.known.definition, offer.incarnation)
        found[each.place] = SubmitToSlot(each.place, each.shard, terms[of])
    return found


def _batches(
    submits: Sequence[Submit],
    records: Mapping[int, RunRecord],
    to_slots: Mapping[int, SubmitToSlot],
    known: Mapping[JobId, CachedDefinition],
) -> list[Handed]:
    """Return the dispatched runs as they are pushed."""
    together: dict[object, list[LiveRun]] = {}
    payloads: dict[RunId, bytes] = {}
    for place, to in to_slots.items():
        if place not in records or records[place].run.state is not State.RUNNING:
            continue
        run, payload = records[place].run, submits[place].payload
        together.setdefault(alike(run, to.terms), []).append(run)
        if payload is not None:
            payloads[run.key.run_id] = payload
    batches = [DispatchedBatch.of(runs) for runs in together.values()]
    if payloads:
        batches = [one for batch in batches for one in batch.with_payloads(payloads)]
    return [(batch, [known[run.job_id] for run in batch.runs]) for batch in batches]
