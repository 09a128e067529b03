"""Define pages and actions as values. Each page has a module; `site` serves them all.

    PageRequest ──read──▶ Shown ──template──▶ the page's body           a Page, live
    PageRequest ──do────▶ Done  ──303───────▶ the page with the result  an Action, sent by a form

Invariants
- The address is the whole query. Unknown and repeated parameters are rejected by name, as in REST.
- At most AT_A_TIME calls run for all pages together, so that pages never take all database threads.
  Forms and the doctor don't wait for them.
- A page waits for PostgreSQL no longer than a read call does, including its turn (`deadlines`).
- Pages read only through the calls of gRPC and REST, in the name of their caller.
- `read` changes nothing; an action changes something by exactly one call.
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
    Hashable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import field
from datetime import UTC, datetime
from functools import partial, wraps
from typing import Any, Final, NamedTuple, ParamSpec, TypeAlias, TypeVar
from urllib.parse import parse_qsl

from google.protobuf.message import Message
from starlette.requests import Request

from schedd.api import deadlines
from schedd.api.auth.policy import POLICY
from schedd.api.calls import make_call
from schedd.api.errors import FieldViolation, InvalidArgumentError, MemberUnavailableError, cut
from schedd.api.errors import wrong as field_error
from schedd.api.services import DEFAULT_NAMESPACE, Caller, Services
from schedd.core.auth.rights import EVERY as EVERYWHERE
from schedd.core.auth.rights import Role
from schedd.web.rest.bodies import MOST_BYTES, content_of
from schedd.web.rest.problems import RequestProblem
from schedd.web.templating import ONCE, linker
from schedkit.clock import boottime
from schedkit.errors import Unavailable
from schedkit.records import dataclass
from schedkit.single_flight import RUNNING, SingleFlight
from schedproto.v1 import cluster_service_pb2 as cluster_pb

# A cache with a TTL for expensive reads, with single flight.
#
# An unavailable database fails all waiting readers. Any other error fails only the reader that
# read.

Cached = TypeVar("Cached")


class _Known(NamedTuple):
    answer: Any
    until: float


class Recent:
    """The cached answers, by key. Concurrent readers of a key share one read."""

    def __init__(self, clock: Callable[[], float] = boottime) -> None:
        self._clock = clock
        self._known: dict[Hashable, _Known] = {}
        self._reads: SingleFlight[Hashable, _Known] = SingleFlight(
            "expensive read", shares=(Unavailable, MemberUnavailableError)
        )

    async def get_or_read(
        self, asked: Hashable, good_for: float, reading: Callable[[], Awaitable[Cached]]
    ) -> Cached:
        """Return the cached answer, up to `good_for` seconds old, or read a new one."""
        now = self._clock()
        self._known = {key: one for key, one in self._known.items() if one.until > now}
        known = self._known.get(asked)
        if known is None:
            read = partial(self._read, asked, good_for, reading)
            known = await self._reads.get(asked, read, since=RUNNING)
        answer: Cached = known.answer
        return answer

    async def _read(
        self, asked: Hashable, good_for: float, reading: Callable[[], Awaitable[Cached]]
    ) -> _Known:
        found = await reading()
        known = self._known[asked] = _Known(found, self._clock() + good_for)
        return known


Answer = TypeVar("Answer", bound=Message)
Found = TypeVar("Found")
P = ParamSpec("P")

NAMESPACE: Final = "namespace"
"""The parameter of every page."""
NOTHING: Final[Mapping[str, str]] = {}
AT_A_TIME: Final = 3
"""Concurrent calls of pages: fewer than the database has threads for calls."""
EVERY: Final = 1.0
"""Seconds between two reads of a page, for any number of readers."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request of a page or a form, and its caller.

    `variables`: of the path; `query`: parameters; `fields`: of the form. All pages of a member
    share `turns` (forms have none) and the cache `recent`.
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
        return self.query.get(NAMESPACE, "")

    @property
    def once(self) -> str:
        """Return the idempotency key of a form. It is the same if the same rendering is sent twice
        unchanged, by a double click. Empty without a request id.
        """
        if not self.fields.get(ONCE):
            return ""
        content = json.dumps(
            [self.namespace, dict(self.variables), dict(self.fields)], sort_keys=True
        )
        return f"form-{hashlib.sha256(content.encode()).hexdigest()[:32]}"

    def link(self, *segments: str, **query: object) -> str:
        return linker(self.namespace)(*segments, **query)

    def may(self, name: str, namespace: str = "") -> bool:
        """Return whether the caller may make a call; `namespace`: of its object, if not the page's.
        Only for display: the call checks access itself.
        """
        rule, who = POLICY[f"schedd.v1.{name}"], self.caller.who
        where = EVERYWHERE if rule.where is None else namespace or self.namespace
        return rule.role is None or who.may(rule.role, where or DEFAULT_NAMESPACE)

    async def call(self, request: Message, answer: type[Answer]) -> Answer:
        """Make the call of a request, such as GetJobRequest. Raises CallError, Unavailable."""
        async with self._wait_for_read():
            return await make_call(self.services, self.caller, request, answer)

    async def read(
        self, reading: Callable[P, Awaitable[Found]], *of: P.args, **how: P.kwargs
    ) -> Found:
        """Read what no single call returns, in its turn. It doesn't start before its turn, so that
        a reader who disconnects earlier leaves no work behind.
        """
        async with deadlines.limit_read(None), self._wait_for_read():
            return await reading(*of, **how)

    @asynccontextmanager
    async def _wait_for_read(self) -> AsyncIterator[None]:
        if self.turns is None:
            yield
            return
        async with deadlines.limit_read(None), self.turns:
            yield

    @asynccontextmanager
    async def at_once(self) -> AsyncIterator[AtOnce]:
        """Run independent reads concurrently. The first error is raised as it is."""
        try:
            async with asyncio.TaskGroup() as group:
                yield AtOnce(self, group)
        except BaseExceptionGroup as faults:
            raise faults.exceptions[0] from None

    async def audit(self, what: str, most: int) -> Sequence[cluster_pb.AuditEntry]:
        """Return the newest entries of the audit log on an object; none without access to it."""
        if not self.caller.who.may(Role.ADMIN, EVERYWHERE):
            return ()
        asked = cluster_pb.ListAuditRequest(object=what, page_size=most)
        listed = await self.call(asked, cluster_pb.ListAuditResponse)
        return listed.entries


