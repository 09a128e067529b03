"""The tasks of all attempts, as a TaskGroup has them, but that one of them may be let go of.

start ─→ task ─┬─ ends ─→ forgotten
               ├─ fails ─→ `failed` raises it: a bug, which ends the worker
               └─ let go of ─→ waited for by nobody: it is another's code that doesn't end
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import NoReturn


class Nursery:
    """Belongs to one event loop, which runs."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[NoReturn] | None = None

    def __len__(self) -> int:
        """How many are waited for."""
        return len(self._tasks)

    def start(self, work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        """Have it done, from now on."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def let_go(self, task: asyncio.Task[None]) -> None:
        """Whether it ends, and how, is nobody's matter any more."""
        self._tasks.discard(task)

    async def failed(self) -> NoReturn:
        """Return never; raise what the first of them raises that fails, now or from now on."""
        self._failed = self._failed or asyncio.get_running_loop().create_future()
        await asyncio.shield(self._failed)
        raise AssertionError("nothing but an error ends it")

    async def close(self, within: float) -> None:
        """Cancel all, and wait until they have ended, and what they start at their end, too; so
        many seconds at most.
        """
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while self._tasks:
                    await asyncio.wait([*self._tasks])

    def _ended(self, task: asyncio.Task[None]) -> None:
        let_go = task not in self._tasks
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None or let_go:
            return
        self._failed = self._failed or task.get_loop().create_future()
        if not self._failed.done():
            self._failed.set_exception(error)
