"""Check every request before any other code, and add security headers to every answer.

    SecurityHeaders  pages may load scripts, styles and data only from this member
    AtATime          limit the requests in progress of each host; probes are always answered
    SameOrigin       reject changes that a page of another site requests
    OwnHost          without authentication: reject requests by a foreign host name
    Forwarded        replace the address of a trusted proxy by the client address that it reports:
                     limits, audit and log then name the client

Without a login, SameOrigin alone protects a cluster on loopback from the pages that its user opens.
A proxy on this host makes every client look like loopback. So a member that serves loopback without
TLS rejects clients that a trusted proxy reports from other hosts.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from schedd.web import refusals
from schedd.web.rest import problems
from schedkit.net.channel import is_loopback
from schedkit.net.proxies import NO_PROXIES, Proxies
from schedkit.records import dataclass

POLICY: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)

HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
}

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})

MOST_AT_A_TIME: Final = 64
"""Requests of one host whose answer hasn't begun: each may take a database connection. A proxy
counts as one host, unless it is trusted to report its clients.
"""

PROBES: Final = frozenset({"/healthz", "/readyz"})
UNCOUNTED: Final = PROBES | {"/api/v1/events"}
"""Probes, and event streams. Streams have their own limit and share their queries, and after the
loss of a member all its readers reconnect here at once.
"""


class SecurityHeaders:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self._app(scope, receive, sending)


class AtATime:
    """Rejects requests of a host with MOST_AT_A_TIME requests whose answer hasn't begun. Answers
    that are being read, slowly or as a stream, count only as connections.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._waiting: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in UNCOUNTED:
            await self._app(scope, receive, send)
            return
        host = scope["client"][0] if scope.get("client") else ""
        if self._waiting[host] >= MOST_AT_A_TIME:
            await _TOO_MANY(scope, receive, send)
            return
        with ExitStack() as until_begun:
            self._waiting[host] += 1
            until_begun.callback(self._end_wait, host)

            async def sending(message: Message) -> None:
                until_begun.close()
                await send(message)

            await self._app(scope, receive, sending)

    def _end_wait(self, host: str) -> None:
        self._waiting[host] -= 1
        if not self._waiting[host]:
            del self._waiting[host]


_TOO_MANY: Final = problems.problem_response(
    problems.problem(
        "RESOURCE_EXHAUSTED",
        f"limit of {MOST_AT_A_TIME} concurrent requests of this host reached",
        reason="TOO_MANY_REQUESTS",
        remedy="wait until some requests have ended, or use another member",
    ),
    {"retry-after": "1"},
)


class RequestCheck:
    """Passes on the requests that `refusal` returns no problem for."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self.refusal(scope) if scope["type"] == "http" else None
        answer = self._app if refused is None else refusals.response(scope, refused)
        await answer(scope, receive, send)

    def refusal(self, scope: Scope) -> Mapping[str, Any] | None:
        raise NotImplementedError


class SameOrigin(RequestCheck):
    """Rejects requests that change something and come from another site's page. A page without TLS
    is another site for a member with TLS. The reverse isn't: a proxy may terminate TLS.
    """

    def refusal(self, scope: Scope) -> Mapping[str, Any] | None:
        if scope["method"] in SAFE or not _foreign(scope):
            return None
        return problems.problem(
            "CROSS_ORIGIN",
            "request of another site's page rejected",
            reason="CROSS_ORIGIN",
            remedy="use this member's own pages, or a client outside a browser",
        )


class OwnHost(RequestCheck):
    """Rejects requests by a host name that isn't the cluster's (DNS rebinding). A site may point
    its own name to this host's address, and its pages would then be of the same origin.
    `names`: returns the current host names of this cluster.
    """

    def __init__(self, app: ASGIApp, names: Callable[[], Collection[str]]) -> None:
        super().__init__(app)
        self._names = names

    def refusal(self, scope: Scope) -> Mapping[str, Any] | None:
        host = Headers(scope=scope).get("host", "")
        if scope["path"] in PROBES or not host or self._ours(host):
            return None
        return problems.problem(
            "CROSS_ORIGIN",
            f"unknown host name {host[:255]}",
            reason="UNKNOWN_HOST",
            remedy="use an address or `localhost`, add the name to listen.host_names,"
            " or set up TLS",
        )

    def _ours(self, host: str) -> bool:
        name = host_of(host)
        try:
            ip_address(name)
        except ValueError:
            return name == "localhost" or name.endswith(".localhost") or name in self._names()
        return True


@dataclass(frozen=True, slots=True)
class Reach:
    """Settings of this member. `names`: its host names, beside those of the cluster."""

    proxies: Proxies = NO_PROXIES
    names: Collection[str] = ()
    loopback_alone: bool = False
    """Whether other hosts are rejected, because they would be served without TLS."""


STRAIGHT: Final = Reach()
"""Without a proxy."""


class Forwarded(RequestCheck):
    """Sets the client address from `X-Forwarded-For` of a trusted proxy."""

    def __init__(self, app: ASGIApp, reach: Reach) -> None:
        super().__init__(app)
        self._reach = reach

    def refusal(self, scope: Scope) -> Mapping[str, Any] | None:
        hops = Headers(scope=scope).getlist("x-forwarded-for")
        peer = scope["client"][0] if scope.get("client") else ""
        if not peer or not hops or not self._reach.proxies.trusts(peer):
            return None
        client = self._reach.proxies.client(peer, hops)
        scope["client"] = (client, 0)  # only the proxy knows its port
        here = not self._reach.loopback_alone or is_loopback(client)
        if here or scope["path"] in PROBES:
            return None
        return problems.problem(
            "PERMISSION_DENIED",
            f"client {client} rejected: without TLS this member serves only its own host",
            reason="NOT_LOOPBACK",
            remedy="set up TLS, or set insecure = true under [listen] to serve all hosts without"
            " TLS",
        )


def host_of(address: str) -> str:
    """Return the host of `host:port`, in lower case; an IPv6 address without its brackets."""
    if address.startswith("["):
        return address[1:].partition("]")[0].lower()
    return address.partition(":")[0].rstrip(".").lower()


def _foreign(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    origin = headers.get("origin")
    if origin is not None:
        try:
            parsed = urlsplit(origin)
        except ValueError:  # no browser sends this
            return True
        clear = scope.get("scheme") == "https" and parsed.scheme != "https"
        return clear or parsed.netloc != headers.get("host")
    return headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
