"""The store of retention: pages are read without a lock, deletions are fenced."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from schedd.core.ids import RunId
from schedd.core.runs.model import Claim
from schedd.core.runs.retention import EndedRun, Unwanted
from schedd.store.cluster.fenced_transaction import fenced_rows, shards_of
from schedd.store.connection.database import Database, in_transaction
from schedd.store.reconcile import retention
from schedd.store.statements.operations import operations
from schedkit import failpoints
from schedkit.records import dataclass

BEFORE_DELETE = failpoints.blocking("retention.before_commit")


@operations("retention")
@dataclass(frozen=True, slots=True)
class RetentionStore:
    """Pages of old data are hints. Deletions check each row again, under the claim."""

    database: Database

    old_runs = in_transaction(retention.old_runs)
    old_letters = in_transaction(retention.old_letters)
    old_logs = in_transaction(retention.old_logs)
    with_retention = in_transaction(retention.with_retention)
    old_runs_of = in_transaction(retention.old_runs_of)

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

    unwanted = in_transaction(retention.unwanted)

    async def put_aside(self, claim: Claim, stuck: Sequence[Unwanted]) -> list[str]:
        """Move these objects to the end of the order."""
        return await fenced_rows(self.database, claim, stuck, retention.put_aside)

    async def forget_objects(self, claim: Claim, removed: Sequence[Unwanted]) -> list[str]:
        """Forget objects that were removed from the result store."""
        return await fenced_rows(self.database, claim, removed, retention.forget_objects)
