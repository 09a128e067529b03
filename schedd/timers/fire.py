"""Fire: turn due timers into runs, a little before they are due; no run starts early.

    agenda (`timer_loader`) ──due──→ plan ──one transaction a lane──→ runs

A separate loop loads timers into the agenda (`timer_loader`), so firing never waits for a load. The
plan (`fire_plan`) says which scheduled times run, which are only recorded, and the timer's next
state. The fire statement inserts runs only for timers that advanced. A timer that was paused,
edited, moved or fired by another member meanwhile inserts nothing (P3.4), and its row is read
again. If its row is unchanged, a guard of the database rejected it: the database's clock is behind
this member's, or the cluster was just paused or resumed. It is tried again after a pause. While the
cluster is paused no timer fires.

Runs are created ahead (`core/timers/pre_dispatch`), so that the database isn't busy with them at
the due time. A schedule with exclusions creates no run ahead: the next version of its calendar may
exclude it.

Due timers of higher priority fire first, in the order of the ready queue. Late timers fire after
the timers that are due now, and their runs record when they were created (`ready_at`). A batch has
one priority class, so a few urgent timers don't delay a large batch. Its size is limited by time,
because it isn't interrupted. While enough runs are ready for dispatch, firing more starts none
sooner: the loop rests until fewer are ready, for a limited time. Runs that no worker can do don't
count. More urgent timers don't wait for the rest.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Final, TypeVar

from schedd.cluster.owner_transactions import Failed
from schedd.core.cluster.statistics import Behind, behind
from schedd.core.dispatch.batch_size import LEAST, BatchSize
from schedd.core.events import RunsMissed
from schedd.core.events import TimersFired as FiredEvent
from schedd.core.ids import Hint, JobId, ShardId
from schedd.core.jobs.definition import Priority
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import (
    Claim,
    DispatchedBatch,
    Firing,
    FiringToSlot,
    LiveRun,
    Timer,
    alike,
)
from schedd.core.runs.records import FireOutcome
from schedd.core.schedule.work_budget import OF_TURN, TooMuchWork
from schedd.core.timers import fire_plan
from schedd.core.timers.cluster_pauses import Pauses
from schedd.dispatch.assigner import Assigner
from schedd.dispatch.held_timers import HOLD, Defined, Planned
from schedd.dispatch.owner_context import OwnerContext, OwnerPart
from schedd.dispatch.workers.attached_slots import SlotReservation
from schedd.runtime.budgeted_work import on_loop
from schedd.runtime.definition_texts import CachedDefinition
from schedd.timers.prepared_plans import PreparedPlans
from schedd.timers.timer_loader import LOAD_EVERY, TimerLoader
from schedd.timers.timer_steps import (
    SameStep,
    copied,
    firing_of,
    may_be_copied,
    may_be_held,
    missed,
    same_step,
)
from schedkit import failpoints
from schedkit.clock import boottime
from schedkit.errors import Unavailable
from schedkit.records import named_tuples
from schedkit.set_aside import set_aside
from schedkit.tasks import Loop, in_turns

F = TypeVar("F", Firing, FiringToSlot)

log = logging.getLogger(__name__)

SET_ASIDE_FOR: Final = timedelta(minutes=1)
"""Backoff of a timer whose step can't be computed."""
TOO_MUCH_FOR: Final = timedelta(hours=1)
"""Backoff of a timer that needs too much work: a try takes the owner's only thread for a minute."""

BATCH: Final = 500
TO_SLOTS: Final = 2_000
"""Timers that are fired as RUNNING in one batch. Each worker gets its runs in one frame, and the
workers share a batch: five workers' frames of 100 runs cost twice as much as frames of 400.
"""
PART_OF_SLOTS: Final = 4
"""A larger batch takes one of so many free slots at most: while one runs, the next is written."""
ROWS: Final = 4
"""A batch inserts so many runs for each timer of a full batch, approximately. Timers that are far
behind share the rows that others leave, and timers that are due now have their turn between
batches.
"""
ON_TIME: Final = timedelta(0)
GUARD_PAUSE: Final = timedelta(seconds=0.5)
"""Pause before a timer that a guard of the database rejected is tried again."""
ENOUGH: Final = 1_000
"""Ready runs from which on the loop rests: two batches of a dispatch."""
RESTS: Final = 9
"""Upper limit of the rest, as a multiple of the last batch's time: runs that wait for slots must
not stop everything else.
"""
CHECK: Final = 0.02
"""Seconds between two checks whether enough runs are still ready."""

