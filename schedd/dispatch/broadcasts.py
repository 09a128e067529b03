"""Broadcasts at their owner: choose their target workers, and end them.

    ready ──running workers that match and haven't succeeded──→ dispatch drafts it ─→ children
    begun ──last child ended, or it is cancelled──one transaction a lane──→ ended

The member that ends a child doesn't update its parent. A periodic scan of the rows ends parents; it
also runs soon after an attempt has ended here (`store/dispatch/broadcasts.py`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

from schedd.cluster.owner_transactions import Failed
from schedd.cluster.worker_leases import WorkerLeases
from schedd.core.dispatch.placement import Need, need_of
from schedd.core.events import DeadLettered, EndedUnreported, dead_run
from schedd.core.ids import Hint
from schedd.core.jobs.definition import Definition
from schedd.core.runs.broadcast import ClosedBroadcasts, Closing, own, targets
from schedd.core.runs.deadlines import overdue
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import Incarnation, LiveRun
from schedd.core.runs.pools import PoolRooms
from schedd.core.timers.catch_up_limits import CatchUpRoom
from schedd.dispatch.assignment import BroadcastTargets
from schedd.dispatch.owner_context import OwnerContext, OwnerPart
from schedd.runtime.definition_texts import CachedDefinition
from schedkit.clock import boottime
from schedkit.errors import Unavailable
from schedkit.records import replace
from schedkit.set_aside import each
from schedkit.tasks import Loop

log = logging.getLogger(__name__)

AT_ONCE: Final = 500
"""Broadcasts that one round reads."""
LOOKS: Final = 4
"""Reads of the queue in a round, while no worker matches any of them."""
FORGET_EVERY: Final = 10.0
"""Seconds after which broadcasts without a worker no longer let others go first."""
CHILDREN_AT_ONCE: Final = 1_000
"""Children in one transaction, above which it begins no other broadcast."""
TRY_EVERY: Final = 1.0
"""Seconds until broadcasts without a worker are tried again."""
LOOK_EVERY: Final = 1.0
LOOK_SOON: Final = 0.1
"""Seconds between two rounds while attempts end here."""


class Broadcasts(OwnerPart):
    """Begins broadcasts with dispatch, and ends them."""

    def __init__(self, context: OwnerContext, leases: WorkerLeases) -> None:
        super().__init__(context)
        self._leases = leases
        self._try_at = 0.0
        self._unmatched: set[Need] = set()
        """Needs that no worker matched. Other needs are tried first, so that each gets its turn."""
        self._forget_at = 0.0
        self._look_at = 0.0
        self._ended = self._seen = 0
        """Number of attempts that had ended here at the last round."""
        self._next = 0
        """Where the next round begins: each reads some broadcasts, in turn."""
        self.loop = Loop("broadcasts", self.step, interval=LOOK_EVERY)

    def wake(self) -> None:
        """Run a round now: a broadcast may have been cancelled."""
        self._look_at = 0.0
        if self._run_index.broadcasts:
            self.loop.wake()

    # -- how they begin --

    async def choose(
        self, room: CatchUpRoom, rooms: PoolRooms
    ) -> list[tuple[LiveRun, CachedDefinition, BroadcastTargets]]:
        """Take the next broadcasts off the queue, with their target workers. A broadcast that no
        worker matches waits.
        """
        now = boottime()
        if now < self._try_at:
            return []
        if now >= self._forget_at:
            self._forget(now)
        taken: list[LiveRun] = []
        chosen: list[tuple[LiveRun, CachedDefinition, BroadcastTargets]] = []
        all_seen = False
        try:
            there: list[Incarnation] | None = None
            for _ in range(LOOKS):
                runs = self._run_index.ready.take_runs(
                    AT_ONCE, self._is_placeable, replace(room), pools=rooms.copy()
                )
                taken += runs
                if runs:
                    there = await self._there() if there is None else there
                    chosen = await self._looked_at(runs, there)
                all_seen = len(runs) < AT_ONCE
                if chosen or all_seen:
                    break
        except Unavailable as away:  # other broadcasts don't wait for this one
            log.warning("target workers of broadcasts can't be read: %s", away)
            self._try_at = boottime() + TRY_EVERY
            return []
        finally:  # until their target workers are known, they wait
            for run in taken:
                self._put_back(run)
        for run, _, _ in chosen:
            self._run_index.ready.discard(run.key.run_id)
        if not chosen and (taken or self._unmatched):
            self._try_at = boottime() + TRY_EVERY
            if all_seen:
                self._forget(boottime())
        return chosen

    async def _looked_at(
        self, runs: Sequence[LiveRun], there: Sequence[Incarnation]
    ) -> list[tuple[LiveRun, CachedDefinition, BroadcastTargets]]:
        """Return the broadcasts that have target workers."""
        known = await self._definition_cache.newest({run.job_id for run in runs})
        done = await self._store.done([run.key for run in runs])
        now = self._clock.now()
        chosen: list[tuple[LiveRun, CachedDefinition, BroadcastTargets]] = []
        children = 0
        for run in runs:
            entry = known.get(run.job_id)
            if entry is None or overdue(run, entry.definition, now) is not None:
                continue  # the scan or the deadlines' loop handles it
            need = need_of(entry.definition, run)
            names = targets(need, there) if need.each else ()
            if not names:
                self._unmatched.add(need)
            left = BroadcastTargets(
                tuple(name for name in names if name not in done.get(run.key.run_id, ()))
            )
            if left.workers and children < CHILDREN_AT_ONCE:
                children += len(left.workers)
                chosen.append((run, entry, left))
        return chosen

    def _put_back(self, run: LiveRun) -> None:
        need = self._definition_cache.need_of(run)
        paced = self._definition_cache.paces(run) if need is not None else False
        self._run_index.ready.add([run], need, paced=paced)

    def _is_placeable(self, need: Need | None, _rank: float) -> bool:
        return need is not None and need.each and need not in self._unmatched

    def _forget(self, now: float) -> None:
        """Try unmatched needs again: a worker may have started meanwhile."""
        self._unmatched.clear()
        self._forget_at = now + FORGET_EVERY

    async def _there(self) -> list[Incarnation]:
        """Return running workers that aren't draining, attached to any member."""
        here, leaving = self._workers.present(), self._workers.leaving()
        live = await self._leases.live()
        return await self._store.there((live | {one.id for one in here}) - leaving)

    # -- how they end --

    async def step(self) -> float:
        """Check running broadcasts once; return the seconds until the next round."""
        run_index, now = self._run_index, boottime()
        if not run_index.broadcasts:
            return LOOK_EVERY
        if run_index.ended == self._ended and now < self._look_at:
            return min(LOOK_SOON, self._look_at - now)
        keys = [run.key for run in run_index.broadcasts.values()]
        first = self._next if self._next < len(keys) else 0
        if first == 0:
            self._seen = run_index.ended
        self._next = first + AT_ONCE
        if self._next >= len(keys):  # a full pass is complete
            self._ended, self._look_at = self._seen, now + LOOK_EVERY
        over = await self._store.over(keys[first : self._next])
        begun = [run for key in over if (run := run_index.broadcasts.get(key.run_id)) is not None]
        if begun:
            known = await self._definition_cache.of_runs(begun)
            readable = [run for run in begun if run.job_id in known]
            await self._close(
                each("broadcast", readable, lambda run: _closing(run, known[run.job_id].definition))
            )
        return LOOK_SOON

    async def _close(self, closings: Sequence[Closing]) -> None:
        answers = await self._transactor.by_lane(closings, self._store.close)
        counted = {one.job_id for one in closings if one.pause_after}
        for answer in answers:
            if isinstance(answer, ClosedBroadcasts):
                self._closed(answer, counted)
        for answer in answers:
            if isinstance(answer, Failed):
                raise answer.error

    def _closed(self, closed: ClosedBroadcasts, counted: Collection[object]) -> None:
        self._report_ended(closed.ended)
        for why, count in Counter(why for _, _, why in closed.waited).items():
            self._emit(EndedUnreported(State.CANCELLED, why, count))
        for run in closed.cancelled:
            self._workers.cancel(run, kill=run.killing)
        waited = [(key.run_id, job) for key, job, _ in closed.waited]
        gone = [*waited, *((run.key.run_id, run.job_id) for run in closed.ended)]
        if sum(self._run_index.forget(*each) for each in gone):
            self._ready()
        changed: list[Hint] = [*(run.hint for run in (*closed.ended, *closed.cancelled)), *waited]
        if changed:
            self._wake_ups.runs_changed(changed)
        failed = {
            (run.job_id, run.shard)
            for run in closed.ended
            if run.state is State.FAILED and run.job_id in counted
        }
        if failed:  # `pause_after_failures` may be reached
            self._wake_ups.jobs_changed(sorted(failed))

    def _report_ended(self, ended: Sequence[LiveRun]) -> None:
        states = Counter(run.state for run in ended)
        for state, count in states.items():
            reason = Reason.CHILDREN_FAILED if state is State.FAILED else None
            self._emit(EndedUnreported(state, reason, count))
        if dead := [run for run in ended if run.state is State.FAILED]:
            # one dead letter each (`store/dispatch/broadcasts`)
            letters = tuple(dead_run(run, Reason.CHILDREN_FAILED) for run in dead)
            self._emit(DeadLettered(letters))


def _closing(run: LiveRun, definition: Definition) -> Closing:
    said = own(run, definition)
    return Closing(run.key, run.job_id, run.shard, said.pause_after_failures, said.notices)
