"""Who asks over HTTP: known before anything but the probes, the login and its looks answers.

    Authorization: Bearer …  │ the cookie of a login  │ the certificate of the connection
                  └────────────────────┴─────────────▶ Identity ─▶ scope[IDENTITY] ─▶ caller_of
    nobody: the login for who reads a page, 401 for the others

Who sends a form when their login has ended is answered with the login, which leads back to it, as
it was filled in (`login_page`).

Invariants
- A login is what a browser sends by itself, for a day and longer: one that is over is as none where
  there is a certificate. A token that somebody sends is judged, whatever comes with it.
- Calls under /api/ are judged by themselves (`schedd/api/auth/authorization.py`). Pages and figures
  tell of all namespaces, so they are for who may see all; a path that isn't named here, too.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from functools import partial
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from schedd.api.auth.authentication import BEARER, NAMES_NOBODY, Authentication, Nobody
from schedd.api.errors import CallError, PermissionDenied, Unauthenticated
from schedd.api.services import Caller
from schedd.core.jobs.rights import EVERY, Identity, Role
from schedd.web import links, login_page, refusals
from schedd.web.login_page import REASON
from schedd.web.rest import problems
from schedkit.daemon.log_rate_limit import LimitedLine
from schedkit.errors import Unavailable
from schedkit.net.https import CERTIFICATE

log = logging.getLogger(__name__)

IDENTITY: Final = "schedd.identity"
COOKIE: Final = "__Host-schedd"
LOGIN: Final = "/login"
UNASKED: Final = frozenset({"/healthz", "/readyz"})
"""Told to anybody, at once, whatever is away."""
FIGURES: Final = "/metrics"
DOCTOR: Final = "/cluster/doctor"
LATELY: Final = frozenset({FIGURES, DOCTOR, "/api/v1/cluster/checks"})
"""By these it is told that PostgreSQL is away: while it is, to who was known lately."""
LOGOUT: Final = "/logout"
LOOKS: Final = "/static/"
_LOST: Final = "what you typed is too long to be kept here: your browser's Back has it"


class HttpAuth:
    """Passes on what is open, and what somebody asks who is known. `forms`: path of a form → the
    fields that its page is filled in with.
    """

    def __init__(
        self,
        app: ASGIApp,
        authentication: Authentication,
        forms: Mapping[str, Collection[str]],
    ) -> None:
        self._app = app
        self._authentication = authentication
        self._forms = forms
        self._lines = LimitedLine()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or refuse."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        if path.startswith(LOOKS) or path in UNASKED:
            await self._app(scope, receive, send)
            return
        try:
            scope[IDENTITY] = who = await self.identity(scope)
            if not path.startswith(refusals.CALLS) and path not in {LOGIN, LOGOUT}:
                check_page(who)
        except (CallError, Unavailable) as error:
            self._tell(scope, error)
            if path != LOGIN:
                await (await self._answer(scope, receive, error))(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def identity(self, scope: Scope) -> Identity:
        """Who asks. Raises what `Authentication.of` does."""
        headers, shown = Headers(scope=scope), partial(self._certified, scope)
        known = partial(self._authentication.of, lately=scope["path"] in LATELY)
        sent = tuple(headers.getlist("authorization"))
        if not sent and (login := cookie_of(headers)) is not None:
            try:
                return await known((f"{BEARER}{login}",), shown)
            except Unauthenticated:
                if not isinstance(shown(), Identity):
                    raise
        return await known(sent, shown)

    async def _answer(
        self, scope: Scope, receive: Receive, error: CallError | Unavailable
    ) -> ASGIApp:
        if not isinstance(error, Unauthenticated):
            return refusals.told(scope, problems.of(error), scope.get(IDENTITY))
        if not refusals.reads_pages(scope):
            return refusals.told(scope, problems.of(error))
        if scope["method"] in ("GET", "HEAD"):
            query = scope["query_string"].decode("latin-1")
            asked = scope["path"] + (f"?{query}" if query else "")
            return RedirectResponse(login_before(asked), 303)
        request, form = Request(scope, receive), links.referred(scope, default=scope["path"])
        typed = await login_page.kept(request, self._forms.get(scope["path"], (REASON,)))
        if scope["path"] in self._forms:
            form = scope["path"] + (f"?{request.url.query}" if request.url.query else "")
        told = problems.of(error)
        if error.reason != NAMES_NOBODY:
            told["remedy"] = "log in, which leads back to where you were, and do it again"
        if typed is None:
            told["remedy"] += f"; {_LOST}"
        return login_page.shown(request, told["status"], form, problem=told, typed=typed or {})

    def _tell(self, scope: Scope, error: CallError | Unavailable) -> None:
        """In the log, of who shows a certificate: who shows none is told all that there is."""
        if not isinstance(error, Unauthenticated) or not scope.get(CERTIFICATE):
            return
        if refused := self._lines.due():
            told = (scope["method"], scope["path"], scope.get("client"), error.message, refused)
            log.info("%s %r of %s: %s (of %d that were refused since the last line)", *told)

    def _certified(self, scope: Scope) -> Identity | Nobody | None:
        shown: Mapping[str, Any] | None = scope.get(CERTIFICATE)
        if not shown:
            return None
        uris = [name for kind, name in shown["names"] if kind == "URI"]
        return self._authentication.of_certificate(shown["pem"], uris)


def cookie_of(headers: Headers) -> str | None:
    """What the cookie of a login holds."""
    try:
        jar = SimpleCookie(headers.get("cookie", ""))
    except CookieError:
        return None
    return jar[COOKIE].value if COOKIE in jar else None


def caller_of(request: Request) -> Caller:
    """Who makes the call that this request asks for."""
    peer = request.client
    source = f"http:{peer.host}:{peer.port}" if peer else "http"
    return Caller(request.scope[IDENTITY], source=source)


def login_before(address: str) -> str:
    """The login that leads to an address of this site."""
    return f"{LOGIN}?next={quote(address, safe='/')}"


def check_page(who: Identity) -> None:
    """Raise PermissionDenied for who may not see the pages."""
    if not who.may(Role.VIEWER, EVERY):
        raise PermissionDenied(
            f"this page tells of all namespaces, so it takes the role {Role.VIEWER.word} in all of"
            f" them; {who.actor} hasn't got it",
            reason="ROLE_MISSING",
            remedy="ask by `schedctl` or /api/v1/, which tell of those alone, or have an"
            " admin make a token of that role in all namespaces",
        )
