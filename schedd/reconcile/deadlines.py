"""Deadlines: end runs that wait too long, with or without a worker (docs/semantics/deadlines.md).

    waiting runs of the run index, periodically ─→ past their deadline (`core/runs/deadlines`)
    runs that dispatch found late ───────────────┤        └─one transaction a lane─→ MISSED, FAILED
    runs that a scan found in rows only ─────────╯

Runs that were created early end as SKIPPED if an edit removed their scheduled time. Dispatch never
dispatches a run past its deadline, so an end that is written some seconds later does no harm. The
definitions of waiting runs may not be cached: each round reads some, of all jobs in turn. The
statement ends waiting runs only.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from itertools import islice
from typing import Final

from schedd.core.dispatch.placement import need_of
from schedd.core.dispatch.ready_bucket_ids import HURRIED, LATE_ALERT
from schedd.core.events import DeadLettered, DeadRun, EndedUnreported, RunsMissed
from schedd.core.ids import JobId, RunId
from schedd.core.jobs.definition import Definition
from schedd.core.jobs.notifications import NotifiableEvent
from schedd.core.runs.broadcast import Away, own
from schedd.core.runs.deadlines import DeadlineExpiry
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import LiveRun
from schedd.core.runs.retry import fingerprint
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
READ_AT_ONCE: Final = 500
AT_ONCE: Final = 500
"""Runs that one round of transactions ends."""
BATCH: Final = 5_000
ALERT_BATCH: Final = 500


def pause_after(took: float) -> float:
    """Return the seconds between a round that took so long and the next."""
    return min(LOOK_AT_LEAST_EVERY, max(LOOK_EVERY, SHARE * took))


class Deadlines(OwnerPart):
    """Ends runs that wait too long."""

    def __init__(self, context: OwnerContext) -> None:
        super().__init__(context)
        self._away = Away()
        self._passed: dict[RunId, LiveRun] = {}
        self._look_at = 0.0
        """When all waiting runs are checked again, in seconds of CLOCK_BOOTTIME."""
        self._asked: set[JobId] = set()
        """Jobs whose definitions were read or couldn't be read."""
        self.loop = Loop("deadlines", self.step, interval=LOOK_EVERY)

    def passed(self, run: LiveRun) -> None:
        """End a run that is past its deadline and off the queue."""
        self._passed[run.key.run_id] = run
        self.loop.wake()

    async def check_unloaded_runs(self, runs: Sequence[LiveRun]) -> None:
        """Check runs that wait in rows only, as a scan has just found them. The loop ends a limited
        number of those past their deadline; a later scan finds the others.
        """
        asked = [*filter(_may_end, runs)]
        if self._cluster_pause.is_paused or not asked:
            return
        try:
            await self._definition_cache.newest({run.job_id for run in asked})
        except Unavailable as away:
            log.info("deadlines of runs outside memory can't be checked now: %s", away)
            return
        over = {end.key.run_id for end in await self._judged(asked)}
        for run in asked:
            if run.key.run_id in over and len(self._passed) < BATCH:
                self.passed(run)

    async def step(self) -> float:
        """Run one round; return the seconds until the next."""
        if self._cluster_pause.is_paused:
            return LOOK_EVERY
        began = boottime()
        passed = dict(self._passed)  # more may arrive meanwhile
        waiting, whole = passed, began >= self._look_at
        if whole:
            waiting = {
                run.key.run_id: run for run in self._run_index.waiting_runs() if _may_end(run)
            } | passed
            self._look_for_workers(waiting.values())
        runs = waiting.values()
        await self._read(
            {run.job_id for run in runs if not self._definition_cache.knows(run.job_id)}
        )
        ends = await self._judged(runs)
        if len(ends) < BATCH:
            over = {end.key.run_id for end in ends}
            self._drop(run_id for run_id in passed if run_id not in over)
        if whole and len(ends) < BATCH:
            now = boottime()
            self._look_at = now + pause_after(now - began)
        for at in range(0, len(ends), AT_ONCE):
            if not self._cluster_pause.is_paused:
                await self._end(ends[at : at + AT_ONCE])
        return 0.0 if len(ends) == BATCH else max(0.0, self._look_at - boottime())

    async def _end(self, ends: Sequence[DeadlineExpiry]) -> None:
        ended = set(await self._transactor.rows(ends, self._store.end_waiting))
        ready = 0
        for end in ends:
            if end.key in ended:
                run_id, job = end.key.run_id, end.job_id
                apart = self._passed.pop(run_id, None)  # dispatch took it off the run index
                ready += (
                    self._run_index.release_after_end(job)
                    if apart
                    else self._run_index.forget(run_id, job)
                )
        self._report_ended([end for end in ends if end.key in ended])
        self._drop(end.key.run_id for end in ends)
        self._definition_cache.forget(end.job_id for end in ends if end.key not in ended)
        self._wake_ups.runs_changed([end.hint for end in ends if end.key in ended])
        if turns := [(end.job_id, end.shard) for end in ends if end.counted]:
            self._wake_ups.jobs_changed(turns)
        if ready:
            self._ready()

    def _report_ended(self, ended: Sequence[DeadlineExpiry]) -> None:
        for (state, reason), count in Counter((end.state, end.reason) for end in ended).items():
            self._emit(EndedUnreported(state, reason, count))
            if state is State.MISSED:
                self._emit(RunsMissed(reason, count))
        if dead := [end for end in ended if end.fingerprint]:
            runs = (DeadRun(end.key.run_id, end.job_id, end.reason, end.attempt) for end in dead)
            self._emit(DeadLettered(tuple(runs)))

    def _drop(self, runs: Iterable[RunId]) -> None:
        """Give up runs that weren't ended. A scan reads those again that are off the queue."""
        self._run_index.read_again(self._passed.pop(one) for one in [*runs] if one in self._passed)

    async def _judged(self, waiting: Iterable[LiveRun]) -> list[DeadlineExpiry]:
        """Return the ends of runs past their deadline, by cached definitions."""
        now = self._clock.now()
        ends: list[DeadlineExpiry] = []
        known_of = self._definition_cache.known_of
        asked = [
            run
            for run in waiting
            if (entry := known_of(run.job_id)) is not None
            and (
                entry.text.hurried
                or run.parent is not None
                or run.generation < entry.text.definition.generation
            )
        ]
        await asyncio.sleep(0)  # let other tasks run between
        async for run in in_turns(asked, every=1_000):
            if len(ends) == BATCH:
                break
            with set_aside("deadline", run):
                if (end := self._end_of(run, now)) is not None:
                    ends.append(end)
        return ends

    def _end_of(self, run: LiveRun, now: datetime) -> DeadlineExpiry | None:
        """Return how a run ends, if it is past the deadline of its cached definition."""
        known = self._definition_cache.known_of(run.job_id)
        if known is None:
            return None
        definition, reason = known.definition, known.ends(run, now)
        if run.parent and self._away.too_long(need_of(definition, run), definition, now):
            reason = reason or Reason.WORKER_LOST
        return None if reason is None else _ending(run, definition, reason)

    def _look_for_workers(self, waiting: Collection[LiveRun]) -> None:
        """Note which workers that children wait for aren't attached here."""
        found = (
            (run, self._definition_cache.definition_of(run.job_id)) for run in waiting if run.parent
        )
        needs = {need_of(definition, run) for run, definition in found if definition is not None}
        self._away.update_waiting(needs, self._workers.present(), self._clock.now())

    async def _read(self, unknown: set[JobId]) -> None:
        """Read some of the missing definitions: each job once before any job again."""
        self._asked &= unknown
        if not (left := unknown - self._asked):
            self._asked, left = set(), unknown
        asked = [*islice(left, READ_AT_ONCE)]
        self._asked.update(asked)
        await self._definition_cache.newest(asked)


