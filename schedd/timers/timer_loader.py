"""Load timers that will soon be due from the database into the run index.

    timers due within the horizon ──load──→ agenda;  of some, definitions ─read ahead─→ definitions

A loop of its own: what is urgent is fired while a load is under way, which takes its time when
many are due. So a row may be older than what is known: of what was fired or read meanwhile it is
left out. One that is old all the same costs a refused step.

Loads read from minus infinity, never from a watermark: a creation may commit behind it. One load
brings the soonest, as many as it may. Where that isn't all it brings the latest, too: behind a herd
that takes minutes others fall due meanwhile, and some of them are urgent. What is late of both is
taken by turns: what was missed first and what was missed last have none of the herd before them.

A definition tells the priority. Some of what was loaded are read ahead, the latest first, for they
have most before them: a few after each load, and more while nothing is due.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import Final

from schedd.cluster.cluster_pause import ClusterPause
from schedd.core.ids import JobId
from schedd.core.runs.model import Timer
from schedd.dispatch.run_index import RunIndex
from schedd.ports import ClusterClock
from schedd.runtime.definition_cache import DefinitionCache
from schedd.store.owner import OwnerStore
from schedkit.errors import Unavailable
from schedkit.tasks import Loop, in_turns

log = logging.getLogger(__name__)

HORIZON: Final = timedelta(seconds=10)
"""How far ahead timers are held in memory at the least."""
LOAD_EVERY: Final = timedelta(seconds=2.5)
"""Between two loads. A wake-up loads a new timer at once; the load finds all timers without it."""
LATEST_LOAD: Final = timedelta(seconds=5)
"""After the one before; till then a load rests nineteen times as long as it took."""
REST: Final = 19
LOAD_LIMIT: Final = 20_000
"""Timers that one load reads at most, and so many of the latest. What it left behind is due no
sooner than what it brought, so the next load can wait until half of that has fired.
"""
READ_AHEAD: Final = 2_000
"""Definitions that are read ahead after one load: each takes 4 KB until its job has run."""
AT_ONCE: Final = 200
"""Definitions read in one batch; while timers are due, only one batch is read."""


class NearFuture:
    """Keeps the timers of one tenure that are due soon in the run index."""

    def __init__(
        self,
        run_index: RunIndex,
        definition_cache: DefinitionCache,
        store: OwnerStore,
        clock: ClusterClock,
        cluster_pause: ClusterPause,
    ) -> None:
        self._run_index = run_index
        self.horizon = max(HORIZON, run_index.ahead.fire + LATEST_LOAD + LOAD_EVERY)
        """How far ahead timers are held in memory: when they are made, they have been loaded."""
        self._cluster_pause = cluster_pause
        self._definition_cache = definition_cache
        self._store = store
        self._clock = clock
        self._loaded: Callable[[], None] = lambda: None
        self._load_at: datetime | None = None
        """When the next load is due, whatever happens before; None: now."""
        self._left_some = False
        self._fired_since = 0
        self._newer: set[JobId] = set()
        """Jobs whose timers were read or written since the last load began."""
        self._unread: list[JobId] = []
        self._ahead = 0
        self.loop = Loop("load", self.step, interval=LOAD_EVERY.total_seconds())
        run_index.ownership.listen(lambda _gained, _dropped: self.reload())

    def on_load(self, callback: Callable[[], None]) -> None:
        """Call `callback()` after each load."""
        self._loaded = callback

    def reload(self) -> None:
        """Shards were gained or dropped, or a pause has ended: load now."""
        self._load_at = None
        self.loop.wake()

    def fired(self, jobs: Collection[JobId]) -> None:
        """The timers of these jobs have advanced; the run index has their new state."""
        self._fired_since += len(jobs)
        self.known(jobs)
        if self._runs_low:
            self.loop.wake()

    def known(self, jobs: Iterable[JobId]) -> None:
        """The run index has newer timers of these jobs than a load in progress has read."""
        self._newer.update(jobs)

    def nothing_is_due(self) -> None:
        """There is time to read ahead."""
        if self._ahead and self._unread:
            self.loop.wake()

    async def step(self) -> float:
        """Load if it is time, and read ahead; seconds until the next."""
        if self._cluster_pause.on:
            return LOAD_EVERY.total_seconds()  # when the pause ends, all is loaded again
        loaded = await self._load_if_due()
        idle = self._idle
        wanted = (loaded or idle) and self._load_at is not None
        read = wanted and await self._read_ahead()
        if (read and idle) or self._load_at is None:  # another is wanted since
            return 0.0
        return max(0.0, (self._load_at - self._clock.now()).total_seconds())

    @property
    def _idle(self) -> bool:
        first = self._run_index.timers.next_at()
        return first is None or first > self._clock.now()

    @property
    def _runs_low(self) -> bool:
        return self._left_some and self._fired_since >= LOAD_LIMIT // 2

    async def _load_if_due(self) -> bool:
        """Load, if it is time, or the soonest alone, once half of what the last load brought has
        gone. Whether it was time.
        """
        now = self._clock.now()
        if self._load_at is not None and now < self._load_at:
            if self._runs_low:
                await self._load(now, with_latest=False)
            return False
        self._load_at = now + LOAD_EVERY
        await self._load(now, with_latest=True)
        if self._load_at is not None:  # else shards were gained meanwhile: load again
            ended = self._clock.now()
            rested = min(ended + REST * (ended - now), now + LATEST_LOAD)
            self._load_at = max(self._load_at, rested)
        return True

    async def _load(self, now: datetime, *, with_latest: bool) -> None:
        shards = sorted(self._run_index.ownership.epochs)
        if not shards:
            return
        until = now + self.horizon
        self._newer, self._fired_since = set(), 0
        try:
            loaded = await self._store.due_timers(shards, until, LOAD_LIMIT)
            self._left_some = len(loaded) == LOAD_LIMIT
            if self._left_some and with_latest:
                latest = await self._store.due_timers(shards, until, LOAD_LIMIT, latest=True)
                loaded += reversed(latest)
        except BaseException:
            self._load_at = None
            raise
        async for timer in in_turns(_from_both_ends(loaded), every=500):
            if timer.job_id not in self._newer and not self._run_index.timers.stands(timer):
                self._run_index.timers.come_up([timer], now=now)
        self._unread = [timer.job_id for timer in loaded]
        self._ahead = READ_AHEAD
        self._loaded()

    async def _read_ahead(self) -> bool:
        """Read the definitions of some that aren't due yet, so that what is urgent is known when it
        is; False when that is enough. One that fails holds nothing up: who fires it reads it.
        """
        ahead: list[JobId] = []
        while self._unread and len(ahead) < min(AT_ONCE, self._ahead):
            job = self._unread.pop()
            if not self._definition_cache.knows(job):
                ahead.append(job)
        self._ahead -= len(ahead)
        try:
            await self._definition_cache.newest(ahead)
        except Unavailable as error:
            log.info("definitions can't be read ahead: %s", error)
            return False
        for job in ahead:
            self._run_index.timers.sort(job)
        return bool(ahead)


def _from_both_ends(timers: Sequence[Timer]) -> list[Timer]:
    """The first, the last, the second, the last but one, and so on."""
    middle = (len(timers) + 1) // 2
    pairs = zip_longest(timers[:middle], reversed(timers[middle:]))
    return [timer for pair in pairs for timer in pair if timer is not None]
