"""Load timers that will soon be due from the database into the run index.

    timers due within the horizon ──load──→ agenda;  of some, definitions ─read ahead─→ definitions

The loader is a separate loop: urgent timers fire during a load, which takes long when many timers
are due. So a row may be older than memory. Rows of timers that fired or were read meanwhile are
ignored. An outdated row that remains costs a refused step.

Loads read from minus infinity, never from a watermark: a creation may commit behind it. A load
reads rows that the last load didn't see (`LastLoad`), and timers that left the run index since.
Once in `FULL_EVERY`, and after a change of shards or a pause, it reads all due timers.

If more than `WHOLE_LIMIT` timers are due, loads read the earliest, up to a limit, and the latest:
during a burst that takes minutes, other timers fall due, and some are urgent. Late timers are added
in turn from both ends, so neither the first nor the last missed timer waits for the whole burst.

Priorities are in definitions. Definitions of loaded timers are read ahead: some after each load,
and while nothing is due, all for which the cache has room. Those of the soonest and of the latest
timers are first.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import Final

from schedd.core.ids import JobId, ShardId
from schedd.core.timers import packed_timer
from schedd.core.timers.packed_timer import LastLoad
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
WHOLE_LIMIT: Final = 150_000
"""Limit on the timers of a load of all due timers. In memory each takes 350 bytes, and its
definition 400.
"""
LOAD_LIMIT: Final = 20_000
"""Limit on the earliest timers of a load, and again on the latest, if more than `WHOLE_LIMIT` are
due. Timers that it left are due no earlier than those it read, so the next load can wait until half
of these have fired.
"""
FULL_EVERY: Final = timedelta(minutes=1)
"""Interval of loads that compare each timer with the run index."""
SORTED_AT_ONCE: Final = 500
AT_ONCE: Final = 1_000
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
        self._read: set[JobId] = set()
        """Jobs whose timers loads read, and that haven't fired since."""
        self._left_out: set[JobId] = set()
        """Jobs with a row that the last load ignored, as memory had a newer one."""
        self._last: LastLoad | None = None
        """None: the next load reads all due timers."""
        self._full_at: datetime | None = None
        """When the next load reads all due timers; None: now."""
        self._unread: list[JobId] = []
        """Jobs whose definitions may be read ahead, the last first."""
        self.loop = Loop("timer loader", self.step, interval=LOAD_EVERY.total_seconds())
        self._run_index.ownership.listen(lambda _gained, _dropped: self.reload())

    def on_load(self, callback: Callable[[], None]) -> None:
        """Call `callback()` after each load."""
        self._loaded = callback

    def reload(self) -> None:
        """Load now: shards were gained or dropped, or a pause has ended."""
        self._load_at = self._full_at = None
        self.loop.wake()

    def until(self, now: datetime) -> datetime:
        """Return until when timers are held in memory: later ones are read by a later load."""
        until = now + self.horizon
        return until if self._last is None else max(until, self._last.until)

    def fired(self, jobs: Collection[JobId]) -> None:
        """Note that these timers have advanced; the run index has their new state."""
        self._fired_since += len(jobs)
        self._read.difference_update(jobs)
        self.known(jobs)
        if self._runs_low:
            self.loop.wake()

    def known(self, jobs: Iterable[JobId]) -> None:
        """Note that the run index has newer timers of these jobs than a load in progress read."""
        self._newer.update(jobs)

    def nothing_is_due(self) -> None:
        """Read ahead: no timer is due."""
        if self._unread and self._definition_cache.has_room():
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
        if self._full_at is None or now >= self._full_at:
            self._full_at, self._last = now + FULL_EVERY, None
            self._read, self._unread = set(), []
        timers = self._run_index.timers
        again = self._left_out | timers.missing(self._read)
        self._newer, self._left_out, self._fired_since = set(), set(), 0
        try:
            loaded = await self._read_rows(shards, self.until(now), again, with_latest)
        except BaseException:
            self._load_at = self._full_at = None
            raise
        self._read -= again
        rows, jobs = _from_both_ends(loaded), list[JobId]()
        for first in range(0, len(rows), SORTED_AT_ONCE):
            some = packed_timer.unpacked(rows[first : first + SORTED_AT_ONCE])
            older = self._newer.intersection([timer.job_id for timer in some])
            some = [timer for timer in some if timer.job_id not in older] if older else some
            self._left_out |= older
            timers.come_up(timers.changed(some), now=now)
            jobs += [timer.job_id for timer in some]
            await asyncio.sleep(0)
        self._read.update(jobs)
        self._unread = [*self._unread, *reversed(jobs)][-WHOLE_LIMIT:]
        self._loaded()

    async def _read_rows(
        self, shards: list[ShardId], until: datetime, again: Collection[JobId], with_latest: bool
    ) -> list[bytes]:
        """Return due timers that the run index lacks, packed, soonest first."""
        loaded: list[bytes] = []
        if not self._left_some:
            since, known = self._last, len(self._run_index.timers)
            room = WHOLE_LIMIT if since is None else max(LOAD_LIMIT, WHOLE_LIMIT - known)
            loaded, oldest = await self._store.new_timers(shards, until, room, since, again)
            self._last, self._left_some = LastLoad(oldest, until), len(loaded) == room
        if self._left_some:
            self._last = None
            loaded = await self._store.due_timers(shards, until, LOAD_LIMIT)
            self._left_some = len(loaded) == LOAD_LIMIT
            if self._left_some and with_latest:
                latest = await self._store.due_timers(shards, until, LOAD_LIMIT, latest=True)
                loaded = [*dict.fromkeys([*loaded, *reversed(latest)])]
        return loaded

    async def _read_ahead(self) -> bool:
        """Read definitions of some timers that aren't due yet, so that their priorities are known
        in time. Return False when enough are read. A failure delays nothing: firing reads the
        definition.
        """
        cache, timers, ahead = self._definition_cache, self._run_index.timers, list[JobId]()
        while self._unread and len(ahead) < AT_ONCE:
            job = self._unread.pop()
            if job in timers and not cache.knows(job):
                ahead.append(job)
        try:
            await cache.newest(ahead)
        except Unavailable as error:
            log.info("definitions can't be read ahead: %s", error)
            return False
        timers.sort(ahead)
        return bool(ahead) and cache.has_room()


def _from_both_ends(rows: Sequence[bytes]) -> list[bytes]:
    """Return the rows in the order first, last, second, last but one, and so on."""
    middle = (len(rows) + 1) // 2
    pairs = zip_longest(rows[:middle], reversed(rows[middle:]))
    return [row for pair in pairs for row in pair if row is not None]
