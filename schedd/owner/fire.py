"""Fire: turn due instants into runs, on time and never early.

    agenda (`near_future`) ──due──→ plan ──one transaction a lane──→ runs

What is due comes to the agenda by a loop of its own (`near_future`), so that nothing waits for it.
The plan (`core/steps.py`) says which instants run, which are only accounted for, and where the
timer stands next. The fire statement inserts from the timers that advanced, so
a timer that was paused, edited, moved or fired by somebody else meanwhile inserts nothing
(PROTOCOL 3); its row is then read again. One that comes back unchanged met a guard of the database:
its clock is behind ours, or the cluster was just paused or resumed. It is tried again after a
pause. While the cluster is paused nothing is looked at.

Of what is due the higher priority goes first, by the order of what waits for a worker: else what is
urgent would wait for all of a herd before it waits for a slot, where it goes first. A batch is of
one class, so that the few that are urgent don't take the time of the many; and it is as large as
takes a moment, for it isn't interrupted. While enough is ready for those who hand out, firing more
of it starts nothing sooner: between two batches it rests for as long as one took, and the longer
the more is ready, so that it comes to go as fast as what is ready is handed out. What no worker
could do doesn't count. What is more urgent doesn't wait for that, and finds the database, the
processor and the workers the less busy.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from schedd.core import catch_up, steps
from schedd.core.batch_size import BatchSize
from schedd.core.catch_up import Plan
from schedd.core.events import Emit
from schedd.core.events import Fired as FiredEvent
from schedd.core.ids import Epoch, JobId, ShardId, scheduled_run_id
from schedd.core.lifecycle import State
from schedd.core.model import Claim, Delivery, Firing, NewRun, Priority, RunKey, Timer
from schedd.core.pauses import Pauses
from schedd.core.records import Fired
from schedd.core.schedule import Occurrence
from schedd.owner.board import Board
from schedd.owner.brake import Brake
from schedd.owner.catalogue import Catalogue, Known
from schedd.owner.near_future import HORIZON, LOAD_EVERY, NearFuture
from schedd.owner.transact import Failed, Transactor
from schedd.ports import ClusterClock, OwnerStore
from schedkit import failpoints
from schedkit.clock import boottime
from schedkit.tasks import Loop, in_turns

log = logging.getLogger(__name__)

BATCH: Final = 500
GUARD_PAUSE: Final = timedelta(seconds=0.5)
"""Before a timer that the database held back is tried again."""
ENOUGH: Final = 500
"""Runs that are ready: as many as are handed out at once at most. With so many it rests as long as
a batch took, with twice as many four times as long, with three times as many nine times: a batch
takes a tenth of what it takes to hand it out.
"""
RESTS: Final = 9
"""Times as long at most: what waits for workers that don't come mustn't stop all else."""

MID_BATCH = failpoints.awaited("fire.mid_batch")
AFTER_COMMIT = failpoints.awaited("fire.after_commit")


class Fire:
    """The loop that fires timers."""

    def __init__(
        self,
        board: Board,
        near: NearFuture,
        catalogue: Catalogue,
        store: OwnerStore,
        transactor: Transactor,
        clock: ClusterClock,
        brake: Brake,
        emit: Emit,
        placeable: Callable[[], int],
        *,
        boot: Callable[[], float] = boottime,
    ) -> None:
        self._boot = boot
        self._board = board
        self._brake = brake
        self._catalogue = catalogue
        self._store = store
        self._transactor = transactor
        self._clock = clock
        self._emit = emit
        self._placeable = placeable
        self._changed: set[JobId] = set()
        self._refused: dict[JobId, Timer] = {}
        self._near = near
        self._size = BatchSize(BATCH)
        self._rest_until = 0.0
        self._rests = Priority.LOW
        """This class and those below, until then."""
        self._ready: Callable[[], None] = lambda: None
        self.loop = Loop("fire", self.step, interval=LOAD_EVERY.total_seconds())
        near.on_load(self.loop.wake)

    def on_ready(self, told: Callable[[], None]) -> None:
        """Have `told()` called when runs became ready."""
        self._ready = told

    def changed(self, jobs: Iterable[JobId]) -> None:
        """Timers of these jobs were written; read them now."""
        self._changed.update(jobs)
        self.loop.wake()

    async def step(self) -> float:
        """Read what changed, fire what is due; seconds until the next."""
        if self._brake.on:
            self._changed.clear()  # at its end all is loaded anew: a long pause gathers nothing
            return LOAD_EVERY.total_seconds()
        if self._changed:
            await self._reread()
        rest = self._rest_until - self._boot()
        above = self._rests if rest > 0 else None
        due = self._board.timers.pop_due(self._clock.now(), self._size.now, above)
        if due:
            await self._fire_timed(due)
            return 0.0
        first = self._board.timers.next_at(above)
        pause = LOAD_EVERY.total_seconds()
        if first is not None:
            pause = max(0.0, (first - self._clock.now()).total_seconds())
        if above is not None:
            return min(rest, pause)
        self._near.nothing_is_due()
        return pause

    async def _fire_timed(self, due: Sequence[Timer]) -> None:
        """Fire this batch; how long that took says how large the next may be, and when it comes."""
        priority, full = self._catalogue.priority_of(due[0].job_id), len(due) >= self._size.now
        began = self._boot()
        await self._fire(due)
        ended = self._boot()
        self._size.took(len(due), ended - began)
        if not full or len(self._board.ready) < ENOUGH:
            return
        rests = min(RESTS, (self._placeable() / ENOUGH) ** 2)
        if rests >= 1:
            self._rest_until, self._rests = ended + rests * (ended - began), priority

    async def _reread(self) -> None:
        jobs, self._changed = self._changed, set()
        try:
            rows = await self._store.timers(sorted(jobs))
        except BaseException:
            self._changed |= jobs
            raise
        self._near.known(jobs)
        for gone in jobs - {row.job_id for row in rows}:
            self._board.timers.discard(gone)
        now = self._clock.now()
        self._board.put_timers(rows, now + HORIZON)
        refused, self._refused = self._refused, {}
        held = [row for row in rows if row == refused.get(row.job_id) and row.due_at is not None]
        for row in held:
            if row.job_id in self._board.timers:
                priority = self._catalogue.priority_of(row.job_id)
                self._board.timers.put(row.job_id, now + GUARD_PAUSE, row, priority)
        if held:
            log.warning(
                "%d timers were held back: the database's clock is behind ours,"
                " or the cluster was just paused or resumed",
                len(held),
            )

    async def _fire(self, due: Sequence[Timer]) -> None:
        timers = {timer.job_id: timer for timer in due}
        began = {timer.shard: self._epoch(timer.shard) for timer in due}
        try:
            known = await self._catalogue.at_generations(
                {timer.job_id: timer.generation for timer in due}
            )
            now, reckoned = self._clock.now(), self._brake.pauses
            firings = [
                _firing(timer, known[timer.job_id], now, reckoned)
                async for timer in in_turns(due)
                if timer.job_id in known
            ]

            async def write(claim: Claim, items: Sequence[Firing]) -> Fired:
                fired = await self._store.fire(claim, items, reckoned.switched)
                await MID_BATCH()  # this lane's COMMIT was seen, the others' are on their way
                return fired

            answers = await self._transactor.by_lane(firings, write)
            await AFTER_COMMIT()
        except BaseException:
            self._board.put_timers(due)
            raise
        failed = [answer for answer in answers if isinstance(answer, Failed)]
        in_doubt = {firing.job_id for answer in failed for firing in answer.items}
        # What is of a shard that was dropped meanwhile may have been left out: who has it loads it.
        done = [
            firing
            for firing in firings
            if firing.job_id not in in_doubt and self._epoch(firing.shard) == began[firing.shard]
        ]
        self._advance(done, timers, [a for a in answers if isinstance(a, Fired)])
        if failed:
            self._changed |= in_doubt  # their rows say what happened
            raise failed[0].error

    def _epoch(self, shard: ShardId) -> Epoch | None:
        """Under which it is owned now, if it is."""
        return self._board.ownership.epochs.get(shard)

    def _advance(
        self, firings: Sequence[Firing], timers: dict[JobId, Timer], answers: Sequence[Fired]
    ) -> None:
        now = self._clock.now()
        refused = {job for answer in answers for job in answer.refused}
        broken = {job for answer in answers for job in answer.broken}
        self._near.fired([firing.job_id for firing in firings])
        self._board.put_timers(
            (
                replace(
                    timers[firing.job_id],
                    due_at=firing.next_due_at,
                    nominal=firing.next_nominal,
                    fired=firing.fired + firing.counted,
                )
                for firing in firings
                if firing.job_id not in refused | broken
            ),
            now + HORIZON,
        )
        if refused:
            self._catalogue.forget(refused)
            self._refused = {job: timers[job] for job in refused}
            self.changed(refused)
            self._brake.look()
        for answer in answers:
            self._transactor.lost(answer.lost, "fire")
            if self._board.put_runs(answer.runs, now):
                self._ready()
        self._emit(
            FiredEvent(
                runs=sum(len(answer.runs) for answer in answers),
                folds=sum(run.state is not State.PENDING for f in firings for run in f.runs),
                latenesses=tuple(now - run.due_at for a in answers for run in a.runs),
            )
        )


def _firing(timer: Timer, known: Known, now: datetime, reckoned: Pauses) -> Firing:
    """What this timer does at `now`."""
    definition = known.definition
    if timer.nominal is None or timer.due_at is None:
        raise ValueError(f"timer of job {timer.job_id} has nothing due")
    left = definition.max_runs - timer.fired if definition.max_runs else None
    plan = _plan(timer, timer.nominal, timer.due_at, known, now, reckoned, left)
    fires = tuple(_run(definition.job_id, fire.nominal, fire.due) for fire in plan.fires)
    folds = tuple(_fold(definition.job_id, fold) for fold in plan.folds)
    ended = left is not None and len(fires) >= left
    return Firing(
        job_id=timer.job_id,
        shard=timer.shard,
        generation=timer.generation,
        due_at=timer.due_at,
        next_due_at=plan.next.due if plan.next and not ended else None,
        next_nominal=plan.next.nominal if plan.next else None,
        last_instant=max((run.due_at for run in (*fires, *folds)), default=timer.due_at),
        priority=definition.priority,
        runs=folds + fires,
        fired=timer.fired,
        counted=len(fires) if left is not None else 0,
    )


def _plan(
    timer: Timer,
    nominal: datetime,
    due: datetime,
    known: Known,
    now: datetime,
    reckoned: Pauses,
    left: int | None,
) -> Plan:
    """One step, of a schedule that has so many runs `left`; None: as many as it likes."""
    definition = known.definition
    if left is not None and left <= 0:  # fewer are wanted than there were already
        return Plan((), (), Occurrence(nominal, due))
    if timer.fired:  # it may stand at the plain instant since a turn was given back
        due = max(due, known.compiled.due(nominal))
    return steps.plan(
        known.compiled,
        definition.catch_up,
        nominal,
        due,
        now,
        reckoned,
        at_most_once=definition.delivery is Delivery.AT_MOST_ONCE,
        limit=catch_up.FIRES if left is None else min(left, catch_up.FIRES),
    )


def _run(job: JobId, nominal: datetime, due: datetime) -> NewRun:
    return NewRun(RunKey(nominal, scheduled_run_id(job, nominal)), due)


def _fold(job: JobId, fold: catch_up.Fold) -> NewRun:
    return NewRun(
        RunKey(fold.first, scheduled_run_id(job, fold.first)),
        fold.due,
        state=fold.state,
        reason=fold.reason,
        count=fold.count,
        scheduled_until=fold.last,
        excluded_by=fold.excluded_by,
    )
