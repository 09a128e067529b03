"""Carries attempts out, each by its executor until its outcome.

    started ──→ executor ──→ outcome
                   ↑ stop
    its timeout, its silence, the end of trust

Invariants
- An attempt always comes to an outcome: a bug in an executor is one, and ends that run alone.
- What was to die with the lease and ended after trust was lost, though by nobody here, is told as
  lost: the keeper may have killed it.
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
    timeout_of,
    uncancelled,
)
from workerd.logs.log_tail import Tail

# How far one attempt is, as it tells: the newest of it, at a bounded rate.
#
#     handler, any thread ──came──→ newest ──the loop, at most once in `EVERY`──→ tell
#
# What comes quickly is left out; the last that is said is always told, if the attempt goes on.

EVERY: Final = 0.25
"""Seconds from one telling to the next, at least."""
_newest: Final = threading.RLock()
"""Held for a moment by whoever tells or takes the newest, of any attempt."""


class Advance:
    """Of an attempt that begins now. Belongs to the event loop; `came` may be called anywhere."""

    __slots__ = (
        "_closed",
        "_date",
        "_key",
        "_loop",
        "_newest",
        "_tell",
        "_timer",
        "_told_at",
        "told",
    )

    def __init__(
        self,
        key: pb.AssignmentKey,
        date: Callable[[], datetime],
        tell: Callable[[pb.Progress], object],
    ) -> None:
        """`date`: the cluster's time."""
        self._key = key
        self._date = date
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._newest: Progress | None = None
        self._told_at = -inf
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.told: pb.Progress | None = None
        """What was told last."""

    def came(self, progress: Progress) -> None:
        """It is so far."""
        with _newest:
            due, self._newest = self._newest is None, progress
        if due:
            with contextlib.suppress(RuntimeError):  # a closed loop: the worker has ended
                self._loop.call_soon_threadsafe(self._plan)

    def close(self) -> None:
        """It has ended: nothing more is told."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _plan(self) -> None:
        if not self._closed:
            wait = self._told_at + EVERY - boottime()
            self._timer = self._loop.call_later(max(wait, 0.0), self._say)

    def _say(self) -> None:
        with _newest:
            newest, self._newest = self._newest, None
        assert newest is not None, "it was planned for one"
        self._told_at = boottime()
        self.told = pb.Progress(
            key=self._key,
            fraction=newest.fraction,
            done=newest.done,
            total=newest.total,
            note=newest.note,
        )
        self.told.at.FromDatetime(self._date())
        self._tell(self.told)


# Listens for the heartbeats of one attempt: after so long a silence it says so, once.

LATE: Final = 1.0
"""Seconds: who looks later than that after its time has stood still itself, and heard nothing."""


class HeartbeatTimeout:
    """Of an attempt that begins now. Belongs to the event loop; `beat` may be called anywhere."""

    def __init__(self, timeout: float, silent: Callable[[], object]) -> None:
        """`timeout`: seconds, more than 0."""
        self._timeout = timeout
        self._silent = silent
        self._heard = boottime()
        self._wait(timeout)

    def beat(self) -> None:
        """It goes on."""
        self._heard = boottime()

    def close(self) -> None:
        """It has ended: listen no more."""
        self._timer.cancel()

    def _wait(self, seconds: float) -> None:
        self._look_at = boottime() + seconds
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        now = boottime()
        if now > self._look_at + LATE:
            self._heard = now
        left = self._heard + self._timeout - now
        if left > 0:
            self._wait(left)
        else:
            self._silent()


log = logging.getLogger(__name__)

BUG = "a bug in the executor of %s ends run %s alone"

BEFORE_EXEC = failpoints.awaited("worker.before_exec", None)


class Origin(Protocol):
    """The stream by which an assignment came."""

    @property
    def address(self) -> Address:
        """The member that issued it."""
        ...

    def send_refusal(self, refusal: pb.Refusal) -> None:
        """Queue it; dropped when the stream is gone, as the member then finds out by itself."""
        ...

    def send_log(self, chunk: pb.LogChunk) -> None:
        """Queue it, if there is room."""
        ...


@dataclass(slots=True)
class HeldAssignment:
    """An assignment that was taken, until its end."""

    assignment: pb.Assignment
    action: str
    origin: Origin
    stop: Stop = field(default_factory=Stop)
    tail: Tail = field(default_factory=Tail)
    started_at: datetime | None = None
    ended: bool = False
    """Its end is about to be told."""
    task: asyncio.Task[None] | None = None
    advance: Advance | None = None
    timer: asyncio.TimerHandle | None = None
    pulse: HeartbeatTimeout | None = None

    def close(self) -> None:
        """It has ended: wait for nothing of it, and let it tell nothing."""
        if self.timer is not None:
            self.timer.cancel()
        if self.pulse is not None:
            self.pulse.close()
            self.pulse = None  # they hold each other
        if self.advance is not None:
            self.advance.close()


class Attempts:
    """All of one worker."""

    def __init__(
        self,
        worker: str,
        trust: WorkerLeaseTrust,
        clock: JudgingClock,
        executors: Mapping[str, AttemptExecutor],
        keeping: ResultUpload,
    ) -> None:
        self._worker = worker
        self._trust = trust
        self._clock = clock
        self._executors = executors
        self._keeping = keeping

    def objection(self, action: str, assignment: pb.Assignment) -> str:
        """Why no executor here can run it, in words; empty: one can."""
        executor = self._executors.get(action)
        if executor is None:
            return f"this worker has no executor for {action or 'nothing'}"
        return executor.objection(assignment)

    async def run(
        self,
        key: AssignmentKey,
        item: HeldAssignment,
        on_progress: Callable[[pb.Progress], object],
    ) -> AttemptOutcome:
        """Carry it out; it starts now."""
        assignment, action = item.assignment, item.action
        timeout = timeout_of(assignment)
        item.timer = asyncio.get_running_loop().call_later(
            timeout.total_seconds(), self._time_over, item
        )
        silence = heartbeat_timeout_of(assignment)
        pulse = HeartbeatTimeout(silence, lambda: self._silent(item)) if silence else None
        item.pulse = pulse
        # By the job's own clock.
        deadline = utcnow() + timeout
        item.advance = Advance(assignment.key, self.date, on_progress)
        item.tail.recording = self._keeping.recording(key)
        most = self._keeping.most_result
        beat = pulse.beat if pulse is not None else _unheard
        attempt = AttemptStart(
            assignment, self._worker, deadline, beat, item.tail, item.advance.came, most
        )
        await BEFORE_EXEC()
        try:
            outcome = await self._executors[action].run(attempt, item.stop)
        except asyncio.CancelledError as error:
            if item.stop.over:
                raise
            # Nothing here canceled it: a library that the executor uses did.
            assert item.task is not None, "it runs in there"
            await uncancelled(item.task, item.stop)
            told = f"CancelledError: {error}"
            failed = AttemptOutcome(AttemptVerdict.FAILED, OutcomeReason.EXCEPTION, told)
            outcome = failed if item.stop.cause is None else stopped(item.stop.cause)
        except Exception as error:
            log.exception(BUG, action, key.run, extra=messages.said(assignment))
            told = f"a bug in the worker's executor of {action}: {type(error).__name__}"
            outcome = AttemptOutcome(AttemptVerdict.FAILED, OutcomeReason.EXCEPTION, told)
        finally:
            item.close()
        return self._judged(item, outcome)

    def _judged(self, item: HeldAssignment, outcome: AttemptOutcome) -> AttemptOutcome:
        self._judge(item)
        if item.stop.cause is Cause.LEASE_LOST and outcome.verdict is AttemptVerdict.FAILED:
            # The keeper may have killed it; this process has stood still.
            outcome = stopped(Cause.LEASE_LOST, output=outcome.output)
        return outcome

    def date(self) -> datetime:
        """Now, on the cluster's time; by this host's clock where that isn't known."""
        at = self._clock.date(boottime())
        return utcnow() if at is None else datetime.fromtimestamp(at, UTC)

    def _judge(self, item: HeldAssignment) -> None:
        """It has ended, or is about to be: was it lost before, while nobody looked?"""
        if dies_with_lease(item.assignment) and not self._trust.holds(boottime()):
            item.stop.ask(Cause.LEASE_LOST)

    def _time_over(self, item: HeldAssignment) -> None:
        self._judge(item)
        item.stop.ask(Cause.TIMEOUT)

    def _silent(self, item: HeldAssignment) -> None:
        self._judge(item)
        item.stop.ask(Cause.SILENCE)


def _unheard() -> None:
    """A heartbeat of an attempt that may be silent."""
