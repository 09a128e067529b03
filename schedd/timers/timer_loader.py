"""Load timers that will soon be due from the database into the run index.

    timers due within the horizon ──load──→ agenda;  of some, definitions ─read ahead─→ definitions

The loader is a separate loop: urgent timers fire during a load, which takes long when many timers
are due. So a row may be older than memory. Rows of timers that fired or were read meanwhile are
ignored. An outdated row that remains costs a refused step.

Loads read from minus infinity, never from a watermark: a creation may commit behind it. One load
reads the earliest timers, up to a limit. If more exist, it also reads the latest: during a burst
that takes minutes, other timers fall due, and some are urgent. Late timers are added in turn from
both ends, so neither the first nor the last missed timer waits for the whole burst.

Rows are compared as packed bytes with those of the last load. Only timers with a new row, or that
aren't in the run index, are sorted in. Once in `FULL_EVERY` all of them are.

Priorities are in definitions. Definitions of some loaded timers are read ahead, of the latest
timers first, because these wait longest: a few after each load, more while nothing is due.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import Final

from schedd.core.ids import Id, JobId
from schedd.core.timers import packed_timer
from schedd.core.timers.packed_timer import ID
from schedd.dispatch.owner_context import OwnerContext, OwnerPart
from schedkit.errors import Unavailable
from schedkit.tasks import Loop

log = logging.getLogger(__name__)

HORIZON: Final = timedelta(seconds=10)
"""How far ahead timers are held in memory, at least."""
LOAD_EVERY: Final = timedelta(seconds=2.5)
"""Interval of loads. A wake-up loads a new timer at once; the load finds all timers without it."""
LATEST_LOAD: Final = timedelta(seconds=5)
"""Longest interval of loads; a long load is followed by a rest of nineteen times its duration."""
REST: Final = 19
LOAD_LIMIT: Final = 20_000
"""Limit on the timers of one load, and again on its latest ones. Timers that it left are due no
earlier than those it read, so the next load can wait until half of these have fired.
"""
FULL_EVERY: Final = timedelta(minutes=1)
"""Interval of loads that compare each timer with the run index."""
SORTED_AT_ONCE: Final = 500
READ_AHEAD: Final = 2_000
"""Definitions read ahead after one load: each takes 4 KB until its job has run."""
AT_ONCE: Final = 200
"""Definitions read in one batch; while timers are due, only one batch is read."""


class TimerLoader(OwnerPart):
    """Loads the timers of one tenure that are due soon into the run index."""

    def __init__(self, context: OwnerContext) -> None:
        super().__init__(context)
        self.horizon = max(HORIZON, self._run_index.lookahead.fire + LATEST_LOAD + LOAD_EVERY)
        """How far ahead timers are held in memory: they load before their runs are created."""
        self._loaded: Callable[[], None] = lambda: None
        self._load_at: datetime | None = None
        """When the next full load is due; None: now."""
        self._left_some = False
        self._fired_since = 0
        self._newer: set[JobId] = set()
        """Jobs whose timers were read or written since the last load began."""
        self._rows: frozenset[bytes] = frozenset()
        """The rows of the last load, packed."""
        self._full_at: datetime | None = None
        """When the next load sorts in all timers; None: now."""
        self._unread: list[bytes] = []
        """Rows of the last load whose definitions may be read ahead, packed."""
        self._ahead = 0
        self.loop = Loop("timer loader", self.step, interval=LOAD_EVERY.total_seconds())
        self._run_index.ownership.listen(lambda _gained, _dropped: self.reload())

    def on_load(self, callback: Callable[[], None]) -> None:
        """Call `callback()` after each load."""
        self._loaded = callback

    def reload(self) -> None:
        """Load now: shards were gained or dropped, or a pause has ended."""
        self._load_at = None
        self.loop.wake()

    def fired(self, jobs: Collection[JobId]) -> None:
        """Note that these timers have advanced; the run index has their new state."""
        self._fired_since += len(jobs)
        self.known(jobs)
        if self._runs_low:
            self.loop.wake()

    def known(self, jobs: Iterable[JobId]) -> None:
        """Note that the run index has newer timers of these jobs than a load in progress read."""
        self._newer.update(jobs)

    def nothing_is_due(self) -> None:
        """Read ahead: no timer is due."""
        if self._ahead and self._unread:
            self.loop.wake()

    async def step(self) -> float:
        """Load if a load is due, and read ahead; return the seconds until the next round."""
        if self._cluster_pause.is_paused:
            return LOAD_EVERY.total_seconds()  # all is loaded again when the pause ends
        loaded = await self._load_if_due()
        idle = self._idle
        wanted = (loaded or idle) and self._load_at is not None
        read = wanted and await self._read_ahead()
        if (read and idle) or self._load_at is None:  # another load was requested
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
        """Load if a load is due; return whether it was.

        Otherwise load only the earliest timers, once half of the last load's have fired.
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
                loaded = [*dict.fromkeys([*loaded, *reversed(latest)])]
        except BaseException:
            self._load_at = None
            raise
        if self._full_at is None or now >= self._full_at:
            self._rows, self._full_at = frozenset(), now + FULL_EVERY
        timers, before = self._run_index.timers, self._rows
        here: Collection[bytes] = timers.keys()
        new = _from_both_ends([row for row in loaded if row not in before or row[:ID] not in here])
        for first in range(0, len(new), SORTED_AT_ONCE):
            read = timers.changed(packed_timer.unpacked(new[first : first + SORTED_AT_ONCE]))
            timers.come_up([timer for timer in read if timer.job_id not in self._newer], now=now)
            await asyncio.sleep(0)
        newer = self._newer
        self._rows = frozenset([row for row in loaded if row[:ID] not in newer])
        self._unread = loaded
        self._ahead = READ_AHEAD
        self._loaded()

    async def _read_ahead(self) -> bool:
        """Read definitions of some timers that aren't due yet, so that their priorities are known
        in time. Return False when enough are read. A failure delays nothing: firing reads the
        definition.
        """
        ahead: list[JobId] = []
        knows, unread, most = self._definition_cache.knows, self._unread, min(AT_ONCE, self._ahead)
        while unread and len(ahead) < most:
            job = JobId(bytes.__new__(Id, unread.pop()[:ID]))
            if not knows(job):
                ahead.append(job)
        self._ahead -= len(ahead)
        try:
            await self._definition_cache.newest(ahead)
        except Unavailable as error:
            log.info("definitions can't be read ahead: %s", error)
            return False
        self._run_index.timers.sort(ahead)
        return bool(ahead)


def _from_both_ends(rows: Sequence[bytes]) -> list[bytes]:
    """Return the rows in the order first, last, second, last but one, and so on."""
    middle = (len(rows) + 1) // 2
    pairs = zip_longest(rows[:middle], reversed(rows[middle:]))
    return [row for pair in pairs for row in pair if row is not None]
