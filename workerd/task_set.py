"""The tasks of all attempts, as a TaskGroup has them, but with a bound on the wait at their end.

start ─→ task ─┬─ ends ─→ forgotten
               └─ fails ─→ `failed` raises it: a bug, which ends the worker
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any, NoReturn

log = logging.getLogger(__name__)


class Nursery:
    """Belongs to one event loop, which runs."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[NoReturn] | None = None
        self._empty = asyncio.Event()

    def __len__(self) -> int:
        """How many are waited for."""
        return len(self._tasks)

    def start(self, work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        """Have it done, from now on."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

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
            cancel(task)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while self._tasks:
                    self._empty.clear()
                    await self._empty.wait()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._empty.set()
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(task, error)

    def _fail(self, task: asyncio.Task[None], error: BaseException) -> None:
        self._failed = self._failed or task.get_loop().create_future()
        if self._failed.done():
            log.error("%s failed, too", task.get_name(), exc_info=error)
        else:
            self._failed.set_exception(error)


def cancel(task: asyncio.Task[Any]) -> None:
    """As `Task.cancel`; what it waits for may be another's, and raise when it is cancelled."""
    try:
        task.cancel()
    except Exception:
        log.exception("%s can't be cancelled", task.get_name())
