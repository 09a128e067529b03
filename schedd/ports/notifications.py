"""The outbox of notifications, and who delivers them."""

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
    """What an owner reads and writes of the outbox."""

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
        """Those of these that are still free, each to be tried once now."""
        ...

    async def settle(
        self, claim: Claim, settled: Sequence[DeliveryOutcome]
    ) -> list[DeliveryOutcome]:
        """Write down what became of tries; gives those that were written."""
        ...

    async def overdue(self, shards: Sequence[ShardId]) -> list[Overdue]:
        """Those of these in which some waited for a day without as much as a try. A hint."""
        ...

    async def expire(
        self, claim: Claim, wanted: Sequence[Overdue]
    ) -> list[tuple[NotificationChannel, int]]:
        """End some of those; how many, by their ways."""
        ...

    async def tell_late(self, claim: Claim, late: Sequence[Happened]) -> list[RunId]:
        """Tell of runs that wait for too long; gives those that weren't told before."""
        ...


class Sender(Protocol):
    """Delivers notifications."""

    async def send(self, notification: Notification, notice: Notice) -> str:
        """Deliver it by its way. Empty: it was taken; else why it wasn't, in words. Takes a
        bounded time, and raises nothing.
        """
        ...

    async def close(self) -> None:
        """Let go of what is open."""
        ...
