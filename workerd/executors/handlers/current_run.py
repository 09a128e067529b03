"""The run whose handler is executing now, available to all code that the handler calls.

The run is a context variable. It is set in a coroutine, in its tasks and callbacks, in handler
threads, and in threads with a copy of the context.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, Final, cast

from schedproto.v1 import worker_service_pb2 as pb
from workerd.core.capture import Piece
from workerd.core.ids import AssignmentKey
from workerd.core.outcome import AttemptOutcome, Content
from workerd.executors.base import AttemptStart, StartedBatch
from workerd.executors.handlers.large_json import LARGE
from workerd.executors.handlers.loop_call import LoopCall
from workerd.executors.handlers.payload_types import Fit
from workerd.logs.run_output import RunOutput, creating, current_output


class CalledFunction:
    """A user's function and its arguments, as its calls for a batch share them."""

    def __init__(
        self,
        handler: str,
        function: Callable[..., Any],
        fit: Fit,
        given: Sequence[tuple[Fit, Content | None]] = (),
        check: Callable[[Any], object] | None = None,
    ) -> None:
        """`fit`: converts the payload. `given`: the arguments before the payload, with their
        converters. `check`: raises ValueError for an invalid first argument.
        """
        self.handler = handler
        self.function = function
        self.fit = fit
        self.given = given
        self.check = check
        self.large = any(each and len(each.data) > LARGE for _, each in given)
        """Whether an argument is large."""
        self.loop = asyncio.get_running_loop()
        """The worker's."""


class CurrentRun(LoopCall[AttemptOutcome]):
    """An attempt of a handler. Created on the worker's loop."""

    blocked = ""
    """How long and where the handler blocked its event loop; empty if it didn't."""
    _output: RunOutput | None = None

    def __init__(self, target: CalledFunction, batch: StartedBatch, place: int) -> None:
        self.target = target
        self.batch = batch
        self.place = place

    @property
    def handler(self) -> str:
        """The handler's name."""
        return self.target.handler

    @property
    def run(self) -> CurrentRun:
        """This run, for the loop on which it is called."""
        return self

    @property
    def attempt(self) -> AttemptStart:
        """The attempt as an object."""
        return self.batch.attempt(self.place)

    def beat(self) -> None:
        """Record a heartbeat, from any thread."""
        if (attempt := self.batch.attempts.get(self.place)) is not None:
            attempt.beat()

    def write(self, stderr: bool, data: bytes) -> None:
        """Add bytes to the run's log, from any thread."""
        output = self._output
        if output is None:
            with creating:
                if self.ended:
                    return
                if self._output is None:
                    self._output = RunOutput(self.attempt.find_tail, self.target.loop)
                output = self._output
        output.write(stderr, data)

    def finish_output(self) -> tuple[Piece, ...]:
        """Return the kept output; add nothing more."""
        with creating:
            self.ended = True
        return () if self._output is None else self._output.finish()

    @property
    def assignment(self) -> pb.AssignmentKey:
        """The message of the key."""
        return self.batch.assigned.key(self.place)

    @property
    def key(self) -> AssignmentKey:
        """The run and the token."""
        return self.batch.assigned.keys[self.place]

    @property
    def job(self) -> str:
        """The name of the job."""
        return self.batch.assigned.job(self.place)

    @property
    def name(self) -> str:
        """The name of the task."""
        run, token = self.batch.assigned.keys[self.place]
        return f"run {run} {token}"

    @property
    def log_fields(self) -> dict[str, object]:
        return {"handler": self.handler, "job": self.job, **self.key.log_fields}


current: Final = cast("ContextVar[CurrentRun | None]", current_output)
"""In this process handlers alone set it. Setting a second variable would take 1 µs of each run."""


def mark_ended(calls: Iterable[LoopCall[Any]]) -> None:
    """Let calls that have ended accept no more output."""
    with creating:
        for call in calls:
            call.ended = True
