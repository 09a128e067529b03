"""External executors: named by a job's `plugin`, found by a worker through an entry point.

    # pyproject.toml of the package                 # sqlite_executor.py
    [project.entry-points."schedd.executors"]       class Sqlite(Executor):
    sqlite = "sqlite_executor:Sqlite"                   async def run(self, config, payload, ctx): …

A worker with the package in its environment creates the executor when it starts, and reports that
it has `sqlite`. Only such workers get jobs with `plugin: {executor: sqlite, config: …}`.
`docs/executors.md` shows a complete example.

This module is stable: only additions are made.

Invariants
- An exception of `run` affects only its own run. `DontRetry` fails the run for good, `RetryAfter`
  delays the next attempt, any other exception fails the attempt.
- `run` is called concurrently. An `async def` runs on the loop for handlers and must not block it;
  a plain function runs in a thread and checks `ctx.cancel`.
"""

from abc import ABC, abstractmethod
from typing import Any, Final

from schedclient.handlers import Context, DontRetry, Progress, RetryAfter

GROUP: Final = "schedd.executors"
"""The group of entry points in which workers look."""


class Executor(ABC):
    """Executor of one kind of action. Created once, without arguments, when its worker starts."""

    @abstractmethod
    def run(self, config: Any, payload: Any, ctx: Context) -> Any:
        """Run an attempt and return the run's result: JSON or bytes of at most 64 KiB.

        A function or a coroutine. `config` is the job's `plugin.config`, and `payload` the run's
        payload. Both are JSON, converted to the type of the annotation if there is one, such as a
        dataclass. A value that doesn't fit the type fails the run for good; the error names the
        field.
        """

    def check(self, config: Any) -> None:
        """Validate a config, before `run`.

        Raises:
            ValueError: the config isn't valid; the run fails for good, with this message.
        """
        del config

    async def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release resources: the worker ends."""


__all__ = ["GROUP", "Context", "DontRetry", "Executor", "Progress", "RetryAfter"]
