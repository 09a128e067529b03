"""Wake the loops that have work: chains, backfills, redrives, notifications, pause changes.

    each second: one statement ──→ which kinds of work have rows, of any shard ──→ wake their loops

Each woken loop reads the rows of its own shards. Without rows it isn't woken: an idle member sends
one statement a second, and not one for each loop. If the statement fails, all loops are woken: a
lock of another session on one table delays only the loop that needs this table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from schedd.dispatch.owner_context import OwnerContext, OwnerPart
from schedd.store.reconcile.stats import PendingWork
from schedkit.errors import Unavailable
from schedkit.tasks import Loop

LOOK_EVERY: Final = 1.0
UNKNOWN: Final = PendingWork(
    chains=True, backfills=True, redrives=True, notifications=True, pause_changes=True
)


class PendingWorkLoop(OwnerPart):
    """Looks for work. `found` receives what each look has found."""

    def __init__(self, context: OwnerContext, found: Callable[[PendingWork], None]) -> None:
        super().__init__(context)
        self._found = found
        self.loop = Loop("pending work", self.step, interval=LOOK_EVERY)

    async def step(self) -> None:
        if not self._run_index.ownership.epochs:
            return
        try:
            work = await self._store.pending_work()
        except Unavailable:
            self._found(UNKNOWN)
            raise
        self._found(work)
