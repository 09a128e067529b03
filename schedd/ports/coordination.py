"""etcd, and a lease of one's own in it."""

import enum
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias

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


class Coordination(Protocol):
    """etcd, as far as a member needs it. Each call has a deadline of its own."""

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
    """A lease that is kept alive while the event loop makes progress. Instants: CLOCK_BOOTTIME."""

    @property
    def lease(self) -> Lease: ...
    @property
    def trusted_until(self) -> float:
        """When trust ends unless a keepalive moves it, in seconds."""
        ...

    def trusted(self) -> bool:
        """Whether the lease may be acted on now; once False, False for ever. Cheap."""
        ...

    async def until_lost(self) -> enum.Enum:
        """Return the moment trust ends. The value says why."""
        ...


KeepLease: TypeAlias = Callable[[], AbstractAsyncContextManager[LeaseKeeper]]
"""Grants a lease and keeps it for the time of the block; revokes it after, if etcd answers."""
