"""The outbox's store for owners: each method is one transaction, and each write is fenced."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from schedd.core.ids import RunId
from schedd.core.jobs.notifications import (
    DeliveryOutcome,
    NotifiableEvent,
    NotificationChannel,
    OutboxNotification,
    Overdue,
    PendingNotification,
)
from schedd.core.runs.model import Claim
from schedd.store.cluster.fenced_transaction import fenced_rows, shards_of
from schedd.store.connection.database import Database, in_transaction
from schedd.store.notify import outbox, outbox_claims
from schedd.store.statements.operations import operations
from schedkit import failpoints
from schedkit.records import dataclass

AFTER_CLAIM = failpoints.awaited("notify.after_claim")


@operations("notifications")
@dataclass(frozen=True, slots=True)
class NotificationStore:
    """Reads and writes of an owner for the outbox."""

    database: Database

    waiting = in_transaction(outbox_claims.waiting)
    counted = in_transaction(outbox_claims.counted)

    async def claim(
        self, claim: Claim, wanted: Sequence[PendingNotification]
    ) -> list[OutboxNotification]:
        """Claim these notifications for one try each, if they are still free."""

        def body(
            connection: Connection, mine: Sequence[PendingNotification]
        ) -> list[OutboxNotification]:
            return outbox_claims.claim(connection, claim.tenure, mine, shards_of(mine))

        claimed = await fenced_rows(self.database, claim, wanted, body)
        await AFTER_CLAIM()
        return claimed

    async def record_outcomes(
        self, claim: Claim, outcomes: Sequence[DeliveryOutcome]
    ) -> list[DeliveryOutcome]:
        """Record the outcomes of tries. Returns those that were recorded."""
        return await fenced_rows(self.database, claim, outcomes, outbox_claims.record_outcomes)

    overdue = in_transaction(outbox_claims.overdue)

    async def expire(
        self, claim: Claim, wanted: Sequence[Overdue]
    ) -> list[tuple[NotificationChannel, int]]:
        """Expire overdue notifications. Returns counts by channel."""

        def body(
            connection: Connection, mine: Sequence[Overdue]
        ) -> list[tuple[NotificationChannel, int]]:
            return outbox_claims.expire(connection, shards_of(mine))

        return await fenced_rows(self.database, claim, wanted, body)

    async def tell_late(self, claim: Claim, late: Sequence[NotifiableEvent]) -> list[RunId]:
        """Write notifications about late runs. Returns those that weren't reported before."""
        return await fenced_rows(self.database, claim, late, outbox.tell_late)
