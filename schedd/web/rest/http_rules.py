"""The HTTP rules of the protos (`google.api.http`), read once into routes. Pure.

    {patch: "/api/v1/jobs/{job.name}" body: "job"}  ──▶  Route(PATCH, pattern, variables, body)

A path is matched as it came over the wire, before any `%2F` becomes a slash, so that a variable is
always one segment, and a verb (`:pause`) is told from a name that has a colon in it by its `%3A`.

Invariants
- Two rules never match the same request: `Routes` refuses to be made of such.
- A variable is a path of fields of the request, and never one inside the body but for its key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from google.api.annotations_pb2 import http as http_option
from google.api.http_pb2 import HttpRule
from google.protobuf.descriptor import MethodDescriptor

WHOLE: Final = "*"
"""A body that is the request itself."""

_VERBS: Final = ("get", "put", "post", "delete", "patch")
_VARIABLE: Final = re.compile(r"\{([a-z0-9_.]+)\}")


@dataclass(frozen=True, slots=True)
class Route:
    """How one call is asked for over HTTP.

    `body`: the field that the body fills, `*` for the whole request, empty when there is none.
    """

    method: MethodDescriptor
    verb: str
    template: str
    pattern: re.Pattern[str]
    variables: tuple[str, ...]
    body: str

    def match(self, raw_path: str) -> dict[str, str] | None:
        """The variables of a path that is this route's; None when it isn't."""
        found = self.pattern.fullmatch(raw_path)
        if found is None:
            return None
        return dict(zip(self.variables, map(unquote, found.groups()), strict=True))


@dataclass(frozen=True, slots=True)
class RouteMatch:
    """A request's route, with what its path says."""

    route: Route
    variables: dict[str, str]


class Routes:
    """All routes of a table of calls."""

    def __init__(self, methods: Iterable[MethodDescriptor]) -> None:
        self.all: Final = tuple(route for method in methods for route in routes_of(method))
        _refuse_twins(self.all)

    def find(self, verb: str, raw_path: str) -> RouteMatch | frozenset[str]:
        """The route; or the verbs that this path knows, none when there is no such path."""
        matches = [
            RouteMatch(route, variables)
            for route in self.all
            if (variables := route.match(raw_path)) is not None
        ]
        wanted = "GET" if verb == "HEAD" else verb
        for found in matches:
            if found.route.verb == wanted:
                return found
        return frozenset(found.route.verb for found in matches)


def routes_of(method: MethodDescriptor) -> Iterator[Route]:
    """The routes of a call: its rule and the rule's additional ones."""
    rule: HttpRule = method.GetOptions().Extensions[http_option]
    for one in (rule, *rule.additional_bindings):
        verb = one.WhichOneof("pattern")
        if verb in _VERBS:
            yield _route(method, verb.upper(), getattr(one, verb), one.body)


def _route(method: MethodDescriptor, verb: str, template: str, body: str) -> Route:
    literal, *rest = _VARIABLE.split(template)
    pattern = re.escape(literal)
    for text in rest[1::2]:
        pattern += f"([^/:]+){re.escape(text)}"
    return Route(method, verb, template, re.compile(pattern), tuple(rest[0::2]), body)


def _refuse_twins(routes: Iterable[Route]) -> None:
    seen: dict[tuple[str, str], Route] = {}
    for route in routes:
        key = (route.verb, route.pattern.pattern)
        if (twin := seen.setdefault(key, route)) is not route:
            raise ValueError(
                f"{route.method.full_name} and {twin.method.full_name} share "
                f"{route.verb} {route.template}"
            )
