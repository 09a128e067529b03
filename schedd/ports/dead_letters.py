"""What calls on dead letters and redrives read and write, one transaction a method."""

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
        """Newest first by when their runs were due, past `after`; those that wait, with `resolved`
        all. All those of a redrive.
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
        """Settle those that wait, but for what a redrive is about to do again; which. `noted`: what
        the audit has of it, by how many they are. A Conflict: more than `choice.at_most`.
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
        """Do one run again, which must have ended so that it may be; the run that does, however
        often it is asked for. None: its job is deleted. A `StoreConflict`: it isn't at the line's
        generation, or too many wait in line.
        """
        ...

    async def planned(self, choice: LetterFilter) -> int:
        """How many letters a redrive would choose now."""
        ...

    async def create(
        self,
        wish: RedriveRequest,
        idempotency: Idempotency | None,
        audit: AuditEntry,
        noted: Callable[[int], str],
    ) -> RedriveRecord | StoreConflict | None:
        """Store it with the letters that are chosen now; None: none is free; a Conflict: more than
        `choice.at_most`, or the key. The same idempotency
        key and digest give the one of then. `noted` as in `discard`.
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
        """Stop it, or have it go on; one that is done, or so already, stays as it is. `noted`: what
        the audit has of how it stands.
        """
        ...
