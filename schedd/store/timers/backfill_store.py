"""The store of backfill calls: each call is one transaction, with its audit entry."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection

from schedd.core.ids import BackfillId, JobId
from schedd.core.runs.run_records import RunRecord
from schedd.store.connection.database import Database, in_transaction
from schedd.store.statements.operations import operations
from schedd.store.timers import accounted_times, backfills
from schedkit.records import dataclass


@operations("backfills")
@dataclass(frozen=True, slots=True)
class BackfillStore:
    """Backfills as users see them. The jobs' owners create the runs (`OwnerStore`)."""

    database: Database

    plan = in_transaction(backfills.planned)
    create = in_transaction(backfills.create)
    get = in_transaction(backfills.get)
    newest = in_transaction(backfills.newest)
    cancel = in_transaction(backfills.cancel)

    async def of_instant(
        self, job_id: JobId, at: datetime
    ) -> tuple[list[RunRecord], BackfillId | None]:
        """Return the backfilled runs of a scheduled time, and the backfill that will create one."""

        def body(connection: Connection) -> tuple[list[RunRecord], BackfillId | None]:
            pending = backfills.pending(connection, job_id, at)
            return accounted_times.backfilled(connection, job_id, at), pending

        return await self.database.call(body)
