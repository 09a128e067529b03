"""Pools, and what is in them."""

import builtins
from collections.abc import Callable, Collection
from typing import Protocol

from schedd.core.runs.model import AuditEntry
from schedd.core.runs.pools import PoolKey, PoolRecord, PoolUsage, PoolUse, PoolUser, StartRate
from schedd.core.runs.records import StoreConflict


class PoolStore(Protocol):
    """Reads and writes of user calls on pools. Jobs name theirs in their definitions
    (`UserStore`); dispatch checks their limits (`OwnerStore`).
    """

    async def set(
        self,
        namespace: str,
        name: str,
        limit: int | None,
        rate: StartRate | None,
        seen_version: int,
        actor: str,
        audit: AuditEntry,
    ) -> PoolRecord | StoreConflict:
        """Make it, or write what it allows. `seen_version`: refused if it is another by now; 0:
        whatever it is.
        """
        ...

    async def pause(
        self,
        namespace: str,
        name: str,
        paused: bool,
        note: str,
        actor: str,
        audit: AuditEntry,
        noted: Callable[[PoolRecord], str] | None = None,
    ) -> PoolRecord | None:
        """Pause or resume starts of the pool; None: there is no such pool. `noted`: what the audit
        has of how it stands.
        """
        ...

    async def there(self, namespace: str, name: str) -> bool: ...
    async def standings(self, pools: Collection[PoolKey]) -> dict[PoolKey, PoolUsage]:
        """How full these are; those that aren't there are left out."""
        ...

    async def get(self, namespace: str, name: str) -> tuple[PoolRecord, PoolUse] | None: ...
    async def list(
        self, namespace: str, after: str, limit: int
    ) -> builtins.list[tuple[PoolRecord, PoolUse]]:
        """By name, past `after`."""
        ...

    async def delete(
        self,
        namespace: str,
        name: str,
        audit: AuditEntry,
        most: int,
        noted: Callable[[PoolRecord], str] | None = None,
    ) -> bool | builtins.list[PoolUser]:
        """False: there is none. Some, at most `most`: these use it, and it stays. `noted`: what the
        audit has of what went.
        """
        ...
