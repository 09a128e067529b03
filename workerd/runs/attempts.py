"""Run attempts, each by its executor until its outcome.

    started ─┬─ `run`: a task of the worker's loop, and an executor ─────────┬──→ outcome
             └─ `begin`: many calls at once, by an executor of many (python) ┘
                              ↑ stop: timeout, heartbeat timeout, the end of trust

Invariants
- A run is a batch and a place in its columns. An object of its own (`HeldAssignment`) is created
  on first use: by a stop, a follower, output, progress, a heartbeat timeout or a task.
- Attempts of a batch that started together share one timer.
- An attempt always has an outcome. A bug in an executor is one, and affects only that run.
- An attempt that ends with the lease, and failed after trust was lost, is reported as WORKER_LOST:
  the keeper may have killed it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from math import inf
from typing import Final, cast

from schedclient.handlers import Progress
from schedkit import failpoints
from schedkit.clock import boottime, utcnow
from schedproto.v1 import worker_service_pb2 as pb
from workerd import messages
from workerd.batches import AssignedBatch, SuccessBatch
from workerd.core.admission import ENDING, RUNNING, OfferedBatch, fill
from workerd.core.cluster_time import JudgingClock, MemberTime
from workerd.core.lease_trust import WorkerLeaseTrust
from workerd.core.outcome import AttemptOutcome, AttemptVerdict, Cause, OutcomeReason, stopped
from workerd.delivery.result_upload import ResultUpload
from workerd.executors.base import (
    ActionExecutor,
    AttemptStart,
    StartedBatch,
    outcome_of_stop,
    uncancelled,
)
from workerd.frame_queue import MemberFrameQueue
from workerd.logs.log_tail import Tail

# The progress of one attempt: the newest value, at a limited rate.
#
#     handler, any thread ──update──→ newest ──the loop, at most once in `EVERY`──→ report
#
# Intermediate values may be dropped. The last value is always reported if the attempt continues.

EVERY: Final = 0.25
"""Minimum seconds between two reports."""
_newest: Final = threading.RLock()
"""Held briefly to set or take the newest value, of any attempt."""


class ProgressReporter:
    """Reports the progress of an attempt. Belongs to the event loop; `update` is thread-safe."""

    def __init__(
        self,
        key: pb.AssignmentKey,
        date: Callable[[], datetime],
        report: Callable[[pb.Progress], object],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._key = key
        self._date = date
        self._report = report
        self._loop = loop
        self._newest: Progress | None = None
        self._reported_at = -inf
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.reported: pb.Progress | None = None
        """The last report."""

    def update(self, progress: Progress) -> None:
        with _newest:
            due, self._newest = self._newest is None, progress
        if due:
            with contextlib.suppress(RuntimeError):  # a closed loop: the worker has ended
                self._loop.call_soon_threadsafe(self._plan)

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _plan(self) -> None:
        if not self._closed:
            wait = self._reported_at + EVERY - boottime()
            self._timer = self._loop.call_later(max(wait, 0.0), self._send)

    def _send(self) -> None:
        with _newest:
            newest, self._newest = self._newest, None
        assert newest is not None, "there is a new value"
        self._reported_at = boottime()
        self.reported = pb.Progress(
            key=self._key,
            fraction=newest.fraction,
            done=newest.done,
            total=newest.total,
            note=newest.note,
        )
        self.reported.at.FromDatetime(self._date())
        self._report(self.reported)


# The heartbeat timeout of one attempt.

LATE: Final = 1.0
"""Seconds by which a check may be late. If it is later, this process was suspended: restart."""


class HeartbeatTimeout:
    """Calls `silent` once, after a timeout without heartbeat. `beat` is thread-safe."""

    def __init__(self, timeout: float, silent: Callable[[], object]) -> None:
        self._timeout = timeout
        self._silent = silent
        self._last_beat = boottime()
        self._wait(timeout)

    def beat(self) -> None:
        self._last_beat = boottime()

    def close(self) -> None:
        self._timer.cancel()

    def _wait(self, seconds: float) -> None:
        self._look_at = boottime() + seconds
        self._timer = asyncio.get_running_loop().call_later(seconds, self._check_heartbeat)

    def _check_heartbeat(self) -> None:
        now = boottime()
        if now > self._look_at + LATE:
            self._last_beat = now
        left = self._last_beat + self._timeout - now
        if left > 0:
            self._wait(left)
        else:
            self._silent()


log = logging.getLogger(__name__)

BUG = "executor of %s failed with a bug; only run %s is affected"

BEFORE_EXEC = failpoints.awaited("worker.before_exec", None)


class HeldBatch(OfferedBatch, StartedBatch):
    def __init__(
        self,
        assigned: AssignedBatch,
        origin: MemberFrameQueue,
        attempts: Attempts,
        time: MemberTime,
    ) -> None:
        common, not_before = assigned.common, assigned.not_before
        OfferedBatch.__init__(
            self,
            assigned.keys,
            assigned.incarnation,
            max(common.slots, 1),
            messages.seconds(common.start_by),
            None if not_before is None else time.surely_reached(not_before / 1e6),
        )
        StartedBatch.__init__(
            self, assigned, attempts.worker, attempts.on_end, attempts.most_result
        )
        self.origin = origin
        self.started_at = [0] * len(assigned)
        """When each run started, in microseconds since 1970; 0: it hasn't."""
        self.timers: list[asyncio.TimerHandle] = []
        self._attempts = attempts

    def attempt(self, place: int) -> HeldAssignment:
        found = self.attempts.get(place)
        found = found or self.attempts.setdefault(
            place, HeldAssignment(self, place, self._attempts)
        )
        return cast("HeldAssignment", found)

    def successes(self, places: Sequence[int], finished_at: int) -> SuccessBatch:
        """Return the results of plain successes. `finished_at`: in microseconds since 1970."""
        keys, scheduled, started_at = self.keys, self.assigned.scheduled, self.started_at
        started = [started_at[place] for place in places]
        return SuccessBatch(
            self.incarnation,
            [keys[place] for place in places],
            [scheduled[place] for place in places],
            started,
            [max(each, finished_at) for each in started],
        )

    def close(self) -> None:
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()


