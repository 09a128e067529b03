"""A refusal before any page is asked: a page for who reads pages, a problem for programs.

accept: text/html   ─▶ what is wrong, who asks, what to do, and the way on
anything else       ─▶ application/problem+json
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, Response
from starlette.types import Scope

from schedd.core.jobs.rights import Identity, IdentityKind
from schedd.web.rest import problems
from schedd.web.templating import render

CALLS: Final = "/api/"
"""What stands below is asked by programs, whatever they accept."""


class NextLink(NamedTuple):
    """Where to go on from a refusal: an address of this site, and what its button says."""

    to: str
    says: str


def reads_pages(scope: Scope) -> bool:
    """Whether a person reads the answer."""
    return not scope["path"].startswith(CALLS) and "text/html" in Headers(scope=scope).get(
        "accept", ""
    )


def told(
    scope: Scope,
    problem: Mapping[str, Any],
    who: Identity | None = None,
    *,
    way: NextLink | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """The answer. `who` asks, where that is known; `way` is offered to who reads a page."""
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


def _had(who: Identity) -> str:
    """The roles that somebody has, in words."""
    pairs = sorted(who.roles.items())
    return ", ".join(
        f"{role.word} in {'all namespaces' if where == '*' else where}" for where, role in pairs
    )