class AtOnce:
    """Concurrent reads: each is a task, whose result is available at the end of the block."""

    def __init__(self, asked: PageRequest, group: asyncio.TaskGroup) -> None:
        self._asked = asked
        self._group = group

    def call(self, request: Message, answer: type[Answer]) -> asyncio.Task[Answer]:
        return self.read(request.DESCRIPTOR.name, self._asked.call(request, answer))

    def read(self, name: str, reading: Coroutine[Any, Any, Found]) -> asyncio.Task[Found]:
        """Start any other read, which takes its own turns."""
        return self._group.create_task(reading, name=f"a page reads {name}")


@dataclass(frozen=True, slots=True)
class Shown:
    """The values of a page: its title, and the value `seen` of its templates.

    `kept`: for the page's `without`, if the next read fails. `over`: the page won't change any
    more, so it isn't read again.
    """

    title: str
    seen: object
    kept: object = None
    over: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    message: str
    to: str


def refuse_each(problems: Mapping[str, str], reason: str, remedy: str) -> None:
    """Raise InvalidArgumentError if there are problems, by the names of parameters or fields."""
    if problems:
        raise InvalidArgumentError(
            "; ".join(f"{cut(name)}: {problem}" for name, problem in problems.items()),
            reason=reason,
            remedy=remedy,
            violations=[FieldViolation(*one) for one in problems.items()],
        )


Read: TypeAlias = Callable[[PageRequest], Awaitable[Shown]]
Without: TypeAlias = Callable[[PageRequest, object], Shown]
Beside: TypeAlias = Callable[[PageRequest, object], Awaitable[object]]
Do: TypeAlias = Callable[[PageRequest], Awaitable[Done]]