HELD_CHECK: Final = 0.02
"""Seconds between two looks for slots for held timers."""

MID_BATCH = failpoints.awaited("fire.mid_batch")
AFTER_COMMIT = failpoints.awaited("fire.after_commit")


class FireLoop(OwnerPart):
    """Fires timers."""

    def __init__(
        self,
        context: OwnerContext,
        near: TimerLoader,
        placeable: Callable[[], int],
        assigner: Assigner,
        *,
        boot: Callable[[], float] = boottime,
    ) -> None:
        """`placeable`: the number of ready runs that some worker here could run."""
        super().__init__(context)
        self._boot = boot
        self._assigner = assigner
        self._placeable = placeable
        self._changed: set[JobId] = set()
        self._refused: dict[JobId, Timer] = {}
        self._near = near
        self._open: dict[JobId, Timer] = {}
        """Timers that aren't in the agenda and may not have fired: their batch is in progress, or
        their rows must be read to find out.
        """
        self._looked: dict[JobId, tuple[ShardId, int, datetime]] = {}
        """When jobs that are catching up were first examined, with shard and generation."""
        self._begun: set[JobId] = set()
        """Jobs with runs created by this owner, and more to create."""
        self._size, self._held_size = BatchSize(BATCH), BatchSize(TO_SLOTS)
        self._switched = 0
        """The version of the cluster's pauses that the steps of held timers were planned with."""
        self._rest_until = 0.0
        self._rests: float = Priority.LOW
        """The highest class that rests until `_rest_until`, while enough runs are ready."""
        self._made: Callable[[Sequence[Hint]], None] = lambda _: None
        self.loop = Loop("fire", self.step, interval=LOAD_EVERY.total_seconds())
        self.plans = PreparedPlans()
        self.plans.on_computed(self._computed)
        self.plans.on_failed(self._put_off_if_here)
        near.on_load(self.loop.wake)
        self._run_index.ownership.listen(self._shards_changed)
        self._run_index.timers.has_begun = self._has_begun

    def on_made(self, callback: Callable[[Sequence[Hint]], None]) -> None:
        """Call `callback(hints)` with runs that were created."""
        self._made = callback

    def changed(self, jobs: Iterable[JobId]) -> None:
        """Read the timers of these jobs now: they were written."""
        self._changed.update(jobs)
        self.loop.wake()

    def slots_freed(self) -> None:
        """Wake the loop if timers wait for slots: slots became free."""
        if self._run_index.held_timers:
            self.loop.wake()

    async def step(self) -> float:
        """Read changed timers and fire due ones; return the seconds until the next round."""
        if self._cluster_pause.is_paused:
            self._run_index.held_timers.release(self._clock.now())
            self._changed.clear()  # all is loaded again when the pause ends
            self._looked.clear()
            self._begun.clear()
            self._open.clear()
            return LOAD_EVERY.total_seconds()
        if self._changed:
            await self._reread()
        fired = await self._fire_held()
        above, now = self._above(), self._clock.now()
        its = self._run_index.timers.class_due(now, above)
        if its is not None:
            due = self._run_index.timers.pop_due(now, self._size.now, above)
            await self._fire_timed(self._fire(due), len(due), its, self._size)
            return 0.0
        if fired:
            return 0.0
        first = self._run_index.timers.next_at(above)
        pause = LOAD_EVERY.total_seconds()
        if first is not None:
            pause = max(0.0, (first - self._clock.now()).total_seconds())
        pause = min(pause, self._held_pause())
        if above is not None:
            return min(pause, CHECK)
        self._near.nothing_is_due()
        return pause

    def _above(self) -> float | None:
        """Return the highest class that rests now; None: none does."""
        rests = self._rest_until > self._boot() and self._placeable() >= ENOUGH
        return self._rests if rests else None

    async def _fire_timed(
        self, batch: Awaitable[int], count: int, its: float, size: BatchSize
    ) -> None:
        """Fire a batch of one class. Its duration sets the size of the next batch, and the pause
        before it. `batch` returns the number of rows written.
        """
        full, rows = count >= size.now, 0
        began = self._boot()
        try:
            rows = await batch
        finally:  # a batch that timed out is tried again with fewer timers
            took = self._boot() - began
            size.record_batch(max(count, rows // ROWS), took)
        if full:
            self._rest_until, self._rests = self._boot() + RESTS * took, its

    async def _fire_held(self) -> bool:
        """Fire a batch of held timers as RUNNING into free slots, and a batch of those that are
        overdue as PENDING. Return whether there were any.
        """
        held, pauses = self._run_index.held_timers, self._cluster_pause.pauses
        if not held:
            return False
        if pauses.switched != self._switched:
            held.release(self._clock.now())
            return True
        size, now = self._held_size, self._clock.now()
        queues = self._run_index.ready, self._run_index.early
        with self._workers.choosing() as choice:
            offers = self._workers.offers()
            most = min(size.now, max(BATCH, offers.slots // PART_OF_SLOTS))
            chosen = held.choose(most, now, offers, choice, queues)
            if chosen:
                began = self._boot()
                try:
                    await self._fire_running(chosen, choice)
                finally:  # as in `_fire_timed`
                    size.record_batch(len(chosen), self._boot() - began)
        until = now if self._run_index.ready else now - HOLD
        overdue = held.overdue(size.now, until, self._above())
        if overdue:
            timers = {timer.job_id: timer for each in overdue for timer, _ in each.timers}
            firings = [one for each in overdue for one in _copied(each)]
            batch = self._fire_pending(firings, timers, self._switched)
            its = firings[0].priority - overdue[0].late
            await self._fire_timed(batch, len(firings), its, size)
        return bool(chosen or overdue)

    def _held_pause(self) -> float:
        """Return the seconds until held timers are looked at again."""
        at = self._run_index.held_timers.next_at()
        if at is None:
            return LOAD_EVERY.total_seconds()
        return max(HELD_CHECK, (at - self._clock.now()).total_seconds())

    async def _fire_running(
        self, chosen: Sequence[tuple[FiringToSlot, CachedDefinition]], choice: SlotReservation
    ) -> None:
        """Fire these timers as RUNNING, and push their runs."""
        known = {one.job_id: entry for one, entry in chosen}
        timers = {one.job_id: one.timer for one, _ in chosen}
        batch_of = {one.job_id: one.batch for one, _ in chosen}

        async def write(claim: Claim, items: Sequence[FiringToSlot]) -> FireOutcome:
            next_token = self._transactor.ownership.sequencer(claim)
            fired = await self._store.fire_running(claim, items, next_token, self._switched)
            await MID_BATCH()
            return fired

        done, answers, failed = await self._write([one for one, _ in chosen], timers, write)
        same: dict[object, list[LiveRun]] = {}
        for run in chain.from_iterable([one.runs for one in answers]):
            if run.state is State.RUNNING:
                same.setdefault((id(batch_of[run.job_id]), run.start_by), []).append(run)
        batches: dict[object, list[LiveRun]] = {}
        for runs in same.values():
            of = alike(runs[0], batch_of[runs[0].job_id].terms)
            batches.setdefault(of, []).extend(runs)
        self._advance([(one.timer, one.batch.step) for one in done], timers, answers)
        self._ready()  # they need no more slots
        await self._assigner.push_fired(
            [(DispatchedBatch.of(b), [known[run.job_id] for run in b]) for b in batches.values()],
            choice,
        )
        if failed is not None:
            raise failed

    async def _reread(self) -> None:
        jobs, self._changed = self._changed, set()
        try:
            rows = await self._store.timers(sorted(jobs))
        except BaseException:
            self._changed |= jobs
            raise
        self._near.known(jobs)
        self._close(jobs)
        for gone in jobs - {row.job_id for row in rows}:
            self._run_index.timers.discard(gone)
            self._looked.pop(gone, None)
            self._begun.discard(gone)
        now = self._clock.now()
        self._run_index.timers.come_up(rows, self._near.until(now), now)
        refused, self._refused = self._refused, {}
        held = [row for row in rows if row == refused.get(row.job_id) and row.due_at is not None]
        for row in held:
            if row.job_id in self._run_index.timers:
                priority = self._definition_cache.priority_of(row.job_id)
                self._run_index.timers.put(row.job_id, now + GUARD_PAUSE, row, priority)
        if held:
            log.warning(
                "%d timers delayed: the database's clock is behind this member's,"
                " or the cluster was just paused or resumed",
                len(held),
            )

    async def _fire(self, due: Sequence[Timer]) -> int:
        """Fire these timers, or hold them for slots; return the number of rows written."""
        timers = {timer.job_id: timer for timer in due}
        self._open.update(timers)
        try:
            known = await self._definition_cache.at_generations(
                {timer.job_id: timer.generation for timer in due}
            )
            now, reckoned = self._clock.now(), self._cluster_pause.pauses
            firings, planned = await self._plan(due, known, now, reckoned)
        except BaseException:
            self._close(timers)
            self._run_index.timers.come_up(due, now=self._clock.now())
            raise
        self._close(timers)
        self._hold(planned, reckoned)
        if not firings:
            return 0
        timers = {firing.job_id: timers[firing.job_id] for firing in firings}
        return await self._fire_pending(firings, timers, reckoned.switched)

    def _hold(self, planned: Sequence[Planned], reckoned: Pauses) -> None:
        held = self._run_index.held_timers
        if reckoned.switched != self._switched:
            held.release(self._clock.now())
            self._switched = reckoned.switched
        if planned:
            held.hold(planned)
            if (at := held.next_at()) is not None and at <= self._clock.now():
                self._ready()  # they ask workers for slots

    async def _fire_pending(
        self, firings: Sequence[Firing], timers: dict[JobId, Timer], switched: int
    ) -> int:
        """Fire these timers; their runs wait for dispatch. Return the number of rows written."""

        async def write(claim: Claim, items: Sequence[Firing]) -> FireOutcome:
            fired = await self._store.fire(claim, items, switched)
            await MID_BATCH()  # this lane has committed, the others may not have
            return fired

        done, answers, failed = await self._write(firings, timers, write)
        self._advance([(timers[each.job_id], each) for each in done], timers, answers)
        if failed is not None:
            raise failed
        return sum(len(firing.runs) for firing in firings)

    async def _write(
        self,
        firings: Sequence[F],
        timers: dict[JobId, Timer],
        write: Callable[[Claim, Sequence[F]], Awaitable[FireOutcome]],
    ) -> tuple[list[F], list[FireOutcome], Unavailable | None]:
        """Write these steps, one transaction a lane. Return those whose outcome is known, with the
        outcomes, and the first lane's error. Timers whose outcome is unknown are read again.
        """
        epochs = self._run_index.ownership.epochs
        began = {shard: epochs.get(shard) for shard in {firing.shard for firing in firings}}
        self._open.update(timers)
        try:
            answers = await self._transactor.by_lane(firings, write)
            await AFTER_COMMIT()
        except BaseException:
            self._close(timers)
            self._run_index.timers.come_up(timers.values(), now=self._clock.now())
            raise
        failed = [answer for answer in answers if isinstance(answer, Failed)]
        in_doubt = {firing.job_id for answer in failed for firing in answer.items}
        self._close(timers.keys() - in_doubt)
        self._changed |= in_doubt  # their rows say whether they fired
        # A shard that was dropped meanwhile may be missing in answers; its new owner loads its
        # timers.
        kept = {shard for shard, epoch in began.items() if epochs.get(shard) == epoch}
        done = [f for f in firings if f.shard in kept and f.job_id not in in_doubt]
        outcomes = [answer for answer in answers if isinstance(answer, FireOutcome)]
        return done, outcomes, failed[0].error if failed else None

    async def _plan(
        self,
        due: Sequence[Timer],
        known: Mapping[JobId, CachedDefinition],
        now: datetime,
        reckoned: Pauses,
    ) -> tuple[list[Firing], list[Planned]]:
        """Return the steps of timers that may take one: those to fire now, and those to hold for
        slots. Timers that are catching up share the rows that the others leave, equally.
        """
        firings: list[Firing] = []
        planned: list[Planned] = []
        steps: dict[SameStep, Firing] = {}
        able_here = self._workers.able_to()
        late_before = now - fire_plan.GRACE
        rows, takers = ROWS * self._size.now, len(due)
        left = deque(self._alike(due, known))
        async for batch in in_turns(left.popleft() for _ in iter(left.__len__, 0)):
            timers, (timer, its) = batch, batch[0]
            same = None if timer.job_id in self._looked else same_step(timer, its, late_before)
            step = None if same is None else steps.get(same)
            copies = step is not None
            if step is None:
                most = max(1, min(fire_plan.FIRES, rows // max(1, takers)))
                step = await self._step_of(timer, its, now, reckoned, most)
                copies = step is not None and may_be_copied(step, late_before)
                if step is not None and same is not None and copies:
                    steps[same] = step  # the others take it with this timer
                else:
                    if len(timers) > 1:
                        left.appendleft(timers[1:])
                    timers, same = timers[:1], None
            takers -= len(timers)
            if step is None:
                continue
            if step.due_at < late_before:
                for one, _ in timers:
                    self._first_seen_at(one, now)
            if copies and may_be_held(timer, its, step, able_here):
                planned.append(Planned(timers, step))
            elif same is None:
                firings.append(step)
                rows -= len(step.runs)
            else:
                firings += _copied(Planned(timers, step))
                rows -= len(timers)
        return firings, planned

    def _alike(
        self, due: Sequence[Timer], known: Mapping[JobId, CachedDefinition]
    ) -> list[list[Defined]]:
        """Return the timers whose definitions can be read, in batches that may take the same step:
        they have equal times, and definitions of one text.
        """
        if self._begun:
            due = sorted(due, key=lambda timer: self._has_begun(timer.job_id))
        batches: dict[object, list[Defined]] = {}
        for timer in due:
            its = known.get(timer.job_id)
            if its is None:
                continue
            of: object = timer.job_id
            if its.text.shares_steps and timer.job_id not in self._looked:
                of = id(its.text), id(its.compiled.instants), timer[2:]
            batches.setdefault(of, []).append((timer, its))
        return [*batches.values()]

    def _put_off(self, timer: Timer, now: datetime, error: Exception) -> None:
        """Try a timer again later: its step can't be computed, and must not delay others."""
        later = TOO_MUCH_FOR if isinstance(error, TooMuchWork) else SET_ASIDE_FOR
        self._run_index.timers.put_off(timer, now + later)

    def _put_off_if_here(self, timer: Timer, error: Exception) -> None:
        """Put off a timer whose step couldn't be computed off the loop, if it is still here."""
        if self._free(timer):
            self._put_off(timer, self._clock.now(), error)

    def behind(self) -> Behind:
        """Return this owner's overdue timers, as far as memory knows."""
        if self._cluster_pause.is_paused:
            return Behind()
        owned = self._run_index.ownership.epochs
        apart = chain(self._open.values(), self.plans.timers)
        its = [timer for timer in apart if timer.shard in owned]
        its += self._run_index.timers.values()  # 100,000: counted without a Python call for each
        dues: Counter[datetime | None] = Counter(map(attrgetter("due_at"), its))
        return behind(dues, self._clock.now())

    def _close(self, jobs: Iterable[JobId]) -> None:
        for job in jobs:
            self._open.pop(job, None)

    async def _step_of(
        self, timer: Timer, known: CachedDefinition, now: datetime, reckoned: Pauses, most: int
    ) -> Firing | None:
        """Return the step of a timer; None if it takes none now, or needs too much work for now and
        is computed off the loop.
        """
        if self._too_soon(timer, known, now) or self.plans.needs_step(timer, known, reckoned):
            return None
        with set_aside("timer", timer, then=partial(self._put_off, timer, now)):
            if (prepared := self.plans.take_firing(timer, known, reckoned)) is not None:
                return prepared
            looked, ahead = self._first_seen_at(timer, now), self._run_index.lookahead.fire
            step = partial(firing_of, timer, known, now, reckoned)
            try:
                return await on_loop(OF_TURN, partial(step, most, looked, ahead))
            except TooMuchWork:
                self.plans.add(timer, known, reckoned, partial(step, ROWS * LEAST, looked, ahead))
        return None

    def _computed(self, timer: Timer) -> None:
        """Let the timer come up again, if it is still here: its step was computed."""
        if self._free(timer):
            self._run_index.timers.come_up([timer], now=self._clock.now())
            self.loop.wake()

    def _free(self, timer: Timer) -> bool:
        """Return whether it is owned here, and neither in the run index nor being written."""
        job = timer.job_id
        owned = timer.shard in self._run_index.ownership.epochs
        return owned and job not in self._open and job not in self._run_index.timers

    def _too_soon(self, timer: Timer, known: CachedDefinition, now: datetime) -> bool:
        """Return whether none of its scheduled times may be created ahead: it comes up when it is
        due.
        """
        if known.compiled.exclusion is None or timer.due_at is None or timer.due_at <= now:
            return False
        self._run_index.timers.put_off(timer, timer.due_at)
        return True

    def _has_begun(self, job: JobId) -> bool:
        return job in self._begun

    def _first_seen_at(self, timer: Timer, now: datetime) -> datetime:
        """Return when this owner first examined the missed times of a timer that is catching up.

        A time that was inside the catch-up window then stays inside. Times that fell due since are
        examined now.
        """
        if timer.due_at is None or timer.due_at >= now - fire_plan.GRACE:
            return now
        _, generation, looked = self._looked.get(timer.job_id, (0, timer.generation, now))
        if generation != timer.generation or timer.due_at > looked:
            looked = now
        self._looked[timer.job_id] = timer.shard, timer.generation, looked
        return looked

    def _shards_changed(self, gained: frozenset[ShardId], dropped: frozenset[ShardId]) -> None:
        """Forget catch-ups of gained and dropped shards: their start isn't known here."""
        moved = gained | dropped
        self._looked = {job: of for job, of in self._looked.items() if of[0] not in moved}
        self._begun &= self._looked.keys()

    def _keep_looked(self, steps: Iterable[tuple[Timer, Firing]], now: datetime) -> None:
        """Forget the catch-up of timers that have caught up; record it for the others."""
        late = now - fire_plan.GRACE
        for timer, step in steps:
            job, following = timer.job_id, step.next_due_at
            if following is None or following >= late:
                if self._looked or self._begun:
                    self._looked.pop(job, None)
                    self._begun.discard(job)
            else:
                self._begun.add(job)
                self._looked.setdefault(job, (timer.shard, timer.generation, now))

    def _advance(
        self,
        steps: Sequence[tuple[Timer, Firing]],
        timers: Mapping[JobId, Timer],
        answers: Sequence[FireOutcome],
    ) -> None:
        """Note what was written; dispatched runs are pushed elsewhere. `steps`: of timers whose
        outcome is known. `timers`: all.
        """
        now = self._clock.now()
        refused = {job for answer in answers for job in answer.refused}
        failed = refused.union(*(answer.broken for answer in answers))
        self._near.fired([timer.job_id for timer, _ in steps])
        done = [each for each in steps if each[0].job_id not in failed]
        self._keep_looked(done, now)
        self._run_index.timers.clear_where([timer.job_id for timer, _ in done])
        until = self._near.until(now)
        following = [
            (*timer[:3], step.next_due_at, step.next_nominal, False, step.fired + step.counted)
            for timer, step in done
            if step.next_due_at is not None and step.next_due_at <= until
        ]
        self._run_index.timers.come_up(named_tuples(Timer, following), until, now)
        if refused:
            self._definition_cache.forget(refused)
            self._refused |= {job: timers[job] for job in refused}
            self._open.update({job: timers[job] for job in refused})
            self.changed(refused)
            self._cluster_pause.read_soon()
        lost = {shard for answer in answers for shard in answer.lost}
        merged = [
            run
            for timer, step in done
            if timer.shard not in lost
            for run in step.runs
            if run.state is not State.PENDING
        ]
        for reason, count in missed(merged).items():
            self._emit(RunsMissed(reason, count))
        for answer in answers:
            self._transactor.lost(answer.lost, "fire")
            waiting = [run for run in answer.runs if run.state is State.PENDING]
            self._run_index.put_runs(waiting, now)
            if waiting:  # runs that aren't due yet may be pre-dispatched soon
                self._ready()
                self._made([run.hint for run in waiting])
        self._emit(
            FiredEvent(
                runs=sum(len(answer.runs) for answer in answers),
                merged=len(merged),
                latenesses=[max(ON_TIME, now - run.due_at) for a in answers for run in a.runs],
            )
        )


def _copied(each: Planned) -> list[Firing]:
    """Return the step of each of these timers."""
    return [copied(each.step, timer, known.text.definition) for timer, known in each.timers]
