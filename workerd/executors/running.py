"""The run whose handler is executing now, known to whatever code that handler calls.

A context variable: a coroutine, the tasks it creates and the callbacks it schedules have it, and a
thread that runs a handler, or was given a copy of the context.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

from workerd.executors.base import Attempt
from workerd.run_output import RunOutput


class Running:
    """One attempt of a handler."""

    __slots__ = ("assignment", "beat", "blocked", "handler", "job", "key", "output")

    def __init__(self, attempt: Attempt, handler: str) -> None:
        self.key = attempt.key
        self.assignment = attempt.assignment.key
        self.job = attempt.assignment.job
        self.handler = handler
        self.beat = attempt.beat
        self.output = RunOutput(attempt.tail)
        self.blocked = ""
        """How long and where it blocked its event loop, in words; empty: it didn't."""

    @property
    def said(self) -> dict[str, object]:
        """For a line of log about it, as `extra`."""
        return {"handler": self.handler, "job": self.job, **self.key.said}


current: Final[ContextVar[Running | None]] = ContextVar("schedd_run", default=None)