@dataclass(frozen=True, slots=True)
class Page:
    """A page: `<template>_body.html` is the live part, `frame` the template around it.

    Args:
        tab: its entry in the navigation.
        asks: its parameters, beside NAMESPACE.
        every: seconds between two reads; None: it isn't live.
        without: returns the page while nothing can be read, from the `kept` value of the last read;
            None: the last body.
        beside: reads a value for `frame`, from `seen`; only for whole pages.
        tells_troubles: the page itself shows why runs aren't on time. Other pages show a line while
            this member fires nothing.
        by_turns: whether its calls wait for a turn. False for pages that don't read the database,
            or that must work while it hangs.
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

    def check(self, names: Collection[str]) -> None:
        """Raise InvalidArgumentError for unknown or repeated parameters."""
        known = (*self.asks, NAMESPACE)
        twice = [name for name, count in Counter([*names]).items() if count > 1]
        problems = dict.fromkeys(twice, "the parameter is given twice")
        refuse_each(problems, "INVALID_REQUEST", "give each parameter once")
        problems = {name: "unknown parameter" for name in names if name not in known}
        remedy = f"leave the parameter out; parameters of this page: {', '.join(known)}"
        refuse_each(problems, "UNKNOWN_PARAMETER", remedy)


@dataclass(frozen=True, slots=True)
class Action:
    """The address of a form, and its handler. `again`: the page that shows the form filled in, with
    the error.
    """

    path: str
    do: Do
    again: Page | None = None


# Read and check the fields of a form. An unknown field is rejected by name, never ignored.

MEDIA_TYPE: Final = "application/x-www-form-urlencoded"
RETURN: Final = "back"
"""The field with the page that shows the result, if it isn't the action's own."""
MOST_FIELDS: Final = 100
"""More than any form has."""
AT_ONCE: Final = 64 * 1024
"""Bytes that are parsed in some 10 ms, if each is written %XX; more are parsed in a thread."""


async def fields_of(request: Request, most: int = MOST_BYTES) -> dict[str, str]:
    """Return the fields by name, without spaces around values.

    Raises:
        RequestProblem: not a form, over `most` bytes, too slow, or a repeated field.
    """
    content = await content_of(request, most)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if kind != MEDIA_TYPE:
            raise ValueError(f"the form's content-type is {kind or 'missing'}, not {MEDIA_TYPE}")
        if len(content) > AT_ONCE:
            pairs = await asyncio.to_thread(_parsed, content)
        else:
            pairs = _parsed(content)
        times = Counter(name for name, _ in pairs)
        if twice := [name for name, count in times.items() if count > 1]:
            raise ValueError(f"the form's field {cut(', '.join(twice))} is given twice")
    except ValueError as error:
        raise RequestProblem(
            "INVALID_ARGUMENT",
            f"the form isn't valid: {error}",
            reason="BAD_FORM",
            remedy="send the form from one of this member's pages",
        ) from error
    return {name: value.replace("\r\n", "\n").strip() for name, value in pairs}


def _parsed(content: bytes) -> list[tuple[str, str]]:
    return parse_qsl(
        content.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict"
    )


def taking(*names: str) -> Callable[[Do], Do]:
    """Return a decorator for an action whose form has these fields, beside the common ones."""

    def of(do: Do) -> Do:
        @wraps(do)
        async def checked(asked: PageRequest) -> Done:
            _check(asked.fields, names)
            return await do(asked)

        return checked

    return of


def _check(sent: Collection[str], names: Collection[str]) -> None:
    problems = {
        name: "belongs in the address" if name == NAMESPACE else "unknown field"
        for name in sent
        if name not in (*names, ONCE, RETURN)
    }
    has = f"fields of the form: {', '.join(names)}" if names else "the form has no fields"
    refuse_each(problems, "UNKNOWN_FIELD", f"leave the field out; {has}; nothing was changed")


def wrong(
    field: str, problem: str, remedy: str = "correct the field; nothing was stored"
) -> InvalidArgumentError:
    return field_error(field, problem, remedy)


def instant_of(text: str, field: str) -> datetime:
    """Return the time in a field, in UTC without an offset. Raises InvalidArgumentError."""
    try:
        at = datetime.fromisoformat(text)
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        problem = f"{text[:60]!r} isn't a valid time"
        raise wrong(
            field, problem, "the time must have the form 2030-01-01T02:00 or 2030-01-01"
        ) from None
