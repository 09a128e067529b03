"""Rescue: each second, what can't proceed at its worker is started again or ends.

    runs of the index, as scans read them ──→ then the live workers, listed linearizably ──→ decide
      RUNNING, worker lost → RETRYING at once with a new token, or FAILED
      RUNNING, its key merely missing → checked again until the key exists, or the worker is lost
      RUNNING, never started past start_by → back to its previous state, no attempt spent
      RUNNING, maybe unknown to its worker, before that → revoked (`UnconfirmedAssignments`)
      RUNNING, cancelling  → the cancel is sent again
      RUNNING, a broadcast → no worker has it: it ends with its children (`broadcasts`)

Lost workers are found in a list that is read after the runs (P6.4), so a run that was dispatched
after the list was read is never taken for lost. The rescuing transaction checks the row, and
commits the loss of an incarnation, which is final.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from schedd.cluster.owner_transactions import Failed
from schedd.cluster.ownership import Ownership
from schedd.cluster.worker_leases import WorkerLeases
from schedd.core.events import (
    AssignmentsNotStarted,
    DeadLettered,
    EndedUnreported,
    RunsRescued,
    dead_run,
)
from schedd.core.ids import IncarnationId, epoch_of
from schedd.core.runs.broadcast import own
from schedd.core.runs.deadlines import START_WITHIN
from schedd.core.runs.model import LiveRun, Loss, RunKey
from schedd.core.runs.records import Unstarted
from schedd.core.runs.retry import after_loss, fingerprint, reissue_after
from schedd.dispatch.owner_context import OwnerContext, OwnerPart
from schedd.dispatch.revocations import At
from schedd.dispatch.workers.registry import WorkerRegistry
from schedd.ports import ClusterClock
from schedd.reconcile.scan import BACK_WITHIN, SCAN_EVERY, Scan, assigned
from schedd.runtime.definition_texts import CachedDefinition
from schedkit.backoff import Backoff
from schedkit.set_aside import each
from schedkit.tasks import Loop, in_turns

# Assignments that may not have reached their workers are revoked (docs/protocol-rules.md, P4.8).
# They remain when an owner stops between a COMMIT and its pushes, a COMMIT's outcome is unknown, or
# a stream breaks. A revoke changes no row: the worker's answer is stored by its token and sender. A
# pre-dispatched run isn't revoked before it is due: its worker may correctly hold it.

GRACE: Final = timedelta(seconds=0.25)
"""Time after the expected start for which the push may still be on its way."""
ANSWER_WITHIN: Final = 1.0
"""Seconds to wait for answers; the next scan finds unanswered assignments again."""
IDLE: Final = 60.0


class UnconfirmedAssignments:
    """Revokes assignments that may not have reached their workers."""

    def __init__(self, ownership: Ownership, workers: WorkerRegistry, clock: ClusterClock) -> None:
        self._ownership = ownership
        self._workers = workers
        self._clock = clock
        self._out: dict[At, tuple[datetime, LiveRun]] = {}
        """Assignments to revoke, each with the time from which to do so."""
        self._answered: set[At] = set()
        """Answered assignments that the last scan found."""
        self.loop = Loop("unconfirmed assignments", self.step, interval=IDLE)

    def set_found(self, runs: Iterable[LiveRun]) -> None:
        """Replace the assignments to check by those of a scan: runs with running workers."""
        now = self._clock.now()
        answered: set[At] = set()
        self._out = {}
        for run in runs:
            if run.start_by is None or run.start_by <= now:
                continue
            at, should = (run.key.run_id, run.token), run.start_by - START_WITHIN + GRACE
            if at in self._answered:
                answered.add(at)
            elif (
                epoch_of(run.token) < self._ownership.epochs.get(run.shard, 0)
                or self._workers.lacks(run, should)  # a heartbeat should have listed it by now
            ):
                self._out[at] = should, run
        self._answered = answered
        if self._out:
            self.loop.wake()

    async def step(self) -> float:
        """Revoke assignments that should have started; return the seconds until the next is due."""
        now = self._clock.now()
        ripe = {at: run for at, (should, run) in self._out.items() if should <= now}
        for at in ripe:
            del self._out[at]
        ours = self._ownership.epochs
        asked = [run for run in ripe.values() if run.shard in ours and not self._workers.lists(run)]
        if asked:
            unanswered = await self._workers.revoke(asked, ANSWER_WITHIN)
            self._answered |= ripe.keys() - set(unanswered)
        waits = (should - self._clock.now() for should, _ in self._out.values())
        return max(0.0, min((wait.total_seconds() for wait in waits), default=IDLE))


class Rescue(OwnerPart):
    """The loop that rescues the runs of lost workers, and its helpers."""

    def __init__(self, context: OwnerContext, leases: WorkerLeases, scan: Scan) -> None:
        super().__init__(context)
        self._leases, self._scan = leases, scan
        self._gone: frozenset[IncarnationId] = frozenset()
        self._unconfirmed = UnconfirmedAssignments(
            self._run_index.ownership, self._workers, self._clock
        )
        look_every = self._leases.ttl / 6
        self._search = Loop(
            "missing workers",
            self.look_again,
            interval=look_every,
            backoff=Backoff(initial=0.1, maximum=look_every),
        )
        backoff = Backoff(initial=0.1, maximum=BACK_WITHIN)
        self.loop = Loop("rescue", self.step, interval=SCAN_EVERY, backoff=backoff)

    @property
    def loops(self) -> tuple[Loop, ...]:
        return self.loop, self._search, self._unconfirmed.loop

    def wake(self) -> None:
        """Scan and rescue now: a worker's key was deleted."""
        self._scan.wake()
        self.loop.wake()

    async def look_again(self) -> None:
        """Check workers whose keys are missing. Checks are frequent: a worker counts as lost only
        if it can't have returned and stopped again between two of them. A lost worker starts a
        scan.
        """
        gone = await self._leases.look_again()
        if gone - self._gone:
            self.wake()
        self._gone = gone

    async def step(self) -> None:
        """Send cancels again, and end the assignments that can't proceed."""
        index = self._run_index
        running = [run async for run in in_turns(assigned(index, index.read))]
        running = [run for run in running if run.children is None]
        if not running:
            self._leases.forget_missing()
            return
        for run in running:
            if run.cancelling:
                self._workers.cancel(run, kill=run.killing)
        named = {run.incarnation for run in running if run.incarnation is not None}
        liveness = await self._leases.liveness(named)
        nowhere = {*liveness.gone, None}  # None would be a bug, which the rescue raises
        await self._rescue([run for run in running if run.incarnation in nowhere])
        alive = [run for run in running if run.incarnation in liveness.live]
        self._unconfirmed.set_found(alive)
        await self._give_back(await self._workers.never_started(alive))

    async def _rescue(self, lost: Sequence[LiveRun]) -> None:
        if not lost:
            return
        doubted = {run.incarnation for run in lost if run.incarnation}
        self._workers.lost(doubted)
        try:
            known = await self._definition_cache.of_runs(lost)
            readable = [run for run in lost if run.job_id in known]
            losses = each(
                "lost run",
                readable,
                lambda run: _loss(run, known[run.job_id]),
                name=lambda run: run.key.run_id,
            )
            answers = await self._transactor.by_lane(losses, self._store.rescue)
            moved = [each for each in answers if isinstance(each, list)]
            doubted -= self._rescued(lost, losses, moved)
        finally:
            self._workers.spared(doubted)  # the loss wasn't committed: they may return
        for answer in answers:
            if isinstance(answer, Failed):
                raise answer.error

    def _rescued(
        self, lost: Sequence[LiveRun], losses: Sequence[Loss], answers: Iterable[Iterable[RunKey]]
    ) -> set[IncarnationId]:
        """Report rescued runs, even if another lane failed; return the lost incarnations."""
        moved = {key for answer in answers for key in answer}
        done = {loss.key: loss for loss in losses if loss.key in moved}.values()
        gone = {loss.incarnation for loss in done}
        if dead := {loss.key: loss.reason for loss in done if loss.dead}:
            self._emit(DeadLettered(tuple(dead_run(r, dead[r.key]) for r in lost if r.key in dead)))
        states = Counter((loss.state, loss.reason) for loss in done)
        for (state, reason), count in states.items():
            self._emit(EndedUnreported(state, reason, count))
        if moved:
            runs = tuple(sorted(key.run_id for key in moved))
            self._emit(RunsRescued(runs, tuple(sorted(gone))))
            self._wake_ups.runs_changed([(key.run_id, None) for key in moved])
            self._scan.look_at({loss.shard for loss in losses})
        return gone

    async def _give_back(self, never_started: Sequence[LiveRun]) -> None:
        unstarted = [Unstarted(run.key, run.shard, run.token) for run in never_started]
        back = await self._transactor.rows(unstarted, self._store.give_back)
        if back:
            self._emit(AssignmentsNotStarted(tuple(run.key.run_id for run in back)))
            await self._scan.put(back)


def _loss(run: LiveRun, known: CachedDefinition) -> Loss:
    if run.incarnation is None:
        raise ValueError(
            f"run {run.key.run_id} is RUNNING, but its record names no worker (a bug of"
            " schedd: please report this message)"
        )
    definition = own(run, known.definition)
    sequel = after_loss(run, definition)
    return Loss(
        key=run.key,
        shard=run.shard,
        token=run.token,
        incarnation=run.incarnation,
        state=sequel.state,
        reason=sequel.reason,
        dead=sequel.dead and run.parent is None,
        pause_after=definition.pause_after_failures,
        notices=definition.notices,
        fingerprint=fingerprint(sequel.reason, None, "") if sequel.dead else "",
        wait=reissue_after(definition),
    )
