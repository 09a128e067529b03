"""The ASGI app of a member: all that it serves over HTTP.

    /healthz /readyz   health.py        /…         the pages, live below /live     pages/
    /metrics           telemetry.py     /api/…     REST: every call of the table   rest.py
    /login /logout     login.py         /static    one stylesheet, one script

Invariants
- Pages load and run only what this member serves (POLICY); no script or style is inline.
- The client address is the one that a trusted proxy reports (`Forwarded`).
- Requests in progress are limited per host (`AtATime`); probes are always answered.
- Requests that change something are rejected if another site's page sends them (`SameOrigin`).
  Without authentication, requests by a host name of another site are rejected (`OwnHost`).
- With TLS, only authenticated callers get an answer, except from the probes, the login and its
  static files (`HttpAuth`).
"""

import asyncio
import json
import socket
from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeAlias

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from schedd.api.services import Services
from schedd.telemetry.recorder import Telemetry
from schedd.web import links, refusals
from schedd.web.guard import (
    STRAIGHT,
    AtATime,
    Forwarded,
    OwnHost,
    Reach,
    SameOrigin,
    SecurityHeaders,
    host_of,
)
from schedd.web.http_auth import FIGURES, IDENTITY, HttpAuth, login_routes
from schedd.web.pages.cluster import cluster, overview, workers
from schedd.web.pages.jobs import cron, forecast, job, jobs, new_job
from schedd.web.pages.page import Page
from schedd.web.pages.runs import dead_letters, run, runs
from schedd.web.pages.site import Site
from schedd.web.refusals import NextLink
from schedd.web.rest import problems
from schedd.web.rest.rest import Rest
from schedd.web.templating import STATIC

# The list of all pages.

PAGES: Final[tuple[Page, ...]] = (
    overview.PAGE,
    jobs.PAGE,
    job.PAGE,
    new_job.PAGE,
    runs.PAGE,
    run.PAGE,
    workers.PAGE,
    cluster.PAGE,
    cluster.DOCTOR,
    dead_letters.PAGE,
    cron.PAGE,
    forecast.PAGE,
)


# Serve the probes `/healthz` and `/readyz`.
#
# Alive: the event loop answers. Ready: there is no reason against it (no tenure, lease not
# trusted, database unavailable). The caller of `health_routes` supplies the reasons, one line
# each.

Readiness: TypeAlias = Callable[[], Sequence[str]]
"""Returns the reasons why this member isn't ready, one line each; empty if it is. No I/O."""


def no_notes() -> Sequence[str]:
    return ()


def health_routes(readiness: Readiness, notes: Readiness = no_notes) -> list[Route]:
    """Return `/healthz` and `/readyz`. `notes`: warnings that don't affect readiness."""

    async def healthz(_: Request) -> Response:
        return _json_response(200, {"status": "alive"})

    async def readyz(_: Request) -> Response:
        reasons = list(readiness())
        status = "not ready" if reasons else "ready"
        body = {"status": status, "reasons": reasons, "notes": list(notes())}
        return _json_response(503 if reasons else 200, body)

    return [Route("/healthz", healthz), Route("/readyz", readyz)]


def _json_response(status: int, body: object) -> Response:
    headers = {"cache-control": "no-store"}
    return Response(json.dumps(body) + "\n", status, headers, "application/json")


def build(
    services: Services,
    telemetry: Telemetry,
    readiness: Readiness,
    notes: Readiness = no_notes,
    reach: Reach = STRAIGHT,
) -> Starlette:
    """Return the app, for `server.Bound.serve`. `readiness`: reasons why this member isn't ready;
    `notes`: warnings for operators; `reach`: how it is reached.
    """
    telemetry.observe(services.cluster, services.version)
    closing = asyncio.Event()
    site = Site(services, closing, PAGES)

    async def nowhere(request: Request, _: Exception) -> Response:
        return site.nowhere(request)

    app = Starlette(
        routes=[
            *_daemon(telemetry, health_routes(readiness, notes)),
            *site.routes(),
            Mount("/static", StaticFiles(directory=STATIC)),
            *login_routes(services, site.back_with),
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
    async def metrics(request: Request) -> Response:
        content, media_type = telemetry.scraped(request.headers.get("accept", ""))
        return Response(content, headers={"content-type": media_type, "cache-control": "no-store"})

    return [*probes, Route(FIGURES, metrics)]


def _forms() -> dict[str, Collection[str]]:
    """Return path of a form whose page is shown filled in → its fields."""
    actions = [action for page in PAGES for action in page.actions]
    return {action.path: action.again.asks for action in actions if action.again is not None}


def _own_host(services: Services, reach: Reach) -> list[Middleware]:
    """Return the check of host names; with TLS, certificates and authentication replace it."""
    if services.authentication.demanded:
        return []

    fixed = {socket.gethostname().lower(), *(name.lower() for name in reach.names)}

    def names() -> set[str]:
        return {host_of(member.http) for member in services.cluster.view().members} | fixed

    return [Middleware(OwnHost, names)]


class Under(BaseRoute):
    """Routes all paths below a prefix to one app. `Mount` ignores those with a line break."""

    def __init__(self, prefix: str, app: ASGIApp) -> None:
        self._prefix = prefix
        self._app = app

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        below = scope["type"] == "http" and scope["path"].startswith(self._prefix)
        return (Match.FULL if below else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


async def _other_method(request: Request, error: Exception) -> Response:
    """Return 405 with the methods of the path, and a link to its page."""
    path, routes = request.url.path, request.app.routes
    assert isinstance(error, HTTPException)
    allowed = ", ".join(sorted(links.methods(routes, path))) or "GET, HEAD"  # the files' own
    problem = problems.problem(
        "METHOD_NOT_ALLOWED",
        f"method {request.method} not allowed for {path}, only {allowed}",
        reason="METHOD_NOT_ALLOWED",
        remedy="use the buttons of the page, or a call of /api/v1/",
    )
    way = NextLink(links.page_of(routes, path), "Open the page")
    who = request.scope.get(IDENTITY)
    return refusals.response(request.scope, problem, who, way=way, headers={"allow": allowed})


async def _bug(_: Request, error: Exception) -> Response:
    """Return 500; the error itself is logged with its traceback."""
    return problems.problem_response(
        problems.problem(
            "INTERNAL",
            f"internal error: {type(error).__name__}",
            reason="BUG",
            remedy="report the traceback in this member's log as a bug",
        )
    )
