"""Decide whether a worker whose key isn't in etcd is lost. Pure.

A key may be missing without a deletion: after a restore of etcd from an older snapshot, the
worker's next heartbeat creates the key again. Neither revisions nor cluster ids show this reliably:
a member may have just started, or the revisions may have grown past those it saw.

    deletion reported by the watch ───────────────────────────────────→ lost, at once
    missing from a list ──from every list for one worker TTL, no two of
                          them more than TTL / 3 apart────────────────→ lost
                       └─in a list again, or no list was read─────────→ from the beginning

A running worker creates its key again within TTL / 2, so one of those lists has it.

Invariants
- A worker in the list is never lost.
- A deletion counts only in the history of the list that is judged: same cluster, not after its
  revision, and later than every list that still had the key.
- Time spans are measured conservatively. Absence counts from the answer of the first list to the
  sending of the last. Gaps count from the sending of one list to the answer of the next.
"""

import math
from collections.abc import Collection, Mapping

from schedd.core.cluster.coordination import Revision
from schedd.core.ids import IncarnationId
from schedkit.records import dataclass


@dataclass(frozen=True, slots=True)
class LivenessSnapshot:
    """A linearizable list of the workers' keys. `sent`, `answered`: seconds of CLOCK_BOOTTIME."""

    live: frozenset[IncarnationId]
    cluster_id: int
    revision: Revision
    sent: float
    answered: float


@dataclass(frozen=True, slots=True)
class WatchedDeletions:
    """Deletions that one unbroken watch has reported, and the cluster id of its etcd."""

    cluster_id: int
    departed: Mapping[IncarnationId, Revision]


@dataclass(frozen=True, slots=True)
class WorkerLiveness:
    """The workers with a key, and the lost ones of the queried workers. A queried worker in neither
    set is missing.
    """

    live: frozenset[IncarnationId]
    gone: frozenset[IncarnationId]


class AbsenceTracker:
    """The missing workers' keys, as one member knows them. `ttl`: the workers' TTL, in seconds."""

    def __init__(self, ttl: float) -> None:
        self._ttl = ttl
        self._since: dict[IncarnationId, float] = {}
        self._stood: dict[tuple[int, IncarnationId], Revision] = {}
        """Revision of the last list of a cluster that had the key. Lists that were read at the same
        time may be judged in any order.
        """
        self._looked_at = -math.inf

    @property
    def missing(self) -> frozenset[IncarnationId]:
        """The workers that were missing from the last list, lost ones included."""
        return frozenset(self._since)

    def clear(self) -> None:
        """Forget all missing workers."""
        self._since.clear()

    def judge(
        self, named: Collection[IncarnationId], look: LivenessSnapshot, watched: WatchedDeletions
    ) -> WorkerLiveness:
        """Judge the workers in `named` by another list."""
        if look.answered - self._looked_at > self._ttl / 3:
            self._since.clear()  # keys may have existed in between
        self._looked_at = look.sent
        absent = frozenset(named) - look.live
        self._since = {one: self._since.get(one, look.answered) for one in absent}
        self._remember(look, watched)
        gone = frozenset(
            one
            for one in absent
            if self._deleted(one, look, watched) or look.sent >= self._since[one] + self._ttl
        )
        return WorkerLiveness(look.live, gone)

    def _remember(self, look: LivenessSnapshot, watched: WatchedDeletions) -> None:
        """Remember the keys of the list: a list may show a new key before the watch reports it."""
        for one in look.live:
            of = look.cluster_id, one
            self._stood[of] = max(look.revision, self._stood.get(of, look.revision))
        asked = look.live | watched.departed.keys() | self._since.keys()
        self._stood = {of: at for of, at in self._stood.items() if of[1] in asked}

    def _deleted(
        self, one: IncarnationId, look: LivenessSnapshot, watched: WatchedDeletions
    ) -> bool:
        at = watched.departed.get(one)
        return (
            at is not None
            and watched.cluster_id == look.cluster_id
            and self._stood.get((look.cluster_id, one), 0) < at <= look.revision
        )
