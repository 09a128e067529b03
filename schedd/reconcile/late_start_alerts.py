"""Runs that wait for too long for their first start are told of (`on_late`), while they still wait.

    all that waits on the board, now and then ─→ late by its definition at hand ─→ told, once a run

What starts late between two looks is told of with its result (`reports`): the run's row says
whether it was told. Definitions that aren't at hand the deadlines' loop reads.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from schedd.cluster.cluster_pause import ClusterPause
from schedd.cluster.owner_transactions import Transactor
from schedd.core.dispatch.ready_bucket_ids import TOLD_LATE
from schedd.core.ids import RunId
from schedd.core.jobs.notifications import Happened
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import LiveRun
from schedd.dispatch.run_index import RunIndex
from schedd.ports import ClusterClock, NotificationStore
from schedd.runtime.definition_cache import DefinitionCache
from schedkit.clock import boottime
from schedkit.errors import Unavailable
from schedkit.set_aside import each, set_aside
from schedkit.tasks import Loop, in_turns

log = logging.getLogger(__name__)

LOOK_EVERY: Final = 1.0
SHARE: Final = 40
"""So many times as long as a look took is waited until the next, within these bounds."""
LOOK_AT_LEAST_EVERY: Final = 10.0
BATCH: Final = 500
"""Runs of one look."""


class LateStarts:
    """The loop that tells of late runs."""

    def __init__(
        self,
        board: RunIndex,
        catalogue: DefinitionCache,
        store: NotificationStore,
        transactor: Transactor,
        clock: ClusterClock,
        brake: ClusterPause,
    ) -> None:
        self._board = board
        self._catalogue = catalogue
        self._store = store
        self._transactor = transactor
        self._clock = clock
        self._brake = brake
        self._told: set[RunId] = set()
        """Of those that wait."""
        self.loop = Loop("late starts", self.step, interval=LOOK_EVERY)

    async def step(self) -> float:
        """One look; seconds until the next."""
        if self._brake.on or not self._catalogue.any_late:
            return LOOK_EVERY
        began = boottime()
        late = await self._late()
        await self._transactor.rows(late, self._store.tell_late)
        self._told |= {one.run_id for one in late}
        if len(late) == BATCH:
            return 0.0
        return min(LOOK_AT_LEAST_EVERY, max(LOOK_EVERY, SHARE * (boottime() - began)))

    async def left(self, runs: Sequence[LiveRun]) -> None:
        """These wait in rows alone, as a scan has just found them; the rows know what was told."""
        unknown = self._catalogue.any_late
        asked = [run for run in runs if (unknown if run.line is None else run.line & TOLD_LATE)]
        if self._brake.on or not asked:
            return
        try:
            await self._catalogue.newest({run.job_id for run in asked})
            now = self._clock.now()
            found = each("late start", asked, lambda run: self._late_one(run, now))
            late = [one for one in found if one is not None]
            for at in range(0, len(late), BATCH):
                await self._transactor.rows(late[at : at + BATCH], self._store.tell_late)
        except Unavailable as away:
            log.info("of what waits in rows alone can't be told now that it is late: %s", away)

    async def _late(self) -> list[Happened]:
        now = self._clock.now()
        late: list[Happened] = []
        still: set[RunId] = set()
        async for run in in_turns(self._board.waits(), every=1_000):
            if run.key.run_id in self._told:
                still.add(run.key.run_id)
                continue
            with set_aside("late start", run):
                if len(late) < BATCH and (one := self._late_one(run, now)) is not None:
                    late.append(one)
        self._told = still
        return late

    def _late_one(self, run: LiveRun, now: datetime) -> Happened | None:
        """What is to be told, if its job wants that and it is late."""
        definition = self._catalogue.definition_of(run.job_id)
        notices = None if definition is None else definition.notices
        if notices is None or run.parent is not None or run.losses:
            return None
        if run.state is not State.PENDING or not notices.is_late(run.due_at, now):
            return None
        return Happened(run.key.scheduled_at, run.key.run_id, run.job_id, run.shard, notices)
