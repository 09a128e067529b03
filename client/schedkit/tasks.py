"""Loops that never end, and sleeps that can be woken: the base of our asyncio tasks.

    step ──ok──→ wait until woken, or `interval` ──→ step …
      └─Unavailable─→ wait a growing backoff, not to be woken ─→ step …

Invariants
- An eternal task that returns is a fault; only cancellation ends it.
- Only this module retries `Unavailable`. Every other exception ends the group.
- A wake-up is never lost: a wake-up during a step makes the next wait return at once.
- A wake-up doesn't shorten a backoff: many wake-ups must not become many calls.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, TypeVar

from schedkit.backoff import Backoff
from schedkit.errors import Fault, Unavailable

log = logging.getLogger(__name__)

T = TypeVar("T")


async def guard(coro_fn: Callable[[], Awaitable[object]], name: str) -> NoReturn:
    """Run a function that must never return: `create_task(guard(loop.run, name), name=name)`.
    Raises Fault: it returned.
    """
    await coro_fn()
    raise Fault(f"the loop {name!r} returned; it must run until it is cancelled")


def heed_cancellation() -> None:
    """Raise the cancellation that a TaskGroup of this task has swallowed, if any. Call it after its
    `except*`.

    Up to Python 3.12, a group that ends for an error of its own drops an outer cancellation; a
    caller that catches the error would continue forever. An error after the end of the group's body
    also leaves the task's cancellation count wrong: so the body waits. Raises
    asyncio.CancelledError: the task was canceled.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def in_turns(items: Iterable[T], every: int = 50) -> AsyncIterator[T]:
    """Yield the items, and let other tasks run after each `every`. For many quick items: hundreds
    at once block the loop for milliseconds on an idle machine, and for tenths of a second on a busy
    one.
    """
    for number, item in enumerate(items, 1):
        yield item
        if number % every == 0:
            await asyncio.sleep(0)


class Turns:
    """`in_turns` for many tasks at the same time: they share the work between two turns of other
    tasks, first come, first served.
    """

    __slots__ = ("_left", "_line", "_most")

    def __init__(self, most: int) -> None:
        self._most = self._left = most
        self._line = asyncio.Lock()

    async def wait_until_allowed(self, items: int) -> None:
        """Return when this many items may be handled in one go."""
        async with self._line:
            if self._left < items:
                await asyncio.sleep(0)
                self._left = self._most
            self._left -= items

    async def batches_of(self, items: Sequence[T]) -> AsyncIterator[Sequence[T]]:
        """Yield all items, as many at a time as may be handled then."""
        for first in range(0, len(items), self._most):
            some = items[first : first + self._most]
            await self.wait_until_allowed(len(some))
            yield some


class Waker:
    """A sleep that can be woken: one sleeper, any number of wakers, on the loop's own thread. From
    another thread: `loop.call_soon_threadsafe(waker.wake)`.
    """

    __slots__ = ("_sleep", "_woken")

    def __init__(self) -> None:
        self._woken = False
        self._sleep: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """End the current sleep, or the next one."""
        self._woken = True
        if self._sleep is not None:
            _end(self._sleep)

    async def wait(self, timeout: float) -> bool:
        """Sleep at most `timeout` seconds. Return True if woken, False if timed out."""
        assert self._sleep is None, "two sleepers"
        if not self._woken:
            loop = asyncio.get_running_loop()
            # not `asyncio.timeout`, which cancels the task: twice the cost for each idle loop
            self._sleep = loop.create_future()
            timer = loop.call_later(timeout, _end, self._sleep)
            try:
                await self._sleep
            finally:
                self._sleep = None
                timer.cancel()
        woken, self._woken = self._woken, False
        return woken


def _end(sleep: asyncio.Future[None]) -> None:
    if not sleep.done():
        sleep.set_result(None)


@dataclass(slots=True)
class Loop:
    """Takes a step every `interval` seconds, or sooner when woken, until canceled.

    `step` may return the maximum seconds until the next step (0: at once), instead of `interval`.
    It raises `Unavailable` if a dependency is unavailable. The loop logs that once, backs off, and
    logs the recovery.
    """

    name: str
    step: Callable[[], Awaitable[float | None]]
    interval: float
    backoff: Backoff = field(default_factory=lambda: Backoff(initial=0.1, maximum=5.0))
    waker: Waker = field(default_factory=Waker)
    _away: bool = field(default=False, init=False)

    def wake(self) -> None:
        """Take the next step now."""
        self.waker.wake()

    async def run(self) -> NoReturn:
        """Step forever. Any exception of a step other than `Unavailable` is raised."""
        while True:
            try:
                pause = await self.step()
            except Unavailable as error:
                await asyncio.sleep(self._failed(error))
            else:
                if self._away:
                    log.info("%s: available again", self.name, extra={"loop": self.name})
                    self._away = False
                self.backoff.reset()
                await self.waker.wait(self.interval if pause is None else pause)

    def _failed(self, error: Unavailable) -> float:
        wait = self.backoff.next()
        log.log(
            logging.DEBUG if self._away else logging.WARNING,
            "%s: %s; retrying in %.1f s",
            self.name,
            error,
            wait,
            extra={"loop": self.name},
        )
        self._away = True
        return wait
