"""The HTTP rules of the protos (`google.api.http`), read once into routes. Pure.

    {patch: "/api/v1/jobs/{job.name}" body: "job"}  ──▶  Route(PATCH, pattern, variables, body)

Paths are matched as received, before decoding. So a variable is always one segment, also with
`%2F`, and a name with a colon (`%3A`) differs from a verb (`:pause`).

Invariants
- Two rules never match the same request: `Routes` rejects duplicates.
- A variable is a field of the request, outside the body, except the key of the body.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import unquote

from google.api.annotations_pb2 import http as http_option
from google.api.http_pb2 import HttpRule
from google.protobuf.descriptor import MethodDescriptor

from schedkit.records import dataclass

WHOLE: Final = "*"
"""The body is the whole request."""

_VERBS: Final = ("get", "put", "post", "delete", "patch")
_VARIABLE: Final = re.compile(r"\{([a-z0-9_.]+)\}")


@dataclass(frozen=True, slots=True)
class Route:
    """The HTTP rule of one call.

    `body`: the field of the body, `*` for the whole request, empty without a body.
    """

    method: MethodDescriptor
    verb: str
    template: str
    pattern: re.Pattern[str]
    variables: tuple[str, ...]
    body: str

    def match(self, raw_path: str) -> dict[str, str] | None:
        found = self.pattern.fullmatch(raw_path)
        if found is None:
            return None
        return dict(zip(self.variables, map(unquote, found.groups()), strict=True))


@dataclass(frozen=True, slots=True)
class RouteMatch:
    route: Route
    variables: dict[str, str]


class Routes:
    def __init__(self, methods: Iterable[MethodDescriptor]) -> None:
        self.all: Final = tuple(route for method in methods for route in routes_of(method))
        _reject_duplicates(self.all)

    def find(self, verb: str, raw_path: str) -> RouteMatch | frozenset[str]:
        """Return the route; else the methods of this path, empty for an unknown path."""
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
    """Yield the routes of a call: its rule and additional bindings."""
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


def _reject_duplicates(routes: Iterable[Route]) -> None:
    seen: dict[tuple[str, str], Route] = {}
    for route in routes:
        key = (route.verb, route.pattern.pattern)
        if (duplicate := seen.setdefault(key, route)) is not route:
            raise ValueError(
                f"the calls {route.method.full_name} and {duplicate.method.full_name} have the"
                f" same address: {route.verb} {route.template} (a bug of schedd: please report"
                " this message)"
            )
