"""etcd as the protocol sees it: keys of workers under leases, which it may drop, and forget.

A lease expires, or etcd drops it while its holder lives, or a restore from a snapshot takes
keys away that were made since. `excused` are the incarnations of which a member may truly say that
their lease was gone, and those that were written off with a database that went back; a key that a
restore took is none of them until a TTL has passed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from faults.model.rows import IncarnationId, TenureId
from faults.model.timing import WORKER_TTL


@dataclass(frozen=True, slots=True)
class Listing:
    """A linearizable read of all keys."""

    cluster: int
    revision: int
    live: frozenset[IncarnationId]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A backup."""

    revision: int
    workers: frozenset[IncarnationId]
    members: frozenset[TenureId]
    mapped: frozenset[TenureId]
    mark: int


class Etcd:
    """The keys `workers/<worker>/<incarnation>`; those of members and their leader, the map, and
    the mark of the database that is remembered.
    """

    def __init__(self) -> None:
        self.cluster = 1
        self.revision = 1
        self.watchers: list[Callable[[IncarnationId], None]] = []
        """Notified of each deletion; a restore doesn't notify."""
        self.excused: set[IncarnationId] = set()
        self.members: set[TenureId] = set()
        self.leader: tuple[TenureId, int] | None = None
        """Holder of the election key, and which life of it that is."""
        self.mapped: frozenset[TenureId] = frozenset()
        """Tenures that may take shards, by the map."""
        self.mark = 0
        self._ends: dict[IncarnationId, int] = {}
        self._taken: dict[IncarnationId, int] = {}

    def listing(self, now: int) -> Listing:
        """List the current keys."""
        for key, end in list(self._ends.items()):
            if now > end:
                self.drop(key)
        for key, until in list(self._taken.items()):
            if now >= until:
                del self._taken[key]
                if key not in self._ends:
                    self.excused.add(key)
        return Listing(self.cluster, self.revision, frozenset(self._ends))

    def refresh(self, key: IncarnationId, now: int) -> bool:
        """Keep its lease alive; False: there is none."""
        self.listing(now)
        if key in self._ends:
            self._ends[key] = now + WORKER_TTL
        return key in self._ends

    def create(self, key: IncarnationId, now: int) -> None:
        """A key under a new lease."""
        self.revision += 1
        self._ends[key] = now + WORKER_TTL

    def holds(self, key: IncarnationId, now: int) -> bool:
        """Whether its lease lives, or would but for a restore that is less than a TTL old."""
        self.listing(now)
        return key in self._ends or key in self._taken

    def delete(self, key: IncarnationId) -> None:
        """Delete the key: its holder said goodbye, or restarted."""
        self.revision += 1
        if self._ends.pop(key, None) is not None:
            for notify in self.watchers:
                notify(key)
        self._taken.pop(key, None)

    def drop(self, key: IncarnationId) -> None:
        """The lease is gone, rightly or not."""
        self.delete(key)
        self.excused.add(key)

    def leave(self, tenure: TenureId) -> None:
        """A member's lease is gone, and with it the election key if it held that."""
        self.members.discard(tenure)
        if self.leader is not None and self.leader[0] == tenure:
            self.leader = None

    def snapshot(self) -> Snapshot:
        """Return a backup of the current keys."""
        keys = frozenset(self._ends)
        return Snapshot(self.revision, keys, frozenset(self.members), self.mapped, self.mark)

    def restore(self, backup: Snapshot, now: int, *, renamed: bool) -> None:
        """Go back to a backup; `renamed`: under a new cluster id. There is no leader."""
        self.revision, keys = backup.revision, backup.workers
        self.members, self.mapped, self.mark = set(backup.members), backup.mapped, backup.mark
        self.leader = None
        self.cluster += renamed
        for key in self._ends.keys() - keys:
            self._taken[key] = now + WORKER_TTL
        self._ends = dict.fromkeys(keys, now + WORKER_TTL)
