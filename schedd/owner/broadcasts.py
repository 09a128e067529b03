"""Broadcasts at their owner: who they are for when it is their turn, and their end.

    ready ──who is there, could do it, and hasn't done it──→ dispatch drafts it ─→ children
    begun ──no child is left, or it is cancelled──one transaction a lane──→ ended, children told

Who ends a child, any member, need not know of its parent: a look at the rows, now and then, and
soon after an attempt has ended here, is what ends it (`store/broadcasting.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final

from schedd.core.broadcast import Closed, Closing, own, targets
from schedd.core.deadlines import overdue
from schedd.core.ids import RunId
from schedd.core.late import Room
from schedd.core.lifecycle import State
from schedd.core.model import Definition, Incarnation, LiveRun
from schedd.core.placement import Need, need_of
from schedd.core.pools import Rooms
from schedd.owner.board import Board
from schedd.owner.catalogue import Catalogue, Known
from schedd.owner.drafts import Each
from schedd.owner.transact import Failed, Transactor
from schedd.owner.worker_leases import WorkerLeases
from schedd.owner.workers import Workers
from schedd.ports import ClusterClock, Nudges, OwnerStore
from schedkit.clock import boottime
from schedkit.errors import Unavailable
from schedkit.tasks import Loop

log = logging.getLogger(__name__)

AT_ONCE: Final = 500
"""Broadcasts that one round looks at."""
CHILDREN_AT_ONCE: Final = 1_000
"""Past so many children a transaction begins no other broadcast."""
TRY_EVERY: Final = 1.0
"""Seconds until those for which nobody was there are looked at again."""
LOOK_EVERY: Final = 1.0
LOOK_SOON: Final = 0.1
"""Seconds between two looks while attempts end here."""


class Broadcasts:
    """Begins broadcasts with dispatch, and ends them."""

    def __init__(
        self,
        board: Board,
        catalogue: Catalogue,
        workers: Workers,
        leases: WorkerLeases,
        store: OwnerStore,
        transactor: Transactor,
        clock: ClusterClock,
        nudges: Nudges,
    ) -> None:
        self._board = board
        self._catalogue = catalogue
        self._workers = workers
        self._leases = leases
        self._store = store
        self._transactor = transactor
        self._clock = clock
        self._nudges = nudges
        self._ready: Callable[[], None] = lambda: None
        self._try_at = 0.0
        self._look_at = 0.0
        self._ended = self._seen = 0
        self._next = 0
        """Where the next look begins: it is at some of them, in turn."""
        """As of the last look: how many attempts had ended here."""
        self.loop = Loop("broadcasts", self.step, interval=LOOK_EVERY)

    def on_ready(self, told: Callable[[], None]) -> None:
        """Have `told()` called when runs became ready."""
        self._ready = told

    def wake(self) -> None:
        """One may have been cancelled: look now."""
        self._look_at = 0.0
        if self._board.broadcasts:
            self.loop.wake()

    # -- how they begin --

    async def choose(self, room: Room, rooms: Rooms) -> list[tuple[LiveRun, Known, Each]]:
        """Take those off the queue whose turn it is, with whom they are for. Those for which nobody
        is there go on waiting.
        """
        if boottime() < self._try_at:
            return []
        runs = self._board.ready.take(AT_ONCE, _each, replace(room), pools=rooms.copy())
        if not runs:
            return []
        chosen: list[tuple[LiveRun, Known, Each]] = []
        try:
            known = await self._catalogue.newest({run.job_id for run in runs})
            there = await self._there()
            done = await self._store.done([run.key for run in runs])
        except Unavailable as away:  # the others don't wait for that
            log.warning("couldn't see whom broadcasts are for: %s", away)
            self._try_at = boottime() + TRY_EVERY
            return []
        finally:  # they wait, until it is known for whom they are
            for run in runs:
                self._board.ready.add([run], self._catalogue.need_of(run))
        now = self._clock.now()
        for run in runs:
            entry = known.get(run.job_id)
            if entry is None or overdue(run, entry.definition, now) is not None:
                continue  # the scan, or the deadlines' loop, has it
            definition = entry.definition
            need = need_of(definition, run)
            left = tuple(
                name
                for name in targets(need, there)
                if name not in done.get(run.key.run_id, frozenset())
            )
            if not need.each or not left:
                self._board.ready.add([run], need, paced=run.paced_by(definition))
            elif sum(len(to.workers) for _, _, to in chosen) < CHILDREN_AT_ONCE:
                self._board.ready.discard(run.key.run_id)
                chosen.append((run, entry, Each(left)))
        if not chosen:
            self._try_at = boottime() + TRY_EVERY
        return chosen

    async def _there(self) -> list[Incarnation]:
        """Who lives, is neither drained nor about to leave, wherever it is attached."""
        here, leaving = self._workers.present(), self._workers.leaving()
        live = await self._leases.live()
        return await self._store.there((live | {one.id for one in here}) - leaving)

    # -- how they end --

    async def step(self) -> float:
        """One look at those that have begun; seconds until the next."""
        board, now = self._board, boottime()
        if not board.broadcasts:
            return LOOK_EVERY
        if board.ended == self._ended and now < self._look_at:
            return min(LOOK_SOON, self._look_at - now)
        keys = [run.key for run in board.broadcasts.values()]
        first = self._next if self._next < len(keys) else 0
        if first == 0:
            self._seen = board.ended
        self._next = first + AT_ONCE
        if self._next >= len(keys):  # all of them were looked at
            self._ended, self._look_at = self._seen, now + LOOK_EVERY
        over = await self._store.over(keys[first : self._next])
        begun = [run for key in over if (run := board.broadcasts.get(key.run_id)) is not None]
        if begun:
            known = await self._catalogue.of_runs(begun)
            closings = [_closing(r, known[r.job_id].definition) for r in begun if r.job_id in known]
            await self._close(closings)
        return LOOK_SOON

    async def _close(self, closings: Sequence[Closing]) -> None:
        answers = await self._transactor.by_lane(closings, self._store.close)
        counted = {one.job_id for one in closings if one.pause_after}
        for answer in answers:
            if isinstance(answer, Closed):
                self._closed(answer, counted)
        for answer in answers:
            if isinstance(answer, Failed):
                raise answer.error

    def _closed(self, closed: Closed, counted: Collection[object]) -> None:
        for run in closed.cancelled:
            self._workers.cancel(run, kill=run.killing)
        gone = [*closed.waited, *((run.key, run.job_id) for run in closed.ended)]
        if sum(self._board.forget(key.run_id, job) for key, job in gone):
            self._ready()
        changed: list[RunId] = [
            *(run.key.run_id for run in (*closed.ended, *closed.cancelled)),
            *(key.run_id for key, _ in closed.waited),
        ]
        if changed:
            self._nudges.runs_changed(changed)
        failed = {
            (run.job_id, run.shard)
            for run in closed.ended
            if run.state is State.FAILED and run.job_id in counted
        }
        if failed:  # perhaps once too often
            self._nudges.jobs_changed(sorted(failed))


def _each(need: Need | None, _rank: float) -> bool:
    return need is not None and need.each


def _closing(run: LiveRun, definition: Definition) -> Closing:
    said = own(run, definition)
    return Closing(run.key, run.job_id, run.shard, said.pause_after_failures, said.notices)
