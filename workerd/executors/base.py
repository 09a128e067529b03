"""What every executor is given, and what it gives back.

    executor.run(attempt, stop) ──→ Outcome

Invariants
- An executor always answers with an outcome; what a job does wrong is an outcome, not an exception.
- A stop is heard at any time, before the start as well; its first cause is the one that counts.
- When `run` returns or is cancelled, nothing of the attempt goes on, except for a handler that
  can't be ended.
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
from schedproto.v1 import common_pb2, job_pb2
from schedproto.v1 import worker_service_pb2 as pb
from workerd import messages
from workerd.core.ids import AssignmentKey, RunId, Token
from workerd.core.outcome import MAX_RESULT, AttemptOutcome, Cause, Content
from workerd.core.resource_limits import ResourceLimits
from workerd.logs.log_tail import Tail

T = TypeVar("T")

DEFAULT_KILL_AFTER = 10.0
"""Seconds from asking an attempt to end to killing it."""


@dataclass(frozen=True, slots=True)
class AttemptStart:
    """One assignment at its start."""

    assignment: pb.Assignment
    worker: str
    deadline: datetime
    """When its timeout ends it."""
    beat: Callable[[], object] = lambda: None
    """To be called, from any thread, when what it runs says that it goes on."""
    tail: Tail = field(default_factory=Tail)
    """To be told what it writes, by who can."""
    progress: Callable[[Progress], object] = lambda _: None
    """To be called, from any thread, when it says how far it is."""
    most_result: int = MAX_RESULT
    """Bytes that it may return."""

    @property
    def key(self) -> AssignmentKey:
        """Which handing out of which run."""
        key = self.assignment.key
        return AssignmentKey(RunId(key.run_id), Token(key.fencing_token))

    @property
    def kill_after(self) -> float:
        """Seconds between asking it to end and killing it."""
        given = self.assignment
        if not given.HasField("kill_after"):
            return DEFAULT_KILL_AFTER
        return messages.span_of(given.kill_after).total_seconds()

    @property
    def dies_with_lease(self) -> bool:
        """Whether it is to be killed when this worker's lease is lost."""
        return dies_with_lease(self.assignment)

    @property
    def payload(self) -> bytes:
        """What the job is given, as bytes; empty when there is nothing."""
        return payload_bytes(self.assignment.payload)

    @property
    def content(self) -> Content | None:
        """What the job is given; None when there is nothing."""
        return content_of(self.assignment.payload)

    @property
    def scheduled_at(self) -> datetime:
        """The nominal instant."""
        return messages.date_of(self.assignment.key.scheduled_at)

    def facts(self) -> dict[str, str]:
        """What each job is told about itself, by snake_case name; every face renames the keys."""
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
    """The wish that an attempt ends; asked by whoever has a cause, heard by its executor."""

    __slots__ = ("_listener", "cause", "killed", "over")

    def __init__(self) -> None:
        self.cause: Cause | None = None
        self.killed = False
        self.over = False
        """The worker itself ends, and cancels what still runs: that is no outcome."""
        self._listener: Callable[[bool], object] | None = None

    def ask(self, cause: Cause, *, kill: bool = False) -> None:
        """End; with `kill` at once. Asking again may only make it harder."""
        again = self.cause is not None and not (kill and not self.killed)
        if self.cause is None:
            self.cause = cause
        self.killed = self.killed or kill
        if self._listener is not None and not again:
            self._listener(self.killed)

    def listen(self, listener: Callable[[bool], object]) -> None:
        """Have `listener(kill)` called at each wish, and now when there was one already."""
        self._listener = listener
        if self.cause is not None:
            listener(self.killed)

    def deafen(self) -> None:
        """Call nobody any more."""
        self._listener = None


class AttemptExecutor(Protocol):
    """One way of running things."""

    def objection(self, assignment: pb.Assignment) -> str:
        """Why this executor can't run it, for a person to read; empty when it can."""
        ...

    async def run(self, attempt: AttemptStart, stop: Stop) -> AttemptOutcome:
        """Carry it out."""
        ...


async def until_stopped(work: Coroutine[object, object, T], stop: Stop) -> T | None:
    """The answer of `work`, or None when a stop cancelled it. Runs in the caller's own task."""
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
    """Nobody wants this task to end any more, whoever wanted it and wherever that was swallowed:
    what it ran was another's code.

    Raises:
        asyncio.CancelledError: the worker ends.
    """
    if me.cancelling():
        while me.cancelling():
            me.uncancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)  # one that isn't delivered yet: it came from that code itself
    if stop.over:
        raise asyncio.CancelledError


def dies_with_lease(assignment: pb.Assignment) -> bool:
    """Whether its job says `on_lease_lost: kill`."""
    return assignment.on_lease_lost == job_pb2.ON_LEASE_LOST_KILL


def payload_bytes(payload: common_pb2.Payload) -> bytes:
    """JSON as its text in UTF-8, raw bytes as they are."""
    return payload.raw if payload.WhichOneof("kind") == "raw" else payload.json.encode()


def content_of(payload: common_pb2.Payload) -> Content | None:
    """What it holds; None when that is nothing."""
    kind = payload.WhichOneof("kind")
    return None if kind is None else Content(payload_bytes(payload), json=kind == "json")


def bounds_of(limits: job_pb2.ShellAction.Limits) -> ResourceLimits:
    """What a program may have at most."""
    return ResourceLimits(limits.memory_bytes, limits.processes, limits.files)


def heartbeat_timeout_of(assignment: pb.Assignment) -> float:
    """Seconds of silence that end the attempt; 0: it may be silent."""
    if not assignment.HasField("heartbeat_timeout"):
        return 0.0
    return messages.span_of(assignment.heartbeat_timeout).total_seconds()


def rfc3339(instant: datetime) -> str:
    """UTC with milliseconds: `2026-01-31T09:41:07.250Z`."""
    text = instant.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def timeout_of(assignment: pb.Assignment) -> timedelta:
    """How long the attempt may last; one hour if not given."""
    if not assignment.HasField("timeout"):
        return timedelta(hours=1)
    return messages.span_of(assignment.timeout)
