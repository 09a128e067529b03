"""The near future: timers that will soon be due, brought from the database to the board in time.

    timers due within the horizon ──load──→ agenda;  of some, definitions ──read ahead──→ catalogue

Loads read from minus infinity, never from a watermark: a creation may commit behind it. One load
brings the soonest, as many as it may. Where that isn't all it brings the latest, too: behind a herd
that takes minutes others fall due meanwhile, and some of them are urgent.

A definition tells the priority. Some of what was loaded are read ahead, the latest first, for they
have most before them: a few after each load, and more while nothing is due.
"""

from datetime import datetime, timedelta
from typing import Final

from schedd.core.ids import JobId
from schedd.owner.board import Board
from schedd.owner.catalogue import Catalogue
from schedd.ports import ClusterClock, OwnerStore
from schedkit.tasks import in_turns

HORIZON: Final = timedelta(seconds=10)
"""How far ahead timers are held in memory."""
LOAD_EVERY: Final = timedelta(seconds=2.5)
"""Between two loads. A nudge brings a new timer in at once; the load is the truth."""
LATEST_LOAD: Final = HORIZON / 2
"""After the one before; till then a load rests three times as long as it took."""
LOAD_LIMIT: Final = 5_000
"""Timers that one load reads at most, and so many of the latest. What it left behind is due no
sooner than what it brought, so the next load can wait until half of that has fired.
"""
READ_AHEAD: Final = 2_000
"""Definitions that are read ahead after one load: each takes 4 KB until its job has run."""


class NearFuture:
    """What of the timers of one tenure is held."""

    def __init__(
        self, board: Board, catalogue: Catalogue, store: OwnerStore, clock: ClusterClock
    ) -> None:
        self._board = board
        self._catalogue = catalogue
        self._store = store
        self._clock = clock
        self.load_at: datetime | None = None
        """When the next load is due, whatever happens before; None: now."""
        self._left_some = False
        self._fired_since = 0
        self._unread: list[JobId] = []
        self._ahead = 0

    def fired(self, count: int) -> None:
        """So many were taken from the board."""
        self._fired_since += count

    async def load_if_due(self) -> bool:
        """Load, if it is time, or the soonest alone, once half of what the last load brought has
        gone. Whether it was time.
        """
        now = self._clock.now()
        if self.load_at is not None and now < self.load_at:
            if self._left_some and self._fired_since >= LOAD_LIMIT // 2:
                await self._load(now, with_latest=False)
            return False
        self.load_at = now + LOAD_EVERY
        await self._load(now, with_latest=True)
        if self.load_at is not None:  # else somebody wants another: shards came meanwhile
            ended = self._clock.now()
            rested = min(ended + 3 * (ended - now), now + LATEST_LOAD)
            self.load_at = max(self.load_at, rested)
        return True

    async def _load(self, now: datetime, *, with_latest: bool) -> None:
        shards = sorted(self._board.ownership.epochs)
        if not shards:
            return
        until = now + HORIZON
        loaded = await self._store.due_timers(shards, until, LOAD_LIMIT)
        self._left_some, self._fired_since = len(loaded) == LOAD_LIMIT, 0
        if self._left_some and with_latest:
            loaded += reversed(await self._store.due_timers(shards, until, LOAD_LIMIT, latest=True))
        async for timer in in_turns(loaded, every=500):
            self._board.put_timers([timer])
        self._unread = [timer.job_id for timer in loaded]
        self._ahead = READ_AHEAD

    async def read_ahead(self, most: int) -> bool:
        """Read the definitions of some that aren't due yet, so that what is urgent is known when it
        is; False when that is enough.
        """
        ahead: list[JobId] = []
        while self._unread and len(ahead) < min(most, self._ahead):
            job = self._unread.pop()
            if not self._catalogue.knows(job):
                ahead.append(job)
        self._ahead -= len(ahead)
        await self._catalogue.newest(ahead)
        for job in ahead:
            self._board.timers.sort(job, self._catalogue.priority_of(job))
        return bool(ahead)
