"""Authenticate callers over HTTP, for all paths but the probes, the login and its static files.

    Authorization: Bearer …  │ the cookie of a login  │ the certificate of the connection
                  └────────────────────┴─────────────▶ Identity ─▶ scope[IDENTITY] ─▶ caller_of
    not authenticated: the login page for a browser, 401 for programs

    GET  /login            the page: a form, or the current user
    POST /login  token=…   ─▶ a new token in the cookie, valid for SESSION at most ─▶ the target
                              page; the token of a previous cookie is revoked, if possible
    POST /logout           ─▶ the token in the cookie is revoked

A form sent after the login expired is answered with the login page. After the login, the form
returns filled in:

    POST /new-job  name=… payload=…   ─▶ 401, this page: undone, typed.name, typed.payload in it
    POST /login  undone=yes typed.name=… ─▶ the page of the form, filled in

Invariants
- The typed token isn't stored anywhere.
- The cookie is hidden from scripts (HttpOnly), isn't sent by other sites' pages (Strict), and goes
  only over HTTPS to this host (`__Host-`).
- The login page says that nothing was changed yet, also after a button without fields.
- Input that is too long isn't kept; the page says so. The browser's Back button restores it.
- Input is sent only in bodies, never in addresses, which browsers and proxies keep.
- An expired login is ignored if there is a certificate, because browsers send the cookie
  automatically. A token in the `Authorization` header is always checked.
- Calls under /api/ check access themselves (`schedd/api/auth/policy.py`). All other paths
  need the role viewer in all namespaces, because they show all namespaces.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final, TypeAlias
from urllib.parse import quote, urlencode

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from schedd.api import deadlines
from schedd.api.auth.access_tokens import log_in, log_out, replace_login
from schedd.api.auth.authentication import BEARER, NO_SUBJECT, Authentication, UnknownSubject
from schedd.api.definitions.validation import MAX_PAYLOAD
from schedd.api.errors import (
    CallError,
    MemberUnavailableError,
    OutcomeUnknownError,
    PermissionDeniedError,
    UnauthenticatedError,
    dependency_error,
)
from schedd.api.services import Caller, Services
from schedd.core.auth.rights import EVERY, CallerIdentity, IdentityKind, Role
from schedd.web import links, refusals
from schedd.web.pages.page import fields_of
from schedd.web.rest import problems
from schedd.web.rest.problems import RequestProblem
from schedd.web.templating import render
from schedkit.daemon.log_rate_limit import LimitedLine
from schedkit.errors import Unavailable
from schedkit.net.https import CERTIFICATE

log = logging.getLogger(__name__)

IDENTITY: Final = "schedd.identity"
COOKIE: Final = "__Host-schedd"
LOGIN: Final = "/login"
UNASKED: Final = frozenset({"/healthz", "/readyz"})
"""Answered without authentication, also while PostgreSQL is unavailable."""
FIGURES: Final = "/metrics"
DOCTOR: Final = "/cluster/doctor"
LATELY: Final = frozenset({FIGURES, DOCTOR, "/api/v1/cluster/checks"})
"""Paths that report that PostgreSQL is unavailable. Meanwhile, recently authenticated callers pass.
"""
LOGOUT: Final = "/logout"
LOOKS: Final = "/static/"
_LOST: Final = "your input is too long to keep: your browser's Back button restores it"
LONGEST: Final = 8192
"""Characters of a token, and of the target address of a login."""
MOST: Final = 3 * MAX_PAYLOAD + 128 * 1024
"""Bytes of a form of an unauthenticated caller: the largest job, hardly more. A byte of non-ASCII
text is three bytes in a form.
"""
UNDONE: Final = "undone"
"""The field that marks another form that was sent and rejected."""
TYPED: Final = "typed."
"""The prefix for the fields of the other form."""
REASON: Final = "reason"
"""The field of a dialog."""
NOTHING: Final[Mapping[str, str]] = {}


class HttpAuth:
    """Forwards requests to open paths and of authenticated callers. `forms`: path of a form → the
    fields that its page is filled in with.
    """

    def __init__(
        self, app: ASGIApp, authentication: Authentication, forms: Mapping[str, Collection[str]]
    ) -> None:
        self._app = app
        self._authentication = authentication
        self._forms = forms
        self._lines = LimitedLine()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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
            self._log(scope, error)
            if path != LOGIN:
                await (await self._rejection_response(scope, receive, error))(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def identity(self, scope: Scope) -> CallerIdentity:
        """Return the caller. Raises what `Authentication.identify_caller` does."""
        headers, shown = Headers(scope=scope), partial(self._certified, scope)
        known = partial(self._authentication.identify_caller, lately=scope["path"] in LATELY)
        sent = tuple(headers.getlist("authorization"))
        if not sent and (login := cookie_of(headers)) is not None:
            try:
                return await known((f"{BEARER}{login}",), shown)
            except UnauthenticatedError:
                if not isinstance(shown(), CallerIdentity):
                    raise
        return await known(sent, shown)

    async def _rejection_response(
        self, scope: Scope, receive: Receive, error: CallError | Unavailable
    ) -> ASGIApp:
        if not isinstance(error, UnauthenticatedError):
            return refusals.response(scope, problems.problem_of(error), scope.get(IDENTITY))
        if not refusals.reads_pages(scope):
            return refusals.response(scope, problems.problem_of(error))
        if scope["method"] in ("GET", "HEAD"):
            query = scope["query_string"].decode("latin-1")
            asked = scope["path"] + (f"?{query}" if query else "")
            return RedirectResponse(login_before(asked), 303)
        request, form = Request(scope, receive), links.referred(scope, default=scope["path"])
        typed = await read_kept_fields(request, self._forms.get(scope["path"], (REASON,)))
        if scope["path"] in self._forms:
            form = scope["path"] + (f"?{request.url.query}" if request.url.query else "")
        problem = problems.problem_of(error)
        if error.reason != NO_SUBJECT:
            problem["remedy"] = "log in; then you return to this page and can send it again"
        if typed is None:
            problem["remedy"] += f"; {_LOST}"
        return login_form(request, problem["status"], form, problem=problem, typed=typed or {})

    def _log(self, scope: Scope, error: CallError | Unavailable) -> None:
        """Log a rejected certificate. Other callers get the whole error in the answer."""
        if not isinstance(error, UnauthenticatedError) or not scope.get(CERTIFICATE):
            return
        if refused := self._lines.due():
            values = (scope["method"], scope["path"], scope.get("client"), refused, error.message)
            log.info("request rejected: method=%s path=%r peer=%s rejected=%d error=%s", *values)

    def _certified(self, scope: Scope) -> CallerIdentity | UnknownSubject | None:
        shown: Mapping[str, Any] | None = scope.get(CERTIFICATE)
        if not shown:
            return None
        uris = [name for kind, name in shown["names"] if kind == "URI"]
        return self._authentication.of_certificate(shown["pem"], uris)


def cookie_of(headers: Headers) -> str | None:
    try:
        jar = SimpleCookie(headers.get("cookie", ""))
    except CookieError:
        return None
    return jar[COOKIE].value if COOKIE in jar else None


def caller_of(request: Request) -> Caller:
    peer = request.client
    source = f"http:{peer.host}:{peer.port}" if peer else "http"
    return Caller(request.scope[IDENTITY], source=source)


def login_before(address: str) -> str:
    """Return the address of the login page, with `address` as its target."""
    return f"{LOGIN}?next={quote(address, safe='/')}"


def check_page(who: CallerIdentity) -> None:
    """Raise PermissionDeniedError for callers who may not see the pages."""
    if not who.may(Role.VIEWER, EVERY):
        raise PermissionDeniedError(
            f"this page shows all namespaces, so it needs the role {Role.VIEWER.word} in all of"
            f" them; {who.actor} doesn't have this role",
            reason="ROLE_MISSING",
            remedy="use `schedctl` or /api/v1/ for your namespaces, or ask an admin for a token"
            " with that role in all namespaces",
        )


# The login page: a form for a token, or the current user.


def login_form(
    request: Request,
    status: int,
    after: str,
    *,
    who: CallerIdentity | None = None,
    wrong: str = "",
    problem: Mapping[str, Any] | None = None,
    undone: bool = False,
    typed: Mapping[str, str] = NOTHING,
) -> Response:
    """Return the page. `who`: the caller, if authenticated; `after`: the target page; `wrong`: why
    the last login failed; `problem`: why a form was rejected; `undone`: a form was rejected, with
    `typed` in it.
    """
    html = render(
        "login.html",
        actor=who.actor if who and who.kind is IdentityKind.USER and not wrong else "",
        asked=who is None or who.kind is not IdentityKind.ANYBODY,
        wrong=wrong,
        seen=problem,
        next=links.page_of(request.app.routes, after),
        undone=undone or problem is not None,
        typed=[(TYPED + name, value) for name, value in typed.items()],
    )
    return HTMLResponse(html, status, {"cache-control": "no-store"})


def typed_in(form: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of the other form from the fields of the login form. Pure."""
    return {
        name.removeprefix(TYPED): value for name, value in form.items() if name.startswith(TYPED)
    }


