"""The run whose handler is executing now, available to all code that the handler calls.

The run is a context variable. It is set in a coroutine, in its tasks and callbacks, in handler
threads, and in threads with a copy of the context.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Final, cast

from schedproto.v1 import worker_service_pb2 as pb
from workerd.core.capture import Piece
from workerd.core.ids import AssignmentKey
from workerd.core.outcome import AttemptOutcome
from workerd.executors.base import AttemptStart
from workerd.executors.handlers.loop_call import LoopCall
from workerd.logs.run_output import RunOutput, creating, current_output


class CurrentRun(LoopCall[AttemptOutcome]):
    """An attempt of a handler. Created on the worker's loop."""

    __slots__ = ("_finished", "_loop", "_output", "attempt", "blocked", "handler")

    def __init__(self, attempt: AttemptStart, handler: str) -> None:
        self.home = self.task = None
        self.attempt = attempt
        self._loop = asyncio.get_running_loop()
        self._output: RunOutput | None = None
        self._finished = False
        self.handler = handler
        self.blocked = ""
        """How long and where the handler blocked its event loop; empty if it didn't."""

    @property
    def run(self) -> CurrentRun:
        """This run, for the loop on which it is called."""
        return self

    def write(self, stderr: bool, data: bytes) -> None:
        """Add bytes to the run's log, from any thread."""
        output = self._output
        if output is None:
            with creating:
                if self._finished:
                    return
                if self._output is None:
                    self._output = RunOutput(self.attempt.find_tail, self._loop)
                output = self._output
        output.write(stderr, data)

    def finish_output(self) -> tuple[Piece, ...]:
        """Return the kept output; add nothing more."""
        with creating:
            self._finished = True
        return () if self._output is None else self._output.finish()

    @property
    def assignment(self) -> pb.AssignmentKey:
        """The message of the key."""
        return self.attempt.batch.key(self.attempt.place)

    @property
    def key(self) -> AssignmentKey:
        """The run and the token."""
        return self.attempt.key

    @property
    def job(self) -> str:
        """The name of the job."""
        return self.attempt.batch.job(self.attempt.place)

    @property
    def name(self) -> str:
        """The name of the task."""
        run, token = self.key
        return f"run {run} {token}"

    @property
    def log_fields(self) -> dict[str, object]:
        """Log keys, for `extra`."""
        return {"handler": self.handler, "job": self.job, **self.key.log_fields}


current: Final = cast("ContextVar[CurrentRun | None]", current_output)
"""In this process handlers alone set it. Setting a second variable would take 1 µs of each run."""
