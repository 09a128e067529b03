"""Delivery of notifications."""

from typing import Protocol

from schedd.core.jobs.notifications import Notice, OutboxNotification


class Sender(Protocol):
    """Delivers notifications."""

    async def send(self, notification: OutboxNotification, notice: Notice) -> str:
        """Deliver it over its channel. Returns why it failed; empty if it was accepted. Has a
        timeout, and raises nothing.
        """
        ...

    async def close(self) -> None:
        """Close open connections."""
        ...
