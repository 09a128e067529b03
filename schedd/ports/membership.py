"""Tenures, terms and shards: who may act, as PostgreSQL has it."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from schedd.core.cluster.cluster_events import ClusterEvent, Losses
from schedd.core.ids import (
    Epoch,
    ShardId,
    TenureId,
    Term,
    Timeline,
)
from schedd.core.runs.model import Claim, ShardRow, Tenure
from schedd.core.runs.records import Probe


class MembershipStore(Protocol):
    """Tenures, the leader's term, and the shards' owners and epochs."""

    async def probe(self) -> Probe: ...
    async def cluster_id(self) -> str: ...
    async def open_tenure(self, tenure: Tenure) -> None: ...
    async def unfenced_tenures(self) -> list[Tenure]: ...
    async def fenced(self, tenures: Sequence[TenureId]) -> frozenset[TenureId]:
        """Return those that are fenced."""
        ...

    async def fence_own(self, tenure: TenureId, why: str = "") -> None:
        """Fence one's own tenure. Without a reason it is a goodbye; with one, the member is lost
        until it returns.
        """
        ...

    async def losses(self, kept: timedelta) -> Losses:
        """Members and workers that were lost within this time and haven't returned."""
        ...

    async def event_before_term(self) -> int: ...
    async def events_after(self, id_: int) -> list[ClusterEvent]:
        """Cluster events with greater ids, oldest first."""
        ...

    async def fence(self, tenures: Sequence[TenureId], term: Term) -> bool:
        """Fence these if `term` is still the present one; ends backends that block it after
        500 ms. False: the term is over.
        """
        ...

    async def read_term(self) -> Term: ...
    async def raise_term(self, seen: Term, leader: TenureId, above: int = 0) -> Term | None:
        """Compare-and-set, to more than `above`; None: another one raised it."""
        ...

    async def read_shards(self) -> list[ShardRow]: ...
    async def take(
        self, tenure: TenureId, timeline: Timeline, seen: dict[ShardId, Epoch]
    ) -> dict[ShardId, Epoch]:
        """Take those of the shards whose epoch is the one seen and that are free, one's own, or a
        fenced tenure's. Gives the new epochs of those taken.
        """
        ...

    async def release(self, claim: Claim) -> None: ...
