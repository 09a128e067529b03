"""Send notifications: one module for each channel; a delivery takes at most `LIMIT` seconds.

    message   the facts, as JSON and as text
    webhook   POST to a checked address, signed by Standard Webhooks
    command   a program that the configuration allows, the JSON on its standard input
    mail      SMTP to the configured server

Invariants
- A definition names the targets; the member's configuration says which of them are allowed.
- A failed delivery returns a text, never an exception.
"""

from __future__ import annotations

import asyncio
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from schedd.config.member_config import Smtp
from schedd.core.jobs.notifications import Notice, NotificationChannel, OutboxNotification
from schedd.notify.senders import command
from schedd.notify.senders.mail import Mail
from schedkit.egress.policy import Egress

if TYPE_CHECKING:
    from schedd.notify.senders.webhook import Webhook

LIMIT = 30.0
"""Seconds that one delivery may take."""
LONGEST_ERROR = 500


@dataclass(eq=False, kw_only=True)
class Senders:
    """`schedd.ports.Sender`: each notification by its channel."""

    signing_key: Path | None
    egress: Egress
    commands: tuple[str, ...]
    smtp: InitVar[Smtp]
    cluster_id: InitVar[str]

    def __post_init__(self, smtp: Smtp, cluster_id: str) -> None:
        self._opened: Webhook | None = None
        self._mail = Mail(smtp, cluster_id)

    async def send(self, notification: OutboxNotification, notice: Notice) -> str:
        """Deliver a notification; return why it wasn't delivered, empty if it was."""
        try:
            async with asyncio.timeout(LIMIT):
                error = await self._send(notification, notice)
        except TimeoutError:
            error = f"timed out after {LIMIT:.0f} s"
        return error[:LONGEST_ERROR]

    async def _send(self, notification: OutboxNotification, notice: Notice) -> str:
        match notification.way:
            case NotificationChannel.WEBHOOK:
                return await (await self._webhook()).send(notification, notice.webhook)
            case NotificationChannel.COMMAND:
                return await command.run(notification, notice.command, self.commands)
            case NotificationChannel.EMAIL:
                return await self._mail.send(notification, notice.email)

    async def _webhook(self) -> Webhook:
        """Return the sender. It is imported in a thread for the first webhook, because its HTTP
        client would slow down every start of a member.
        """
        if self._opened is not None:
            return self._opened
        kind = await asyncio.to_thread(_loaded)
        if self._opened is None:
            self._opened = kind(self.signing_key, self.egress)
        return self._opened

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()
        self._mail.close()


def _loaded() -> type[Webhook]:
    from schedd.notify.senders.webhook import Webhook

    return Webhook
