"""How a member's HTTP is reached: through which proxies, by which names, from how far.

    peer ── a trusted proxy? ──▶ scope["client"]: whom it saw ──▶ limits, audit, log
                                    └ not of this host, where only this host is served: 403

Behind the proxy of a host the whole network is a neighbour on loopback. So where loopback alone is
served in the clear, whom a trusted proxy saw on another host is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from schedd.web import refusals
from schedd.web.guard import PROBES
from schedd.web.rest import problems
from schedkit.net.channel import is_loopback
from schedkit.net.proxies import NO_PROXIES, Proxies


@dataclass(frozen=True, slots=True)
class Reach:
    """As this member is set. `names`: by which it is asked, beside addresses and the cluster's."""

    proxies: Proxies = NO_PROXIES
    names: Collection[str] = ()
    loopback_alone: bool = False
    """Whether other hosts are to be refused, for they would be served in the clear."""


STRAIGHT: Final = Reach()
"""Without a proxy."""


class Forwarded:
    """Has the client's address count in the place of a trusted proxy's."""

    def __init__(self, app: ASGIApp, reach: Reach) -> None:
        self._app = app
        self._reach = reach

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or refuse."""
        if scope["type"] != "http" or not scope.get("client"):
            await self._app(scope, receive, send)
            return
        peer = scope["client"][0]
        told = Headers(scope=scope).getlist("x-forwarded-for")
        if told and self._reach.proxies.trusts(peer):
            client = self._reach.proxies.client(peer, told)
            scope["client"] = (client, 0)  # its port is known to the proxy alone
            if self._too_far(client) and scope["path"] not in PROBES:
                await refusals.told(scope, _from_afar(client))(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _too_far(self, client: str) -> bool:
        return self._reach.loopback_alone and not is_loopback(client)


def _from_afar(client: str) -> Mapping[str, Any]:
    return problems.problem(
        "PERMISSION_DENIED",
        f"without TLS this member serves its own host alone, not {client}",
        reason="NOT_LOOPBACK",
        remedy="set up TLS, or insecure = true under [listen] to serve everybody in the clear",
    )
