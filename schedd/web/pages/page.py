"""A page and an action as values: each page's module says its own, and `site` serves them all.

    Asked ──read──▶ Shown ──template──▶ the page's body      a Page: for looking, live
    Asked ──do────▶ Done  ──303───────▶ a page that tells it  an Action: a form that is sent

Invariants
- An address is the whole question, and of nothing else: what a page doesn't ask for is refused by
  name, as REST does, never ignored; so is what it asks for twice.
- However many addresses are watched, AT_A_TIME calls are under way for them: pages never take all
  of the database's threads. A form waits for none of them, nor does the doctor, which has its own
  bounds.
- No page waits longer for PostgreSQL than a call that reads, with its turn (`in_time`).
- All that a page shows comes from the calls that gRPC and REST make, in its caller's name.
- `read` changes nothing; what an action changes it changes by one call.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar

from google.protobuf.message import Message

from schedd.api import deadlines
from schedd.api.auth.policy import POLICY
from schedd.api.calls import UNARY
from schedd.api.errors import InvalidArgument, Violation, cut
from schedd.api.services import DEFAULT_NAMESPACE, Caller, Services
from schedd.core.jobs.rights import EVERY as EVERYWHERE
from schedd.core.jobs.rights import Role
from schedd.web.pages.recent_cache import Recent
from schedd.web.templating import ONCE, linker
from schedproto.v1 import cluster_service_pb2 as cluster_pb

Told = TypeVar("Told", bound=Message)
Found = TypeVar("Found")
P = ParamSpec("P")

NAMESPACE: Final = "namespace"
"""What every page asks for."""
NOTHING: Final[Mapping[str, str]] = {}
AT_A_TIME: Final = 3
"""Calls for pages that are under way together: fewer than the database has threads for calls."""
EVERY: Final = 1.0
"""Seconds between two looks at what a page shows, however many watch it."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """An address of a page, or a form sent from one, and in whose name the calls are made.

    `variables` are those of the path, `query` what stands behind the `?`, `fields` the form's. All
    pages of a member take `turns`, a form none, and share what was read of `recent`.
    """

    services: Services
    caller: Caller
    variables: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)
    turns: asyncio.Semaphore | None = None
    recent: Recent = field(default_factory=Recent)

    @property
    def namespace(self) -> str:
        """Empty: `default`."""
        return self.query.get(NAMESPACE, "")

    @property
    def once(self) -> str:
        """An idempotency key for what a form asks: the same when the same drawing of it is sent
        again as it was, by a double click; another for each drawing. Empty where it has none.
        """
        if not self.fields.get(ONCE):
            return ""
        told = json.dumps([self.namespace, dict(self.variables), dict(self.fields)], sort_keys=True)
        return f"form-{hashlib.sha256(told.encode()).hexdigest()[:32]}"

    def link(self, *segments: str, **query: object) -> str:
        """An address of a page in the same namespace."""
        return linker(self.namespace)(*segments, **query)

    def may(self, name: str, namespace: str = "") -> bool:
        """Whether the caller may make a call; `namespace`: of what it is about, if that isn't the
        page's. For what is shown alone: the call judges by itself.
        """
        rule, who = POLICY[f"schedd.v1.{name}"], self.caller.who
        where = EVERYWHERE if rule.where is None else namespace or self.namespace
        return rule.role is None or who.may(rule.role, where or DEFAULT_NAMESPACE)

    async def call(self, name: str, request: Message, answer: type[Told]) -> Told:
        """Make a call, such as `JobService.GetJob`. Raises CallError, Unavailable."""
        async with self._turn():
            told = await UNARY[f"schedd.v1.{name}"](self.services, self.caller, request)
        assert isinstance(told, answer)
        return told

    async def read(
        self, reading: Callable[P, Awaitable[Found]], *of: P.args, **how: P.kwargs
    ) -> Found:
        """What no call by itself tells, in its turn: before that it isn't begun, so who leaves
        earlier leaves nothing behind.
        """
        async with deadlines.read(None), self._turn():
            return await reading(*of, **how)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        if self.turns is None:
            yield
            return
        async with deadlines.read(None), self.turns:
            yield

    @asynccontextmanager
    async def at_once(self) -> AsyncIterator[AtOnce]:
        """For what doesn't need each other's answers. The first fault is raised as it is."""
        try:
            async with asyncio.TaskGroup() as group:
                yield AtOnce(self, group)
        except BaseExceptionGroup as faults:
            raise faults.exceptions[0] from None

    async def audit(self, what: str, most: int) -> Sequence[cluster_pb.AuditEntry]:
        """The newest lines of the audit about something; none for who may not read it."""
        if not self.caller.who.may(Role.ADMIN, EVERYWHERE):
            return ()
        asked = cluster_pb.ListAuditRequest(object=what, page_size=most)
        told = await self.call("ClusterService.ListAudit", asked, cluster_pb.ListAuditResponse)
        return told.entries


class AtOnce:
    """Readings that don't wait for each other: each a task, whose result is there in the end."""

    def __init__(self, asked: PageRequest, group: asyncio.TaskGroup) -> None:
        self._asked = asked
        self._group = group

    def call(self, name: str, request: Message, answer: type[Told]) -> asyncio.Task[Told]:
        """As `PageRequest.call`."""
        return self.read(name, self._asked.call(name, request, answer))

    def read(self, name: str, reading: Coroutine[Any, Any, Found]) -> asyncio.Task[Found]:
        """Any other; it takes its turns by itself."""
        return self._group.create_task(reading, name=f"a page reads {name}")