async def read_kept_fields(request: Request, fields: Collection[str]) -> dict[str, str] | None:
    """Return the fields of a rejected form that the login keeps; None: the form is unreadable or
    too large.
    """
    try:
        sent = await fields_of(request, MOST)
    except (RequestProblem, ClientDisconnect):
        return None
    found = {name: sent[name] for name in fields if sent.get(name)}
    length = len(urlencode({TYPED + name: value for name, value in found.items()}))
    return found if length + 4 * LONGEST <= MOST else None


# The login of the dashboard: exchange an access token for a cookie, valid for a working day.

BackWith: TypeAlias = Callable[[Request, str, Mapping[str, str]], Awaitable[Response]]
"""Returns the page that a form was sent from, filled in with the typed fields."""


def login_routes(services: Services, back_with: BackWith) -> list[BaseRoute]:
    failed, stayed = LimitedLine(), LimitedLine()

    async def page(request: Request) -> Response:
        after, who = request.query_params.get("next", ""), request.scope.get(IDENTITY)
        return login_form(request, 200, after, who=who)

    async def enter(request: Request) -> Response:
        try:
            form = await fields_of(request, MOST)
        except ClientDisconnect:
            return Response(status_code=400)
        except RequestProblem as refused:
            return problems.problem_response(refused.body, refused.headers)
        after, undone, typed = form.get("next", "")[:LONGEST], UNDONE in form, typed_in(form)
        who: CallerIdentity | None = request.scope.get(IDENTITY)
        try:
            async with deadlines.limit_read(None, services.database_answered_at):
                who = await services.authentication.of_token(form.get("token", "")[:LONGEST])
                request.scope[IDENTITY] = who
                caller = caller_of(request)
                login, lasts = await log_in(services, caller)
        except (CallError, Unavailable) as error:
            refusal = dependency_error(error) if isinstance(error, Unavailable) else error
            _log_failure(failed, request, refusal)
            status = (
                503 if isinstance(refusal, MemberUnavailableError | OutcomeUnknownError) else 403
            )
            wrong = refusal.message
            return login_form(
                request, status, after, who=who, wrong=wrong, undone=undone, typed=typed
            )
        if (former := cookie_of(request.headers)) is not None:
            await _end_former(services, former, caller.source, stayed)
        after = links.page_of(request.app.routes, after)
        response: Response = RedirectResponse(after, 303)
        if undone:
            response = await back_with(request, after, typed)
        seconds = int(lasts.total_seconds())
        response.set_cookie(
            COOKIE, login, max_age=seconds, secure=True, httponly=True, samesite="strict"
        )
        return response

    async def leave(request: Request) -> Response:
        caller = caller_of(request)
        try:
            async with deadlines.changed(deadlines.WAITS):
                await log_out(services, caller)
        except (CallError, Unavailable) as error:
            return refusals.response(request.scope, problems.problem_of(error), caller.who)
        response = RedirectResponse(LOGIN, 303)
        response.delete_cookie(COOKIE, secure=True, httponly=True, samesite="strict")
        return response

    return [
        Route(LOGIN, page),
        Route(LOGIN, enter, methods=["POST"]),
        Route(LOGOUT, leave, methods=["POST"]),
    ]


async def _end_former(services: Services, login: str, source: str, stayed: LimitedLine) -> None:
    """Revoke the token of the previous login. A failure is only logged: the new login is valid."""
    try:
        async with deadlines.changed(0):
            await replace_login(services, login, source)
    except (CallError, Unavailable) as error:
        if since := stayed.due():
            log.warning("previous login not revoked: failures=%d error=%s", since, error)


def _log_failure(failed: LimitedLine, request: Request, refusal: CallError) -> None:
    if since := failed.due():
        peer = f"{request.client.host}:{request.client.port}" if request.client else "unknown"
        log.warning("login failed: peer=%s failures=%d error=%s", peer, since, refusal.message)
