"""Resume jobs whose pause has ended, and pause jobs that fail too often
(docs/semantics/pauses.md).

While there are rows of either (`schedd/store/results/failure_counts.py`), they are read each second
(`pending_work.py`), so a new owner continues where the old one stopped. Both changes are written
only at the generation from which they were computed. A job that can't be read is set aside: a newer
member may own it.
"""

import json
import logging
from collections.abc import Sequence
from functools import partial
from typing import Final

from schedd.api.jobs import stored_jobs, timer_edit
from schedd.core.runs.model import AuditRecord
from schedd.core.runs.records import FailedTooOften, JobRecord, Resumption
from schedd.dispatch.owner_context import OwnerContext, OwnerPart
from schedd.runtime.budgeted_work import computed
from schedd.runtime.job_codec import JobDefinition
from schedkit.clock import boottime
from schedkit.set_aside import each, set_aside
from schedkit.tasks import Loop, in_turns

log = logging.getLogger(__name__)

WITHOUT_WAKE_UP: Final = 60.0
"""Seconds until the next round."""
SOONEST: Final = 0.1
"""Minimum seconds between two rounds, however often the loop is woken."""
BATCH: Final = 200
ACTOR: Final = "schedd"


class AutoPause(OwnerPart):
    def __init__(self, context: OwnerContext) -> None:
        super().__init__(context)
        self._look_at = 0.0
        self.loop = Loop("auto pause", self.step, interval=WITHOUT_WAKE_UP)

    async def step(self) -> float:
        """Run one round; return the seconds until the next."""
        shards, now = sorted(self._run_index.ownership.epochs), boottime()
        if now < self._look_at:
            return self._look_at - now
        self._look_at = now + SOONEST
        if self._cluster_pause.is_paused or not shards:
            return WITHOUT_WAKE_UP
        over, often = await self._store.read_due_pause_changes(shards, self._clock.now(), BATCH)
        ended: list[Resumption] = []
        async for record in in_turns(over, every=10):
            with set_aside("paused job", _name(record), once=True):
                ended += await computed(partial(_resumptions_of, record))
        failed = each(
            "failing job", often, lambda one: _failed(*one), name=lambda one: _name(one[0])
        )
        resumed = await self._transactor.rows(ended, self._store.resume)
        paused = await self._transactor.rows(failed, self._store.pause_failing)
        for job in paused:
            log.warning("job paused: too many consecutive runs failed: job_id=%s", job)
        shards_of = {one.job_id: one.shard for one in ended}
        shards_of |= {one.job_id: one.shard for one in failed}
        if changed := [*resumed, *paused]:
            self._wake_ups.jobs_changed([(job, shards_of[job]) for job in changed])
        if resumed:
            self._wake_ups.runs_ready(sorted({shards_of[job] for job in resumed}))
        again = max(len(over), len(often)) == BATCH and changed
        return 0.0 if again else WITHOUT_WAKE_UP


def _name(record: JobRecord) -> str:
    return f"job/{record.definition.namespace}/{record.definition.name}"


def _resumptions_of(record: JobRecord) -> Sequence[Resumption]:
    """Return how a job whose pause has ended continues; nothing if it was resumed."""
    stored = record.definition
    if record.paused_until is None or not stored.paused:
        return ()
    timer, skipped = timer_edit.after_pause(record, record.paused_until)
    was = stored_jobs.pause_state(True, record.paused_by, record.pause_note, record.paused_until)
    entry = _entry(record, "resume", was, {"paused": False}, "the pause reached its end time")
    ids, until = (stored.job_id, record.shard, stored.generation), record.paused_until
    return (Resumption(*ids, until, timer, skipped, entry),)


def _failed(record: JobRecord, failures: int) -> FailedTooOften:
    stored = record.definition
    most = 0 if stored.paused else JobDefinition.read(stored).parsed.pause_after_failures
    note = ""
    if 0 < most <= failures:
        note = f"{failures} runs in a row failed (pause_after_failures: {most})"
    paused = stored_jobs.pause_state(True, ACTOR, note, None)
    entry = _entry(record, "pause", {"paused": False}, paused, note)
    return FailedTooOften(stored.job_id, record.shard, stored.generation, most, note, entry)


def _entry(
    record: JobRecord, action: str, before: object, after: object, reason: str
) -> AuditRecord:
    return AuditRecord(
        actor=ACTOR,
        action=action,
        object=_name(record),
        outcome="ok",
        reason=reason,
        before=json.dumps(before),
        after=json.dumps(after),
    )
