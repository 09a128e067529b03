"""Where an address leads a person: to a page of this site, and never to what is POST alone.

/jobs/etl/trigger    an action's ──▶ the page of the thing: /jobs/etl
the referer          of this site ──▶ the page whose form it was
//elsewhere.example  not of this site ──▶ the default
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

FIRST: Final = "/"
"""The first page."""


def local(address: str, default: str = FIRST) -> str:
    """An address if it is one of this site's, else `default`."""
    plain = address.startswith("/") and not address.startswith("//") and address.isprintable()
    return address if plain and "\\" not in address else default


def referred(scope: Scope, default: str = FIRST) -> str:
    """The page whose form it was, as its browser says; else `default`."""
    headers = Headers(scope=scope)
    try:
        told = urlsplit(headers.get("referer", ""))
    except ValueError:
        return default
    if told.netloc != headers.get("host"):
        return default
    return local(f"{told.path}?{told.query}" if told.query else told.path, default)


def methods(routes: Sequence[BaseRoute], path: str) -> frozenset[str]:
    """What the routes at a path take; none where there are none, or where they take anything."""
    scope = {"type": "http", "path": path, "method": "GET", "headers": []}
    found: set[str] = set()
    for route in routes:
        if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE:
            found |= route.methods or set()
    return frozenset(found)


def page_of(routes: Sequence[BaseRoute], address: str) -> str:
    """The address, if it is one of this site's and not an action's; an action's leads to the page
    of the thing: the nearest one above it.
    """
    path, mark, query = local(address).partition("?")
    taken = methods(routes, path)
    if not taken or "GET" in taken:
        return local(address)
    while path != FIRST and "GET" not in methods(routes, path):
        path = path.rpartition("/")[0] or FIRST
    return path + mark + query
