"""Send mail by SMTP: the standard library's client, in threads of its own.

A delivery that timed out leaves its thread to the client's own timeouts. There are `AT_ONCE`
threads, so a mail server that doesn't answer delays mail only.
"""

import asyncio
import contextlib
import logging
import smtplib
import ssl
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Final

from schedd.config.member_config import Smtp
from schedd.core.jobs.notifications import OutboxNotification
from schedd.notify.senders.message import subject, text

log = logging.getLogger(__name__)

AT_ONCE: Final = 4
ANSWER_TIMEOUT: Final = 10.0
"""Timeout for each answer of the server, in seconds."""


class Mail:
    def __init__(self, smtp: Smtp, cluster_id: str) -> None:
        self._smtp = smtp
        self._cluster_id = cluster_id
        self._threads = ThreadPoolExecutor(AT_ONCE, "mail")

    async def send(self, one: OutboxNotification, to: Sequence[str]) -> str:
        """Return why no recipient's mail was accepted; empty if the server accepted it for at least
        one.
        """
        if not self._smtp.host:
            return "no mail server is configured (smtp.host)"
        loop = asyncio.get_running_loop()
        try:
            mail = self._message(one, to)
            refused = await loop.run_in_executor(self._threads, self._submit, mail, list(to))
        except (smtplib.SMTPException, OSError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        if refused:
            log.warning("the mail server rejected the recipients %s", ", ".join(sorted(refused)))
        return ""

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _message(self, one: OutboxNotification, to: Sequence[str]) -> EmailMessage:
        mail = EmailMessage()
        mail["Subject"] = f"[schedd] {subject(one)}"
        mail["From"] = self._smtp.mail_from
        mail["To"] = ", ".join(to)
        mail["Date"] = format_datetime(one.occurred_at)
        mail["Message-ID"] = f"<{one.notification_id}@{self._cluster_id}.schedd>"
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(text(one), cte="quoted-printable")
        return mail

    def _submit(self, mail: EmailMessage, to: Sequence[str]) -> set[str]:
        """Send the mail, in a thread; return the addresses that the server rejected."""
        smtp = self._smtp
        tls = ssl.create_default_context(cafile=smtp.ca and str(smtp.ca))
        client = (
            smtplib.SMTP_SSL(smtp.host, smtp.port, timeout=ANSWER_TIMEOUT, context=tls)
            if smtp.security == "tls"
            else smtplib.SMTP(smtp.host, smtp.port, timeout=ANSWER_TIMEOUT)
        )
        try:
            if smtp.security == "starttls":
                client.starttls(context=tls)
            if smtp.user:
                client.login(smtp.user, smtp.password)
            return set(client.send_message(mail, smtp.mail_from, list(to)))
        finally:
            # The server has accepted the mail: a failed QUIT must not cause another delivery.
            with contextlib.suppress(smtplib.SMTPException, OSError):
                client.quit()
            client.close()
