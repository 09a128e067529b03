"""Delivery of notifications."""

from typing import Protocol

from schedd.core.jobs.notifications import Notice, OutboxNotification


class Sender(Protocol):
    async def send(self, notification: OutboxNotification, notice: Notice) -> str:
        """Deliver a notification over its channel; return why it failed, empty if it was accepted.

        The delivery has a timeout, and no error is raised.
        """
        ...

    async def close(self) -> None: ...
