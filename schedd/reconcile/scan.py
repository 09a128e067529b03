"""Scan: the periodic read that keeps an owner's run index as the rows are, also without hints.

A scan reads the runs whose rows in `live` were written since the last one, and compares the
assignments that are known here with their rows: so it finds what others have changed. If few runs
wait, each scan also compares the ids of all with the index, else more rarely (`_compare`): so a
wrong entry of the index doesn't last. Runs of which several of one job wait are judged by its
overlap policy (`overlap`).

All rows are read after a takeover, after an error, each `FULL_EVERY`, and more often while runs are
left in their rows. A full scan reads parts of about `PART` rows, and removes the runs that were in
the index before and aren't among the rows. Runs that don't fit into the index are checked while
they are read (`on_left`). Once few are left in the index, the next ones are read, in the order of
the queue (`_refill`).

Scans take a tenth of the time at most, so no other work is blocked, however many runs wait.
"""

import asyncio
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from datetime import datetime
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Final, TypeVar

from schedd.core.dispatch.deferred_runs import horizon
from schedd.core.ids import SHARDS, JobId, RunId, ShardId
from schedd.core.runs.change_stream import Cursor
from schedd.core.runs.lifecycle import LIVE, State
from schedd.core.runs.model import LiveKey, LiveRun
from schedd.dispatch.overlap import OverlapEnforcer, crowded, piled_up
from schedd.dispatch.owner_context import OwnerContext, OwnerPart
from schedd.dispatch.run_index import RunIndex
from schedkit.backoff import Backoff
from schedkit.clock import boottime
from schedkit.errors import Unavailable
from schedkit.set_aside import together
from schedkit.tasks import Loop, in_turns

T = TypeVar("T")

SCAN_EVERY: Final = 1.0
BACK_WITHIN: Final = 1.0
"""Longest pause in seconds before the next scan, after a dependency was unavailable."""
REST: Final = 9
"""Minimum pause before the next scan, as a multiple of the last scan's time. A deleted worker key
starts a scan at once.
"""
LONGEST_REST: Final = 10.0
FULL_EVERY: Final = 60.0
"""Seconds between two scans that read all rows in full; at most so many while runs are left."""
COMPARE_REST: Final = 49
"""Minimum pause before all ids are compared again, as a multiple of the time that it took."""
PART: Final = 2_000
"""Rows that one statement of a scan should read."""
FIRST_PARTS: Final = 8
"""Parts of the first scan, before the number of waiting runs is known."""
SORTED_AT_ONCE: Final = 200
"""Runs that are sorted in between two turns of the event loop."""


