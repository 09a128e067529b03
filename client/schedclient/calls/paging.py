"""Lists, read page by page as the caller iterates."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, TypeVar

from google.protobuf.message import Message

from schedclient.values.base import Value
from schedclient.values.reading import value_of

V = TypeVar("V", bound=Value)

PAGE: Final = 500
"""Entries requested at once; the cluster returns at most 1,000."""


async def paged(
    cls: type[V],
    read: Callable[[int, str], Awaitable[tuple[Sequence[Message], str]]],
    limit: int | None,
) -> AsyncIterator[V]:
    """Yield the values of entries from `read(page size, page token)`, at most `limit`."""
    token = ""
    left = limit
    while left is None or left > 0:
        entries, token = await read(PAGE if left is None else min(PAGE, left), token)
        for entry in entries:
            yield value_of(cls, entry)
        if not token:
            return
        if left is not None:
            left -= len(entries)
