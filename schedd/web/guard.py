"""What every answer and every request is held to, before anything else looks at it.

A page may load scripts, styles and data from here alone. A request that changes something is
refused when a browser says that another site's page made it: without a login that is all that
stands between a cluster on loopback and any page its user opens.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from schedd.web import problems

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


class SameOrigin:
    """Refuses requests that change something and come from another site's page."""

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
            await problems.answer(refusal)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _foreign(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    origin = headers.get("origin")
    if origin is not None:
        return urlsplit(origin).netloc != headers.get("host")
    return headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
