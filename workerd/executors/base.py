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
from collections.abc import Callable, Coroutine
from dataclasses import field
from datetime import UTC, datetime, timedelta
from typing import Protocol, TypeVar

from schedclient.handlers import Progress
from schedkit.records import dataclass
from schedkit.text.duration import render
from schedproto.v1 import common_pb2, job_pb2
from schedproto.v1 import worker_service_pb2 as pb
from workerd import messages
from workerd.core.capture import Piece
from workerd.core.ids import AssignmentKey, RunId, Token
from workerd.core.outcome import MAX_RESULT, AttemptOutcome, Cause, Content, stopped
from workerd.core.resource_limits import ResourceLimits
from workerd.logs.log_tail import Tail

T = TypeVar("T")

DEFAULT_KILL_AFTER = 10.0
"""Seconds from SIGTERM to SIGKILL."""


@dataclass(frozen=True, slots=True)
class AttemptStart:
    """An assignment at its start."""

    assignment: pb.Assignment
    worker: str
    deadline: datetime
    """When its timeout ends it."""
    beat: Callable[[], object] = lambda: None
    """Call it, from any thread, for each heartbeat of the job."""
    tail: Tail = field(default_factory=Tail)
    """Receives the output."""
    progress: Callable[[Progress], object] = lambda _: None
    """Call it, from any thread, when the job reports its progress."""
    most_result: int = MAX_RESULT
    """Maximum bytes of the result."""

    @property
    def key(self) -> AssignmentKey:
        """The run and the token."""
        key = self.assignment.key
        return AssignmentKey(RunId(key.run_id), Token(key.fencing_token))

    @property
    def kill_after(self) -> float:
        """Seconds from SIGTERM to SIGKILL."""
        given = self.assignment
        if not given.HasField("kill_after"):
            return DEFAULT_KILL_AFTER
        return messages.span_of(given.kill_after).total_seconds()

    @property
    def dies_with_lease(self) -> bool:
        """Whether the attempt is killed when this worker's lease is lost."""
        return dies_with_lease(self.assignment)

    @property
    def payload(self) -> bytes:
        """The payload as bytes; empty if there is none."""
        return payload_bytes(self.assignment.payload)

    @property
    def content(self) -> Content | None:
        """The payload; None if there is none."""
        return content_of(self.assignment.payload)

    @property
    def scheduled_at(self) -> datetime:
        """The scheduled time."""
        return messages.date_of(self.assignment.key.scheduled_at)

    def facts(self) -> dict[str, str]:
        """Return the values that each job receives about its run, by snake_case name."""
        given = self.assignment
        return {
            "namespace": given.namespace,
            "job": given.job,
            "run_id": given.key.run_id,
            "attempt": str(given.attempt),
            "fencing_token": str(given.key.fencing_token),
            "scheduled_at": rfc3339(self.scheduled_at),
            "deadline": rfc3339(self.deadline),
            "idempotency_key": given.key.run_id,
            "worker": self.worker,
        }


class Stop:
    """A request to end an attempt. Any component may make it; the executor receives it."""

    __slots__ = ("_listener", "cause", "killed", "over")

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

    def deafen(self) -> None:
        """Remove the listener."""
        self._listener = None


class AttemptExecutor(Protocol):
    """An executor of one kind of action."""

    def objection(self, assignment: pb.Assignment) -> str:
        """Return why this executor can't run the assignment; empty if it can."""
        ...

    async def run(self, attempt: AttemptStart, stop: Stop) -> AttemptOutcome:
        """Run an attempt until its outcome."""
        ...


async def until_stopped(work: Coroutine[object, object, T], stop: Stop) -> T | None:
    """Return the result of `work`, or None if a stop canceled it. Runs in the caller's task."""
    me = asyncio.current_task()
    assert me is not None
    stop.listen(lambda _kill: me.cancel())
    try:
        answer = await work
    except asyncio.CancelledError:
        if stop.cause is None:
            raise
        answer = None
    finally:
        stop.deafen()
        work.close()
    if stop.cause is None:
        return answer
    await uncancelled(me, stop)
    return None


async def uncancelled(me: asyncio.Task[object], stop: Stop) -> None:
    """Withdraw all cancel requests of this task. Foreign code may have made or swallowed some.

    Raises:
        asyncio.CancelledError: the worker is ending.
    """
    if me.cancelling():
        while me.cancelling():
            me.uncancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)  # a cancel that isn't delivered yet, made by the foreign code
    if stop.over:
        raise asyncio.CancelledError


def outcome_of_stop(
    attempt: AttemptStart, cause: Cause, detail: str = "", output: tuple[Piece, ...] = ()
) -> AttemptOutcome:
    """Return the outcome of an attempt that this worker ended."""
    return stopped(cause, detail, output, limited=_limit(attempt.assignment, cause))


def _limit(assignment: pb.Assignment, cause: Cause) -> str:
    """Return the time whose expiry is this cause, such as `10s`; empty for other causes."""
    if cause is Cause.TIMEOUT:
        return render(timeout_of(assignment))
    if cause is Cause.SILENCE:
        return render(timedelta(seconds=heartbeat_timeout_of(assignment)))
    return ""


def dies_with_lease(assignment: pb.Assignment) -> bool:
    """Return whether the job has `on_lease_lost: kill`."""
    return assignment.on_lease_lost == job_pb2.ON_LEASE_LOST_KILL


def payload_bytes(payload: common_pb2.Payload) -> bytes:
    """Return JSON as UTF-8 text, raw bytes unchanged."""
    return payload.raw if payload.WhichOneof("kind") == "raw" else payload.json.encode()


def content_of(payload: common_pb2.Payload) -> Content | None:
    """Return the contents; None if there are none."""
    kind = payload.WhichOneof("kind")
    return None if kind is None else Content(payload_bytes(payload), json=kind == "json")


def bounds_of(limits: job_pb2.ShellAction.Limits) -> ResourceLimits:
    """Return the resource limits of a program."""
    return ResourceLimits(limits.memory_bytes, limits.processes, limits.files)


def heartbeat_timeout_of(assignment: pb.Assignment) -> float:
    """Return the seconds without heartbeat that end the attempt; 0: no limit."""
    if not assignment.HasField("heartbeat_timeout"):
        return 0.0
    return messages.span_of(assignment.heartbeat_timeout).total_seconds()


def rfc3339(instant: datetime) -> str:
    """Format a time in UTC with milliseconds: `2026-01-31T09:41:07.250Z`."""
    text = instant.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def timeout_of(assignment: pb.Assignment) -> timedelta:
    """Return the timeout of the attempt; one hour if not given."""
    if not assignment.HasField("timeout"):
        return timedelta(hours=1)
    return messages.span_of(assignment.timeout)
