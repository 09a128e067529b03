"""The run whose handler is executing now, available to all code that the handler calls.

The run is a context variable. It is set in a coroutine, in its tasks and callbacks, in handler
threads, and in threads with a copy of the context.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

from schedproto.v1 import worker_service_pb2 as pb
from workerd.core.capture import Piece
from workerd.core.ids import AssignmentKey
from workerd.executors.base import AttemptStart
from workerd.logs.run_output import RunOutput, creating


class CurrentRun:
    """An attempt of a handler. Created on the worker's loop."""

    __slots__ = ("_attempt", "_finished", "_loop", "_output", "blocked", "handler")

    def __init__(self, attempt: AttemptStart, handler: str) -> None:
        self._attempt = attempt
        self._loop = asyncio.get_running_loop()
        self._output: RunOutput | None = None
        self._finished = False
        self.handler = handler
        self.blocked = ""
        """How long and where the handler blocked its event loop; empty if it didn't."""

    def write(self, stderr: bool, data: bytes) -> None:
        """Add bytes to the run's log, from any thread."""
        output = self._output
        if output is None:
            with creating:
                if self._finished:
                    return
                if self._output is None:
                    self._output = RunOutput(self._attempt.find_tail, self._loop)
                output = self._output
        output.write(stderr, data)

    def finish(self) -> tuple[Piece, ...]:
        """Return the kept output; add nothing more."""
        with creating:
            self._finished = True
        return () if self._output is None else self._output.finish()

    @property
    def beat(self) -> Callable[[], object]:
        """Called for each heartbeat."""
        return self._attempt.beat

    @property
    def assignment(self) -> pb.AssignmentKey:
        """The message of the key."""
        return self._attempt.batch.key(self._attempt.place)

    @property
    def key(self) -> AssignmentKey:
        """The run and the token."""
        return self._attempt.key

    @property
    def job(self) -> str:
        """The name of the job."""
        return self._attempt.batch.job(self._attempt.place)

    @property
    def name(self) -> str:
        """The name of the task."""
        run, token = self.key
        return f"run {run} {token}"

    @property
    def log_fields(self) -> dict[str, object]:
        """Log keys, for `extra`."""
        return {"handler": self.handler, "job": self.job, **self.key.log_fields}


current: Final[ContextVar[CurrentRun | None]] = ContextVar("schedd_run", default=None)
