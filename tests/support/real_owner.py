"""The dispatching parts of an owner over a real database, whose worker is recorded.

owner = RealOwner(member)                 # a member of `support.store`, which owns all shards
line, attached = owner.attach(worker(slots=4))
await member.store.users.submit_run(...)  # dispatched at once
line.assigned
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import cast

from schedd.cluster.cluster_pause import ClusterPause
from schedd.cluster.owner_transactions import Transactor
from schedd.cluster.ownership import Ownership
from schedd.cluster.worker_leases import WorkerLeases
from schedd.core.runs.model import Incarnation
from schedd.core.timers.catch_up_limits import DEFAULTS, CatchUpLimits
from schedd.dispatch.assigner import Assigner
from schedd.dispatch.broadcasts import Broadcasts
from schedd.dispatch.catch_up_limiter import CatchUpLimiter
from schedd.dispatch.dispatch import Dispatch
from schedd.dispatch.overlap import OverlapEnforcer
from schedd.dispatch.pool_usage_cache import PoolUsageCache
from schedd.dispatch.run_index import RunIndex
from schedd.dispatch.submits import SubmitDispatch
from schedd.dispatch.workers.attached_worker import Attached
from schedd.dispatch.workers.registry import WorkerRegistry
from schedd.runtime.definition_cache import DefinitionCache
from schedd.store.cluster.cluster_pauses import PauseStore
from schedkit.clock import boottime
from support.dispatching import WakeUps as NoWakeUps
from support.owner_context import owner_context
from support.runs import RecordingLine
from support.store import Member


class Now:
    """Cluster time: this host's."""

    def now(self) -> datetime:
        return datetime.now(UTC)


class RealOwner:
    """An owner of all shards of a member, with its index, its dispatch and its submits."""

    def __init__(
        self,
        me: Member,
        limits: CatchUpLimits = DEFAULTS,
        *,
        boot: Callable[[], float] = boottime,
    ) -> None:
        self.me, self.clock, self.trust = me, Now(), True
        store = me.store.owner
        self.ownership = Ownership(me.tenure, me.timeline, lanes=me.store.database.lanes)
        self.definition_cache = DefinitionCache(store)
        self.run_index = RunIndex(self.ownership, self.definition_cache.priority_of)
        self.cluster_pause = ClusterPause(cast("PauseStore", None), lambda _event: None)
        self.transactor = Transactor(self.ownership, lambda: self.trust, lambda _event: None)
        self.workers = WorkerRegistry(self.clock, lambda _event: None)
        self.context = owner_context(
            self.run_index,
            self.definition_cache,
            workers=self.workers,
            store=store,
            transactor=self.transactor,
            clock=self.clock,
            cluster_pause=self.cluster_pause,
            wake_ups=NoWakeUps(),
        )
        late = CatchUpLimiter(self.context, limits, boot=boot)
        pools = PoolUsageCache(store, lambda: self.run_index.ended)
        self.assigner = Assigner(self.context, OverlapEnforcer(self.context), late, pools)
        broadcasts = Broadcasts(self.context, cast("WorkerLeases", None))
        self.dispatch = Dispatch(self.context, broadcasts, late, pools, self.assigner)
        self.submits = SubmitDispatch(self.context, self.dispatch, self.assigner)
        me.store.users.submit_hook.store = self.submits.store
        self.ownership.gain(me.epochs)
        self.run_index.were_read(me.epochs)

    def attach(self, one: Incarnation) -> tuple[RecordingLine, Attached]:
        """Attach a worker that grants all of its slots."""
        line = RecordingLine()
        attached = self.workers.attach(one, line)
        self.workers.granted(attached, one.slots, received=0)
        return line, attached

    @property
    def free(self) -> int:
        """The slots that may be used now."""
        return self.workers.offers().slots
