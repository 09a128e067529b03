"""One thing told of as it changes: first how it stands, then each change, until it is over.

    watcher ─┐                          ┌─ nobody has looked since then: look
    watcher ─┼─▶ how does it stand now? ┤
    watcher ─┘                          └─ somebody has: that, for all of them

Invariants
- Whoever begins is told of a look that began after they had asked.
- However many watch a thing, it is looked at about as often as for two of them; the others wait for
  who looks, and look themselves where that one fails or leaves.
- A look that isn't answered in the time of a read ends the stream (UNAVAILABLE, DATABASE_SILENT):
  another member may know more.
- Nothing is kept of what nobody watches.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, Generic, TypeVar

from google.protobuf.message import Message

from schedd.api import in_time
from schedkit.backoff import Backoff

FIRST_AFTER: Final = 0.2
LOOK_EVERY: Final = 1.0
"""Seconds from one look of a stream to its next: soon at first, for what is over soon."""

M = TypeVar("M", bound=Message)


class Looks:
    """Those at what is watched, shared by who watches the same."""

    def __init__(self) -> None:
        self._watched: dict[tuple[str, str], _Watched[Any]] = {}

    async def changes(
        self,
        what: tuple[str, str],
        look: Callable[[], Awaitable[M]],
        facts: Callable[[M], Message],
        over: Callable[[M], bool],
    ) -> AsyncGenerator[M, None]:
        """How it stands, then each change, until it is `over`. What others watch under the same
        name (`what`) is looked at in the same way; two whose `facts` are equal are no change.
        """
        pause, told, since = Backoff(FIRST_AFTER, LOOK_EVERY), None, _now()
        with self._of(what) as watched:
            while True:
                async with in_time.read(None):
                    stands: M = await watched.at(since, look)
                if told is None or facts(stands) != told:
                    told = facts(stands)
                    yield stands
                if over(stands):
                    return
                wait = pause.next()
                await asyncio.sleep(wait)
                since = _now() - wait / 2

    @contextmanager
    def _of(self, what: tuple[str, str]) -> Iterator[_Watched[Any]]:
        watched = self._watched.setdefault(what, _Watched())
        watched.watchers += 1
        try:
            yield watched
        finally:
            watched.watchers -= 1
            if not watched.watchers:
                del self._watched[what]


@dataclass
class _Watched(Generic[M]):
    """The newest look at one thing: when it began, and what it found."""

    watchers: int = 0
    began: float = -inf
    found: M | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def at(self, since: float, look: Callable[[], Awaitable[M]]) -> M:
        """By a look that began at `since` or later."""
        async with self.turn:
            if self.found is None or self.began < since:
                began = _now()
                self.found, self.began = await look(), began
            return self.found


def _now() -> float:
    return asyncio.get_running_loop().time()
