"""Combine writes that arrive at the same time into one transaction.

    a thousand calls ──▶ collected while the last transaction runs ──▶ one transaction
                         └── requests it can't decide ──▶ one transaction each

The first caller is served at once. Callers during a transaction are served by the next one. So the
cost of a request falls with their number, and no request is delayed to fill a batch. A request
whose caller is canceled before its transaction begins isn't written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from schedkit.errors import BrokenData, Unavailable
from schedkit.records import dataclass

Request = TypeVar("Request")
Answer = TypeVar("Answer")

MOST: Final = 500
"""Requests in one transaction."""
BYTES: Final = 4 * 1024 * 1024
"""Their size in one transaction, in bytes. A single request may exceed it."""

AT_ONCE: Final = 4
"""Requests of one `ask_all` that run in transactions of their own at the same time."""


class GroupCommit(Generic[Request, Answer]):
    """Writes the requests of many callers.

    `write`: the transaction for several requests. It returns answers by place, and leaves out
    requests that it couldn't decide and didn't write. `alone`: the transaction for one of those.
    `size`: a request's size in bytes. Both transactions raise schedkit's errors, or `BrokenData` if
    nothing was written.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Request]], Awaitable[Mapping[int, Answer]]],
        alone: Callable[[Request], Awaitable[Answer]],
        size: Callable[[Request], int],
    ) -> None:
        self._write = write
        self._alone = alone
        self._size = size
        self._waiting: dict[_Waiting[Request, Answer], None] = {}
        self._writing: asyncio.Task[None] | None = None

    async def ask(self, request: Request) -> Answer:
        """Write one request. Returns its answer; raises what its transaction raises."""
        waiting = _Waiting[Request, Answer](request, asyncio.get_running_loop().create_future())
        self._waiting[waiting] = None
        self._begin()
        try:
            answers = await waiting.answer
        except asyncio.CancelledError:
            self._waiting.pop(waiting, None)  # frees the request before the running write ends
            raise
        return answers[0] if answers else await self._alone(request)

    async def ask_all(
        self, requests: Sequence[Request], together: Callable[[Request], bool]
    ) -> list[Answer | Unavailable]:
        """Return what `ask` returns for each, in order. Requests that aren't `together` run in
        transactions of their own, `AT_ONCE` at a time. Raises everything but `Unavailable`, which
        is returned as the request's answer.
        """
        loop = asyncio.get_running_loop()
        waiting = [_Waiting[Request, Answer](request, loop.create_future()) for request in requests]
        for each in waiting:
            if together(each.request):
                self._waiting[each] = None
            else:
                each.resolve([])
        self._begin()
        try:
            done = await asyncio.gather(*(each.answer for each in waiting), return_exceptions=True)
        except asyncio.CancelledError:
            for each in waiting:
                self._waiting.pop(each, None)
            raise
        answers: dict[int, Answer | Unavailable] = {}
        for place, one in enumerate(done):
            if isinstance(one, Unavailable):
                answers[place] = one
            elif isinstance(one, BaseException):
                raise one
            elif one:
                answers[place] = one[0]
        left = iter([place for place in range(len(requests)) if place not in answers])

        async def work_off() -> None:
            for place in left:
                try:
                    answers[place] = await self._alone(requests[place])
                except Unavailable as away:
                    answers[place] = away

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(work_off(), name="alone")
        return [answers[place] for place in range(len(requests))]

    def _begin(self) -> None:
        """Start writing, unless a write is running."""
        if self._writing is None and self._waiting:
            self._writing = asyncio.create_task(self._write_all(), name="group-commit")

    async def _write_all(self) -> None:
        """Write until no caller waits."""
        try:
            while batch := self._next():
                await self._write_for(batch)
        finally:
            self._writing = None
            for left in self._waiting:
                left.answer.cancel()
            self._waiting.clear()

    async def _write_for(self, batch: list[_Waiting[Request, Answer]]) -> None:
        try:
            answers = await self._write([each.request for each in batch])
        except BrokenData:  # one request is broken: each gets its own transaction and error
            answers = {}
        except BaseException as error:
            for each in batch:
                each.fail(error)
            if not isinstance(error, Exception):
                raise
            return
        for place, each in enumerate(batch):
            each.resolve([answers[place]] if place in answers else [])

    def _next(self) -> list[_Waiting[Request, Answer]]:
        """Return the oldest waiting requests, as many as fit into one transaction."""
        batch: list[_Waiting[Request, Answer]] = []
        size = 0
        for each in [*self._waiting]:
            if each.answer.done():  # its caller was canceled, and hasn't removed it yet
                del self._waiting[each]
                continue
            size += self._size(each.request)
            if len(batch) == MOST or (batch and size > BYTES):
                break
            batch.append(each)
        for each in batch:
            del self._waiting[each]
        return batch


@dataclass(slots=True, eq=False)
class _Waiting(Generic[Request, Answer]):
    """A waiting call. `answer`: its answer, or an empty list if it needs its own transaction."""

    request: Request
    answer: asyncio.Future[list[Answer]]

    def resolve(self, answers: list[Answer]) -> None:
        if not self.answer.done():
            self.answer.set_result(answers)

    def fail(self, error: BaseException) -> None:
        if self.answer.done():
            return
        if isinstance(error, Exception):
            self.answer.set_exception(error)
        else:
            self.answer.cancel()
