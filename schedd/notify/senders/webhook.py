"""Webhooks: one POST, to a permitted target, signed with the member's own key.

Invariants
- Only permitted targets are called: public addresses, and those that the member's `egress.allow`
  lists (schedkit.egress.client).
- No redirect is followed. The answer is read no further than its status.
"""

from pathlib import Path

from yarl import URL

from schedd.core.jobs.notifications import OutboxNotification
from schedd.notify.senders.message import body
from schedkit.clock import utcnow
from schedkit.egress.client import CallFailed, EgressClient
from schedkit.egress.policy import Egress
from schedkit.egress.secrets import keys, signature
from schedkit.egress.targets import ForbiddenTarget


class Webhook:
    def __init__(self, signing_key: Path | None, egress: Egress) -> None:
        self._key = signing_key
        self._client = EgressClient(egress, "schedd.toml")

    async def send(self, one: OutboxNotification, address: str) -> str:
        """Send the webhook; return why it wasn't delivered, empty if the receiver accepted it."""
        payload = body(one)
        headers = {"Content-Type": "application/json", "User-Agent": "schedd"}
        try:
            url = URL(address)
            headers |= self._signature(one, payload)
            async with self._client.request("POST", url, headers=headers, data=payload) as answer:
                return "" if 200 <= answer.status < 300 else f"HTTP {answer.status}"
        except (ForbiddenTarget, CallFailed) as error:
            return str(error)
        except (OSError, ValueError) as error:
            return f"{type(error).__name__}: {error}"

    async def close(self) -> None:
        await self._client.close()

    def _signature(self, one: OutboxNotification, payload: bytes) -> dict[str, str]:
        """Return the signature headers; without a key only the id, which identifies repeats. The
        key file is read each time, so a rotated key needs no restart.
        """
        identity = str(one.notification_id)
        if self._key is None:
            return {"webhook-id": identity}
        found = keys(str(self._key), [self._key.resolve().parent])
        return signature(found, identity, int(utcnow().timestamp()), payload)
