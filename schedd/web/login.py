"""The login of the dashboard: an access token for a cookie that is good for a working day.

    GET  /login            the page: a form, or who is logged in
    POST /login  token=…   ─▶ a token of its own, SESSION long at most, in the cookie ─▶ the page
                              asked for; the one that the cookie held before is revoked
    POST /logout           ─▶ that one is revoked

The token that was typed in is nowhere kept. The cookie is one that no script reads, that no other
site's page has sent, and that goes over HTTPS to this host alone (`__Host-`, HttpOnly, Strict).
"""

from __future__ import annotations

import logging
from typing import Final
from urllib.parse import parse_qs

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from schedd.api.access_tokens import log_in, log_out, replace_login
from schedd.api.errors import CallError, of_world
from schedd.api.services import Services
from schedd.core.rights import Identity, Kind
from schedd.web import problems, ways
from schedd.web.bodies import content_of
from schedd.web.known import COOKIE, IDENTITY, LOGIN, LOGOUT, LONGEST_WAY, caller_of, cookie_of
from schedd.web.problems import Refusal
from schedd.web.templating import render
from schedkit.errors import Unavailable
from schedkit.seldom import Seldom

log = logging.getLogger(__name__)

LARGEST: Final = 2 * LONGEST_WAY
"""Bytes of the form: a token, and the address that it leads to."""


def routes(services: Services) -> list[BaseRoute]:
    """The page, and what its buttons do."""
    failed = Seldom()

    async def page(request: Request) -> Response:
        return _page(request, 200, request.query_params.get("next", ""))

    async def enter(request: Request) -> Response:
        try:
            form = await _form(request)
        except ClientDisconnect:
            return Response(status_code=400)
        except Refusal as slow:
            return problems.answer(slow.body, slow.headers)
        after = form.get("next", "")
        try:
            who = await services.authentication.of_token(form.get("token", ""))
            request.scope[IDENTITY] = who
            caller = caller_of(request)
            login, lasts = await log_in(services, caller)
            if (former := cookie_of(request.headers)) is not None:
                await replace_login(services, former, caller.source)
        except (CallError, Unavailable) as error:
            refusal = of_world(error) if isinstance(error, Unavailable) else error
            _tell(failed, request, refusal)
            status = 503 if isinstance(error, Unavailable) else 403
            return _page(request, status, after, refusal.message)
        response = RedirectResponse(_page_after(request, after), 303)
        seconds = int(lasts.total_seconds())
        response.set_cookie(
            COOKIE, login, max_age=seconds, secure=True, httponly=True, samesite="strict"
        )
        return response

    async def leave(request: Request) -> Response:
        await log_out(services, caller_of(request))
        response = RedirectResponse(LOGIN, 303)
        response.delete_cookie(COOKIE, secure=True, httponly=True, samesite="strict")
        return response

    return [
        Route(LOGIN, page),
        Route(LOGIN, enter, methods=["POST"]),
        Route(LOGOUT, leave, methods=["POST"]),
    ]


def _tell(failed: Seldom, request: Request, refusal: CallError) -> None:
    """Anybody can have a login fail, as often as they like."""
    if since := failed.due():
        peer = f"{request.client.host}:{request.client.port}" if request.client else "somebody"
        told = (peer, refusal.message, since)
        log.warning("login of %s: %s (of %d that failed since the last line)", *told)


def _page(request: Request, status: int, after: str, problem: str = "") -> Response:
    """`after`: the page that was asked for, which comes when the login has."""
    who: Identity | None = request.scope.get(IDENTITY)
    html = render(
        "login.html",
        actor=who.actor if who and who.kind is Kind.USER and not problem else "",
        asked=who is None or who.kind is not Kind.ANYBODY,
        problem=problem,
        next=_page_after(request, after),
    )
    return HTMLResponse(html, status, {"cache-control": "no-store"})


async def _form(request: Request) -> dict[str, str]:
    """What was typed in; nothing where that is too much to be a form of ours."""
    body = await content_of(request)
    if len(body) > LARGEST:
        return {}
    fields = parse_qs(body.decode("ascii", "replace"))
    return {key: values[0].strip() for key, values in fields.items()}


def _page_after(request: Request, asked: str) -> str:
    """The page that comes when the login has: the one that was asked for, if it is of this site, or
    the one of the thing that somebody wanted to do something with.
    """
    return ways.page_of(request.app.routes, asked)
