"""Protocols for dependencies that have several implementations, or that their users can't import.

    clock, coordination, notifications, objects     several implementations, in tests too
    members                                         implemented above the stages and calls

A method either completes or raises `schedkit.errors.Unavailable`; a refusal is a returned value.
PostgreSQL has no protocol: stages and calls use the classes of `store/`.
"""

import enum
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Protocol, TypeAlias

from schedd.core.checkup.facts import Facts
from schedd.core.cluster.coordination import (
    Compare,
    CoordinationEntry,
    Followed,
    Lease,
    LeaseId,
    Listing,
    Op,
    TxnResult,
)
from schedd.core.ids import Hint, IncarnationId, JobId, ShardId
from schedd.core.jobs.notifications import Notice, OutboxNotification
from schedd.core.runs.model import LiveRun
from schedd.core.runs.records import StoredDefinition


class ClusterClock(Protocol):
    """Cluster time: the member's monotonic clock mapped onto the database's (docs/glossary.md)."""

    def now(self) -> datetime: ...


class Coordination(Protocol):
    """The calls of etcd that a member needs. Each call has its own deadline."""

    async def get(self, key: str) -> CoordinationEntry | None: ...
    async def list(self, prefix: str) -> Listing: ...
    async def txn(
        self, compare: Sequence[Compare], then: Sequence[Op], otherwise: Sequence[Op] = ()
    ) -> TxnResult: ...
    async def grant(self, ttl: int) -> Lease: ...
    async def revoke(self, lease: LeaseId) -> None: ...
    async def keepalive_once(self, lease: LeaseId) -> int: ...
    async def keep_alive(self, leases: Collection[LeaseId]) -> dict[LeaseId, int]: ...
    def follow(self, prefix: str) -> AsyncIterator[Followed]: ...


class LeaseKeeper(Protocol):
    """A lease that is kept alive while the event loop makes progress. Times are CLOCK_BOOTTIME."""

    @property
    def lease(self) -> Lease: ...
    @property
    def trusted_until(self) -> float:
        """When trust ends unless a keepalive moves it, in seconds."""
        ...

    def trusted(self) -> bool:
        """Return whether the member may act on the lease now. Once False, it stays False. Cheap."""
        ...

    async def until_lost(self) -> enum.Enum:
        """Return when trust ends, with the reason."""
        ...


KeepLease: TypeAlias = Callable[[], AbstractAsyncContextManager[LeaseKeeper]]
"""Grants a lease and keeps it alive during the block. Revokes it afterwards, if etcd answers."""


class WakeUps(Protocol):
    """Hints to the owners; never awaited, never needed for correctness."""

    def jobs_changed(self, changed: Sequence[tuple[JobId, ShardId]]) -> None:
        """Wake the owners of these jobs' timers, which were written."""
        ...

    def runs_ready(self, shards: Sequence[ShardId]) -> None:
        """Wake the owners of these shards: runs were inserted or made ready."""
        ...

    def runs_created(
        self, runs: Sequence[LiveRun], definitions: Sequence[StoredDefinition] = ()
    ) -> None:
        """Pass inserted runs, and definitions that were stored with them, to an owner at this
        member. The owner then needs no scan to find the runs, and no read of these definitions.
        """
        ...

    def runs_changed(self, hints: Sequence[Hint]) -> None:
        """Send hints of these runs to watchers, here and at other members."""
        ...

    def cluster_changed(self) -> None:
        """Let all members read the cluster pause and the shard map, which may have changed."""
        ...


class Refusals(Protocol):
    """Workers that refused runs, as known to the member that dispatched the runs."""

    async def refusals_of_job(
        self, shard: ShardId, job: JobId, generation: int
    ) -> Mapping[IncarnationId, str]:
        """Return the workers that can't run this generation of the job, each with the reason."""
        ...


class CheckupFacts(Protocol):
    """Facts about the cluster, for diagnostics."""

    async def facts(self) -> Facts:
        """Return the current facts; never raises. An unreadable fact has the reason instead."""
        ...


class Sender(Protocol):
    async def send(self, notification: OutboxNotification, notice: Notice) -> str:
        """Deliver a notification over its channel; return why it failed, empty if it was accepted.

        The delivery has a timeout, and no error is raised.
        """
        ...

    async def close(self) -> None: ...


class ResultObjects(Protocol):
    """Whole logs, and results too large for a row (`schedkit.objects` has the keys)."""

    def parts(self, key: str, size: int, sha256: bytes) -> AsyncIterator[bytes]:
        """Yield an object in parts. Its size and checksum are compared.

        Raises NoSuchObject, Unavailable, or Damaged before the last part.
        """
        ...

    async def remove(self, places: Sequence[str]) -> tuple[list[str], list[str]]:
        """Remove these objects; return the removed ones and those that couldn't be removed.

        Several failures in a row end the call. Never raises.
        """
        ...