ENDS: Final = {Reason.START_DEADLINE: State.MISSED, Reason.EDITED: State.SKIPPED}
"""States of runs that end while they wait, by reason; FAILED for other reasons."""


def _may_end(run: LiveRun) -> bool:
    """Return whether the run may end while it waits, as far as its row says."""
    return run.line is None or bool(run.line & HURRIED) or run.parent is not None


def _ending(run: LiveRun, definition: Definition, reason: Reason) -> DeadlineExpiry:
    state = ENDS.get(reason, State.FAILED)
    failed = state is State.FAILED
    said = own(run, definition)
    return DeadlineExpiry(
        run.key,
        run.job_id,
        run.shard,
        state,
        reason,
        fingerprint=fingerprint(reason, None, "") if failed and not run.parent else "",
        counted=said.max_runs > 0,
        pause_after=said.pause_after_failures if failed else 0,
        generation=said.generation,
        notices=said.notices,
        attempt=run.attempt,
    )


class LateStartAlerts(OwnerPart):
    """Notifies about runs that wait too long for their first start (`on_late`), while they still
    wait. A run that starts late between two rounds is notified with its result (`reports`): its row
    says whether that happened. Definitions that aren't cached are read by `Deadlines`.
    """

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
        if len(late) == ALERT_BATCH:
            return 0.0
        return pause_after(boottime() - began)

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
            for at in range(0, len(late), ALERT_BATCH):
                await self._transactor.rows(late[at : at + ALERT_BATCH], self._outbox.tell_late)
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
                if len(late) < ALERT_BATCH and (one := self._late_one(run, now)) is not None:
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
