"""Snapshots of runs, each read once for all streams that wait for the same scope and cursor.

    a new stream      ──▶ the next snapshot of its scope and cursor ──its turn─▶ runs ──▶ pages
    another stream    ──▶ the same snapshot                               each page is read once
    a later stream, while that one is read ──▶ the snapshot after it      for all its streams

Invariants
- A stream never gets a snapshot that began before its request, nor a page of one. Changes after the
  beginning of a snapshot reach the box of each stream that shares it.
- A stream that leaves doesn't end a snapshot for others. A snapshot without streams ends
  (`schedkit.single_flight`).
- A snapshot keeps ids, and the pages that streams are reading. An unchanged run is one object,
  however often it is read.
"""

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

from schedd.core.ids import RunId
from schedd.core.runs.change_stream import Change, Cursor, MissedChanges, Scope
from schedd.store.runs.change_stream import ChangeStore
from schedkit.single_flight import NEXT, RUNNING, SingleFlight

AT_ONCE: Final = 500
"""Runs read by one statement."""
AT_FIRST: Final = 1_000
"""Runs in progress that a stream begins with, at most."""
LOOKS: Final = 2
"""Snapshots that are read at the same time."""


class ChangePage(list[Change]):
    """Runs that were read together. Unlike a list, it can be referenced weakly."""


class RunPages:
    def __init__(self, store: ChangeStore) -> None:
        self._store = store
        self._known: WeakValueDictionary[RunId, Change] = WeakValueDictionary()

    async def pages(self, runs: Sequence[RunId]) -> AsyncIterator[ChangePage]:
        """Yield these runs, AT_ONCE at a time. Raises Unavailable."""
        for first in range(0, len(runs), AT_ONCE):
            yield await self.page(runs, first)

    async def page(self, runs: Sequence[RunId], first: int) -> ChangePage:
        """Read the page that begins at `first`. Raises Unavailable."""
        read = await self._store.read(runs[first : first + AT_ONCE])
        return ChangePage(self._one(change) for change in read)

    def _one(self, change: Change) -> Change:
        """Return the earlier object if nothing changed."""
        before = self._known.get(change.run_id)
        if before is not None and before.same(change):
            return before
        self._known[change.run_id] = change
        return change


class SnapshotRead:
    """The result of a snapshot, for all streams that share it."""

    def __init__(self, missed: MissedChanges, reads: RunPages) -> None:
        self.missed = missed
        self._reads = reads
        self._pages: WeakValueDictionary[int, ChangePage] = WeakValueDictionary()
        self._flights: SingleFlight[int, ChangePage] = SingleFlight("page of a snapshot")

    async def pages(self) -> AsyncIterator[ChangePage]:
        """Yield the current state of its runs. Raises Unavailable."""
        for first in range(0, len(self.missed.runs), AT_ONCE):
            page = self._pages.get(first)
            if page is None:
                page = await self._flights.get(first, partial(self._read, first), since=RUNNING)
            yield page

    async def _read(self, first: int) -> ChangePage:
        page = self._pages[first] = await self._reads.page(self.missed.runs, first)
        return page


class SnapshotReads:
    """Snapshots that are being read, or wait for their turn."""

    def __init__(self, store: ChangeStore, reads: RunPages) -> None:
        self._store, self._reads = store, reads
        self._flights: SingleFlight[tuple[Scope, Cursor | None], SnapshotRead] = SingleFlight(
            "snapshot", at_once=LOOKS
        )

    async def read_snapshot(self, scope: Scope, at: Cursor | None) -> SnapshotRead:
        """Return the changes since `at`, or the runs in progress if those are unknown. The snapshot
        begins after this call. Raises Unavailable.
        """
        return await self._flights.get((scope, at), partial(self._read, scope, at), since=NEXT)

    async def _read(self, scope: Scope, at: Cursor | None) -> SnapshotRead:
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
