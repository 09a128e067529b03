"""The store of retention: pages are read without a lock, deletions are fenced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import Connection

from schedd.core.ids import JobId, RunId, ShardId
from schedd.core.runs.model import Claim, RunKey
from schedd.core.runs.retention import EndedRun, OldRuns, Unwanted
from schedd.store.cluster.fenced_transaction import fenced_rows, shards_of
from schedd.store.connection.database import Database
from schedd.store.reconcile import retention
from schedd.store.statements.operations import operations
from schedkit import failpoints
from schedkit.records import dataclass

BEFORE_DELETE = failpoints.blocking("retention.before_commit")


@operations("retention")
@dataclass(frozen=True, slots=True)
class PostgresRetentionStore:
    """`schedd.ports.RetentionStore` over PostgreSQL."""

    database: Database

    async def old_runs(
        self, shards: Sequence[ShardId], after: RunKey, before: datetime, limit: int
    ) -> OldRuns:
        """Return the next page of old rows."""
        return await self.database.call(
            lambda c: retention.old_runs(c, shards, after, before, limit)
        )

    async def old_letters(
        self, shards: Sequence[ShardId], after: RunKey, before: datetime, limit: int
    ) -> OldRuns:
        """Return the next page of old waiting dead letters."""
        return await self.database.call(
            lambda c: retention.old_letters(c, shards, after, before, limit)
        )

    async def old_logs(
        self, shards: Sequence[ShardId], after: RunKey, before: datetime, limit: int
    ) -> OldRuns:
        """Return the next page of old runs with output."""
        return await self.database.call(
            lambda c: retention.old_logs(c, shards, after, before, limit)
        )

    async def with_retention(self, after: JobId, limit: int) -> list[JobId]:
        """Return jobs with their own retention, by id."""
        return await self.database.call(lambda c: retention.with_retention(c, after, limit))

    async def old_runs_of(
        self, shards: Sequence[ShardId], past: Mapping[JobId, RunKey], now: datetime, limit: int
    ) -> list[EndedRun]:
        """Return runs after these keys that are past their job's retention."""
        return await self.database.call(
            lambda c: retention.old_runs_of(c, shards, past, now, limit)
        )

    async def delete_runs(self, claim: Claim, chosen: Sequence[EndedRun]) -> list[RunId]:
        """Delete these runs with all their rows."""

        def body(connection: Connection, mine: Sequence[EndedRun]) -> list[RunId]:
            gone = retention.delete_runs(connection, mine, shards_of(mine))
            BEFORE_DELETE()
            return gone

        return await fenced_rows(self.database, claim, chosen, body)

    async def delete_logs(self, claim: Claim, chosen: Sequence[EndedRun]) -> list[RunId]:
        """Delete the output of these runs."""
        return await fenced_rows(self.database, claim, chosen, retention.delete_logs)

    async def unwanted(self, shards: Sequence[ShardId], limit: int) -> list[Unwanted]:
        """Return objects whose rows were deleted."""
        return await self.database.call(lambda c: retention.unwanted(c, shards, limit))

    async def put_aside(self, claim: Claim, stuck: Sequence[Unwanted]) -> list[str]:
        """Move these objects to the end of the order."""
        return await fenced_rows(self.database, claim, stuck, retention.put_aside)

    async def settle(self, claim: Claim, removed: Sequence[Unwanted]) -> list[str]:
        """Forget objects that were removed from the result store."""
        return await fenced_rows(self.database, claim, removed, retention.settle)
