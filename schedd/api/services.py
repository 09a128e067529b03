"""What every call stands on: the ports, and who is calling."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final

from schedd.api.auth.authentication import Authentication
from schedd.api.runs.run_messages import RunMessages
from schedd.api.runs.snapshots import ObjectSnapshots
from schedd.core.cluster.cluster_events import LOST_FOR
from schedd.core.cluster.dependency import DependencyFailure
from schedd.core.events import Emit, unheard
from schedd.core.jobs.notifications import NO_MEANS, Means
from schedd.core.jobs.rights import Identity
from schedd.core.runs.model import AuditEntry
from schedd.core.runs.retention import DEFAULTS as KEPT
from schedd.core.runs.retention import Retention
from schedd.core.timers.catch_up_limits import DEFAULTS, LateLimits
from schedd.ports import (
    AccessTokenStore,
    Advances,
    BackfillStore,
    CalendarStore,
    ChainStore,
    Changes,
    Checkup,
    Cluster,
    ClusterClock,
    DeadLetterStore,
    MembershipStore,
    Nudges,
    PauseStore,
    PoolStore,
    Refusals,
    ResultObjects,
    RunFeed,
    Succession,
    Tails,
    UserStore,
    WorkerLines,
    WorkerStore,
)
from schedkit.clock import boottime

DEFAULT_NAMESPACE: Final = "default"


@dataclass(frozen=True, slots=True)
class Services:
    """The ports that calls use."""

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
    nudges: Nudges
    lines: WorkerLines
    refusals: Refusals
    changes: Changes
    feed: RunFeed
    tails: Tails
    advances: Advances
    cluster: Cluster
    succession: Succession
    checkup: Checkup
    objects: ResultObjects
    version: str
    cluster_id: str
    late: LateLimits = DEFAULTS
    retention: Retention = KEPT
    lost_for: timedelta = LOST_FOR
    """How long lost members and workers stay listed."""
    means: Means = NO_MEANS
    """What jobs may have people told by."""
    failures: Callable[[], Sequence[DependencyFailure]] = tuple
    """Of the dependencies of this member."""
    database_answered_at: Callable[[], float] = boottime
    """Return when PostgreSQL last answered this member, in seconds of CLOCK_BOOTTIME."""
    emit: Emit = unheard
    """What happened, for who counts it."""
    run_messages: RunMessages = field(default_factory=RunMessages)
    looks: ObjectSnapshots = field(default_factory=ObjectSnapshots)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, as they were authenticated, from where, and how long the call may take: `deadline`
    is in seconds from now.
    """

    who: Identity
    source: str
    deadline: float | None = None

    @property
    def actor(self) -> str:
        """As the audit names them."""
        return self.who.actor

    def audit(self, action: str, object_: str, request_id: str = "") -> AuditEntry:
        """The audit's line for a change that is about to be made.

        The caller's own name for the call, if it gave one, stands beside where it came from.
        """
        source = self.source if self.who.token is None else f"{self.source} token:{self.who.token}"
        if request_id:
            source = f"{source} request:{request_id}"
        return AuditEntry(self.actor, action, object_, "ok", source=source)

    def changed(
        self,
        action: str,
        object_: str,
        before: Mapping[str, object],
        after: Mapping[str, object],
        request_id: str = "",
    ) -> AuditEntry:
        """The audit's line for a change, with what the object was and what it is."""
        entry = self.audit(action, object_, request_id)
        return replace(entry, before=compact(before), after=compact(after))


def compact(state: Mapping[str, object]) -> str:
    """A state as the audit has it: JSON."""
    return json.dumps(state, separators=(",", ":"), ensure_ascii=False)
