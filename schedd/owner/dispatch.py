"""Dispatch: give ready runs to workers that have slots for us.

    ready queue + offers ──choose──→ drafts ──one transaction a lane──→ assigned ──push──→ worker

The choice is a wish: overlap, pause, generation and state are judged by the assign statement on
rows, under the shard's lock (PROTOCOL 3). A run is pushed only after a COMMIT that was seen; one
whose COMMIT is in doubt is found by the scan, and goes back by itself when it never started.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from schedd.core.events import AssignedRuns, Emit, Waiting
from schedd.core.ids import RunId
from schedd.core.model import Claim, Definition, Draft, LiveRun, Overlap
from schedd.core.placement import Offer, choose
from schedd.owner.board import Board
from schedd.owner.catalogue import Catalogue, Known
from schedd.owner.transact import Failed, Transactor
from schedd.owner.workers import Head, Workers
from schedd.ports import Assignments, ClusterClock, Nudges, OwnerStore
from schedkit.errors import Unavailable
from schedkit.tasks import Loop

BATCH: Final = 500
LOOK_PAST: Final = 1_000
"""Runs that no offer fits are set aside, at most so many a round."""
START_WITHIN: Final = timedelta(seconds=5)
"""From assignment to `start_by` (PROTOCOL 4)."""


class Dispatch:
    """The loop that hands runs out."""

    def __init__(
        self,
        board: Board,
        catalogue: Catalogue,
        workers: Workers,
        store: OwnerStore,
        transactor: Transactor,
        clock: ClusterClock,
        nudges: Nudges,
        emit: Emit,
    ) -> None:
        self._board = board
        self._catalogue = catalogue
        self._workers = workers
        self._store = store
        self._transactor = transactor
        self._clock = clock
        self._nudges = nudges
        self._emit = emit
        self.loop = Loop("dispatch", self.step, interval=1.0)

    def wake(self) -> None:
        """Runs became ready, or slots free."""
        self.loop.wake()

    async def step(self) -> float:
        """One round; gives the seconds until the next is needed."""
        now = self._clock.now()
        self._board.ripen(now)
        chosen = await self._choose()
        if chosen:
            await self._assign(chosen)
        self._tell_demand()
        if chosen and self._board.ready and self._workers.offers():
            return 0.0
        ripe = self._board.next_ripe()
        return 1.0 if ripe is None else min(1.0, max(0.0, (ripe - now).total_seconds()))

    async def _choose(self) -> list[tuple[LiveRun, Known, Offer]]:
        """Take runs off the queue in order, as far as the offers go."""
        offers = self._workers.offers()
        chosen: list[tuple[LiveRun, Known, Offer]] = []
        aside: list[LiveRun] = []
        while any(offer.slots for offer in offers) and len(chosen) < BATCH:
            batch = self._pop(min(BATCH, sum(offer.slots for offer in offers)))
            if not batch:
                break
            try:
                known = await self._catalogue.newest({run.job_id for run in batch})
            except Unavailable:
                self._board.ready.add([*batch, *aside, *(run for run, _, _ in chosen)])
                raise
            for run in batch:
                entry = known.get(run.job_id)
                if entry is None:
                    continue  # deleted: its run is cancelled by the call that deleted it
                offer = choose(entry.definition, offers)
                if offer is None:
                    aside.append(run)
                else:
                    offer.slots -= entry.definition.slots
                    chosen.append((run, entry, offer))
            if len(aside) >= LOOK_PAST:
                break
        self._board.ready.add(aside)
        return chosen

    def _pop(self, count: int) -> list[LiveRun]:
        batch: list[LiveRun] = []
        while len(batch) < count and (run := self._board.ready.pop()) is not None:
            batch.append(run)
        return batch

    async def _assign(self, chosen: Sequence[tuple[LiveRun, Known, Offer]]) -> None:
        known = {run.key.run_id: entry for run, entry, _ in chosen}
        runs = {run.key.run_id: run for run, _, _ in chosen}
        drafts = [_draft(run, entry.definition, offer) for run, entry, offer in chosen]
        answers = await self._transactor.by_lane(drafts, self._write)
        for answer in answers:
            if not isinstance(answer, Failed):
                self._push(answer, known, runs)
        for answer in answers:
            if isinstance(answer, Failed):
                # It didn't happen, or is in doubt: either way the statement judges them again.
                self._board.ready.add(runs[draft.key.run_id] for draft in answer.items)
                raise answer.error

    async def _write(self, claim: Claim, drafts: Sequence[Draft]) -> Assignments:
        return await self._store.assign(claim, drafts, self._transactor.ownership.sequencer(claim))

    def _push(
        self, answer: Assignments, known: dict[RunId, Known], runs: dict[RunId, LiveRun]
    ) -> None:
        self._transactor.lost(answer.lost, "assign")
        now = self._clock.now()
        for assigned in answer.assigned:
            run = assigned.run
            self._board.running[run.key.run_id] = run
            self._workers.push(assigned, known[run.key.run_id])
        for key in answer.ended:
            self._board.forget(key.run_id)
        self._catalogue.forget(runs[key.run_id].job_id for key in answer.waiting)
        if answer.assigned:
            waits = tuple(now - runs[a.run.key.run_id].ready_at for a in answer.assigned)
            self._emit(AssignedRuns(len(answer.assigned), waits))
        self._nudges.runs_changed(
            [a.run.key.run_id for a in answer.assigned] + [key.run_id for key in answer.ended]
        )

    def _tell_demand(self) -> None:
        heads = self._board.ready.heads()
        self._workers.demand([Head(run.priority, run.ready_at, count) for run, count in heads])
        self._emit(
            Waiting(len(self._board.ready), len(self._board.running), len(self._board.timers))
        )


def _draft(run: LiveRun, definition: Definition, offer: Offer) -> Draft:
    skips = definition.overlap is Overlap.SKIP
    return Draft(
        key=run.key,
        job_id=run.job_id,
        shard=run.shard,
        generation=definition.generation,
        worker=offer.incarnation.worker,
        incarnation=offer.id,
        overlap_limit=1 if skips else definition.overlap_limit,
        skip=skips,
        start_by_after=START_WITHIN,
    )
