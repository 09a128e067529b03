"""The dependencies that calls use, and the caller."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from datetime import timedelta
from typing import Final

from schedd.api.auth.authentication import Authentication
from schedd.api.runs.snapshots import ObjectSnapshots, RunMessages
from schedd.cluster.leader.transfer import LeadershipTransfers
from schedd.cluster.observer import Observer
from schedd.core.auth.rights import CallerIdentity
from schedd.core.cluster.cluster_events import LOST_FOR
from schedd.core.cluster.dependency import DependencyFailure
from schedd.core.events import Emit, discard
from schedd.core.ids import RunId
from schedd.core.jobs.notifications import NO_MEANS, DeliveryMeans
from schedd.core.runs.model import AuditRecord
from schedd.core.runs.retention import DEFAULTS as KEPT
from schedd.core.runs.retention import Retention
from schedd.core.timers.catch_up_limits import DEFAULTS, CatchUpLimits
from schedd.dispatch.workers.registry import WorkerRegistry
from schedd.ports import CheckupFacts, ClusterClock, Refusals, ResultObjects, WakeUps
from schedd.results.log_followers import LogFollowers
from schedd.results.progress import MemberProgress
from schedd.store.access_tokens import AccessTokenStore
from schedd.store.cluster.cluster_pauses import PauseStore
from schedd.store.cluster.membership import MembershipStore
from schedd.store.cluster.workers import WorkerStore
from schedd.store.jobs.calendars import CalendarStore
from schedd.store.jobs.pools import PoolStore
from schedd.store.results.chain_joins import ChainStore
from schedd.store.results.redrives import DeadLetterStore
from schedd.store.timers.backfill_store import BackfillStore
from schedd.store.user_store import UserStore
from schedd.watch.change_bus import Watchers
from schedd.watch.subscriptions import Subscriptions
from schedkit.clock import boottime
from schedkit.records import dataclass, replace

DEFAULT_NAMESPACE: Final = "default"


@dataclass(frozen=True, slots=True)
class Services:
    store: UserStore
    calendars: CalendarStore
    pools: PoolStore
    pauses: PauseStore
    backfills: BackfillStore
    dead_letters: DeadLetterStore
    chains: ChainStore
    membership: MembershipStore
    worker_store: WorkerStore
    access_tokens: AccessTokenStore
    authentication: Authentication
    clock: ClusterClock
    wake_ups: WakeUps
    lines: WorkerRegistry
    refusals: Refusals
    changes: Watchers
    feed: Subscriptions
    log_followers: LogFollowers
    advances: MemberProgress
    cluster: Observer
    succession: LeadershipTransfers
    checkup: CheckupFacts
    objects: ResultObjects
    version: str
    cluster_id: str
    late: CatchUpLimits = DEFAULTS
    retention: Retention = KEPT
    lost_for: timedelta = LOST_FOR
    """How long lost members and workers stay listed."""
    means: DeliveryMeans = NO_MEANS
    """Means of notification that jobs may use."""
    failures: Callable[[], Sequence[DependencyFailure]] = tuple
    """Return the failures of this member's dependencies, and waits for locks that last."""
    database_answered_at: Callable[[], float] = boottime
    """Return when PostgreSQL last answered this member, in seconds of CLOCK_BOOTTIME."""
    emit: Emit = discard
    """Report an event to the metrics."""
    run_messages: RunMessages = field(default_factory=RunMessages)
    snapshots: ObjectSnapshots = field(default_factory=ObjectSnapshots)


@dataclass(frozen=True, slots=True)
class Caller:
    """The authenticated caller, its source, and the deadline of the call in seconds from now."""

    who: CallerIdentity
    source: str
    deadline: float | None = None

    @property
    def actor(self) -> str:
        """The name in the audit log."""
        return self.who.actor

    def audit(
        self,
        action: str,
        object_: str,
        request_id: str = "",
        *,
        run_id: RunId | None = None,
        after: str = "",
    ) -> AuditRecord:
        """Return the audit line of a change. `request_id`, if given, is appended to the source."""
        source = self.source if self.who.token is None else f"{self.source} token:{self.who.token}"
        if request_id:
            source = f"{source} request:{request_id}"
        return AuditRecord(
            self.actor, action, object_, "ok", run_id=run_id, source=source, after=after
        )

    def changed(
        self,
        action: str,
        object_: str,
        before: Mapping[str, object],
        after: Mapping[str, object],
        request_id: str = "",
    ) -> AuditRecord:
        """Return the audit line of a change, with the object's state before and after."""
        entry = self.audit(action, object_, request_id)
        return replace(entry, before=compact(before), after=compact(after))


_encode: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
"""Created once: building an encoder costs more than using it."""


def compact(state: object) -> str:
    """Return a state as JSON, for the audit log."""
    return _encode(state)
