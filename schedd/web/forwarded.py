"""Replace the address of a trusted proxy by the client address that it reports.

    peer ── a trusted proxy? ──▶ scope["client"]: the reported client ──▶ limits, audit, log
                                    └ from another host, where only loopback is served: 403

A proxy on this host makes every client look like loopback. So a member that serves loopback without
TLS rejects clients that a trusted proxy reports from other hosts.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from schedd.web import refusals
from schedd.web.guard import PROBES
from schedd.web.rest import problems
from schedkit.net.channel import is_loopback
from schedkit.net.proxies import NO_PROXIES, Proxies
from schedkit.records import dataclass


@dataclass(frozen=True, slots=True)
class Reach:
    """Settings of this member. `names`: its host names, beside those of the cluster."""

    proxies: Proxies = NO_PROXIES
    names: Collection[str] = ()
    loopback_alone: bool = False
    """Whether other hosts are rejected, because they would be served without TLS."""


STRAIGHT: Final = Reach()
"""Without a proxy."""


class Forwarded:
    """Sets the client address from `X-Forwarded-For` of a trusted proxy."""

    def __init__(self, app: ASGIApp, reach: Reach) -> None:
        self._app = app
        self._reach = reach

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope.get("client"):
            await self._app(scope, receive, send)
            return
        peer = scope["client"][0]
        hops = Headers(scope=scope).getlist("x-forwarded-for")
        if hops and self._reach.proxies.trusts(peer):
            client = self._reach.proxies.client(peer, hops)
            scope["client"] = (client, 0)  # only the proxy knows its port
            too_far = self._reach.loopback_alone and not is_loopback(client)
            if too_far and scope["path"] not in PROBES:
                await refusals.response(scope, _from_afar(client))(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _from_afar(client: str) -> Mapping[str, Any]:
    return problems.problem(
        "PERMISSION_DENIED",
        f"client {client} rejected: without TLS this member serves only its own host",
        reason="NOT_LOOPBACK",
        remedy="set up TLS, or set insecure = true under [listen] to serve all hosts without TLS",
    )
