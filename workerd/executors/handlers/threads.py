"""Threads for blocking handlers: without a queue, and without delaying the end of the process.

Invariants
- A call starts at once, in an idle thread or a new one. Admission limits the number.
- If no thread can be started, the call isn't made.
- The threads are daemons: a handler that ignores its `cancel` doesn't prevent the worker's end.
"""

import asyncio
import contextlib
import errno
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_Call = Callable[[], None]


class Threads:
    """A pool that grows with demand and never shrinks."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        self._idle: deque[None] = deque()
        """An entry for each idle thread. No lock: its holder might wait for the interpreter's."""
        self._made = 0

    def submit(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Run a function in a thread. The future belongs to the running loop. Raises OSError:
        EAGAIN, the host is out of threads.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle() -> None:
            answer: T | None = None
            failed: BaseException | None = None
            try:
                answer = function()
            except BaseException as error:  # noqa: BLE001 - passed to the future
                failed = error
            # A closed loop: the worker has ended without waiting for this thread.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_settle, future, answer, failed)

        self.start(settle)
        return future

    def start(self, call: _Call) -> None:
        """Make a call, which raises nothing, in a thread. Raises OSError: EAGAIN, the host is out
        of threads.
        """
        try:
            self._idle.pop()
        except IndexError:
            self._start_thread(call)
        else:
            self._calls.put(call)

    def _start_thread(self, call: _Call) -> None:
        name = f"{self._name} {self._made + 1}"
        thread = threading.Thread(target=self._serve, args=([call],), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, str(error)) from error
        self._made += 1

    def _serve(self, first: list[_Call]) -> None:
        call = first.pop()
        while True:
            call()
            del call  # it refers to a batch, which an idle thread would keep
            self._idle.append(None)
            call = self._calls.get()


def _settle(future: asyncio.Future[Any], answer: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(answer)
    else:
        future.set_exception(error)
