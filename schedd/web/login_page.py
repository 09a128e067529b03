"""The page of the login: a form for a token, or who is logged in. It is the answer, too, to a form
that somebody sends whose login has ended:

    POST /new-job  name=… payload=…   ─▶ 401, this page: undone, typed.name, typed.payload in it
    POST /login  undone=yes typed.name=… ─▶ the page of the form, filled in

There it says that nothing is done yet, also after a button without anything to type.
What is too long for that is lost but for the browser's own Back, and the page says so.

What was typed stands in the body alone, never in an address: those are kept, by browsers and by
proxies. It is escaped, as all that templates show.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response

from schedd.api.definitions.validation import MAX_PAYLOAD
from schedd.core.jobs.rights import Identity, IdentityKind
from schedd.web import links
from schedd.web.pages.forms import fields_of
from schedd.web.rest.problems import RequestProblem
from schedd.web.templating import render

LONGEST: Final = 8192
"""Characters of a token, and of the address that a login leads to."""
MOST: Final = 3 * MAX_PAYLOAD + 128 * 1024
"""Bytes of a form of somebody who isn't known: of a job that may be stored, hardly more. Each byte
of a text that isn't ASCII is three in a form.
"""
UNDONE: Final = "undone"
"""The field that says that another form was sent, and not taken."""
TYPED: Final = "typed."
"""What the fields of another form are named by in this one's."""
REASON: Final = "reason"
"""What somebody types into a dialog."""
NOTHING: Final[Mapping[str, str]] = {}


def shown(
    request: Request,
    status: int,
    after: str,
    *,
    who: Identity | None = None,
    wrong: str = "",
    problem: Mapping[str, Any] | None = None,
    undone: bool = False,
    typed: Mapping[str, str] = NOTHING,
) -> Response:
    """The page. `who` asks, where that is known; `after`: what comes when the login has; `wrong`:
    why the last try failed; `problem`: why a form wasn't taken; `undone`: there was one, with
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
    """What was typed into the other form, by what the form of the login sent. Pure."""
    return {
        name.removeprefix(TYPED): value for name, value in form.items() if name.startswith(TYPED)
    }


async def kept(request: Request, fields: Collection[str]) -> dict[str, str] | None:
    """Those of a form that was sent that the login carries on; None: it can't be read, or is more
    than the login may send, with its token.
    """
    try:
        sent = await fields_of(request, MOST)
    except (RequestProblem, ClientDisconnect):
        return None
    found = {name: sent[name] for name in fields if sent.get(name)}
    length = len(urlencode({TYPED + name: value for name, value in found.items()}))
    return found if length + 4 * LONGEST <= MOST else None
