"""The store of tenures, the leader's term, and the shards with their owners and epochs."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from schedd.core.cluster.cluster_events import (
    LossReason,
)
from schedd.core.ids import Epoch, ShardId, TenureId, Term, Timeline
from schedd.core.runs.model import (
    Claim,
    Tenure,
)
from schedd.core.runs.records import DatabaseProbe
from schedd.store.cluster import cluster_events, membership
from schedd.store.cluster.fence import application_name, ending_blockers
from schedd.store.connection import database_identity
from schedd.store.connection.database import Database, in_autocommit, in_transaction
from schedd.store.statements.operations import operations
from schedkit import failpoints
from schedkit.records import dataclass

BEFORE_FENCE = failpoints.blocking("fence.before_commit")
BEFORE_TAKE = failpoints.blocking("take.before_commit")


@operations("membership")
@dataclass(frozen=True, slots=True)
class MembershipStore:
    """Tenures, the leader's term, and the shards' owners and epochs."""

    database: Database

    async def probe(self) -> DatabaseProbe:
        """Read the server's clock, timeline and role. Raises Unavailable if the database isn't the
        known one.
        """
        known = self.database.lineage.known
        probe = await self.database.read(database_identity.probe_server)
        database_identity.compare(self.database.lineage, probe, known)
        return probe

    cluster_id = in_autocommit(membership.cluster_id)

    async def open_tenure(self, tenure: Tenure) -> None:
        """Write the tenure's row, and connect under its name from now on."""
        self.database.rename(application_name(tenure.id))
        await self.database.call(membership.open_tenure, tenure)

    unfenced_tenures = in_autocommit(membership.unfenced_tenures)
    fenced = in_autocommit(membership.fenced)

    async def fence_own(self, tenure: TenureId, why: str = "") -> None:
        """Fence the member's own tenure: a clean shutdown. With `why`, the member counts as lost
        until it returns.
        """
        lost = LossReason.TENURE_ENDED if why else None
        await self.database.call(membership.fence, [tenure], lost=lost, why=why)

    async def fence(self, tenures: Sequence[TenureId], term: Term) -> bool:
        """Fence these tenures if the term is still this one. False: the term has ended. Ends
        sessions that block the write.
        """

        def body(connection: Connection) -> bool:
            if not membership.holds_term(connection, term):
                return False
            with ending_blockers(self.database, connection, tenures):
                membership.fence(connection, tenures, lost=LossReason.LEASE_EXPIRED)
            BEFORE_FENCE()
            return True

        return await self.database.call(body)

    losses = in_autocommit(cluster_events.losses)
    returns = in_autocommit(cluster_events.returns)
    foreign_members = in_autocommit(membership.foreign_members)
    event_before_term = in_autocommit(cluster_events.before_term)
    events_after = in_autocommit(cluster_events.after)
    read_term = in_autocommit(membership.read_term)
    raise_term = in_transaction(membership.raise_term)
    read_shards = in_autocommit(membership.read_shards)
    read_shards_of = in_autocommit(membership.read_shards_of)

    async def take_shards(
        self, tenure: TenureId, timeline: Timeline, seen: dict[ShardId, Epoch]
    ) -> dict[ShardId, Epoch]:
        """Take the shards among these that have the seen epoch, and are free, owned by this tenure
        or by a fenced one. Returns the new epochs. Ends blocking sessions of fenced tenures.
        """

        def body(connection: Connection) -> dict[ShardId, Epoch]:
            with ending_blockers(self.database, connection):
                taken = membership.take_shards(connection, tenure, timeline, seen)
            BEFORE_TAKE()
            return taken

        return await self.database.call(body) if seen else {}

    async def release(self, claim: Claim) -> None:
        """Release the shards that the claim still owns."""
        if claim.epochs:
            await self.database.call(membership.release, claim)
