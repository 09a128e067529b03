"""Looks through the rows of runs, each made once for all who wait for the same.

    one who begins ──▶ the next look of its scope and cursor ──its turn─▶ runs ──▶ pages of changes
    one more       ──▶ the same                                                    └ read once for
    one who comes when it goes on ──▶ the one after it                               all that are
                                                                                     told of it
Invariants
- Nobody is given a look that had begun when they asked, nor a page of one: whatever changes after a
  look's beginning reaches the box of each who shares it.
- Who leaves ends a look for nobody else; one that all have left ends.
- Of a look its ids are kept, and the pages that somebody is just told of. A run that stands as it
  did is one object, however often it is read.
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
"""Runs that haven't ended a stream begins with, at most."""
LOOKS: Final = 2
"""Looks that go on at the same time."""

T = TypeVar("T")
Page: TypeAlias = "Sequence[Change]"


class Shared(Generic[T]):
    """What is being made for several: each waits for it and may leave; the last one ends it."""

    def __init__(self, making: Coroutine[Any, Any, T], name: str) -> None:
        self._task = asyncio.create_task(making, name=name)
        self._waiting = 0

    @property
    def lost(self) -> bool:
        """Nothing will come of it, or nothing came."""
        task = self._task
        if not task.done():
            return bool(task.cancelling())
        return task.cancelled() or task.exception() is not None

    async def wait(self) -> T:
        """What it is. Raises what its making raised."""
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
        """Those that follow here. Raises Unavailable."""
        read = await self._store.read(runs[first : first + AT_ONCE])
        return [self._one(change) for change in read]

    def _one(self, change: Change) -> Change:
        """The object of before where it tells the same."""
        before = self._known.get(change.run_id)
        if before is not None and before.same(change):
            return before
        self._known[change.run_id] = change
        return change


class SnapshotRead:
    """What a look has found, for all who share it."""

    def __init__(self, missed: MissedChanges, reads: Reads) -> None:
        self.missed = missed
        self._reads = reads
        self._pages: WeakValueDictionary[int, Shared[Page]] = WeakValueDictionary()

    async def pages(self) -> AsyncIterator[Page]:
        """Its runs as they stand. Raises Unavailable."""
        for first in range(0, len(self.missed.runs), AT_ONCE):
            page = self._pages.get(first)
            if page is None or page.lost:
                reading = self._reads.page(self.missed.runs, first)
                page = self._pages[first] = Shared(reading, "a page of a look")
            yield await page.wait()


class SnapshotReads:
    """The looks that go on, and those that wait for their turn."""

    def __init__(self, store: ChangeStore, reads: Reads) -> None:
        self._store, self._reads = store, reads
        self._waiting: dict[tuple[Scope, Cursor | None], Shared[SnapshotRead]] = {}
        self._turn = asyncio.Semaphore(LOOKS)

    async def look(self, scope: Scope, at: Cursor | None) -> SnapshotRead:
        """What changed since; the runs that haven't ended where that isn't known. Begins later than
        it was asked for. Raises Unavailable.
        """
        asked = scope, at
        look = self._waiting.get(asked)
        if look is None:
            look = self._waiting[asked] = Shared(self._made(scope, at), "a look")
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
