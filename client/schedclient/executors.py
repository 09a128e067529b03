"""External executors: named by a job's `plugin`, found by a worker through an entry point.

docs/executors.md has the rules and a complete example. This module is stable: only additions are
made.
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
        """Validate a config, before `run`. Raises ValueError: the config isn't valid; the run fails
        for good, with this message.
        """
        del config

    async def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release resources: the worker ends."""


__all__ = ["GROUP", "Context", "DontRetry", "Executor", "Progress", "RetryAfter"]
