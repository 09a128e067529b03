"""One thing told of as it changes: first how it stands, then each change, until it is over.

    watcher ─┐                           ┌─ nobody has looked since then: look ─┐
    watcher ─┼─▶ how do they stand now? ─┤                                      ├─▶ its own, picked
    watcher ─┘                           └─ somebody has: that, for all of them ┘

Invariants
- Whoever begins is told of a look that began after they had asked.
- However many watch what one look shows, be it one thing or all of a kind, it is looked at about as
  often as for two of them; the others wait for who looks, and look themselves where that one fails
  or leaves. What one of them picks, and that it isn't there, is that one's alone.
- Between two looks that cost much are RESTS times what the last one took, MOST_REST at most: but
  for who begins.
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

from schedd.api import deadlines
from schedkit.backoff import Backoff

FIRST_AFTER: Final = 0.2
LOOK_EVERY: Final = 1.0
"""Seconds from one look of a stream to its next: soon at first, for what is over soon."""
RESTS: Final = 10
MOST_REST: Final = 10.0
"""How long nobody looks again at what costs much: so many times what a look took, in seconds."""

L = TypeVar("L")
M = TypeVar("M", bound=Message)


class ObjectSnapshots:
    """Those at what is watched, shared by who watches the same."""

    def __init__(self) -> None:
        self._watched: dict[tuple[str, str], _Watched[Any]] = {}

    async def changes(
        self,
        what: tuple[str, str],
        look: Callable[[], Awaitable[L]],
        pick: Callable[[L], M],
        facts: Callable[[M], Message],
        over: Callable[[M], bool],
        *,
        rests: bool = True,
    ) -> AsyncGenerator[M, None]:
        """How that stands which is picked of a look, then each change of it, until it is `over`.
        Others that watch under the same name (`what`) look in the same way; two whose `facts` are
        equal are no change. `rests`: what a look takes is work, not waiting for others.
        """
        pause, told, since = Backoff(FIRST_AFTER, LOOK_EVERY), None, _now()
        with self._of(what) as watched:
            while True:
                async with deadlines.read(None):
                    stands = pick(await watched.at(since, look))
                if (stood := facts(stands)) != told:
                    told = stood
                    yield stands
                if over(stands):
                    return
                wait = pause.next()
                await asyncio.sleep(
                    max(wait, watched.began + watched.apart - _now() if rests else 0)
                )
                since = _now() - max(wait / 2, watched.apart if rests else 0)

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
class _Watched(Generic[L]):
    """The newest look: when it began, how long it took, and what it found."""

    watchers: int = 0
    began: float = -inf
    took: float = 0.0
    found: L | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def apart(self) -> float:
        """Seconds from its beginning to that of the next one, where it costs much."""
        return self.took + min(RESTS * self.took, MOST_REST)

    async def at(self, since: float, look: Callable[[], Awaitable[L]]) -> L:
        """By a look that began at `since` or later."""
        async with self.turn:
            if self.found is None or self.began < since:
                began = _now()
                self.found = await look()
                self.began, self.took = began, _now() - began
            return self.found


def _now() -> float:
    return asyncio.get_running_loop().time()
