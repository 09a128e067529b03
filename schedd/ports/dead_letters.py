"""Reads and writes of calls on dead letters and redrives, one transaction a method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

from schedd.core.ids import RedriveId, RunId
from schedd.core.runs.model import AuditEntry
from schedd.core.runs.records import DeadLetterGroup, DeadLetterRecord, Idempotency, StoreConflict
from schedd.core.runs.redrive import LetterFilter, RedriveLine, RedriveRecord, RedriveRequest
from schedd.core.runs.run_records import RunRecord


class DeadLetterStore(Protocol):
    """Dead letters and redrives as people see them; runs of redrives are made by owners."""

    async def listed(
        self,
        choice: LetterFilter,
        redrive: RedriveId | None,
        after: tuple[datetime, RunId] | None,
        limit: int,
        *,
        resolved: bool,
    ) -> Sequence[DeadLetterRecord]:
        """Newest first by due time, past `after`: waiting ones, or with `resolved` all. Of a
        redrive always all.
        """
        ...

    async def get(self, run_id: RunId) -> DeadLetterRecord | None: ...
    async def groups(
        self, choice: LetterFilter, most: int
    ) -> tuple[Sequence[DeadLetterGroup], int]:
        """Those that wait, by job and kind of error, the greatest first; and how many wait in all
        groups, be they among these or not.
        """
        ...

    async def discard(
        self,
        choice: LetterFilter,
        by: str,
        note: str,
        audit: AuditEntry,
        noted: Callable[[int], str],
    ) -> Sequence[RunId] | StoreConflict:
        """Resolve waiting letters, except those queued for redrive; return which. `noted` returns
        the audit text for their number. A `StoreConflict`: more than `choice.at_most`.
        """
        ...

    async def once_more(
        self,
        run_id: RunId,
        payload: bytes | None,
        line: RedriveLine,
        by: str,
        audit: AuditEntry,
    ) -> RunRecord | StoreConflict | None:
        """Redrive one run that has ended; return the new run, the same for each request. None: its
        job is deleted. A `StoreConflict`: the job's generation isn't the line's, or its queue is
        full.
        """
        ...

    async def planned(self, choice: LetterFilter) -> int:
        """How many letters a redrive would choose now."""
        ...

    async def create(
        self,
        request: RedriveRequest,
        idempotency: Idempotency | None,
        audit: AuditEntry,
        noted: Callable[[int], str],
    ) -> RedriveRecord | StoreConflict | None:
        """Store it with the letters that are chosen now; None: there are none. A `StoreConflict`:
        more than `choice.at_most`, or the idempotency key. The same key and digest return the
        stored redrive. `noted` as in `discard`.
        """
        ...

    async def redrive(self, redrive_id: RedriveId) -> RedriveRecord | None: ...
    async def redrives(
        self, namespace: str, after: tuple[datetime, RedriveId] | None, limit: int
    ) -> Sequence[RedriveRecord]:
        """Newest first, past `after` (created_at, id)."""
        ...

    async def switch(
        self,
        redrive_id: RedriveId,
        by: str,
        audit: AuditEntry,
        noted: Callable[[RedriveRecord], str],
        *,
        on: bool,
    ) -> RedriveRecord | None:
        """Stop or continue a redrive; a finished one isn't changed. `noted` returns the audit text
        for its state.
        """
        ...
