"""The interface of executors: their arguments and their outcome.

    executor.run(attempt, stop) ──→ Outcome

Invariants
- An executor always returns an outcome. A failure of the job is an outcome, not an exception.
- A stop is received at any time, also before the start. Its first cause counts.
- When `run` returns or is canceled, nothing of the attempt is running, except a handler that can't
  be ended.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from schedclient.handlers import Progress
from schedkit.text.duration import render
from schedproto.v1 import job_pb2
from schedproto.v1 import worker_service_pb2 as pb
from workerd import messages
from workerd.batches import AssignedBatch
from workerd.core.capture import Piece
from workerd.core.outcome import MAX_RESULT, AttemptOutcome, Cause, stopped
from workerd.core.resource_limits import ResourceLimits
from workerd.logs.log_tail import Tail

if TYPE_CHECKING:
    from workerd.executors.handlers.attempt_call import HandlerCall

DEFAULT_KILL_AFTER = 10.0
"""Seconds from SIGTERM to SIGKILL."""
_NEVER = datetime.max.replace(tzinfo=UTC)


class StartedBatch:
    """Runs of a batch, from their start to their end.

    Most runs have no object of their own: `attempt` creates it on first use.
    """

    def __init__(
        self,
        assigned: AssignedBatch,
        worker: str,
        on_end: Callable[[Any, Sequence[int], AttemptOutcome], object],
        most_result: int = MAX_RESULT,
    ) -> None:
        """`on_end(batch, places, outcome)`: called once for each attempt that an executor began,
        unless the worker is ending. More places may be added until the next turn of the loop.
        """
        self.assigned = assigned
        self.worker = worker
        self.on_end = on_end
        self.most_result = most_result
        """Maximum bytes of a result."""
        self.deadlines = [_NEVER] * len(assigned)
        """When the timeout ends each run. Set at the start."""
        self.attempts: dict[int, AttemptStart] = {}
        """Runs with an object of their own, by place."""
        self.calls: list[HandlerCall | None] = [None] * len(assigned)
        """Calls that executors of many have begun and that haven't ended."""
        self.succeeded: list[int] = []
        """Places of plain successes that `on_end` was called for in this turn of the loop."""

    def attempt(self, place: int) -> AttemptStart:
        """Return a run as an object, always the same one. Call it from any thread."""
        found = self.attempts.get(place)
        return found or self.attempts.setdefault(place, AttemptStart(self, place))


class AttemptStart:
    """A run of a batch at its start."""

    def __init__(self, started: StartedBatch, place: int) -> None:
        self.started = started
        self.batch = started.assigned
        self.place = place
        """In the batch."""
        self.key = self.batch.keys[place]
        self.worker = started.worker
        self.most_result = started.most_result
        """Maximum bytes of the result."""
        self.stop = Stop()
        if (call := started.calls[place]) is not None:
            self.stop.listen(call.end)
        self.tail: Tail | None = None
        """The receiver of the output; None: nothing was written or followed."""

    @property
    def deadline(self) -> datetime:
        return self.started.deadlines[self.place]

    def find_tail(self) -> Tail:
        """Return the receiver of the output, always the same one. Call it on the worker's loop."""
        self.tail = self.tail or Tail()
        return self.tail

    def beat(self) -> None:
        """Record a heartbeat of the job, from any thread."""

    def report_progress(self, progress: Progress) -> None:
        """Report the progress of the job, from any thread."""

    @property
    def assignment(self) -> pb.Assignment:
        """The message of the assignment. For many runs it is created here."""
        return self.batch.assignment(self.place)

    @property
    def common(self) -> pb.Assignment:
        """The message of the assignment, perhaps without its key, job and `traceparent`."""
        return self.batch.common

    @property
    def kill_after(self) -> float:
        """Seconds from SIGTERM to SIGKILL."""
        given = self.common
        if not given.HasField("kill_after"):
            return DEFAULT_KILL_AFTER
        return messages.span_of(given.kill_after).total_seconds()

    @property
    def payload(self) -> bytes:
        return messages.payload_bytes(self.batch.payload(self.place))

    @property
    def traceparent(self) -> str:
        """The W3C trace context; empty if there is none."""
        return self.batch.traceparent(self.place)

    def facts(self) -> dict[str, str]:
        """Return the values that each job receives about its run, by snake_case name."""
        given, (run, token) = self.common, self.key
        return {
            "namespace": given.namespace,
            "job": self.batch.job(self.place),
            "run_id": run,
            "attempt": str(given.attempt),
            "fencing_token": str(token),
            "scheduled_at": rfc3339(self.batch.scheduled_at(self.place)),
            "deadline": rfc3339(self.deadline),
            "idempotency_key": run,
            "worker": self.worker,
        }


