"""Webhooks: one POST, to a checked address, signed with the member's own key.

Invariants
- Only permitted addresses are connected to: public ones, and those that the member's
  `egress.allow` lists. The address that was checked is the one connected to (targets).
- No redirect is followed, no proxy, cookie or password of this host used; what comes back is read
  no further than its status.
"""

from __future__ import annotations

from pathlib import Path

import aiohttp
from yarl import URL

from schedd.core.notifications import Notification
from schedd.senders.message import body
from schedkit.clock import utcnow
from schedkit.outward.policy import Egress
from schedkit.outward.secrets import keys
from schedkit.outward.signing import signature
from schedkit.outward.targets import ForbiddenTarget, Targets

CONNECT_WITHIN = 10.0


class Webhook:
    """Calls webhooks."""

    def __init__(self, signing_key: Path | None, egress: Egress) -> None:
        self._key = signing_key
        self._targets = Targets(egress.allowed(), "schedd.toml")
        self._session: aiohttp.ClientSession | None = None

    async def send(self, one: Notification, address: str) -> str:
        """Empty: the receiver took it."""
        told = body(one)
        headers = {"Content-Type": "application/json", "User-Agent": "schedd"}
        try:
            url = URL(address)
            self._targets.check_literal(url.host or "", url.port or 0)
            headers |= self._signature(one, told)
            async with self._open().post(
                url, data=told, headers=headers, allow_redirects=False
            ) as answer:
                return "" if 200 <= answer.status < 300 else f"HTTP {answer.status}"
        except ForbiddenTarget as error:
            return str(error)
        except aiohttp.ClientConnectorError as error:
            return str(error.os_error)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return f"{type(error).__name__}: {error}"

    async def close(self) -> None:
        """Close what is open."""
        if self._session is not None:
            await self._session.close()

    def _signature(self, one: Notification, told: bytes) -> dict[str, str]:
        """Without a key only the id, by which a receiver knows repeats. The file is read each time:
        whoever turns the key over does so there.
        """
        identity = str(one.notification_id)
        if self._key is None:
            return {"webhook-id": identity}
        found = keys(str(self._key), [self._key.resolve().parent])
        return signature(found, identity, int(utcnow().timestamp()), told)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    resolver=self._targets, use_dns_cache=False, limit=0, force_close=True
                ),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_WITHIN),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
            )
        return self._session