class HeldAssignment(AttemptStart):
    def __init__(self, held: HeldBatch, place: int, attempts: Attempts) -> None:
        super().__init__(held, place)
        self.task: asyncio.Task[None] | None = None
        """None: it hasn't started, or its executor runs many."""
        self.progress: ProgressReporter | None = None
        self.pulse: HeartbeatTimeout | None = None
        self.held = held
        self._attempts = attempts

    def find_tail(self, expected: Tail | None = None) -> Tail:
        """Return the receiver of the output. `expected`: created before the assignment arrived."""
        if self.tail is None:
            self.tail = expected or Tail()
            self.tail.recording = self._attempts.upload.recording(self.key)
        return self.tail

    def beat(self) -> None:
        if (pulse := self.pulse) is not None:
            pulse.beat()

    def report_progress(self, progress: Progress) -> None:
        with _newest:
            if self.held.states[self.place] != RUNNING:
                return
            if self.progress is None:
                self.progress = self._attempts.reporter(self.batch.key(self.place))
        self.progress.update(progress)

    def close(self) -> None:
        if self.pulse is not None:
            self.pulse.close()
            self.pulse = None  # breaks a reference cycle
        if self.progress is not None:
            self.progress.close()


class Attempts:
    def __init__(
        self,
        worker: str,
        trust: WorkerLeaseTrust,
        clock: JudgingClock,
        executors: Mapping[str, ActionExecutor],
        upload: ResultUpload,
        on_end: Callable[[HeldBatch, Sequence[int], AttemptOutcome], object],
    ) -> None:
        self.worker = worker
        self.on_end = on_end
        self.most_result = upload.most_result
        self._trust = trust
        self._clock = clock
        self._executors = executors
        self.upload = upload
        self.on_progress: Callable[[pb.Progress], object] = lambda _: None
        """Called when an attempt reports progress."""
        self._loop: asyncio.AbstractEventLoop | None = None

    def objection(self, batch: AssignedBatch) -> str:
        """Return why no executor here can run the assignments; empty if one can."""
        executor = self._executors.get(batch.action)
        if executor is None:
            return f"no executor for action {batch.action or '(none)'} on this worker"
        return executor.objection(batch.common)

    def many(self, batch: AssignedBatch) -> ActionExecutor | None:
        """Return the executor that runs many of these assignments at once; None if each needs a
        task (`run`).
        """
        executor = self._executors[batch.action]
        return executor if executor.runs_many(batch.common) else None

    def start(self, held: HeldBatch, places: Sequence[int]) -> None:
        """Set the times and limits of attempts that start now. Their deadline is on the clock of
        the jobs' host.
        """
        self._loop, batch = asyncio.get_running_loop(), held.assigned
        # Never before the due time of pre-dispatched runs, whose lower bound has passed.
        fill(held.started_at, places, max(self.now(), batch.not_before or 0))
        fill(held.deadlines, places, utcnow() + batch.timeout)
        limit = batch.timeout.total_seconds()
        held.timers.append(self._loop.call_later(limit, self._time_over, held, places))
        if silence := batch.heartbeat_timeout:
            for place in places:
                item = held.attempt(place)
                item.pulse = HeartbeatTimeout(silence, partial(self._silent, item))

    def begin(self, executor: ActionExecutor, held: HeldBatch, places: Sequence[int]) -> None:
        try:
            executor.begin(held, places)
        except Exception as error:
            batch = held.assigned
            log.exception(BUG, batch.action, batch.keys[0].run, extra=batch.log_fields(0))
            self.on_end(held, places, _bug(batch, error))

    async def run(self, item: HeldAssignment) -> AttemptOutcome:
        batch = item.batch
        await BEFORE_EXEC()
        try:
            outcome = await self._executors[batch.action].run(item, item.stop)
        except asyncio.CancelledError as error:
            if item.stop.over:
                raise
            # A library that the executor uses canceled it, not this worker.
            assert item.task is not None, "it runs in there"
            await uncancelled(item.task, item.stop)
            text = f"CancelledError: {error}"
            failed = AttemptOutcome(AttemptVerdict.FAILED, OutcomeReason.EXCEPTION, text)
            cause = item.stop.cause
            outcome = failed if cause is None else outcome_of_stop(batch, cause)
        except Exception as error:
            log.exception(BUG, batch.action, item.key.run, extra=batch.log_fields(item.place))
            outcome = _bug(batch, error)
        finally:
            item.held.states[item.place] = ENDING
            item.close()
        return outcome

    def judged(self, held: HeldBatch, place: int, outcome: AttemptOutcome) -> AttemptOutcome:
        """Return the outcome of an attempt that has ended just now and isn't a plain success."""
        item = held.attempt(place)
        self._judge(item)
        if item.stop.cause is Cause.LEASE_LOST and outcome.verdict is AttemptVerdict.FAILED:
            # The keeper may have killed it while this process was suspended.
            outcome = stopped(Cause.LEASE_LOST, output=outcome.output)
        return outcome

    def reporter(self, key: pb.AssignmentKey) -> ProgressReporter:
        """Return the progress reporter of an attempt that has started, in any thread."""
        assert self._loop is not None, "an attempt has started"
        return ProgressReporter(key, self.date, self.on_progress, self._loop)

    def date(self) -> datetime:
        at = self._clock.date(boottime())
        return utcnow() if at is None else datetime.fromtimestamp(at, UTC)

    def now(self) -> int:
        """Return the same in microseconds since 1970."""
        at = self._clock.date(boottime())
        return int((utcnow().timestamp() if at is None else at) * 1e6)

    def _judge(self, item: HeldAssignment) -> None:
        """Record a loss of the lease that wasn't noticed before the end of the attempt."""
        if item.batch.dies_with_lease and not self._trust.holds(boottime()):
            item.stop.ask(Cause.LEASE_LOST)

    def _time_over(self, held: HeldBatch, places: Sequence[int]) -> None:
        for place in places:
            if held.states[place] == RUNNING:
                item = held.attempt(place)
                self._judge(item)
                item.stop.ask(Cause.TIMEOUT)

    def _silent(self, item: HeldAssignment) -> None:
        self._judge(item)
        item.stop.ask(Cause.SILENCE)


def _bug(batch: AssignedBatch, error: Exception) -> AttemptOutcome:
    text = f"bug in the worker's {batch.action} executor: {type(error).__name__}"
    return AttemptOutcome(AttemptVerdict.FAILED, OutcomeReason.EXCEPTION, text)