@dataclass(frozen=True, slots=True)
class Shown:
    """What was read for a page: its title, and the value that its templates know as `seen`.

    `kept` is for the page's own `without`, should the next reading fail. `over`: it changes no
    more, so nobody need look again.
    """

    title: str
    seen: object
    kept: object = None
    over: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """What an action did, in words, and the page that tells it."""

    told: str
    to: str


Read: TypeAlias = Callable[[PageRequest], Awaitable[Shown]]
Without: TypeAlias = Callable[[PageRequest, object], Shown]
Beside: TypeAlias = Callable[[PageRequest, object], Awaitable[object]]
Do: TypeAlias = Callable[[PageRequest], Awaitable[Done]]


@dataclass(frozen=True, slots=True)
class Page:
    """A page: `<template>_body.html` is the part that lives, `frame` what stands around it.

    `tab` is the entry of the navigation that it belongs to. `asks`: names of what may stand behind
    the `?`, beside NAMESPACE. `every`: seconds between two looks; None: it doesn't live. `without`:
    what it shows while nothing can be read, by what was `kept` of the last reading; if None, what
    it showed then. `beside`: what stands beside the body, by what was seen; read where the whole
    page is asked for, and known to `frame` by that name. `tells_troubles`: what keeps runs from
    being on time stands on it; any other has a line of it where this member fires nothing.
    `by_turns`: not what asks nothing of the database, or has to tell of it while it hangs.
    """

    path: str
    tab: str
    template: str
    read: Read
    asks: Collection[str] = ()
    frame: str = "frame.html"
    every: float | None = EVERY
    actions: Sequence[Action] = ()
    without: Without | None = None
    beside: Beside | None = None
    tells_troubles: bool = False
    by_turns: bool = True

    def turned(self, asked: PageRequest) -> PageRequest:
        """The address, to be read with a turn or without one."""
        return asked if self.by_turns else replace(asked, turns=None)

    def check(self, names: Collection[str]) -> None:
        """Raise InvalidArgument where something is asked by another name than it has, or twice."""
        known = (*self.asks, NAMESPACE)
        if twice := [name for name, count in Counter([*names]).items() if count > 1]:
            raise InvalidArgument(
                "; ".join(f"{cut(name)}: is given twice" for name in twice),
                reason="INVALID_REQUEST",
                remedy="leave one of them out",
                violations=[Violation(name, "is given twice") for name in twice],
            )
        if unknown := [name for name in names if name not in known]:
            raise InvalidArgument(
                "; ".join(f"{cut(name)}: this page asks for no such thing" for name in unknown),
                reason="UNKNOWN_PARAMETER",
                remedy=f"leave it out; what it asks for is {', '.join(known)}",
                violations=[Violation(name, "unknown parameter") for name in unknown],
            )


@dataclass(frozen=True, slots=True)
class Action:
    """A form's address, and what is done with its fields. `again`: the page of the form, which is
    shown filled in, beside what was wrong with it.
    """

    path: str
    do: Do
    again: Page | None = None
