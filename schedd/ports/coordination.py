"""etcd, and a member's own lease in it."""

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
