"""Run attempts, each by its executor until its outcome.

    started ──→ executor ──→ outcome
                   ↑ stop
    timeout, heartbeat timeout, the end of trust

Invariants
- An attempt always has an outcome. A bug in an executor is one, and affects only that run.
- An attempt that ends with the lease, and failed after trust was lost, is reported as WORKER_LOST:
  the keeper may have killed it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import field
from datetime import UTC, datetime
from math import inf
from typing import Final, Protocol

from schedclient.handlers import Progress
from schedkit import failpoints
from schedkit.clock import boottime, utcnow
from schedkit.records import dataclass
from schedproto.v1 import worker_service_pb2 as pb
from workerd import messages
from workerd.core.cluster_time import JudgingClock
from workerd.core.ids import Address, AssignmentKey
from workerd.core.lease_trust import WorkerLeaseTrust
from workerd.core.outcome import AttemptOutcome, AttemptVerdict, Cause, OutcomeReason, stopped
from workerd.delivery.result_upload import ResultUpload
from workerd.executors.base import (
    AttemptExecutor,
    AttemptStart,
    Stop,
    dies_with_lease,
    heartbeat_timeout_of,
    outcome_of_stop,
    timeout_of,
    uncancelled,
)
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

    __slots__ = (
        "_closed",
        "_date",
        "_key",
        "_loop",
        "_newest",
        "_report",
        "_reported_at",
        "_timer",
        "reported",
    )

    def __init__(
        self,
        key: pb.AssignmentKey,
        date: Callable[[], datetime],
        report: Callable[[pb.Progress], object],
    ) -> None:
        """`date`: returns cluster time."""
        self._key = key
        self._date = date
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._newest: Progress | None = None
        self._reported_at = -inf
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.reported: pb.Progress | None = None
        """The last report."""

    def update(self, progress: Progress) -> None:
        """Set the newest progress."""
        with _newest:
            due, self._newest = self._newest is None, progress
        if due:
            with contextlib.suppress(RuntimeError):  # a closed loop: the worker has ended
                self._loop.call_soon_threadsafe(self._plan)

    def close(self) -> None:
        """Stop reporting: the attempt has ended."""
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
        """`timeout`: in seconds, above 0."""
        self._timeout = timeout
        self._silent = silent
        self._last_beat = boottime()
        self._wait(timeout)

    def beat(self) -> None:
        """Record a heartbeat."""
        self._last_beat = boottime()

    def close(self) -> None:
        """Stop: the attempt has ended."""
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


class Origin(Protocol):
    """The stream that brought an assignment."""

    @property
    def address(self) -> Address:
        """The member that issued it."""
        ...

    def send_refusal(self, refusal: pb.Refusal) -> None:
        """Queue a rejection. A closed stream drops it; the member then notices it anyway."""
        ...

    def send_log(self, chunk: pb.LogChunk) -> None:
        """Queue a piece of output, if there is room."""
        ...


@dataclass(slots=True)
class HeldAssignment:
    """An accepted assignment, until its end."""

    assignment: pb.Assignment
    action: str
    origin: Origin
    stop: Stop = field(default_factory=Stop)
    tail: Tail = field(default_factory=Tail)
    started_at: datetime | None = None
    ended: bool = False
    """The attempt has ended, and its result will be reported."""
    task: asyncio.Task[None] | None = None
    progress: ProgressReporter | None = None
    timer: asyncio.TimerHandle | None = None
    pulse: HeartbeatTimeout | None = None

    def close(self) -> None:
        """Stop the timers and the progress reports: the attempt has ended."""
        if self.timer is not None:
            self.timer.cancel()
        if self.pulse is not None:
            self.pulse.close()
            self.pulse = None  # breaks a reference cycle
        if self.progress is not None:
            self.progress.close()


class Attempts:
    """The attempts of one worker."""

    def __init__(
        self,
        worker: str,
        trust: WorkerLeaseTrust,
        clock: JudgingClock,
        executors: Mapping[str, AttemptExecutor],
        upload: ResultUpload,
    ) -> None:
        self._worker = worker
        self._trust = trust
        self._clock = clock
        self._executors = executors
        self._upload = upload

    def objection(self, action: str, assignment: pb.Assignment) -> str:
        """Return why no executor here can run the assignment; empty if one can."""
        executor = self._executors.get(action)
        if executor is None:
            return f"no executor for action {action or '(none)'} on this worker"
        return executor.objection(assignment)

    async def run(
        self,
        key: AssignmentKey,
        item: HeldAssignment,
        on_progress: Callable[[pb.Progress], object],
    ) -> AttemptOutcome:
        """Run an attempt, starting now, until its outcome."""
        assignment, action = item.assignment, item.action
        timeout = timeout_of(assignment)
        item.timer = asyncio.get_running_loop().call_later(
            timeout.total_seconds(), self._time_over, item
        )
        silence = heartbeat_timeout_of(assignment)
        pulse = HeartbeatTimeout(silence, lambda: self._silent(item)) if silence else None
        item.pulse = pulse
        # On the clock of the job's host.
        deadline = utcnow() + timeout
        item.progress = ProgressReporter(assignment.key, self.date, on_progress)
        item.tail.recording = self._upload.recording(key)
        most = self._upload.most_result
        beat = pulse.beat if pulse is not None else _ignore
        attempt = AttemptStart(
            assignment, self._worker, deadline, beat, item.tail, item.progress.update, most
        )
        await BEFORE_EXEC()
        try:
            outcome = await self._executors[action].run(attempt, item.stop)
        except asyncio.CancelledError as error:
            if item.stop.over:
                raise
            # A library that the executor uses canceled it, not this worker.
            assert item.task is not None, "it runs in there"
            await uncancelled(item.task, item.stop)
            text = f"CancelledError: {error}"
            failed = AttemptOutcome(AttemptVerdict.FAILED, OutcomeReason.EXCEPTION, text)
            cause = item.stop.cause
            outcome = failed if cause is None else outcome_of_stop(attempt, cause)
        except Exception as error:
            log.exception(BUG, action, key.run, extra=messages.log_fields(assignment))
            text = f"bug in the worker's {action} executor: {type(error).__name__}"
            outcome = AttemptOutcome(AttemptVerdict.FAILED, OutcomeReason.EXCEPTION, text)
        finally:
            item.close()
        return self._judged(item, outcome)

    def _judged(self, item: HeldAssignment, outcome: AttemptOutcome) -> AttemptOutcome:
        self._judge(item)
        if item.stop.cause is Cause.LEASE_LOST and outcome.verdict is AttemptVerdict.FAILED:
            # The keeper may have killed it while this process was suspended.
            outcome = stopped(Cause.LEASE_LOST, output=outcome.output)
        return outcome

    def date(self) -> datetime:
        """Return cluster time; this host's time if cluster time is unknown."""
        at = self._clock.date(boottime())
        return utcnow() if at is None else datetime.fromtimestamp(at, UTC)

    def _judge(self, item: HeldAssignment) -> None:
        """Record a loss of the lease that wasn't noticed before the end of the attempt."""
        if dies_with_lease(item.assignment) and not self._trust.holds(boottime()):
            item.stop.ask(Cause.LEASE_LOST)

    def _time_over(self, item: HeldAssignment) -> None:
        self._judge(item)
        item.stop.ask(Cause.TIMEOUT)

    def _silent(self, item: HeldAssignment) -> None:
        self._judge(item)
        item.stop.ask(Cause.SILENCE)


def _ignore() -> None:
    """Ignore heartbeats of an attempt without heartbeat timeout."""
