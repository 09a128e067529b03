"""The tasks of all attempts: like a TaskGroup, but with a limit on the wait at the end.

start ─→ task ─┬─ ends ─→ forgotten
               └─ fails ─→ `failed` raises it: a bug, which ends the worker
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any, NoReturn

log = logging.getLogger(__name__)


class TaskSet:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[NoReturn] | None = None
        self._empty = asyncio.Event()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._remove_task)
        return task

    async def failed(self) -> NoReturn:
        self._failed = self._failed or asyncio.get_running_loop().create_future()
        await asyncio.shield(self._failed)
        raise AssertionError("unreachable: only the error of a task ends the wait")

    async def close(self, within: float) -> None:
        """Cancel all tasks and wait until they, and tasks that they start, have ended; at most
        `within` seconds.
        """
        for task in self._tasks:
            cancel(task)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while self._tasks:
                    self._empty.clear()
                    await self._empty.wait()

    def _remove_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._empty.set()
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failed = self._failed or task.get_loop().create_future()
            if self._failed.done():
                log.error("another task failed: %s", task.get_name(), exc_info=error)
            else:
                self._failed.set_exception(error)


def cancel(task: asyncio.Task[Any]) -> None:
    """Cancel a task. Foreign code that the task awaits may raise from `cancel`; log that."""
    try:
        task.cancel()
    except Exception:
        log.exception("task %s can't be canceled", task.get_name())
