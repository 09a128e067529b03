"""The outbox's store: what an owner reads and writes of it, one transaction a method, fenced."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import Connection

from schedd.core.ids import JobId, RunId, ShardId, TenureId
from schedd.core.jobs.notifications import (
    DeliveryOutcome,
    Happened,
    Notification,
    NotificationChannel,
    Overdue,
    PendingNotification,
)
from schedd.core.runs.model import Claim
from schedd.store.cluster.fenced_transaction import fenced_rows, shards_of
from schedd.store.connection.database import Database
from schedd.store.notify import outbox, outbox_delivery
from schedd.store.statements.operations import operations
from schedkit import failpoints
from schedkit.records import dataclass

AFTER_CLAIM = failpoints.awaited("notify.after_claim")


@operations("notifications")
@dataclass(frozen=True, slots=True)
class PostgresNotificationStore:
    """`schedd.ports.NotificationStore` over PostgreSQL."""

    database: Database

    async def waiting(
        self,
        tenure: TenureId,
        shards: Sequence[ShardId],
        busy: Collection[tuple[JobId, NotificationChannel]],
    ) -> list[PendingNotification]:
        """Those that may be tried now, longest waiting first. A hint."""
        return await self.database.call(lambda c: outbox_delivery.waiting(c, tenure, shards, busy))

    async def counted(self, shards: Sequence[ShardId]) -> int:
        """How many aren't delivered."""
        return await self.database.call(lambda c: outbox_delivery.counted(c, shards))

    async def claim(
        self, claim: Claim, wanted: Sequence[PendingNotification]
    ) -> list[Notification]:
        """Those that are still free, each to be tried once now."""

        def body(connection: Connection, mine: Sequence[PendingNotification]) -> list[Notification]:
            return outbox_delivery.claim(connection, claim.tenure, mine, shards_of(mine))

        claimed = await fenced_rows(self.database, claim, wanted, body)
        await AFTER_CLAIM()
        return claimed

    async def settle(
        self, claim: Claim, settled: Sequence[DeliveryOutcome]
    ) -> list[DeliveryOutcome]:
        """Write down what became of tries; gives those that were written."""
        return await fenced_rows(self.database, claim, settled, outbox_delivery.settle)

    async def overdue(self, shards: Sequence[ShardId]) -> list[Overdue]:
        """Those of these in which some waited too long without a try. A hint."""
        return await self.database.call(lambda c: outbox_delivery.overdue(c, shards))

    async def expire(
        self, claim: Claim, wanted: Sequence[Overdue]
    ) -> list[tuple[NotificationChannel, int]]:
        """End some of those; how many, by their ways."""

        def body(
            connection: Connection, mine: Sequence[Overdue]
        ) -> list[tuple[NotificationChannel, int]]:
            return outbox_delivery.expire(connection, shards_of(mine))

        return await fenced_rows(self.database, claim, wanted, body)

    async def tell_late(self, claim: Claim, late: Sequence[Happened]) -> list[RunId]:
        """Tell of runs that wait for too long; gives those that weren't told before."""
        return await fenced_rows(self.database, claim, late, outbox.tell_late)
