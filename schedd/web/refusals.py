"""Answer requests that are rejected before any page: a page for browsers, a problem for programs.

accept: text/html   ─▶ a page: the problem, the user, the remedy, a link
anything else       ─▶ application/problem+json
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, Response
from starlette.types import Scope

from schedd.core.auth.rights import CallerIdentity, IdentityKind
from schedd.web.rest import problems
from schedd.web.templating import render

CALLS: Final = "/api/"
"""Paths below are for programs, whatever they accept."""


class NextLink(NamedTuple):
    """A link on the page: an address of this site, and its label."""

    to: str
    says: str


def reads_pages(scope: Scope) -> bool:
    return not scope["path"].startswith(CALLS) and "text/html" in Headers(scope=scope).get(
        "accept", ""
    )


def response(
    scope: Scope,
    problem: Mapping[str, Any],
    who: CallerIdentity | None = None,
    *,
    way: NextLink | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return the answer. `who`: the caller, if authenticated; `way`: a link on the page."""
    if not reads_pages(scope):
        answer = problems.refused(problem)
        answer.headers.update(headers or {})
        return answer
    known = who if who is not None and who.kind is IdentityKind.USER else None
    html = render(
        "refused.html",
        seen=problem,
        actor=known.actor if known else "",
        roles=_had(known) if known else "",
        by_login=known is not None and known.token is not None,
        way=way,
    )
    return HTMLResponse(html, problem["status"], {"cache-control": "no-store", **(headers or {})})


def _had(who: CallerIdentity) -> str:
    pairs = sorted(who.roles.items())
    return ", ".join(
        f"{role.word} in {'all namespaces' if where == '*' else where}" for where, role in pairs
    )
