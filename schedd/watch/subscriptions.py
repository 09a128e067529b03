"""Changes of all runs of a job or a namespace, for all subscribers at this member.

    hints of this member and of the others ─┐ within EVERY, one SELECT for all watchers
                                            ├──▶ rows ──▶ Box of each stream ──▶ news
    rows scanned, each SWEEP ───────────────┘ changes without a hint

Invariants
- Streams send rows. Hints only say which rows to read now. Each SWEEP the member scans the rows
  that changed since the last one, so a lost hint costs only time.
- A stream begins with a snapshot that begins after its box is registered (`snapshots`). So does a
  stream whose box overflowed. Changes that a snapshot can't find are sent as a gap.
- Without watchers nothing is read.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

from schedd.core.ids import Hint, JobId, RunId
from schedd.core.runs.change_stream import (
    Change,
    ChangeGap,
    ChangeMessage,
    Cursor,
    MissedChanges,
    PendingChanges,
    Scope,
)
from schedd.store.runs.change_stream import ChangeStore
from schedd.watch.change_bus import MOST_HINTS, ChangeBus, cares
from schedkit.clock import boottime
from schedkit.errors import Unavailable
from schedkit.single_flight import NEXT, RUNNING, SingleFlight
from schedkit.tasks import Loop, Turns, in_turns

# Snapshots of runs, each read once for all streams that wait for the same scope and cursor.
#
#     a new stream      ──▶ the next snapshot of its scope and cursor ──its turn─▶ runs ──▶ pages
#     another stream    ──▶ the same snapshot                               each page is read once
#     a later stream, while that one is read ──▶ the snapshot after it      for all its streams
#
# Invariants
# - A stream never gets a snapshot that began before its request, nor a page of one. Changes after
#   the beginning of a snapshot reach the box of each stream that shares it.
# - A stream that leaves doesn't end a snapshot for others. A snapshot without streams ends
#   (`schedkit.single_flight`).
# - A snapshot keeps ids, and the pages that streams are reading. An unchanged run is one object,
#   however often it is read.

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

    async def page(self, runs: Sequence[RunId], first: int) -> ChangePage:
        """Read the page that begins at `first`. Raises Unavailable."""
        read = await self._store.read(runs[first : first + AT_ONCE])
        return ChangePage(self._one(change) for change in read)

    def _one(self, change: Change) -> Change:
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
        if at is not None:
            missed = await self._store.since(at, None if scope.job is None else [scope.job])
            if not missed.unknown:
                return SnapshotRead(missed, self._reads)
        now = await self._store.now()
        runs = await self._store.unended(scope, AT_FIRST)
        return SnapshotRead(MissedChanges(now, tuple(runs), unknown=at is not None), self._reads)


EVERY: Final = 0.03
"""Seconds in which hints are collected; at least as long as the last step took, so that this loop
uses at most half of its time.
"""
SWEEP: Final = 2.0
"""Seconds between two scans of the rows."""
IDLE: Final = 60.0
KNOWN: Final = 20_000
"""Runs whose last sent version is remembered: a sweep finds again what hints announced."""
IN_A_TURN: Final = 50
"""Changes that are sent between two turns of the event loop, all streams together: 10 ms of work if
they are new to the streams, 0.5 ms otherwise.
"""
PUT_IN_A_TURN: Final = 2_000
"""Changes that are put into boxes between two turns of the event loop."""
BOXES_IN_A_TURN: Final = 10

NOTHING: Final = (False, -1)
"""Version before every state of a run."""

ENDED_UNSEEN: Final = "runs that were scheduled earlier and have ended meanwhile may be missing"
OTHER_DATABASE: Final = "the database was replaced or restored: changes since then are unknown"


class Subscriptions:
    """Streams of all watchers here, and the loop that feeds them."""

    def __init__(
        self, store: ChangeStore, ears: ChangeBus, *, every: float = EVERY, sweep: float = SWEEP
    ) -> None:
        self._store = store
        self._ears = ears
        self._every = every
        self._sweep_every = sweep
        self._boxes: dict[PendingChanges, asyncio.Event] = {}
        self._jobs: frozenset[JobId] | None = frozenset()
        self._known: dict[RunId, int] = {}
        self._hints: dict[RunId, None] = {}
        self._older: frozenset[RunId] = frozenset()
        self._reached: Cursor | None = None
        self._first: SingleFlight[None, Cursor] = SingleFlight("first cursor of the feed")
        self._next_sweep = 0.0
        self._took = 0.0
        self._deaf = False
        self._reads = RunPages(store)
        self._looks = SnapshotReads(store, self._reads)
        self._turns = Turns(IN_A_TURN)
        self.on_interest: Callable[[], None] = lambda: None
        self.loop = Loop("run feed", self._step, interval=SWEEP)

    @property
    def jobs(self) -> frozenset[JobId] | None:
        """Watched jobs; None: all jobs; an empty set: no watchers."""
        return self._jobs

    # -- hints --

    def receive_hints(self, hints: Sequence[Hint]) -> None:
        """Note runs that changed, here or at another member."""
        if not self._boxes:
            return
        if len(self._hints) > MOST_HINTS:
            self._hints.clear()
            self.deaf()
        self._hints.update((run, None) for run, job in hints if cares(self._jobs, job))
        if self._hints:
            self.loop.wake()

    def deaf(self) -> None:
        """Scan the rows now: hints of other members may be missing."""
        self._deaf = True
        self._next_sweep = 0.0
        self.loop.wake()

    # -- streams --

    async def follow(
        self, scope: Scope, after: Cursor | None
    ) -> AsyncGenerator[ChangeMessage, None]:
        """Yield changes since `after`, or the runs in progress; then each change."""
        with self._listening(scope) as (box, arrived):
            await self._begin()
            yield ChangeMessage(after)  # subscribed: changes from here on are sent
            at = after
            while True:
                box.behind = False
                sent: dict[RunId, tuple[bool, int]] = {}
                events: set[int] = set()
                async for news in self._looked(scope, at, sent, events):
                    at = news.cursor
                    yield news
                assert at is not None, "a snapshot ends with its cursor"
                async for news in self._live(box, arrived, at, sent, events):
                    at = news.cursor or at
                    yield news

    @contextmanager
    def _listening(self, scope: Scope) -> Iterator[tuple[PendingChanges, asyncio.Event]]:
        box, arrived = PendingChanges(scope), asyncio.Event()
        self._boxes[box] = arrived
        self._ears.add(self)
        self._interest()
        self.loop.wake()
        try:
            yield box, arrived
        finally:
            del self._boxes[box]
            self._interest()
            if not self._boxes:
                self._ears.remove(self)
                self._known.clear()
                self._hints.clear()
                self._older, self._reached = frozenset(), None

    def _interest(self) -> None:
        jobs = {box.scope.job for box in self._boxes}
        wanted = None if None in jobs else frozenset(job for job in jobs if job is not None)
        if wanted != self._jobs:
            self._jobs = wanted
            self.on_interest()

    async def _begin(self) -> Cursor:
        """Return the cursor at which sweeps continue: no later than any stream's first snapshot."""
        if self._reached is None:
            now = await self._first.get(None, self._store.now, since=RUNNING)
            if not self._boxes:
                return now  # the last watcher left
            self._reached = self._reached or now
        return self._reached

    async def _looked(
        self, scope: Scope, at: Cursor | None, sent: dict[RunId, tuple[bool, int]], events: set[int]
    ) -> AsyncIterator[ChangeMessage]:
        """Yield the changes of a snapshot, and its cursor. Sent versions are added to `sent`, ids
        of cluster events to `events`.
        """
        look = await self._looks.read_snapshot(scope, at)
        async for page in look.pages():
            async for some in self._turns.batches_of(page):
                for change in some:
                    if scope.holds(change.record):
                        sent[change.run_id] = change.order
                        yield ChangeMessage(at, change)
        if scope.job is None:
            for event in look.missed.events:
                events.add(event.id)
                yield ChangeMessage(at, event)
        yield ChangeMessage(look.missed.cursor, _gap(look.missed))

    async def _live(
        self,
        box: PendingChanges,
        arrived: asyncio.Event,
        at: Cursor,
        sent: dict[RunId, tuple[bool, int]],
        events: set[int],
    ) -> AsyncIterator[ChangeMessage]:
        """Yield what is put into the box, except `sent` and `events`, until the box overflows."""
        fresh = False
        while True:
            await arrived.wait()
            arrived.clear()
            if box.behind:
                return
            reached, gap, box.gap, changes = box.reached, box.gap, None, box.take_changes()
            async for some in self._turns.batches_of(changes):
                for change in some:
                    if sent.get(change.run_id, NOTHING) < change.order:
                        fresh = True
                        yield ChangeMessage(at, change)
            for event in box.take_events():
                if event.id not in events:
                    fresh = True
                    yield ChangeMessage(at, event)
            if gap is not None:
                yield ChangeMessage(at, gap)
            if reached is not None and reached > at:
                at = reached
                sent.clear()
                events.clear()
                if fresh:
                    fresh = False
                    yield ChangeMessage(at)

    # -- the loop --

    async def _step(self) -> float:
        if not self._boxes:
            return IDLE
        since = await self._begin()
        await asyncio.sleep(max(self._every, self._took))
        began = boottime()
        hints, self._hints = self._hints, {}
        try:
            if boottime() >= self._next_sweep:
                await self._sweep(since, hints)
            else:
                await self._put(await self._read([*hints]))
        except Unavailable:
            self.deaf()  # the hints of this step are lost
            raise
        self._took = boottime() - began
        if self._hints:
            return 0.0
        return max(0.0, self._next_sweep - boottime())

    async def _sweep(self, since: Cursor, hints: dict[RunId, None]) -> None:
        """Read the rows that changed since `since`, and those that hints name."""
        deaf, self._deaf = self._deaf, False
        self._next_sweep = boottime() + self._sweep_every
        jobs, boxes = self._jobs, [*self._boxes]
        missed = await self._store.since(since, None if jobs is None else [*jobs])
        runs = hints | dict.fromkeys(missed.runs) | dict.fromkeys(self._older - missed.older)
        await self._put(await self._read([*runs]))
        if self._reached is None:
            return  # the last watcher left
        self._older, self._reached = missed.older, missed.cursor
        gap = _gap(missed) if deaf else None
        for box in boxes:
            if (arrived := self._boxes.get(box)) is None:
                continue
            box.gap = gap or box.gap
            box.put_events(missed.events)
            box.reached = missed.cursor
            box.behind = box.behind or missed.unknown  # its own snapshot sends the gap
            arrived.set()

    async def _read(self, runs: Sequence[RunId]) -> list[Change]:
        starts = range(0, len(runs), AT_ONCE)
        return [change for first in starts for change in await self._reads.page(runs, first)]

    async def _put(self, changes: Sequence[Change]) -> None:
        """Put new changes into the boxes of their watchers."""
        jobs: dict[JobId, list[Change]] = defaultdict(list)
        namespaces: dict[str, list[Change]] = defaultdict(list)
        async for change in in_turns(changes, PUT_IN_A_TURN):
            if self._known.pop(change.run_id, None) != change.version:
                jobs[change.record.run.job_id].append(change)
                namespaces[change.record.namespace].append(change)
            self._known[change.run_id] = change.version
        while len(self._known) > KNOWN:
            del self._known[next(iter(self._known))]
        at_once = max(1, PUT_IN_A_TURN // max(1, len(changes)))
        async for box, arrived in in_turns([*self._boxes.items()], min(at_once, BOXES_IN_A_TURN)):
            job = box.scope.job
            if box.put(namespaces[box.scope.namespace] if job is None else jobs[job]):
                arrived.set()


def _gap(missed: MissedChanges) -> ChangeGap | None:
    if missed.unknown:
        return ChangeGap(OTHER_DATABASE)
    return ChangeGap(ENDED_UNSEEN, missed.before) if missed.before is not None else None
