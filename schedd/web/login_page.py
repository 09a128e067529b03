"""The login page: a form for a token, or the current user. It also answers a form sent after the
login expired:

    POST /new-job  name=… payload=…   ─▶ 401, this page: undone, typed.name, typed.payload in it
    POST /login  undone=yes typed.name=… ─▶ the page of the form, filled in

Invariants
- The page says that nothing was changed yet, also after a button without fields.
- Input that is too long isn't kept; the page says so. The browser's Back button restores it.
- Input is sent only in bodies, never in addresses, which browsers and proxies keep.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response

from schedd.api.definitions.validation import MAX_PAYLOAD
from schedd.core.auth.rights import CallerIdentity, IdentityKind
from schedd.web import links
from schedd.web.pages.forms import fields_of
from schedd.web.rest.problems import RequestProblem
from schedd.web.templating import render

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


def shown(
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
