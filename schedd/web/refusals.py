"""A refusal before any page is asked: a page for who reads pages, a problem for programs.

accept: text/html   ─▶ what is wrong, who asks, what to do, and the way out
anything else       ─▶ application/problem+json
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Scope

from schedd.core.rights import Identity, Kind
from schedd.web import problems
from schedd.web.templating import render

CALLS: Final = "/api/"
"""What stands below is asked by programs, whatever they accept."""


def reads_pages(scope: Scope) -> bool:
    """Whether a person reads the answer."""
    return not scope["path"].startswith(CALLS) and "text/html" in Headers(scope=scope).get(
        "accept", ""
    )


def told(scope: Scope, problem: Mapping[str, Any], who: Identity | None = None) -> ASGIApp:
    """The answer. `who` asks, where that is known."""
    if not reads_pages(scope):
        return problems.refused(problem)
    known = who if who is not None and who.kind is Kind.USER else None
    html = render(
        "refused.html",
        seen=problem,
        actor=known.actor if known else "",
        roles=_had(known) if known else "",
        by_login=known is not None and known.token is not None,
    )
    return HTMLResponse(html, problem["status"], {"cache-control": "no-store"})


def _had(who: Identity) -> str:
    """The roles that somebody has, in words."""
    pairs = sorted(who.roles.items())
    return ", ".join(
        f"{role.word} in {'all namespaces' if where == '*' else where}" for where, role in pairs
    )
