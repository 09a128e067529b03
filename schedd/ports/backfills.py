"""Reads and writes of calls on backfills, one transaction a method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

from schedd.core.ids import BackfillId, JobId
from schedd.core.runs.model import AuditEntry, LiveRun
from schedd.core.runs.records import Idempotency, StoreConflict
from schedd.core.runs.run_records import RunRecord
from schedd.core.timers.backfill import BackfillRequest, BackfillSelection
from schedd.core.timers.backfill_records import Backfilled, BackfillRecord


class BackfillStore(Protocol):
    """Backfills as people see them; their runs are made by their jobs' owners (`OwnerStore`)."""

    async def plan(self, job_id: JobId, request: BackfillRequest) -> BackfillSelection:
        """Return what it would run now, and what it would leave out; nothing is stored."""
        ...

    async def create(
        self,
        job_id: JobId,
        seen_generation: int,
        request: BackfillRequest,
        idempotency: Idempotency | None,
        audit: AuditEntry,
    ) -> Backfilled | StoreConflict | None:
        """Store it with the instants that are chosen now. The same idempotency key and digest give
        the one of then. `StoreConflict`: the job isn't at that generation; None: it is deleted.
        """
        ...

    async def get(self, backfill_id: BackfillId) -> BackfillRecord | None: ...
    async def newest(
        self,
        namespace: str,
        job_id: JobId | None,
        after: tuple[datetime, BackfillId] | None,
        limit: int,
    ) -> Sequence[BackfillRecord]:
        """Newest first, past `after` (created_at, id)."""
        ...

    async def cancel(
        self,
        backfill_id: BackfillId,
        by: str,
        audit: AuditEntry,
        noted: Callable[[BackfillRecord, Sequence[LiveRun]], tuple[str, str]],
    ) -> tuple[BackfillRecord, Sequence[LiveRun]] | None:
        """Create no more runs of it. Waiting runs become CANCELLED (BY_USER); running ones are
        marked, and the caller sends the cancel to their workers. Returns the changed runs. A
        finished backfill isn't changed. `noted` returns the audit's `before` and `after`.
        """
        ...

    async def of_instant(
        self, job_id: JobId, at: datetime
    ) -> tuple[Sequence[RunRecord], BackfillId | None]:
        """Runs that backfills made of this instant, oldest first, and who is yet to make one."""
        ...
