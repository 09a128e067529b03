"""The run whose handler is executing now, available to all code that the handler calls.

The run is a context variable. It is set in a coroutine, in its tasks and callbacks, in handler
threads, and in threads with a copy of the context.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

from workerd.core.ids import AssignmentKey
from workerd.executors.base import AttemptStart
from workerd.logs.run_output import RunOutput


class CurrentRun:
    """An attempt of a handler."""

    __slots__ = ("_attempt", "assignment", "beat", "blocked", "handler", "output")

    def __init__(self, attempt: AttemptStart, handler: str) -> None:
        self._attempt = attempt
        self.assignment = attempt.assignment.key
        self.handler = handler
        self.beat = attempt.beat
        self.output = RunOutput(attempt.tail)
        self.blocked = ""
        """How long and where the handler blocked its event loop; empty if it didn't."""

    @property
    def key(self) -> AssignmentKey:
        """The run and the token."""
        return self._attempt.key

    @property
    def job(self) -> str:
        """The name of the job."""
        return self._attempt.assignment.job

    @property
    def name(self) -> str:
        """The name of the task."""
        return f"run {self.assignment.run_id} {self.assignment.fencing_token}"

    @property
    def log_fields(self) -> dict[str, object]:
        """Log keys, for `extra`."""
        return {"handler": self.handler, "job": self.job, **self.key.log_fields}


current: Final[ContextVar[CurrentRun | None]] = ContextVar("schedd_run", default=None)
