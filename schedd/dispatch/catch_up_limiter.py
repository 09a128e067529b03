"""Limits on late runs at one owner: how many may be dispatched in a round.

    slots of the attached workers ──┐
    paced runs under way ───────────┴─→ slots left ──┐
    the owned part of the shards ──→ pace ──→ releases ┴─→ room of a round

A gained shard counts only after its runs were read: its earlier owner may have dispatched paced
runs that are still in progress.

Nothing here is stored in rows. A new owner of the shard releases its waiting runs at a pace of its
own (`core/timers/catch_up_limits.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import islice
from typing import Final

from schedd.core.ids import SHARDS
from schedd.core.runs.model import LiveRun
from schedd.core.timers.catch_up_limits import CatchUpLimits, CatchUpPace, CatchUpRoom
from schedd.dispatch.owner_context import OwnerContext, OwnerPart
from schedkit.clock import boottime

AT_LEAST: Final = 0.1
"""Seconds between two rounds that only release late runs, so that several go together."""
LOOKED_UP: Final = 500
"""Late runs whose definitions one round reads if they aren't cached. Urgent work waits for that
read. Until then, such runs in progress count as paced runs of one slot.
"""


class CatchUpLimiter(OwnerPart):
    """Room for late runs in one tenure."""

    def __init__(
        self, context: OwnerContext, limits: CatchUpLimits, *, boot: Callable[[], float] = boottime
    ) -> None:
        super().__init__(context)
        self._limits = limits
        self._boot = boot
        self._pace = CatchUpPace(boot())

    def room(self) -> CatchUpRoom:
        """Return how many late runs may be dispatched now.

        While no late run waits, nothing is counted: it may be unknown yet which runs are paced.
        """
        part = len(self._run_index.read) / SHARDS
        releases = self._pace.releases(self._limits.release_rate * part, self._boot())
        if not self._run_index.ready.late:
            return CatchUpRoom(0, releases)
        under_way = self._under_way()
        taken = sum(self._definition_cache.slots_of(run.job_id) for run in under_way)
        slots = self._limits.slots(self._workers.slots(), part)
        return CatchUpRoom(slots - taken, releases, LOOKED_UP, idle=not under_way)

    async def load_definitions(self) -> None:
        """Read the definitions needed to count paced runs in progress.

        Definitions of runs that another owner dispatched aren't cached yet.

        Raises:
            Unavailable: the definitions can't be read now.
        """
        if self._run_index.ready.late:
            late = dict.fromkeys(run.job_id for run in self._run_index.running.late)
            unknown = (job for job in late if not self._definition_cache.knows(job))
            await self._definition_cache.newest([*islice(unknown, LOOKED_UP)])

    def _under_way(self) -> list[LiveRun]:
        """Return runs that are paced or may be. Runs known not to be aren't checked again."""
        late, definition_cache = self._run_index.running.late, self._definition_cache
        paced = [
            run
            for run in late
            if definition_cache.paces(run) or not definition_cache.knows(run.job_id)
        ]
        if len(paced) < len(late):
            kept = {run.key.run_id for run in paced}
            self._run_index.running.unpaced(run for run in late if run.key.run_id not in kept)
        return paced

    def released(self, count: int) -> None:
        """Count paced runs that were dispatched."""
        self._pace.released(count)

    def wait(self) -> float:
        """Return the seconds until the next release; infinite unless a run waits for it."""
        wait = self._pace.wait()
        return max(wait, AT_LEAST) if wait and self._run_index.ready.paced else math.inf
