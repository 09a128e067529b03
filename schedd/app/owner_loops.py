"""The owner's loops, created again for each tenure, and the events that wake them.

    tenure begins → run index, transactor, timer loader, fire, dispatch, rescue, backfills,
                    notifications, chains, retention: in its TaskGroup
    tenure ends   → they are cancelled with it; definition cache, workers and collector continue

Wake-ups from calls and peers arrive here. Without a tenure they are ignored, and the workers are
notified that no runs wait here, so that they grant their slots to other members.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Final, NoReturn

from schedd.cluster.cluster_pause import ClusterPause
from schedd.cluster.owner_transactions import Transactor
from schedd.cluster.tenure import LiveTenure, TenureLoop
from schedd.cluster.worker_leases import WorkerLeases
from schedd.core.cluster.statistics import Behind
from schedd.core.events import Emit, QueueStatsRead, ShardsMoved, Waiting
from schedd.core.ids import Hint, JobId, ShardId
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import LiveRun
from schedd.core.runs.records import StoredDefinition
from schedd.core.runs.retention import DEFAULTS as KEPT
from schedd.core.runs.retention import Retention
from schedd.core.timers.catch_up_limits import DEFAULTS, CatchUpLimits
from schedd.core.timers.pre_dispatch import NEVER, Lookahead
from schedd.dispatch.assigner import Assigner
from schedd.dispatch.broadcasts import Broadcasts
from schedd.dispatch.catch_up_limiter import CatchUpLimiter
from schedd.dispatch.dispatch import Dispatch
from schedd.dispatch.overlap import OverlapEnforcer
from schedd.dispatch.owner_context import OwnerContext
from schedd.dispatch.pool_usage_cache import PoolUsageCache
from schedd.dispatch.run_index import RunIndex
from schedd.dispatch.submits import SubmitDispatch
from schedd.dispatch.workers.registry import WorkerRegistry, no_demand
from schedd.notify.outbox_delivery import OutboxDelivery
from schedd.ports import ClusterClock, ResultObjects, Sender, WakeUps
from schedd.reconcile.auto_pause import AutoPause
from schedd.reconcile.deadlines import Deadlines, LateStartAlerts
from schedd.reconcile.pending_work import PendingWorkLoop
from schedd.reconcile.queue_stats import QueueStatsLoop
from schedd.reconcile.rescue import Rescue
from schedd.reconcile.retention import RetentionLoop
from schedd.reconcile.scan import Scan
from schedd.results.result_collector import ResultCollector
from schedd.runtime.definition_cache import DefinitionCache
from schedd.sources.backfills import Backfills
from schedd.sources.chains import Chains
from schedd.sources.redrives import RedriveLoop
from schedd.store.postgres import Stores
from schedd.store.reconcile.stats import PendingWork
from schedd.timers.fire import FireLoop
from schedd.timers.timer_loader import TimerLoader
from schedd.watch.change_bus import Watchers
from schedkit.records import dataclass

WITHOUT_WAKE_UP: Final = timedelta(seconds=5)
"""Dispatch looks at waiting runs each second: it finds a run that is ready later than this."""


class _Loops:
    """The loops of one tenure."""

    def __init__(self, owner: "Owner", context: OwnerContext) -> None:
        stores = owner.stores
        overlap, catch_up = OverlapEnforcer(context), CatchUpLimiter(context, owner.limits)
        pools = PoolUsageCache(context.store, lambda: context.run_index.ended)
        assigner = Assigner(context, overlap, catch_up, pools)
        self.timer_loader = TimerLoader(context)
        self.deadlines = Deadlines(context)
        self.broadcasts = Broadcasts(context, owner.leases)
        self.dispatch = Dispatch(
            context, self.broadcasts, catch_up, pools, assigner, self.deadlines.passed
        )
        self.fire = FireLoop(context, self.timer_loader, self.dispatch.placeable, assigner)
        self.submits = SubmitDispatch(context, self.dispatch, assigner)
        self.scan = Scan(context, overlap)
        self.rescue = Rescue(context, owner.leases, self.scan)
        self.auto_pause = AutoPause(context)
        self.backfills = Backfills(context)
        self.redrives = RedriveLoop(context)
        self.notifications = OutboxDelivery(context, stores.notifications, owner.sender)
        self.late_starts = LateStartAlerts(context, stores.notifications)
        self.chains = Chains(context, stores.chains)
        self.retention = RetentionLoop(context, stores.retention, owner.objects, owner.retention)
        self.queue_stats = QueueStatsLoop(context, stores.statistics)
        self.pending_work = PendingWorkLoop(context, self._wake_for)

    def all(self) -> Sequence[TenureLoop]:
        parts = (
            *(self.timer_loader, self.fire, self.fire.plans, self.dispatch, self.auto_pause),
            *(self.backfills, self.redrives, self.deadlines, self.broadcasts, self.late_starts),
            *(self.chains, self.retention, self.queue_stats, self.pending_work),
        )
        return (
            *(part.loop for part in parts),
            self.scan.loop,
            *self.rescue.loops,
            self.notifications,
        )

    def _wake_for(self, work: PendingWork) -> None:
        self.chains.set_exist(work.chains)
        for exists, wake in (
            (work.backfills, self.backfills.wake),
            (work.redrives, self.redrives.loop.wake),
            (work.notifications, self.notifications.wake),
            (work.pause_changes, self.auto_pause.loop.wake),
        ):
            if exists:
                wake()


@dataclass(frozen=True, slots=True)
class _UntilTheEnd:
    """Loop that only reports the end of its tenure."""

    ended: Callable[[], None]
    name: str = "owner's end"

    async def run(self) -> NoReturn:
        try:
            while True:
                await asyncio.Event().wait()
        finally:
            self.ended()


@dataclass(eq=False, kw_only=True)
class Owner:
    """Creates the loops of a tenure, and passes wake-ups to the running ones."""

    stores: Stores
    sender: Sender
    definition_cache: DefinitionCache
    workers: WorkerRegistry
    leases: WorkerLeases
    collector: ResultCollector
    watchers: Watchers
    clock: ClusterClock
    cluster_pause: ClusterPause
    emit: Emit
    objects: ResultObjects
    retention: Retention = KEPT
    limits: CatchUpLimits = DEFAULTS
    lookahead: Lookahead = NEVER

    def __post_init__(self) -> None:
        self._loops: _Loops | None = None
        self.workers.on_slots_freed(self._slots_freed)
        self.collector.on_unable(self.workers.unable)
        self.cluster_pause.on_change(self._cluster_paused)
        self._cluster_changed: Callable[[], None] = lambda: None

    def loops(self, live: LiveTenure, wake_ups: WakeUps) -> Sequence[TenureLoop]:
        """Return the loops of this tenure. Those of an earlier tenure have ended."""
        self.definition_cache.clear()
        run_index = RunIndex(
            live.ownership,
            self.definition_cache.priority_of,
            self.definition_cache.need_of,
            self.definition_cache.early_need_of,
            self.lookahead,
        )
        context = OwnerContext(
            run_index,
            self.definition_cache,
            self.workers,
            self.stores.owner,
            Transactor(live.ownership, live.trusted, self.emit),
            self.clock,
            self.cluster_pause,
            wake_ups,
            self.emit,
        )
        loops = self._loops = _Loops(self, context)
        sources = (loops.backfills, loops.broadcasts, loops.chains)
        for source in (
            loops.fire,
            loops.scan,
            loops.rescue,
            loops.deadlines,
            *sources,
            self.collector,
        ):
            source.on_ready(loops.dispatch.wake)
        run_index.on_room, run_index.on_short = loops.dispatch.wake, loops.scan.refill
        loops.scan.on_left(
            loops.deadlines.check_unloaded_runs, loops.late_starts.check_unloaded_runs
        )
        live.ownership.listen(
            lambda gained, dropped: self.emit(ShardsMoved(len(gained), len(dropped)))
        )
        loops.fire.on_made(self.runs_changed)
        self.collector.run_index = run_index
        self.stores.users.submit_hook.store = loops.submits.store

        def ended() -> None:
            run_index.clear()
            if self._loops is loops:
                self._loops = None
                self.collector.run_index = None
                self.stores.users.submit_hook.store = None
                self.workers.demand(no_demand)
                self.emit(Waiting(0, 0, 0))
                self.emit(QueueStatsRead())

        return _UntilTheEnd(ended), *loops.all()

    def behind(self) -> Behind:
        """Return this member's backlog, as far as memory knows; empty without a tenure."""
        return Behind() if self._loops is None else self._loops.fire.behind()

    def on_cluster_changed(self, changed: Callable[[], None]) -> None:
        """Call `changed()` when another process reports a change of the cluster."""
        self._cluster_changed = changed

    # -- wake-ups --

    def jobs_changed(self, jobs: Iterable[JobId]) -> None:
        """Load the timers of these jobs: they were written."""
        changed = set(jobs)
        if self._loops is not None and changed:
            self.definition_cache.forget(changed)
            self._loops.dispatch.changed(changed)
            self._loops.fire.changed(changed)
            self._loops.scan.jobs_changed(changed)
            self._loops.auto_pause.loop.wake()

    def runs_ready(self, shards: Iterable[ShardId]) -> None:
        """Scan these shards: runs were inserted or became ready."""
        wanted = list(shards)
        if self._loops is not None and wanted:
            self._loops.scan.look_at(wanted)
            self._loops.dispatch.wake()
            self._loops.backfills.wake()
            self._loops.broadcasts.wake()

    def runs_created(
        self, runs: Iterable[LiveRun], definitions: Sequence[StoredDefinition] = ()
    ) -> None:
        """Queue runs that were inserted just now, with definitions that were stored with them. If a
        row has changed since, its statement refuses the run.
        """
        run_index = self.collector.run_index
        if self._loops is not None and run_index is not None:
            self.definition_cache.add_stored(definitions)
            waiting = [run for run in runs if run.state is State.PENDING and not run.token]
            now = self.clock.now()
            run_index.put_runs(waiting, now)
            soon = now + run_index.lookahead.dispatch + WITHOUT_WAKE_UP
            if any(run.ready_at < soon for run in waiting):
                self._loops.dispatch.wake()

    def runs_changed(self, hints: Sequence[Hint]) -> None:
        self.watchers.changed(hints)

    def cluster_changed(self) -> None:
        """Read the cluster pause again: the pause or the shard map may have changed."""
        self.cluster_pause.read_soon()
        self._cluster_changed()

    def workers_changed(self) -> None:
        """Read the workers again: a worker's key was written or deleted in etcd."""
        if self._loops is not None:
            self._loops.rescue.wake()

    def _cluster_paused(self) -> None:
        if self._loops is not None:
            self._loops.timer_loader.reload()
            self._loops.rescue.wake()
            self._loops.dispatch.wake()
            self._loops.backfills.wake()

    def _slots_freed(self) -> None:
        if self._loops is not None:
            self._loops.dispatch.slots_freed()
            self._loops.fire.slots_freed()
