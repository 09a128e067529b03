"""Snapshots of runs, each read once for all streams that wait for the same scope and cursor.

    a new stream      ──▶ the next snapshot of its scope and cursor ──its turn─▶ runs ──▶ pages
    another stream    ──▶ the same snapshot                               each page is read once
    a later stream, while that one is read ──▶ the snapshot after it      for all its streams

Invariants
- A stream never gets a snapshot that began before its request, nor a page of one. Changes after the
  beginning of a snapshot reach the box of each stream that shares it.
- A stream that leaves doesn't end a snapshot for others. A snapshot without streams ends.
- A snapshot keeps ids, and the pages that streams are reading. An unchanged run is one object,
  however often it is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, Final, Generic, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from schedd.core.ids import RunId
from schedd.core.runs.change_stream import Change, Cursor, MissedChanges, Scope
from schedd.ports.changes import ChangeStore

AT_ONCE: Final = 500
"""Runs read by one statement."""
AT_FIRST: Final = 1_000
"""Runs in progress that a stream begins with, at most."""
LOOKS: Final = 2
"""Snapshots that are read at the same time."""

T = TypeVar("T")
Page: TypeAlias = "Sequence[Change]"


class Shared(Generic[T]):
    """A value that several callers wait for. Each may leave; the last one cancels the work."""

    def __init__(self, making: Coroutine[Any, Any, T], name: str) -> None:
        self._task = asyncio.create_task(making, name=name)
        self._waiting = 0

    @property
    def lost(self) -> bool:
        """Whether the work was cancelled or failed."""
        task = self._task
        if not task.done():
            return bool(task.cancelling())
        return task.cancelled() or task.exception() is not None

    async def wait(self) -> T:
        """Return the value. Raises the exception of the work."""
        self._waiting += 1
        try:
            return await asyncio.shield(self._task)
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._task.cancel()


class Reads:
    """Reads runs a page at a time."""

    def __init__(self, store: ChangeStore) -> None:
        self._store = store
        self._known: WeakValueDictionary[RunId, Change] = WeakValueDictionary()

    async def pages(self, runs: Sequence[RunId]) -> AsyncIterator[Page]:
        """All of these, AT_ONCE at a time. Raises Unavailable."""
        for first in range(0, len(runs), AT_ONCE):
            yield await self.page(runs, first)

    async def page(self, runs: Sequence[RunId], first: int) -> Page:
        """Read the page that begins at `first`. Raises Unavailable."""
        read = await self._store.read(runs[first : first + AT_ONCE])
        return [self._one(change) for change in read]

    def _one(self, change: Change) -> Change:
        """Return the earlier object if nothing changed."""
        before = self._known.get(change.run_id)
        if before is not None and before.same(change):
            return before
        self._known[change.run_id] = change
        return change


class SnapshotRead:
    """The result of a snapshot, for all streams that share it."""

    def __init__(self, missed: MissedChanges, reads: Reads) -> None:
        self.missed = missed
        self._reads = reads
        self._pages: WeakValueDictionary[int, Shared[Page]] = WeakValueDictionary()

    async def pages(self) -> AsyncIterator[Page]:
        """Yield the current state of its runs. Raises Unavailable."""
        for first in range(0, len(self.missed.runs), AT_ONCE):
            page = self._pages.get(first)
            if page is None or page.lost:
                reading = self._reads.page(self.missed.runs, first)
                page = self._pages[first] = Shared(reading, "page of a snapshot")
            yield await page.wait()


class SnapshotReads:
    """The snapshots that are read, and those that wait for their turn."""

    def __init__(self, store: ChangeStore, reads: Reads) -> None:
        self._store, self._reads = store, reads
        self._waiting: dict[tuple[Scope, Cursor | None], Shared[SnapshotRead]] = {}
        self._turn = asyncio.Semaphore(LOOKS)

    async def look(self, scope: Scope, at: Cursor | None) -> SnapshotRead:
        """Return the changes since `at`, or the runs in progress if those are unknown. The snapshot
        begins after this call. Raises Unavailable.
        """
        asked = scope, at
        look = self._waiting.get(asked)
        if look is None:
            look = self._waiting[asked] = Shared(self._made(scope, at), "snapshot")
        try:
            return await look.wait()
        finally:
            if look.lost and self._waiting.get(asked) is look:
                del self._waiting[asked]

    async def _made(self, scope: Scope, at: Cursor | None) -> SnapshotRead:
        async with self._turn:
            del self._waiting[scope, at]
            return SnapshotRead(await self._missed(scope, at), self._reads)

    async def _missed(self, scope: Scope, at: Cursor | None) -> MissedChanges:
        if at is not None:
            jobs = None if scope.job is None else [scope.job]
            missed = await self._store.since(at, jobs)
            if not missed.unknown:
                return missed
        now = await self._store.now()
        runs = await self._store.unended(scope, AT_FIRST)
        return MissedChanges(now, tuple(runs), unknown=at is not None)
