"""The login of the dashboard: exchange an access token for a cookie, valid for a working day.

    GET  /login            the page: a form, or the current user
    POST /login  token=…   ─▶ a new token in the cookie, valid for SESSION at most ─▶ the target
                              page; the token of a previous cookie is revoked, if possible
               undone typed.…=…  ─▶ the page of the form sent without a login, filled in
    POST /logout           ─▶ the token in the cookie is revoked

Invariants
- The typed token isn't stored anywhere.
- The cookie is hidden from scripts (HttpOnly), isn't sent by other sites' pages (Strict), and goes
  only over HTTPS to this host (`__Host-`).
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from schedd.api import deadlines
from schedd.api.auth.access_tokens import log_in, log_out, replace_login
from schedd.api.errors import (
    CallError,
    MemberUnavailableError,
    OutcomeUnknownError,
    dependency_error,
)
from schedd.api.services import Services
from schedd.core.auth.rights import CallerIdentity
from schedd.web import links, refusals
from schedd.web.http_auth import (
    COOKIE,
    IDENTITY,
    LOGIN,
    LOGOUT,
    LONGEST,
    MOST,
    UNDONE,
    caller_of,
    cookie_of,
    login_form,
    typed_in,
)
from schedd.web.pages.page import fields_of
from schedd.web.rest import problems
from schedd.web.rest.problems import RequestProblem
from schedkit.daemon.log_rate_limit import LimitedLine
from schedkit.errors import Unavailable

log = logging.getLogger(__name__)

BackWith: TypeAlias = Callable[[Request, str, Mapping[str, str]], Awaitable[Response]]
"""Returns the page that a form was sent from, filled in with the typed fields."""


def routes(services: Services, back_with: BackWith) -> list[BaseRoute]:
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
