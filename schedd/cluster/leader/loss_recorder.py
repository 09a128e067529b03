"""The leader records lost workers that have no runs, and logs the events of the cluster. It also
reads the statistics of the database.

    incarnations not recorded as lost ──→ then the keys in etcd ──→ lost: recorded
    cluster events since the term began ──→ one log line each

An owner records the loss of a worker in the transaction that rescues its runs. A worker without
runs has nothing to rescue, so the leader records its loss. The leader decides by the same rule as
owners: by a list of keys that is read after the rows (docs/protocol-rules.md, P6.4).
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import Final

from schedd.cluster.worker_leases import WorkerLeases
from schedd.core.cluster.cluster_events import ClusterEventRecord, EventKind
from schedd.core.cluster.statistics import LOOK_EVERY as READ_EVERY
from schedd.core.cluster.statistics import StatsWatch
from schedd.core.events import ClusterWatched, DatabaseSeen, Emit
from schedd.core.ids import IncarnationId
from schedd.store.cluster.membership import MembershipStore
from schedd.store.cluster.workers import WorkerStore
from schedd.store.reconcile.stats import StatisticsStore
from schedkit.clock import boottime
from schedkit.tasks import Loop

log = logging.getLogger(__name__)

LOOK_EVERY: Final = 2.0
MOST_AT_ONCE: Final = 1_000
"""Maximum number of incarnations in one transaction."""
WATCH_EVERY: Final = 15.0
"""Seconds between two readings for metrics."""
BAD: Final = frozenset({EventKind.MEMBER_LOST, EventKind.WORKER_LOST, EventKind.WORKER_RESTARTED})


class LossRecorder:
    """The recording of lost workers for one term. It logs all events since shortly before the term
    began: no leader has logged those of the time without one.
    """

    def __init__(
        self, leases: WorkerLeases, workers: WorkerStore, membership: MembershipStore
    ) -> None:
        self._leases = leases
        self._workers = workers
        self._membership = membership
        self._since: int | None = None
        self._live: frozenset[IncarnationId] = frozenset()
        """Keys of the last list. A key that isn't in two lists may be a rejected worker's."""
        self._deleted: Collection[IncarnationId] = ()
        self._list_at = 0.0
        self.loop = Loop("loss recorder", self.look, interval=min(LOOK_EVERY, leases.ttl / 6))

    async def look(self) -> float | None:
        """Take a step if the watch has reported a deleted key, or if a key is missing; otherwise
        each `LOOK_EVERY`. Return seconds until the next look if that is soon.
        """
        deleted, left = self._leases.deleted, self._list_at - boottime()
        if deleted == self._deleted and not self._leases.missing and left > 0:
            return min(left, self.loop.interval)
        await self.step()
        self._deleted, self._list_at = deleted, boottime() + LOOK_EVERY
        return None

    async def step(self) -> None:
        rows = await self._workers.registered()
        liveness = await self._leases.liveness([one.id for one in rows])
        for part in _parts(liveness.gone):
            await self._workers.lose(part, EventKind.WORKER_LOST)
        unseen = {one.id for one in rows if not one.seen} & liveness.live & self._live
        for part in _parts(unseen):
            await self._workers.note_seen(part)
        self._live = liveness.live
        if self._since is None:
            self._since = await self._membership.event_before_term()
        for event in await self._membership.events_after(self._since):
            self._since = event.id
            _log(event)


def watching(look: Callable[[], Awaitable[ClusterWatched]], emit: Emit) -> Loop:
    async def step() -> None:
        emit(await look())

    return Loop("cluster watch", step, interval=WATCH_EVERY)


def _parts(ids: Collection[IncarnationId]) -> Iterator[list[IncarnationId]]:
    all_of_them = sorted(ids)
    for start in range(0, len(all_of_them), MOST_AT_ONCE):
        yield all_of_them[start : start + MOST_AT_ONCE]


def _log(event: ClusterEventRecord) -> None:
    kind, _, name = event.object.partition("/")
    extra: dict[str, object] = {} if event.kind == EventKind.LEADER_CHANGED else {kind: name}
    extra |= {"reason": event.reason} if event.reason else {}
    extra |= {"detail": event.detail} if event.detail else {}
    level = logging.WARNING if event.kind in BAD else logging.INFO
    log.log(level, "%s", event.kind.replace("-", " "), extra=extra)


def vitals(store: StatisticsStore, emit: Emit) -> Loop:
    watch = StatsWatch()

    async def look() -> None:
        look = await store.read_database_stats()
        emit(DatabaseSeen(watch.add_reading(look), look.dead_letters))

    return Loop("database stats", look, interval=READ_EVERY.total_seconds())
