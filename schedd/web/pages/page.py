"""A page and an action as values: each page's module says its own, and `site` serves them all.

    Asked ──read──▶ Shown ──template──▶ the page's body      a Page: for looking, live
    Asked ──do────▶ Done  ──303───────▶ a page that tells it  an Action: a form that is sent

Invariants
- All that a page shows comes from the calls that gRPC and REST make, in its caller's name.
- `read` changes nothing; what an action changes it changes by one call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar

from google.protobuf.message import Message

from schedd.api.calls import UNARY
from schedd.api.services import Caller, Services
from schedd.core.rights import EVERY as EVERYWHERE
from schedd.core.rights import Role
from schedd.web.templating import linker
from schedproto.v1 import cluster_service_pb2 as cluster_pb

Told = TypeVar("Told", bound=Message)

NOTHING: Final[Mapping[str, str]] = {}
EVERY: Final = 1.0
"""Seconds between two looks at what a page shows, however many watch it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """An address of a page, or a form sent from one, and in whose name the calls are made.

    `variables` are those of the path, `query` what stands behind the `?`, `fields` the form's.
    """

    services: Services
    caller: Caller
    variables: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def namespace(self) -> str:
        """Empty: `default`."""
        return self.query.get("namespace", "")

    def link(self, *segments: str, **query: object) -> str:
        """An address of a page in the same namespace."""
        return linker(self.namespace)(*segments, **query)

    async def call(self, name: str, request: Message, answer: type[Told]) -> Told:
        """Make a call, such as `JobService.GetJob`. Raises CallError, Unavailable."""
        told = await UNARY[f"schedd.v1.{name}"](self.services, self.caller, request)
        assert isinstance(told, answer)
        return told

    async def audit(self, what: str, most: int) -> Sequence[cluster_pb.AuditEntry]:
        """The newest lines of the audit about something; none for who may not read it."""
        if not self.caller.who.may(Role.ADMIN, EVERYWHERE):
            return ()
        asked = cluster_pb.ListAuditRequest(object=what, page_size=most)
        told = await self.call("ClusterService.ListAudit", asked, cluster_pb.ListAuditResponse)
        return told.entries


@dataclass(frozen=True, slots=True)
class Shown:
    """What was read for a page: its title, and the value that its templates know as `seen`.

    `kept` is for the page's own `without`, should the next reading fail.
    """

    title: str
    seen: object
    kept: object = None


@dataclass(frozen=True, slots=True)
class Done:
    """What an action did, in words, and the page that tells it."""

    told: str
    to: str


Read: TypeAlias = Callable[[Asked], Awaitable[Shown]]
Without: TypeAlias = Callable[[Asked, object], Shown]
Do: TypeAlias = Callable[[Asked], Awaitable[Done]]


@dataclass(frozen=True, slots=True)
class Page:
    """A page: `<template>_body.html` is the part that lives, `frame` what stands around it.

    `tab` is the entry of the navigation that it belongs to. `every`: seconds between two looks;
    None: it doesn't live. `without`: what it shows while nothing can be read, by what was `kept`
    of the last reading; if None, what it showed then.
    """

    path: str
    tab: str
    template: str
    read: Read
    frame: str = "frame.html"
    every: float | None = EVERY
    actions: Sequence[Action] = ()
    without: Without | None = None


@dataclass(frozen=True, slots=True)
class Action:
    """A form's address, and what is done with its fields. `again`: the page of the form, which is
    shown filled in, beside what was wrong with it.
    """

    path: str
    do: Do
    again: Page | None = None
