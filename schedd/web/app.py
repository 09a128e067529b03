"""Everything that a member serves over HTTP, in one app.

    /healthz /readyz   health.py        /…         the pages, live below /live     pages/
    /metrics           telemetry.py     /api/…     REST: every call of the table   rest.py
    /login /logout     login.py         /static    one stylesheet, one script

Invariants
- No page runs or loads anything that isn't served from here (POLICY); no script or style is inline.
- Whom a trusted proxy saw is who asks (`Forwarded`); what anybody else says of it counts nothing.
- No host has more than so many requests under way (`AtATime`); health is answered in any case.
- A request that changes something isn't taken from another site's page (`SameOrigin`), nor where
  nobody is asked who they are anything by a name that isn't this cluster's (`OwnHost`).
- With TLS only known callers get an answer, except from the probes, the login and its files
  (`HttpAuth`).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from schedd.api.services import Services
from schedd.telemetry.recorder import Telemetry
from schedd.web import health, links, login, refusals, templating
from schedd.web.forwarded import STRAIGHT, Forwarded, Reach
from schedd.web.guard import AtATime, OwnHost, SameOrigin, SecurityHeaders, host_of
from schedd.web.health import Readiness
from schedd.web.http_auth import FIGURES, IDENTITY, HttpAuth
from schedd.web.pages.all import PAGES
from schedd.web.pages.site import Site
from schedd.web.refusals import NextLink
from schedd.web.rest import problems
from schedd.web.rest.rest import Rest


def build(
    services: Services,
    telemetry: Telemetry,
    readiness: Readiness,
    notes: Readiness = health.nothing,
    reach: Reach = STRAIGHT,
) -> Starlette:
    """The app, for `server.Bound.serve`. `readiness` tells why this member isn't ready, `notes`
    what somebody should know all the same; `reach`: how it is reached.
    """
    telemetry.observe(services.cluster, services.version)
    closing = asyncio.Event()
    site = Site(services, closing, PAGES)

    async def nowhere(request: Request, _: Exception) -> Response:
        return site.nowhere(request)

    app = Starlette(
        routes=[
            *_daemon(telemetry, health.routes(readiness, notes)),
            *site.routes(),
            *templating.assets(),
            *login.routes(services, site.back_with),
            Under("/api/", Rest(services, closing)),
        ],
        middleware=[
            Middleware(SecurityHeaders),
            Middleware(Forwarded, reach),
            Middleware(AtATime),
            *_own_host(services, reach),
            Middleware(SameOrigin),
            Middleware(HttpAuth, services.authentication, _forms()),
        ],
        exception_handlers={404: nowhere, 405: _other_method, Exception: _bug},
    )
    app.state.closing = closing
    return app


def _daemon(telemetry: Telemetry, probes: Sequence[BaseRoute]) -> list[BaseRoute]:
    """What machines ask of a daemon."""

    async def metrics(request: Request) -> Response:
        content, media_type = telemetry.scraped(request.headers.get("accept", ""))
        return Response(content, headers={"content-type": media_type, "cache-control": "no-store"})

    return [*probes, Route(FIGURES, metrics)]


def _forms() -> dict[str, Collection[str]]:
    """Path of a form whose page is shown filled in → the fields that it takes."""
    actions = [action for page in PAGES for action in page.actions]
    return {action.path: action.again.asks for action in actions if action.again is not None}


def _own_host(services: Services, reach: Reach) -> list[Middleware]:
    """With TLS the certificate says whose name it is, and everybody is asked who they are."""
    if services.authentication.demanded:
        return []

    fixed = {socket.gethostname().lower(), *(name.lower() for name in reach.names)}

    def names() -> set[str]:
        return {host_of(member.http) for member in services.cluster.view().members} | fixed

    return [Middleware(OwnHost, names)]


class Under(BaseRoute):
    """Everything below a path is one app's, whatever signs it is made of: `Mount` leaves out what
    has a line break.
    """

    def __init__(self, prefix: str, app: ASGIApp) -> None:
        self._prefix = prefix
        self._app = app

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether it is a request for this."""
        below = scope["type"] == "http" and scope["path"].startswith(self._prefix)
        return (Match.FULL if below else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have the app answer it."""
        await self._app(scope, receive, send)


async def _other_method(request: Request, error: Exception) -> Response:
    """The answer to a request that the path knows with other methods: which, and where its page
    is.
    """
    path, routes = request.url.path, request.app.routes
    assert isinstance(error, HTTPException)
    allowed = ", ".join(sorted(links.methods(routes, path))) or "GET, HEAD"  # the files' own
    problem = problems.problem(
        "METHOD_NOT_ALLOWED",
        f"{path} knows {allowed}, not {request.method}",
        reason="METHOD_NOT_ALLOWED",
        remedy="what changes something is sent by the buttons of a page, or asked of /api/v1/",
    )
    way = NextLink(links.page_of(routes, path), "To its page")
    who = request.scope.get(IDENTITY)
    return refusals.told(request.scope, problem, who, way=way, headers={"allow": allowed})


async def _bug(_: Request, error: Exception) -> Response:
    """The answer to a request that met a bug; the error itself goes on to the log."""
    return problems.answer(
        problems.problem(
            "INTERNAL",
            f"a bug of ours: {type(error).__name__}",
            reason="BUG",
            remedy="look for its traceback in this member's log",
        )
    )
