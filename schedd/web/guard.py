"""What every answer and every request is held to, before anything else looks at it.

    OwnHost      where nobody is asked who they are: is it asked by a name that is ours?
    SameOrigin   does a browser say that another site's page asks for a change?

A page may load scripts, styles and data from here alone. A request that changes something is
refused when a browser says that another site's page made it: without a login that is all that
stands between a cluster on loopback and any page its user opens. No host has so many requests under
way that others wait for it; whether this process is alive and ready is told in any case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from contextlib import ExitStack
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from schedd.web import refusals
from schedd.web.rest import problems

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
"""Requests of one host that wait for their answer to begin: each may take a connection to the
database. A proxy in front counts as one host, unless it is trusted to say whom it saw.
"""

PROBES: Final = frozenset({"/healthz", "/readyz"})
UNCOUNTED: Final = PROBES | {"/api/v1/events"}
"""Probes; and event streams, which have places of their own and share what they ask the database:
all readers of a member that died come here at once.
"""


class SecurityHeaders:
    """Adds HEADERS to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, with the headers."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self._app(scope, receive, sending)


class AtATime:
    """Refuses what a host asks while MOST_AT_A_TIME of its requests wait for their answer to begin.
    Those that are being read, slowly or as a stream, are counted as connections alone.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._waiting: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or refuse."""
        if scope["type"] != "http" or scope["path"] in UNCOUNTED:
            await self._app(scope, receive, send)
            return
        host = scope["client"][0] if scope.get("client") else ""
        if self._waiting[host] >= MOST_AT_A_TIME:
            await _TOO_MANY(scope, receive, send)
            return
        with ExitStack() as until_begun:
            self._waiting[host] += 1
            until_begun.callback(self._begun, host)

            async def sending(message: Message) -> None:
                until_begun.close()
                await send(message)

            await self._app(scope, receive, sending)

    def _begun(self, host: str) -> None:
        self._waiting[host] -= 1
        if not self._waiting[host]:
            del self._waiting[host]


_TOO_MANY: Final = problems.answer(
    problems.problem(
        "RESOURCE_EXHAUSTED",
        f"{MOST_AT_A_TIME} requests of this host are under way here",
        reason="TOO_MANY_REQUESTS",
        remedy="wait for some of them; another member may answer",
    ),
    {"retry-after": "1"},
)


class SameOrigin:
    """Refuses requests that change something and come from another site's page. One that came in
    the clear is another, where we are asked by TLS; not the other way round, for a proxy before us
    may have ended it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or refuse."""
        if scope["type"] == "http" and scope["method"] not in SAFE and _foreign(scope):
            refusal = problems.problem(
                "CROSS_ORIGIN",
                "a page of another site asked for this",
                reason="CROSS_ORIGIN",
                remedy="ask from this member's own pages, or from outside a browser",
            )
            await refusals.told(scope, refusal)(scope, receive, send)
            return
        await self._app(scope, receive, send)


class OwnHost:
    """Refuses what is asked by a name that isn't ours. A page of another site may give its own name
    the address of this host, and would then be of the same origin: an address it can't have.
    `names`: of this cluster, as it is now.
    """

    def __init__(self, app: ASGIApp, names: Callable[[], Collection[str]]) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or refuse."""
        if scope["type"] == "http" and scope["path"] not in PROBES:
            host = Headers(scope=scope).get("host", "")
            if host and not self._ours(host):
                refusal = problems.problem(
                    "CROSS_ORIGIN",
                    f"nothing of this cluster is known as {host[:255]}",
                    reason="UNKNOWN_HOST",
                    remedy="ask by an address or `localhost`, name it in listen.host_names,"
                    " or set up TLS",
                )
                await refusals.told(scope, refusal)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _ours(self, host: str) -> bool:
        name = host_of(host)
        try:
            ip_address(name)
        except ValueError:
            return name == "localhost" or name.endswith(".localhost") or name in self._names()
        return True


def host_of(address: str) -> str:
    """The host of `host:port`, in lower case; of an IPv6 address without its brackets."""
    if address.startswith("["):
        return address[1:].partition("]")[0].lower()
    return address.partition(":")[0].rstrip(".").lower()


def _foreign(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    origin = headers.get("origin")
    if origin is not None:
        try:
            told = urlsplit(origin)
        except ValueError:  # no browser says such a thing
            return True
        clear = scope.get("scheme") == "https" and told.scheme != "https"
        return clear or told.netloc != headers.get("host")
    return headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
