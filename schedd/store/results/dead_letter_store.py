"""The store of dead letter and redrive calls: each is one transaction, with its audit entry."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from schedd.core.ids import RedriveId, RunId
from schedd.core.runs.model import AuditEntry
from schedd.core.runs.records import DeadLetterGroup, DeadLetterRecord, Idempotency, StoreConflict
from schedd.core.runs.redrive import LetterFilter, RedriveLine, RedriveRecord, RedriveRequest
from schedd.core.runs.run_records import RunRecord
from schedd.store.connection.database import Database
from schedd.store.results import dead_letters, redrive_feed, redrives
from schedd.store.statements.operations import operations
from schedkit.records import dataclass


@operations("dead_letters")
@dataclass(frozen=True, slots=True)
class PostgresDeadLetterStore:
    """`schedd.ports.DeadLetterStore` over PostgreSQL."""

    database: Database

    async def listed(
        self,
        choice: LetterFilter,
        redrive: RedriveId | None,
        after: tuple[datetime, RunId] | None,
        limit: int,
        *,
        resolved: bool,
    ) -> list[DeadLetterRecord]:
        """Return dead letters after `after`, newest first."""
        return await self.database.call(
            lambda c: dead_letters.listed(c, choice, redrive, after, limit, resolved=resolved)
        )

    async def get(self, run_id: RunId) -> DeadLetterRecord | None:
        """Return the run's dead letter, resolved or not."""
        return await self.database.call(lambda c: dead_letters.get(c, run_id))

    async def groups(self, choice: LetterFilter, most: int) -> tuple[list[DeadLetterGroup], int]:
        """Return groups of waiting letters, by job and fingerprint."""
        return await self.database.call(lambda c: dead_letters.groups(c, choice, most))

    async def discard(
        self,
        choice: LetterFilter,
        by: str,
        note: str,
        audit: AuditEntry,
        noted: Callable[[int], str],
    ) -> list[RunId] | StoreConflict:
        """Discard waiting letters."""
        return await self.database.call(
            lambda c: dead_letters.discard(c, choice, by, note, audit, noted)
        )

    async def once_more(
        self,
        run_id: RunId,
        payload: bytes | None,
        line: RedriveLine,
        by: str,
        audit: AuditEntry,
    ) -> RunRecord | StoreConflict | None:
        """Redrive one run."""
        return await self.database.call(
            lambda c: redrive_feed.once_more(c, run_id, payload, line, by, audit)
        )

    async def planned(self, choice: LetterFilter) -> int:
        """Return how many letters a redrive would select now."""
        return await self.database.call(lambda c: redrives.planned(c, choice))

    async def create(
        self,
        request: RedriveRequest,
        idempotency: Idempotency | None,
        audit: AuditEntry,
        noted: Callable[[int], str],
    ) -> RedriveRecord | StoreConflict | None:
        """Store a redrive with the letters that are selected now."""
        return await self.database.call(
            lambda c: redrives.create(c, request, idempotency, audit, noted)
        )

    async def redrive(self, redrive_id: RedriveId) -> RedriveRecord | None:
        """Return one redrive, with the states of its runs."""
        return await self.database.call(lambda c: redrives.get(c, redrive_id))

    async def redrives(
        self, namespace: str, after: tuple[datetime, RedriveId] | None, limit: int
    ) -> list[RedriveRecord]:
        """Return redrives after `after`, newest first."""
        return await self.database.call(lambda c: redrives.newest(c, namespace, after, limit))

    async def switch(
        self,
        redrive_id: RedriveId,
        by: str,
        audit: AuditEntry,
        noted: Callable[[RedriveRecord], str],
        *,
        on: bool,
    ) -> RedriveRecord | None:
        """Stop or resume the redrive."""
        return await self.database.call(
            lambda c: redrives.switch(c, redrive_id, by, audit, noted, on=on)
        )
