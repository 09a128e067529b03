"""Rescue: the periodic scan that is the truth behind every hint.

    rows of the owned shards, read ──→ then the live workers, listed linearizably ──→ judge
      PENDING, RETRYING   → onto the board (whatever nudge was lost)
      RUNNING, worker gone → loss: RETRYING at once with a new token, or FAILED
      RUNNING, never started past start_by → back whence it came, no attempt spent
      RUNNING, cancelling  → its worker is told again

Absence is judged on a list read after the rows (PROTOCOL 6), so a run that was handed out after
the list was made is never taken for lost. Loss of an incarnation is committed by the rescuing
transaction, and final.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from schedd.core.events import Emit, NeverStarted, RunsRescued
from schedd.core.ids import IncarnationId, ShardId
from schedd.core.lifecycle import State
from schedd.core.model import LiveRun, Loss
from schedd.core.retry import after_loss, fingerprint, reissue_after
from schedd.owner.board import Board
from schedd.owner.catalogue import Catalogue, Known
from schedd.owner.transact import Transactor
from schedd.owner.worker_leases import WorkerLeases
from schedd.owner.workers import Workers
from schedd.ports import ClusterClock, Nudges, OwnerStore, Unstarted
from schedkit.clock import boottime
from schedkit.tasks import Loop

SCAN_EVERY: Final = 1.0


class Rescue:
    """The loop that scans the live runs of the owned shards."""

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
        emit: Emit,
    ) -> None:
        self._board = board
        self._catalogue = catalogue
        self._workers = workers
        self._leases = leases
        self._store = store
        self._transactor = transactor
        self._clock = clock
        self._nudges = nudges
        self._emit = emit
        self._ready: Callable[[], None] = lambda: None
        self._look_at: set[ShardId] = set()
        self._scan_at = 0.0
        self.loop = Loop("rescue", self.step, interval=SCAN_EVERY)
        board.ownership.listen(lambda gained, _dropped: self.wake() if gained else None)

    def on_ready(self, told: Callable[[], None]) -> None:
        """Have `told()` called when runs became ready."""
        self._ready = told

    def wake(self) -> None:
        """A worker's key went: scan now."""
        self._scan_at = 0.0
        self.loop.wake()

    def look_at(self, shards: Iterable[ShardId]) -> None:
        """Runs of these shards were inserted or made ready: bring them onto the board now."""
        self._look_at.update(shards)
        self.loop.wake()

    async def step(self) -> float:
        """One scan of everything, or before it is time, of the shards that were named."""
        now = boottime()
        if now < self._scan_at and self._look_at:
            shards, self._look_at = sorted(self._look_at & set(self._board.ownership.epochs)), set()
            waiting = await self._store.live_runs(shards, [State.PENDING, State.RETRYING])
            self._put(waiting)
        else:
            self._look_at = set()
            await self._scan(sorted(self._board.ownership.epochs))
            self._scan_at = boottime() + SCAN_EVERY
        return 0.0 if self._look_at else max(0.0, self._scan_at - boottime())

    async def _scan(self, shards: Sequence[ShardId]) -> None:
        if not shards:
            return
        runs = await self._store.live_runs(shards, [State.PENDING, State.RETRYING, State.RUNNING])
        waiting = [run for run in runs if run.state is not State.RUNNING]
        running = [run for run in runs if run.state is State.RUNNING]
        self._sort_in(waiting, running)
        if running:
            live = await self._leases.live()
            await self._rescue([run for run in running if run.incarnation not in live])
            await self._give_back([run for run in running if self._workers.never_started(run)])

    def _sort_in(self, waiting: Sequence[LiveRun], running: Sequence[LiveRun]) -> None:
        there = {run.key.run_id for run in running}
        for gone in [run for run in self._board.running if run not in there]:
            self._board.forget(gone)
        self._put((*waiting, *running))
        for run in running:
            if run.cancelling:
                self._workers.cancel(run)

    def _put(self, runs: Sequence[LiveRun]) -> None:
        if self._board.put_runs(runs, self._clock.now()):
            self._ready()

    async def _rescue(self, lost: Sequence[LiveRun]) -> None:
        if not lost:
            return
        known = await self._catalogue.newest({run.job_id for run in lost})
        losses = [_loss(run, known.get(run.job_id)) for run in lost]
        rescued = await self._transactor.rows(losses, self._store.rescue)
        if rescued:
            gone: set[IncarnationId] = {loss.incarnation for loss in losses}
            self._emit(RunsRescued(len(rescued), tuple(sorted(gone, key=lambda i: i.int))))
            self._nudges.runs_changed([key.run_id for key in rescued])
            self.look_at({loss.shard for loss in losses})

    async def _give_back(self, never_started: Sequence[LiveRun]) -> None:
        unstarted = [Unstarted(run.key, run.shard, run.token) for run in never_started]
        back = await self._transactor.rows(unstarted, self._store.give_back)
        if back:
            self._emit(NeverStarted(len(back)))
            self._put(back)


def _loss(run: LiveRun, known: Known | None) -> Loss:
    if run.incarnation is None:
        raise ValueError(f"run {run.key.run_id} is RUNNING without a worker")
    if known is None:
        raise ValueError(f"the definition of run {run.key.run_id} is gone")
    sequel = after_loss(run, known.definition)
    return Loss(
        key=run.key,
        shard=run.shard,
        token=run.token,
        incarnation=run.incarnation,
        state=sequel.state,
        reason=sequel.reason,
        dead=sequel.dead,
        fingerprint=fingerprint(sequel.reason, None, "") if sequel.dead else "",
        wait=reissue_after(known.definition),
    )
