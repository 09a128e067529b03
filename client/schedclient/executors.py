"""Executors of others: what a job's `plugin` names, and a worker finds by an entry point.

    # pyproject.toml of the package                 # sqlite_executor.py
    [project.entry-points."schedd.executors"]       class Sqlite(Executor):
    sqlite = "sqlite_executor:Sqlite"                   async def run(self, config, payload, ctx): …

A worker into whose environment the package is installed makes one of it when it starts, and says
that it has `sqlite`; jobs with `plugin: {executor: sqlite, config: …}` go to such workers alone.
`docs/executors.md` shows one made from scratch.

This module is stable: what stands here is changed only by adding to it.

Invariants
- What `run` raises ends its own run: `DontRetry` for good, `RetryAfter` until then, any other
  exception as a failed attempt. Nothing of it reaches the worker.
- `run` is called many times at once. An `async def` runs on the loop for handlers and must not
  block it; a plain function runs in a thread and looks at `ctx.cancel`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final

from schedclient.handlers import Context, DontRetry, Progress, RetryAfter

GROUP: Final = "schedd.executors"
"""The group of entry points in which workers look."""


class Executor(ABC):
    """One way of running things. Made once, without arguments, when its worker starts."""

    @abstractmethod
    def run(self, config: Any, payload: Any, ctx: Context) -> Any:
        """Carry an attempt out; what it gives is the run's result, JSON or bytes of at most 64 KiB.

        A function, or a coroutine. `config` is the job's `plugin.config`, and `payload` what the
        run is given: as JSON has them, or of the type (a dataclass, say) by which they are
        annotated. What doesn't fit that type fails the run for good, and says in which field.
        """

    def check(self, config: Any) -> None:
        """Look at a config more closely, before `run`.

        Raises:
            ValueError: it can't be meant; the run fails for good, with these words.
        """
        del config

    async def close(self) -> None:  # noqa: B027 - most hold nothing
        """The worker ends: let go of what is held open."""


__all__ = ["GROUP", "Context", "DontRetry", "Executor", "Progress", "RetryAfter"]
