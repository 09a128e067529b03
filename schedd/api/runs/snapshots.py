"""Streams of one object: first its state, then each change, until it has ended.

    watcher ─┐            ┌─ the shared snapshot is too old: poll ─┐
    watcher ─┼─▶ state? ──┤                                        ├─▶ the watcher's own object
    watcher ─┘            └─ it is new enough: share it ───────────┘

Invariants
- The first state of a stream is from a poll that began after the stream did.
- All watchers of a kind share polls (`schedkit.single_flight`): many of them cost about as much as
  two. A poll that fails ends the stream that began it; another stream polls again. An object that
  isn't found ends only its own streams.
- After an expensive poll, streams that have begun wait RESTS times its duration, at most MOST_REST.
- A poll that exceeds the deadline of a read ends the stream (UNAVAILABLE, DATABASE_SILENT): another
  member may be able to answer.
- Nothing is kept of objects that aren't watched.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

from google.protobuf.message import Message

from schedd.api import deadlines, views
from schedd.core.runs.change_stream import Change
from schedkit.backoff import Backoff
from schedkit.single_flight import SingleFlight
from schedproto.v1 import run_pb2
from schedproto.v1.run_service_pb2 import RunEvent

FIRST_AFTER: Final = 0.2
LOOK_EVERY: Final = 1.0
"""Seconds between polls of a stream: short at first, for objects that end soon."""
RESTS: Final = 10
MOST_REST: Final = 10.0
"""The pause after an expensive poll: RESTS times its duration, at most MOST_REST seconds."""

L = TypeVar("L")
M = TypeVar("M", bound=Message)


class ObjectSnapshots:
    """The snapshots of watched objects, shared by their watchers."""

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
        """Return the object that `pick` takes from a snapshot, then each change of it, until it is
        `over`. Streams with the same name (`what`) share snapshots. Objects with equal `facts` are
        unchanged. `rests`: polls cost work of this member, so they are followed by a pause.
        """
        pause, sent, since = Backoff(FIRST_AFTER, LOOK_EVERY), None, monotonic()
        watched = self._watched.setdefault(what, _Watched())
        watched.watchers += 1
        try:
            while True:
                async with deadlines.limit_read(None):
                    found = pick(await watched.read_since(since, look))
                if (current := facts(found)) != sent:
                    sent = current
                    yield found
                if over(found):
                    return
                wait = pause.next()
                await asyncio.sleep(
                    max(wait, watched.began + watched.apart - monotonic() if rests else 0)
                )
                since = monotonic() - max(wait / 2, watched.apart if rests else 0)
        finally:
            watched.watchers -= 1
            if not watched.watchers:
                del self._watched[what]


@dataclass
class _Watched(Generic[L]):
    """The newest snapshot: when its poll began, how long it took, and the result."""

    watchers: int = 0
    began: float = -inf
    took: float = 0.0
    found: L | None = None
    polls: SingleFlight[None, L] = field(default_factory=lambda: SingleFlight("poll", shares=()))

    @property
    def apart(self) -> float:
        """Seconds from the beginning of an expensive poll to that of the next one."""
        return self.took + min(RESTS * self.took, MOST_REST)

    async def read_since(self, since: float, look: Callable[[], Awaitable[L]]) -> L:
        """Return a snapshot from a poll that began at `since` or later."""

        async def poll() -> L:
            began = monotonic()
            found = self.found = await look()
            self.began, self.took = began, monotonic() - began
            return found

        if self.found is None or self.began < since:
            return await self.polls.get(None, poll, since=since)
        return self.found


# Event messages of runs: each is built once for all streams that send it.


class RunMessages:
    """The event messages of changes, kept as long as their changes are referenced."""

    def __init__(self) -> None:
        self._made: WeakKeyDictionary[Change, tuple[bytes, RunEvent]] = WeakKeyDictionary()

    def of(self, change: Change, progress: run_pb2.RunProgress | None, cursor: str) -> RunEvent:
        """Return the event of a change, with its cursor. It is shared: don't modify it."""
        further = b"" if progress is None else progress.SerializeToString()
        before = self._made.get(change)
        if before is not None and before[0] == further:
            if before[1].cursor == cursor:
                return before[1]
            event = RunEvent(run=before[1].run, cursor=cursor)
        else:
            event = RunEvent(run=views.run_message(change.record, progress), cursor=cursor)
        self._made[change] = further, event
        return event
