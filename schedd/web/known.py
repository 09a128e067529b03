"""Who asks over HTTP: known before anything but the probes, the login and its looks answers.

    Authorization: Bearer …  │ the cookie of a login  │ the certificate of the connection
                  └────────────────────┴─────────────▶ Identity ─▶ scope[IDENTITY] ─▶ caller_of
    nobody: the login for who reads a page, 401 for the others

Who sends a form when their login has ended is led back to it, as it was filled in (`filled_in`).

Invariants
- A login is what a browser sends by itself, for a day and longer: one that is over is as none where
  there is a certificate. A token that somebody sends is judged, whatever comes with it.
- Calls under /api/ are judged by themselves (`schedd/api/authorising.py`). Pages and figures tell
  of all namespaces, so they are for who may see all; a path that isn't named here, too.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from functools import partial
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import quote, urlencode

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from schedd.api.authentication import BEARER, NAMES_NOBODY, Authentication, Nobody
from schedd.api.errors import CallError, PermissionDenied, Unauthenticated
from schedd.api.services import Caller
from schedd.core.rights import EVERY, Identity, Role
from schedd.web import problems, refusals, ways
from schedd.web.pages.forms import fields_of
from schedd.web.problems import Refusal
from schedd.web.refusals import Way
from schedkit.errors import Unavailable
from schedkit.https import CERTIFICATE
from schedkit.seldom import Seldom

log = logging.getLogger(__name__)

IDENTITY: Final = "schedd.identity"
COOKIE: Final = "__Host-schedd"
LOGIN: Final = "/login"
UNASKED: Final = frozenset({"/healthz", "/readyz"})
"""Told to anybody, at once, whatever is away."""
LOGOUT: Final = "/logout"
LOOKS: Final = "/static/"
LONGEST_WAY: Final = 4096
"""Characters of an address of the login that leads back to a form as it was filled in."""
DEADLINE: Final = 30.0
"""Seconds that a call may take; HTTP callers don't say."""


class Known:
    """Passes on what is open, and what somebody asks who is known. `forms`: path of a form → the
    fields that its page takes from its address.
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
        self._lines = Seldom()

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
                _check_page(who)
        except (CallError, Unavailable) as error:
            self._tell(scope, error)
            if path != LOGIN:
                await (await self._answer(scope, receive, error))(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def identity(self, scope: Scope) -> Identity:
        """Who asks. Raises Unauthenticated, Unavailable."""
        headers, shown = Headers(scope=scope), partial(self._certified, scope)
        sent = headers.get("authorization")
        if sent is None and (login := cookie_of(headers)) is not None:
            try:
                return await self._authentication.of(f"{BEARER}{login}", shown)
            except Unauthenticated:
                if not isinstance(shown(), Identity):
                    raise
        return await self._authentication.of(sent, shown)

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
        form = ways.referred(scope, default=scope["path"])
        if fields := self._forms.get(scope["path"]):
            form = await filled_in(Request(scope, receive), fields) or form
        told = problems.of(error)
        if error.reason != NAMES_NOBODY:
            told["remedy"] = "log in, which leads back to where you were, and do it again"
        return refusals.told(scope, told, way=Way(login_before(form), "Log in"))

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
    return Caller(request.scope[IDENTITY], source=source, deadline=DEADLINE)


def login_before(address: str) -> str:
    """The login that leads to an address of this site."""
    return f"{LOGIN}?next={quote(address, safe='/')}"


async def filled_in(request: Request, fields: Collection[str]) -> str:
    """The address of the page of a form that was sent, as it was filled in; empty where that is too
    long for an address, can't be read, or is slow to come.
    """
    if not request.headers.get("content-length", "").isdecimal():
        return ""
    if int(request.headers["content-length"]) > LONGEST_WAY:
        return ""
    try:
        sent = await fields_of(request)
    except (Refusal, ClientDisconnect):
        return ""
    asked = dict(request.query_params) | {name: sent[name] for name in fields if sent.get(name)}
    address = f"{request.scope['path']}?{urlencode(asked)}"
    return address if len(login_before(address)) <= LONGEST_WAY else ""


def _check_page(who: Identity) -> None:
    if not who.may(Role.VIEWER, EVERY):
        raise PermissionDenied(
            f"this page tells of all namespaces, so it takes the role {Role.VIEWER.word} in all of"
            f" them; {who.actor} hasn't got it",
            reason="ROLE_MISSING",
            remedy="ask by `schedctl` or /api/v1/, which tell of those alone, or have an"
            " admin make a token of that role in all namespaces",
        )
