"""Redrives whose id is hashed to an owned shard: create their next runs at the allowed rate.

    open ones, read ─→ definitions of the next letters' jobs ─→ one transaction a lane: count what
    the rate allows, insert ─→ wake-up of the owners of those jobs

The jobs may belong to any owner, which finds the runs like triggered runs. The rate is counted on
the redrive's row (`store/results/redrive_feed.py`). While a redrive is open, the loop is woken each
second (`reconcile/pending_work.py`).
"""

from typing import Final

from schedd.core.runs.redrive import line_of
from schedd.dispatch.owner_context import OwnerContext, OwnerPart
from schedkit.tasks import Loop

WITHOUT_WAKE_UP: Final = 60.0
WHILE_FED: Final = 0.1
"""Seconds until the next round while a redrive is open."""


class RedriveLoop(OwnerPart):
    def __init__(self, context: OwnerContext) -> None:
        super().__init__(context)
        self.loop = Loop("redrives", self.step, interval=WITHOUT_WAKE_UP)
        self._run_index.ownership.listen(
            lambda gained, _dropped: self.loop.wake() if gained else None
        )

    async def step(self) -> float:
        """Create the runs that may be created now; return the seconds until the next round."""
        shards = sorted(self._run_index.ownership.epochs)
        wanted = await self._store.redrives(shards) if shards else []
        if not wanted:
            return WITHOUT_WAKE_UP
        jobs = {job for one in wanted for job in one.jobs}
        self._definition_cache.forget(jobs)  # no hints arrive for changed jobs of other owners
        known = await self._definition_cache.newest(jobs)
        lines = {job: line_of(entry.definition) for job, entry in known.items()}
        made = await self._transactor.rows(
            wanted, lambda claim, mine: self._store.redrive(claim, mine, lines)
        )
        if not made:
            return WITHOUT_WAKE_UP
        self._wake_ups.runs_ready(sorted({run.shard for run in made}))
        return WHILE_FED