class Stop:
    """A request to end an attempt. Any component may make it; the executor receives it."""

    def __init__(self) -> None:
        self.cause: Cause | None = None
        self.killed = False
        self.over = False
        """The worker is ending and cancels running attempts: they have no outcome."""
        self._listener: Callable[[bool], object] | None = None

    def ask(self, cause: Cause, *, kill: bool = False) -> None:
        """Request the end; with `kill` at once. A second request may only add `kill`."""
        again = self.cause is not None and not (kill and not self.killed)
        if self.cause is None:
            self.cause = cause
        self.killed = self.killed or kill
        if self._listener is not None and not again:
            self._listener(self.killed)

    def listen(self, listener: Callable[[bool], object]) -> None:
        """Call `listener(kill)` for each request, and now if there was one already."""
        self._listener = listener
        if self.cause is not None:
            listener(self.killed)

    def abandon(self) -> None:
        """End an attempt without an outcome: the worker is ending."""
        self.over = True
        if self._listener is not None:
            self._listener(True)

    def deafen(self) -> None:
        self._listener = None


class ActionExecutor:
    """An executor of one kind of action: with a task on the worker's loop for each attempt (`run`),
    or of many attempts without such tasks (`begin`).
    """

    def objection(self, assignment: pb.Assignment) -> str:
        """Return why this executor can't run the assignment; empty if it can."""
        del assignment
        return ""

    def runs_many(self, common: pb.Assignment) -> bool:
        """Return whether assignments with these fields `begin` together; others need `run`."""
        del common
        return False

    async def run(self, attempt: AttemptStart, stop: Stop) -> AttemptOutcome:
        raise NotImplementedError

    def begin(self, batch: StartedBatch, places: Sequence[int]) -> None:
        """Begin these attempts of a batch, which receives their outcomes."""
        raise NotImplementedError


async def until_stopped(
    work: Coroutine[object, object, AttemptOutcome],
    attempt: AttemptStart,
    stop: Stop,
    doing: Callable[[], str] = str,
) -> AttemptOutcome:
    """Return the outcome of `work`, or that of a stop, which cancels it. Runs in the caller's task.
    `doing`: returns what a timeout interrupted.
    """
    me = asyncio.current_task()
    assert me is not None
    stop.listen(lambda _kill: me.cancel())
    try:
        outcome = await work
    except asyncio.CancelledError:
        if stop.cause is None:
            raise
    finally:
        stop.deafen()
        work.close()
    if stop.cause is None:
        return outcome
    await uncancelled(me, stop)
    detail = doing() if stop.cause is Cause.TIMEOUT else ""
    return outcome_of_stop(attempt.batch, stop.cause, detail)


async def uncancelled(me: asyncio.Task[object], stop: Stop) -> None:
    """Withdraw all cancel requests of this task. Foreign code may have made or swallowed some.
    Raises asyncio.CancelledError: the worker is ending.
    """
    if me.cancelling():
        while me.cancelling():
            me.uncancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)  # a cancel that isn't delivered yet, made by the foreign code
    if stop.over:
        raise asyncio.CancelledError


def outcome_of_stop(
    batch: AssignedBatch, cause: Cause, detail: str = "", output: tuple[Piece, ...] = ()
) -> AttemptOutcome:
    """Return the outcome of an attempt that this worker ended. `batch`: that of its run."""
    limited = ""
    if cause is Cause.TIMEOUT:
        limited = render(batch.timeout)
    elif cause is Cause.SILENCE:
        limited = render(timedelta(seconds=batch.heartbeat_timeout))
    return stopped(cause, detail, output, limited=limited)


def bounds_of(limits: job_pb2.ShellAction.Limits) -> ResourceLimits:
    return ResourceLimits(limits.memory_bytes, limits.processes, limits.files)


def rfc3339(instant: datetime) -> str:
    """Format a time in UTC with milliseconds: `2026-01-31T09:41:07.250Z`."""
    text = instant.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
