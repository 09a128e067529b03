"""How people are told: one module for each way, each a try of at most `LIMIT` seconds.

    message   what is told, as JSON and as text
    webhook   POST to a checked address, signed by Standard Webhooks
    command   a program that the configuration allows, the JSON on its standard input
    mail      SMTP to the configured server

Invariants
- A definition names whom to tell; what a member may do for that its own configuration says.
- What goes wrong out there is an answer in words, never an exception.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from schedd.config.servers import Smtp
from schedd.core.jobs.notifications import Notice, Notification, NotificationChannel
from schedd.notify.senders import command
from schedd.notify.senders.mail import Mail
from schedkit.egress.policy import Egress

if TYPE_CHECKING:
    from schedd.notify.senders.webhook import Webhook

LIMIT = 30.0
"""Seconds that one try may take, whatever it waits for."""
LONGEST_ERROR = 500


class Senders:
    """`schedd.ports.Sender`: each notification by its way."""

    def __init__(
        self,
        *,
        signing_key: Path | None,
        egress: Egress,
        commands: tuple[str, ...],
        smtp: Smtp,
        cluster_id: str,
    ) -> None:
        self._signing_key = signing_key
        self._egress = egress
        self._opened: Webhook | None = None
        self._commands = commands
        self._mail = Mail(smtp, cluster_id)

    async def send(self, notification: Notification, notice: Notice) -> str:
        """Deliver it; empty, or why it wasn't."""
        try:
            async with asyncio.timeout(LIMIT):
                error = await self._send(notification, notice)
        except TimeoutError:
            error = f"no answer within {LIMIT:.0f} s"
        return error[:LONGEST_ERROR]

    async def _send(self, notification: Notification, notice: Notice) -> str:
        match notification.way:
            case NotificationChannel.WEBHOOK:
                return await (await self._webhook()).send(notification, notice.webhook)
            case NotificationChannel.COMMAND:
                return await command.run(notification, notice.command, self._commands)
            case NotificationChannel.EMAIL:
                return await self._mail.send(notification, notice.email)

    async def _webhook(self) -> Webhook:
        """Made for the first one, beside the loop: to load its HTTP client would take each start of
        a member long, and many a cluster tells nobody that way.
        """
        if self._opened is not None:
            return self._opened
        kind = await asyncio.to_thread(_loaded)
        if self._opened is None:
            self._opened = kind(self._signing_key, self._egress)
        return self._opened

    async def close(self) -> None:
        """Let go of what is open."""
        if self._opened is not None:
            await self._opened.close()
        self._mail.close()


def _loaded() -> type[Webhook]:
    from schedd.notify.senders.webhook import Webhook

    return Webhook
