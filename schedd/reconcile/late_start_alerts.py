"""Notify about runs that wait too long for their first start (`on_late`), while they still wait.

A run that starts late between two rounds is notified with its result (`reports`): the run's row
says whether that happened. Definitions that aren't cached are read by the deadlines' loop.
"""

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from schedd.core.dispatch.ready_bucket_ids import LATE_ALERT
from schedd.core.ids import RunId
from schedd.core.jobs.notifications import NotifiableEvent
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import LiveRun
from schedd.dispatch.owner_context import OwnerContext, OwnerPart
from schedd.store.notify.outbox_claims import NotificationStore
from schedkit.clock import boottime
from schedkit.errors import Unavailable
from schedkit.set_aside import each, set_aside
from schedkit.tasks import Loop, in_turns

log = logging.getLogger(__name__)

LOOK_EVERY: Final = 1.0
SHARE: Final = 40
"""The pause between two rounds is this many times the length of a round, within these bounds."""
LOOK_AT_LEAST_EVERY: Final = 10.0
BATCH: Final = 500


class LateStartAlerts(OwnerPart):
    def __init__(self, context: OwnerContext, outbox: NotificationStore) -> None:
        super().__init__(context)
        self._outbox = outbox
        self._notified: set[RunId] = set()
        """Waiting runs whose notification was written."""
        self.loop = Loop("late starts", self.step, interval=LOOK_EVERY)

    async def step(self) -> float:
        """Run one round; return the seconds until the next."""
        if self._cluster_pause.is_paused or not self._definition_cache.any_late:
            return LOOK_EVERY
        began = boottime()
        late = await self._late()
        await self._transactor.rows(late, self._outbox.tell_late)
        self._notified |= {one.run_id for one in late}
        if len(late) == BATCH:
            return 0.0
        return min(LOOK_AT_LEAST_EVERY, max(LOOK_EVERY, SHARE * (boottime() - began)))

    async def check_unloaded_runs(self, runs: Sequence[LiveRun]) -> None:
        """Check runs that wait in rows only, as a scan has just found them."""
        unknown = self._definition_cache.any_late
        asked = [run for run in runs if (unknown if run.line is None else run.line & LATE_ALERT)]
        if self._cluster_pause.is_paused or not asked:
            return
        try:
            await self._definition_cache.newest({run.job_id for run in asked})
            now = self._clock.now()
            found = each("late start", asked, lambda run: self._late_one(run, now))
            late = [one for one in found if one is not None]
            for at in range(0, len(late), BATCH):
                await self._transactor.rows(late[at : at + BATCH], self._outbox.tell_late)
        except Unavailable as away:
            log.info("late runs outside memory can't be checked now: %s", away)

    async def _late(self) -> list[NotifiableEvent]:
        now = self._clock.now()
        late: list[NotifiableEvent] = []
        still: set[RunId] = set()
        async for run in in_turns(self._run_index.waiting_runs(), every=1_000):
            if run.key.run_id in self._notified:
                still.add(run.key.run_id)
                continue
            with set_aside("late start", run):
                if len(late) < BATCH and (one := self._late_one(run, now)) is not None:
                    late.append(one)
        self._notified = still
        return late

    def _late_one(self, run: LiveRun, now: datetime) -> NotifiableEvent | None:
        """Return the notification of a late run, if its job requests one."""
        definition = self._definition_cache.definition_of(run.job_id)
        notices = None if definition is None else definition.notices
        if notices is None or run.parent is not None or run.losses:
            return None
        if run.state is not State.PENDING or not notices.is_late(run.due_at, now):
            return None
        return NotifiableEvent(run.key.scheduled_at, run.key.run_id, run.job_id, run.shard, notices)