class Scan(OwnerPart):
    """The loop that scans the live runs of the owned shards."""

    def __init__(self, context: OwnerContext, overlap: OverlapEnforcer) -> None:
        super().__init__(context)
        self._overlap = overlap
        self._left: Sequence[Callable[[Sequence[LiveRun]], Awaitable[None]]] = ()
        self._look_at: set[ShardId] = set()
        self._scan_at = 0.0
        self._short = False
        """Whether few waiting runs are left in the index and more are in rows."""
        self._refilled_none = False
        self._took = 0.0
        """Duration of the last full scan, in seconds."""
        self._parts = FIRST_PARTS
        self._since: Cursor | None = None
        """All that was committed before it is in the run index; None: unknown."""
        self._written: set[LiveKey] = set()
        """Runs that scans since the cursor have found."""
        self._changed: set[JobId] = set()
        """Jobs that were edited, paused or resumed since the last scan."""
        self._reread: set[ShardId] = set()
        """Shards of which many runs are missing in the index."""
        self._look_again_at = 0.0
        """Earliest time of the next scan because of a hint."""
        self._full_at = self._left_at = 0.0
        """When all rows are read again, and when so if some runs are left there; 0: now."""
        self._done_at: dict[str, float] = {}
        """When each piece of work was done last, by name."""
        self._full_again_at = 0.0
        """Earliest time to read all rows because a refill found too few runs."""
        self._compare_at = 0.0
        self._elsewhere: set[RunId] = set()
        """Live runs that aren't in the index: they are paused, or become ready later."""
        backoff = Backoff(initial=0.1, maximum=BACK_WITHIN)
        self.loop = Loop("scan", self.step, interval=SCAN_EVERY, backoff=backoff)
        self._run_index.ownership.listen(lambda gained, _dropped: self.wake() if gained else None)

    def on_left(self, *callbacks: Callable[[Sequence[LiveRun]], Awaitable[None]]) -> None:
        """Call `callbacks` with the runs that a scan finds waiting in rows only."""
        self._left = callbacks

    def refill(self) -> None:
        """Read more waiting runs: few are left in the index, and more are in rows. If the last
        refill found none, wait for the next full scan.
        """
        if not self._refilled_none and not self._short:
            self._short = True
            self.loop.wake()

    def wake(self) -> None:
        """Scan now."""
        self._scan_at = min(self._scan_at, boottime())
        self.loop.wake()

    def look_at(self, shards: Iterable[ShardId]) -> None:
        """Scan these shards now: runs were inserted or made ready."""
        self._look_at.update(shards)
        self.loop.wake()

    def jobs_changed(self, jobs: Iterable[JobId]) -> None:
        """Let the next scan read the waiting runs of these jobs, which were written."""
        self._changed.update(jobs)

    async def step(self) -> float:
        """Do what is due. If several pieces are, each has its turn, also if another one fails."""
        index, now = self._run_index, boottime()
        self._look_at.intersection_update(index.ownership.epochs)
        due = {
            self._scan_all: self._since is not None and now >= self._scan_at,
            self._read_unread: self._since is not None and bool(self._unread()),
            self._read_whole: self._since is None or now >= self._next_full(),
            self._refill: self._short,
            self._scan_hinted: bool(self._look_at) and now >= self._look_again_at,
        }
        if todo := [work for work, is_due in due.items() if is_due]:
            work = min(todo, key=lambda one: self._done_at.get(one.__name__, 0.0))
            self._done_at[work.__name__] = now
            try:
                with index.reading():
                    await work()
            except BaseException:
                self._full_at = self._left_at = 0.0
                raise
        if self._short or self._since is None or self._unread():
            return 0.0
        hinted_at = self._look_again_at if self._look_at else math.inf
        return max(0.0, min(self._scan_at, self._next_full(), hinted_at) - boottime())

    async def _scan_all(self) -> None:
        began = boottime()
        self._scan_at = began + SCAN_EVERY
        await self._scan(sorted(self._run_index.ownership.epochs), whole=True)
        self._scan_at = max(self._scan_at, _rested(began))

    async def _scan_hinted(self) -> None:
        began, shards, self._look_at = boottime(), sorted(self._look_at), set()
        await self._scan(shards, whole=False)
        self._look_again_at = _rested(began)

    async def _read_unread(self) -> None:
        began = boottime()
        await self._read_all(self._unread(), whole=False)
        self._look_again_at = _rested(began)

    async def _read_whole(self) -> None:
        self._scan_at = boottime() + SCAN_EVERY
        await self._read_all(sorted(self._run_index.ownership.epochs), whole=True)

    def _unread(self) -> list[ShardId]:
        """Return the owned shards of which all rows must be read."""
        index = self._run_index
        owned = index.ownership.epochs
        return sorted((owned.keys() - index.read) | (owned.keys() & self._reread))

    def _next_full(self) -> float:
        return self._left_at if self._run_index.ready.leaves_some else self._full_at

    def _until(self) -> datetime:
        return self._clock.now() + horizon(self._took)

    async def _refill(self) -> None:
        """Read the next waiting runs into the index, as many as a bucket keeps. If so many don't
        wait, or none of them is new here, all rows are read next.
        """
        ready, now = self._run_index.ready, self._clock.now()
        shards = sorted(self._run_index.ownership.epochs)
        first, fresh = ready.first_left, 0
        self._short = False
        end = first and await self._store.end_of_next(shards, first, ready.most, now)
        if first and end:
            since, until = first.scheduled_at, end.scheduled_at
            with ready.refilling(since, end):
                for part in _parts(shards, math.ceil(ready.most / PART)):
                    fresh += await self.put(await self._store.next_runs(part, since, end, until))
        self._refilled_none = bool(first and not fresh)
        if self._refilled_none:
            self._left_at = min(self._left_at, self._full_again_at)

    async def _read_all(self, shards: Sequence[ShardId], *, whole: bool) -> None:
        """Read all runs of these shards. `whole`: they are all shards of this owner."""
        index, at, until, began = self._run_index, self._clock.now(), self._until(), boottime()
        moment = await self._store.moment() if whole else None
        here: dict[RunId, LiveRun] = {}
        stood: dict[ShardId, list[RunId]] = defaultdict(list)
        async for run in in_turns(index.standing(until), SORTED_AT_ONCE):
            here[run.key.run_id] = run
            stood[run.shard].append(run.key.run_id)
        self._parts = max(self._parts, math.ceil(len(here) / PART))
        crowds, owned = _Crowds(at), index.ownership.epochs
        rows = 0
        seen: set[RunId] = set()
        elsewhere: set[RunId] = set()
        with index.ready.scanning() if whole else nullcontext():
            for part in _parts(shards, self._parts):
                epochs = {shard: owned.get(shard) for shard in part}
                keys = await self._store.live_keys(part)
                runs = await self._live_runs(part, until)
                rows += len(runs)
                if not index.read.issuperset(part):  # blocked runs are released in this order
                    runs.sort(key=lambda run: run.due_at)
                read = {run.key.run_id for run in runs}
                elsewhere.update(key.run_id for key in keys if key.run_id not in read)
                seen.update(here.keys() & read)
                gone = [here[one] for shard in part for one in stood[shard] if one not in seen]
                await self._sort_in(runs, gone)
                index.were_read(one for one in part if owned.get(one) == epochs[one])
                self._reread.difference_update(part)
                crowds.add(runs)
                await asyncio.sleep(0)  # let other tasks run between two parts
        ended = boottime()
        if moment is None:
            self._elsewhere = self._elsewhere - seen | elsewhere
        else:
            self._parts = max(1, math.ceil(rows / PART))
            self._since, self._elsewhere, self._took = moment, elsewhere, ended - began
            self._refilled_none = False
            self._full_at, self._full_again_at = ended + FULL_EVERY, ended + min(self._took, 10.0)
            self._left_at = ended + max(SCAN_EVERY, min(REST * self._took, FULL_EVERY))
        await self._judge(crowds)

    async def _live_runs(self, shards: Sequence[ShardId], until: datetime) -> list[LiveRun]:
        try:
            return await self._store.live_runs(shards, LIVE, until)
        except Unavailable:
            self._parts = min(2 * self._parts, SHARDS)  # smaller parts, in case this one timed out
            raise

    async def _scan(self, shards: Sequence[ShardId], *, whole: bool) -> None:
        """Read the runs of these shards that were written since the last scan, and those that may
        not be as they are known here. `whole`: they are all shards of this owner. If not, some
        runs were made ready, and all that are missing here are read.
        """
        index, at, since = self._run_index, self._clock.now(), self._since
        found = since and await self._store.written_runs(shards, since)
        if not found:
            self._since = None
            return
        new = [key for key in found.keys if key not in self._written]
        wanted: list[LiveKey] = []
        async for part in in_turns(_slices(new, PART), 1):
            wanted += index.missing(part)
        running = [run async for run in in_turns(assigned(index, shards), SORTED_AT_ONCE)]
        for some in _slices(running, PART):
            known = {run.key.run_id: run.live_key for run in some}
            changed = await self._store.changed_assignments([(run.key, run.token) for run in some])
            wanted += [known[run_id] for run_id in changed]
        if whole:
            self._since, self._written = found.cursor, {*found.keys}
            wanted += [*index.take_doubtful(), *await self._keys_of_changed_jobs()]
        for keys in _slices(wanted, PART):
            await self._read_keys(keys)
        if not whole:
            self._written.update(new)
            missing = index.missing(await self._store.live_keys(shards))
            await self._read_missing(shards, missing)
            return
        if boottime() >= self._compare_at:
            began = boottime()
            await self._compare(shards, at)
            await self._sort_again(at)
            self._compare_at = boottime() + COMPARE_REST * (boottime() - began)

    async def _keys_of_changed_jobs(self) -> list[LiveKey]:
        """Return the waiting runs here of jobs that were edited, paused or resumed."""
        jobs, self._changed = self._changed, set()
        runs = in_turns(self._run_index.waiting_runs() if jobs else (), SORTED_AT_ONCE)
        return [run.live_key async for run in runs if run.job_id in jobs]

    async def _read_keys(self, keys: Sequence[LiveKey]) -> None:
        """Read these runs. Forget those that are here and have ended, or are paused."""
        index, until = self._run_index, self._until()
        found = ((key, index.find(key)) for key in keys)
        here = [run for key, run in found if run is not None and run.live_key == key]
        runs = await self._store.runs_by_key(keys, until)
        await self._sort_in(runs, ())
        read = {run.key.run_id for run in runs}
        self._elsewhere -= read
        self._elsewhere.update(key.run_id for key in keys if key.run_id not in read)
        gone = [run for run in here if run.key.run_id not in read and run.ready_at <= until]
        if sum(map(index.forget_unchanged, gone)):
            self._ready()

    async def _compare(self, shards: Sequence[ShardId], at: datetime) -> None:
        """Compare the ids of all live runs with the index: read missing runs, and forget those that
        have ended. Check the overlap of the runs that are here.
        """
        index = self._run_index
        stood: dict[ShardId, list[LiveRun]] = defaultdict(list)
        async for run in in_turns(index.standing(self._until()), SORTED_AT_ONCE):
            stood[run.shard].append(run)
        crowds, released = _Crowds(at), 0
        count = sum(map(len, stood.values()))
        for part in _parts(shards, max(self._parts, math.ceil(count / PART))):
            keys = await self._store.live_keys(part)
            live = {key.run_id for key in keys}
            runs = [run for shard in part for run in stood[shard]]
            waiting = (run for run in runs if run.state is not State.RUNNING)
            gone = (run for run in waiting if run.key.run_id not in live)
            released += sum(map(index.forget_unchanged, gone))
            crowds.add(runs)
            if not index.ready.leaves_some:
                missing = index.missing(keys)
                new = [key for key in missing if key.run_id not in self._elsewhere]
                await self._read_missing(part, new)
            await asyncio.sleep(0)  # let other tasks run between two parts
        if released:
            self._ready()
        await self._judge(crowds)

    async def _read_missing(self, shards: Sequence[ShardId], missing: Sequence[LiveKey]) -> None:
        """Read these runs. If they are many, all rows of the shards are read next, unless the index
        leaves runs in their rows.
        """
        if len(missing) > PART and not self._run_index.ready.leaves_some:
            self._reread.update(shards)
        elif missing:
            await self._read_keys(missing[:PART])

    async def _sort_again(self, at: datetime) -> None:
        """Sort runs again whose jobs are known better now."""
        for again in _slices(self._run_index.unsure(), SORTED_AT_ONCE):
            self._run_index.put_again(again, at)
            await asyncio.sleep(0)

    async def _judge(self, crowds: "_Crowds") -> None:
        if crowds.runs and await self._overlap.judge_blocked(crowds.runs, crowds.piled):
            self._ready()

    async def _sort_in(self, runs: Sequence[LiveRun], gone: Sequence[LiveRun]) -> None:
        """Sort in the runs of a scan, and forget the runs `gone`: neither this part nor earlier
        ones had them. A job may move between two parts; its runs are then found under the new
        shard.
        """
        released = 0
        async for run in in_turns(gone, SORTED_AT_ONCE):
            released += self._run_index.forget(run.key.run_id, run.job_id)
        if released:
            self._ready()
        await self.put(runs)
        if left := self._run_index.runs_not_loaded(runs):
            for callback in self._left:
                await callback(left)

    async def put(self, runs: Sequence[LiveRun]) -> int:
        """Sort these runs in; return how many are ready and new here."""
        fresh, now = 0, self._clock.now()
        put, name = partial(self._run_index.put_runs, now=now), attrgetter("key.run_id")
        for part in _slices(runs, SORTED_AT_ONCE):
            fresh += sum(together("run", part, put, name=name))
            if len(part) == SORTED_AT_ONCE:
                await asyncio.sleep(0)  # let other tasks run between
        if fresh:
            self._ready()
        return fresh


def assigned(index: RunIndex, shards: Iterable[ShardId]) -> Iterator[LiveRun]:
    """Return the RUNNING runs of these shards, as far as known here."""
    of = frozenset(shards)
    runs = chain(map(index.running.get, [*index.running]), [*index.broadcasts.values()])
    return (run for run in runs if run is not None and run.shard in of)


def _rested(began: float) -> float:
    """Return when the next scan may begin, after one that ends now."""
    now = boottime()
    return now + min(REST * (now - began), LONGEST_REST)


class _Crowds:
    """Jobs whose overlap policy may end runs, of the runs of whole shards."""

    def __init__(self, at: datetime) -> None:
        self._at = at
        self.runs: list[LiveRun] = []
        self.piled: dict[JobId, Sequence[LiveRun]] = {}

    def add(self, runs: Sequence[LiveRun]) -> None:
        self.runs += crowded(runs)
        self.piled |= piled_up(runs, self._at)


def _slices(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[at : at + size] for at in range(0, len(items), size))


def _parts(shards: Sequence[ShardId], count: int) -> list[Sequence[ShardId]]:
    return [*_slices(shards, max(1, math.ceil(len(shards) / count)))]
