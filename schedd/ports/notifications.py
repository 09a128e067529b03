"""The outbox of notifications, and their delivery."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from schedd.core.ids import JobId, RunId, ShardId, TenureId
from schedd.core.jobs.notifications import (
    DeliveryOutcome,
    Happened,
    Notice,
    Notification,
    NotificationChannel,
    Overdue,
    PendingNotification,
)
from schedd.core.runs.model import Claim


class NotificationStore(Protocol):
    """Reads and writes of an owner for the outbox."""

    async def waiting(
        self,
        tenure: TenureId,
        shards: Sequence[ShardId],
        busy: Collection[tuple[JobId, NotificationChannel]],
    ) -> list[PendingNotification]:
        """Those of these shards that may be tried now, but for the `busy` ones, longest waiting
        first. Some of each job; a hint.
        """
        ...

    async def counted(self, shards: Sequence[ShardId]) -> int:
        """How many of these shards aren't delivered, up to some thousands."""
        ...

    async def claim(
        self, claim: Claim, wanted: Sequence[PendingNotification]
    ) -> list[Notification]:
        """Claim those that are still free, each for one delivery now."""
        ...

    async def settle(
        self, claim: Claim, outcomes: Sequence[DeliveryOutcome]
    ) -> list[DeliveryOutcome]:
        """Write the outcomes of deliveries; return those that were written."""
        ...

    async def overdue(self, shards: Sequence[ShardId]) -> list[Overdue]:
        """Return those with notifications that waited for a day without a delivery. A hint."""
        ...

    async def expire(
        self, claim: Claim, wanted: Sequence[Overdue]
    ) -> list[tuple[NotificationChannel, int]]:
        """End some of those; how many, by their ways."""
        ...

    async def tell_late(self, claim: Claim, late: Sequence[Happened]) -> list[RunId]:
        """Queue notifications of late runs; return the runs that had none before."""
        ...


class Sender(Protocol):
    """Delivers notifications."""

    async def send(self, notification: Notification, notice: Notice) -> str:
        """Deliver it over its channel; return why it failed, empty if it was accepted. Takes a
        bounded time, and raises nothing.
        """
        ...

    async def close(self) -> None:
        """Let go of what is open."""
        ...
