"""A call of a coroutine function on a loop of handlers, from its submission to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from workerd.task_set import cancel

if TYPE_CHECKING:
    from workerd.executors.handlers.current_run import CurrentRun

T = TypeVar("T")


class Home(Protocol):
    """A loop of handlers, as its calls use it."""

    def withdraw(self, call: LoopCall[Any]) -> bool:
        """Remove a call that hasn't begun. Return False if it has."""
        ...

    def end(self, call: LoopCall[Any], result: Any, error: BaseException | None) -> None:
        """Resolve a call that has ended, or won't begin."""
        ...

    def call(self, function: Callable[..., object], *given: object) -> None: ...


class LoopCall(Generic[T]):
    """A call of a coroutine function on a loop of handlers. Belongs to the worker's loop."""

    home: Home | None = None
    """The loop to which it was submitted last."""
    task: asyncio.Task[None] | None = None
    """Set by the loop on which it begins, until it ends."""
    ended = False
    """Set when it has ended, before `resolve`."""

    @property
    def run(self) -> CurrentRun | None:
        return None

    @property
    def name(self) -> str:
        """The name of its task."""
        return "call on a loop of handlers"

    async def work(self) -> T:
        """Await the coroutine function."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Cancel the call: at once if it hasn't begun, otherwise by canceling its task."""
        if self.home is None:
            return
        if self.home.withdraw(self):
            self.home.end(self, None, None)
        else:
            self.home.call(self._cancel_task)

    def resolve(self, result: T | None, error: BaseException | None) -> None:
        """Record the end of the call: its result, or the error that was raised. Neither: it was
        canceled before it began.
        """
        raise NotImplementedError

    def _cancel_task(self) -> None:
        if self.task is not None:
            cancel(self.task)


class CoroutineCall(LoopCall[T]):
    """A call whose result is awaited."""

    def __init__(self, function: Callable[[], Awaitable[T]]) -> None:
        self._function = function
        self.done: asyncio.Future[T | None] = asyncio.get_running_loop().create_future()
        """The result; None if it was canceled before it began, or raised `error`."""
        self.error: BaseException | None = None

    async def work(self) -> T:
        return await self._function()

    def resolve(self, result: T | None, error: BaseException | None) -> None:
        if not self.done.done():
            self.error = error
            self.done.set_result(result)
