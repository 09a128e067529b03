"""The base of all groups of calls: one answer, a list read page by page, ids and names.

An object is given by its id or name, or as the value of an earlier call. A job, pool or calendar
that is given as a value is looked up in its own namespace, not in the client's.
"""

from collections.abc import AsyncIterator, Mapping
from os import urandom
from typing import Any, Final, Self, TypeVar

from google.protobuf.message import Message

from schedclient.transport.transport import Transport
from schedclient.values.base import Value
from schedclient.values.cluster import AccessToken, Member, Worker
from schedclient.values.dead_letters import DeadLetter, Redrive
from schedclient.values.jobs import Backfill, Calendar, Job, Pool
from schedclient.values.reading import value_of
from schedclient.values.runs import Run

V = TypeVar("V", bound=Value)

PAGE: Final = 500
"""Entries requested at once; the cluster returns at most 1,000."""

_GIVEN: Final[Mapping[type[Value], tuple[str, str, str]]] = {
    Run: ("run", "id", "run_id"),
    DeadLetter: ("dead letter", "id", "run"),
    Job: ("job", "id or name", "job_id"),
    Pool: ("pool", "name", "name"),
    Calendar: ("calendar", "name", "name"),
    Backfill: ("backfill", "id", "backfill_id"),
    Redrive: ("redrive", "id", "redrive_id"),
    Worker: ("worker", "name", "name"),
    AccessToken: ("token", "id", "token_id"),
    Member: ("member", "name", "name"),
}
"""For each value: its noun, what a text names it by, and the field with that text."""


def new_key() -> str:
    """Return a random idempotency key: in a quarter of the time of `uuid4`."""
    return urandom(16).hex()


class ClientCalls:
    def __init__(self, transport: Transport, namespace: str = "") -> None:
        self._transport = transport
        self._call = transport.call
        self._namespace = namespace

    async def _one(self, of: type[V], request: Message, deadline: float | None) -> V:
        return value_of(of, await self._call(request, deadline))

    async def _all(self, of: type[V], request: Message, deadline: float | None) -> tuple[V, ...]:
        """Return the entries of a list that has one page."""
        return tuple(value_of(of, one) for one in _entries(await self._call(request, deadline)))

    async def _pages(
        self, of: type[V], request: Any, limit: int | None, deadline: float | None
    ) -> AsyncIterator[V]:
        """Yield the entries of a list as values, at most `limit`; `deadline` holds for each page.
        `request` has the filters.
        """
        left = limit
        while left is None or left > 0:
            request.page_size = PAGE if left is None else min(PAGE, left)
            page = await self._call(request, deadline)
            for entry in _entries(page):
                yield value_of(of, entry)
            request.page_token = page.next_page_token
            if not request.page_token:
                return
            if left is not None:
                left -= len(_entries(page))


def _entries(answer: Message) -> Any:
    """Return the list of an answer that has one list."""
    [entries] = [field.name for field in answer.DESCRIPTOR.fields if field.is_repeated]
    return getattr(answer, entries)


class NamespacedCalls(ClientCalls):
    def in_namespace(self, namespace: str) -> Self:
        """Return the same calls for objects of another namespace."""
        return type(self)(self._transport, namespace)


def id_of(given: Value | str, of: type[Value]) -> str:
    """Return the id or name of an object. Raises TypeError: it is given as a value of another type.
    Protobuf's own error would be unclear.
    """
    noun, called, field = _GIVEN[of]
    if isinstance(given, of):
        found = getattr(given, field)
        return found if isinstance(found, str) else id_of(found, Run)
    if isinstance(given, str):
        return given
    raise TypeError(
        f"expected the {called} of a {noun} (str), or a {of.__name__} that a call returned; "
        f"got {type(given).__name__}"
    )


def place_of(given: Value | str, of: type[Value], namespace: str) -> tuple[str, str]:
    """Return the namespace of an object, and its id or name there. Raises as `id_of`."""
    return getattr(given, "namespace", namespace), id_of(given, of)
