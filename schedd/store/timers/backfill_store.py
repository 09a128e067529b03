"""The store of backfill calls: each call is one transaction, with its audit entry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from sqlalchemy import Connection

from schedd.core.ids import BackfillId, JobId
from schedd.core.runs.model import AuditEntry, LiveRun
from schedd.core.runs.records import Idempotency, StoreConflict
from schedd.core.runs.run_records import RunRecord
from schedd.core.timers.backfill import BackfillRequest, BackfillSelection
from schedd.core.timers.backfill_records import Backfilled, BackfillRecord
from schedd.store.connection.database import Database
from schedd.store.statements.operations import operations
from schedd.store.timers import accounted_times, backfills
from schedkit.records import dataclass


@operations("backfills")
@dataclass(frozen=True, slots=True)
class PostgresBackfillStore:
    """`schedd.ports.BackfillStore` over PostgreSQL."""

    database: Database

    async def plan(self, job_id: JobId, request: BackfillRequest) -> BackfillSelection:
        """Return what the backfill would run now."""
        return await self.database.call(lambda c: backfills.planned(c, job_id, request))

    async def create(
        self,
        job_id: JobId,
        seen_generation: int,
        request: BackfillRequest,
        idempotency: Idempotency | None,
        audit: AuditEntry,
    ) -> Backfilled | StoreConflict | None:
        """Store a backfill. None: the job is deleted."""
        return await self.database.call(
            lambda c: backfills.create(c, job_id, seen_generation, request, idempotency, audit)
        )

    async def get(self, backfill_id: BackfillId) -> BackfillRecord | None:
        """Return one backfill, with the states of its runs."""
        return await self.database.call(lambda c: backfills.get(c, backfill_id))

    async def newest(
        self,
        namespace: str,
        job_id: JobId | None,
        after: tuple[datetime, BackfillId] | None,
        limit: int,
    ) -> list[BackfillRecord]:
        """Return backfills after `after`, newest first."""
        return await self.database.call(
            lambda c: backfills.newest(c, namespace, job_id, after, limit)
        )

    async def cancel(
        self,
        backfill_id: BackfillId,
        by: str,
        audit: AuditEntry,
        noted: Callable[[BackfillRecord, Sequence[LiveRun]], tuple[str, str]],
    ) -> tuple[BackfillRecord, list[LiveRun]] | None:
        """Stop the backfill, and cancel its live runs."""
        return await self.database.call(
            lambda c: backfills.cancel(c, backfill_id, by, audit, noted)
        )

    async def of_instant(
        self, job_id: JobId, at: datetime
    ) -> tuple[list[RunRecord], BackfillId | None]:
        """Return the backfilled runs of a scheduled time, and the backfill that will create one."""

        def body(connection: Connection) -> tuple[list[RunRecord], BackfillId | None]:
            pending = backfills.pending(connection, job_id, at)
            return accounted_times.backfilled(connection, job_id, at), pending

        return await self.database.call(body)
