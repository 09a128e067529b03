"""Backfills of the owned shards: create the next runs as room for them appears.

    open backfills with room, read ──→ one transaction a lane: count runs, insert ─→ run index

The statement counts room on rows, under the shard's lock (`store/timers/backfill_feed.py`). This
loop only calls it: often while there are runs to create, otherwise when a wake-up says that runs
became ready, and each second while a backfill is open (`reconcile/pending_work.py`).
"""

from typing import Final

from schedd.dispatch.owner_context import OwnerContext, OwnerPart
from schedkit.clock import boottime
from schedkit.tasks import Loop

WITHOUT_WAKE_UP: Final = 60.0
WHILE_FED: Final = 0.1
"""Seconds until the next round after a round that created runs."""
LINGERS: Final = 30
"""Rounds without new runs after which rounds become rare: the present runs take a while."""


class Backfills(OwnerPart):
    def __init__(self, context: OwnerContext) -> None:
        super().__init__(context)
        self._lingers = 0
        self._looked_at = 0.0
        self.loop = Loop("backfills", self.step, interval=WITHOUT_WAKE_UP)
        self._run_index.ownership.listen(lambda gained, _dropped: self.wake() if gained else None)

    def wake(self) -> None:
        """Run a round now: a backfill may have been created."""
        self.loop.wake()

    async def step(self) -> float:
        """Create runs within the limits; return the seconds until the next round."""
        early = self._looked_at + WHILE_FED - boottime()
        if early > 0:
            return early  # a wake-up arrives with each trigger of any job
        self._looked_at = boottime()
        shards = sorted(self._run_index.ownership.epochs)
        wanted = await self._store.backfills(shards) if shards else []
        if not wanted:
            self._lingers = max(0, self._lingers - 1)
            return WHILE_FED if self._lingers else WITHOUT_WAKE_UP
        self._lingers = LINGERS
        made = await self._transactor.rows(wanted, self._store.feed)
        if self._run_index.put_runs(made, self._clock.now()):
            self._ready()
        return WHILE_FED
