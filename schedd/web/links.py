"""Turn an address into a page of this site, never into a path that only takes POST.

/jobs/etl/trigger    an action ──▶ the nearest page above it: /jobs/etl
the referer          of this site ──▶ the page with the form
//elsewhere.example  another site ──▶ the default
"""

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

FIRST: Final = "/"
"""The first page."""


def local(address: str, default: str = FIRST) -> str:
    """Return an address of this site, else `default`."""
    plain = address.startswith("/") and not address.startswith("//") and address.isprintable()
    return address if plain and "\\" not in address else default


def referred(scope: Scope, default: str = FIRST) -> str:
    """Return the page with the form, from the referer; else `default`."""
    headers = Headers(scope=scope)
    try:
        parsed = urlsplit(headers.get("referer", ""))
    except ValueError:
        return default
    if parsed.netloc != headers.get("host"):
        return default
    return local(f"{parsed.path}?{parsed.query}" if parsed.query else parsed.path, default)


def methods(routes: Sequence[BaseRoute], path: str) -> frozenset[str]:
    """Return the methods of the routes at a path; empty without routes, or if all are allowed."""
    scope = {"type": "http", "path": path, "method": "GET", "headers": []}
    found: set[str] = set()
    for route in routes:
        if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE:
            found |= route.methods or set()
    return frozenset(found)


def page_of(routes: Sequence[BaseRoute], address: str) -> str:
    """Return the address if it is a page of this site. For an action, return the nearest page above
    it.
    """
    path, mark, query = local(address).partition("?")
    taken = methods(routes, path)
    if not taken or "GET" in taken:
        return local(address)
    while path != FIRST and "GET" not in methods(routes, path):
        path = path.rpartition("/")[0] or FIRST
    return path + mark + query
