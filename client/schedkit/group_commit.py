"""Combine requests of concurrent callers into one transaction or statement (group commit).

    a thousand calls ──▶ collected while the last write runs ──▶ one write ──▶ an answer for each
                         └── requests that it can't decide ──▶ one transaction each

Invariants
- The first caller is served at once. Callers that arrive during a write are served by the next one.
  So the cost per request falls with the load, and no request is delayed to fill a batch.
- One write runs at a time. The answer to a request comes from a write that began after the request.
- If a caller is canceled before its write begins, its request is dropped.
- A write that fails with `BrokenData` wrote nothing. It is split in halves, which are written,
  until the broken request is alone. Any other error is raised to all callers of the write, without
  a retry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import inf
from time import monotonic
from typing import Final, Generic, TypeVar

from schedkit.errors import BrokenData, Unavailable
from schedkit.records import dataclass

Request = TypeVar("Request")
Answer = TypeVar("Answer")

MOST: Final = 500
"""Requests in one write."""
BYTES: Final = 4 * 1024 * 1024
"""Bytes of all requests in one write. A single request may exceed it."""

AT_ONCE: Final = 4
"""Requests of one `ask_all` that run concurrently in separate transactions."""


class GroupCommit(Generic[Request, Answer]):
    """Writes, or reads, the requests of many callers.

    `write`: the transaction for several requests. It returns answers by position, without requests
    that it couldn't decide and didn't write. `alone`: the transaction for one of those; by default
    `write` with that request. Both raise schedkit's errors, or `BrokenData` if nothing was written.

    `size`: a request's size in bytes. `most`: requests in one write. `rest`: minimum seconds
    between the beginnings of two writes. `reads`: a write without callers is canceled, and the next
    one begins.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Request]], Awaitable[Mapping[int, Answer]]],
        alone: Callable[[Request], Awaitable[Answer]] | None = None,
        size: Callable[[Request], int] = lambda _: 0,
        *,
        most: int = MOST,
        rest: float = 0.0,
        reads: bool = False,
    ) -> None:
        self._write = write
        self._alone = alone or self._write_one
        self._size = size
        self._most = most
        self._rest = rest
        self._reads = reads
        self._waiting: dict[_Waiting[Request, Answer], None] = {}
        self._batch: Sequence[_Waiting[Request, Answer]] = ()
        self._writing: asyncio.Task[None] | None = None
        self._began = -inf

    async def ask(self, request: Request) -> Answer:
        """Write one request. Return its answer, or raise the error of its transaction."""
        waiting: _Waiting[Request, Answer]
        waiting = _Waiting(request, asyncio.get_running_loop().create_future())
        self._waiting[waiting] = None
        self._begin()
        try:
            answers = await waiting.answer
        except asyncio.CancelledError:
            self._drop_requests([waiting])
            raise
        return answers[0] if answers else await self._alone(request)

    async def ask_all(
        self, requests: Sequence[Request], together: Callable[[Request], bool]
    ) -> list[Answer | Unavailable]:
        """Return the answers of `ask` to all requests, in order. Requests that aren't `together`
        run in separate transactions, `AT_ONCE` at a time. `Unavailable` is returned as the
        request's answer; other errors are raised.
        """
        loop = asyncio.get_running_loop()
        waiting: list[_Waiting[Request, Answer]]
        waiting = [_Waiting(request, loop.create_future()) for request in requests]
        for each in waiting:
            if together(each.request):
                self._waiting[each] = None
            else:
                each.resolve([])
        self._begin()
        try:
            done = await asyncio.gather(*(each.answer for each in waiting), return_exceptions=True)
        except asyncio.CancelledError:
            self._drop_requests(waiting)
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

    def _drop_requests(self, left: Sequence[_Waiting[Request, Answer]]) -> None:
        """Drop the requests of a canceled caller, before the running write ends."""
        for each in left:
            self._waiting.pop(each, None)
        abandoned = self._batch and all(each.answer.done() for each in self._batch)
        if self._reads and abandoned and self._writing is not None:
            self._writing.cancel()
            self._writing, self._batch = None, ()
            self._begin()

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                if self._rest:
                    await asyncio.sleep(max(0.0, self._began + self._rest - monotonic()))
                self._began = monotonic()
                self._batch = batch = self._next()
                await self._write_for(batch)
                self._batch = ()
        finally:
            if self._writing is asyncio.current_task():  # otherwise it was abandoned and replaced
                self._writing, self._batch = None, ()
                for left in self._waiting:
                    left.answer.cancel()
                self._waiting.clear()

    async def _write_for(self, batch: Sequence[_Waiting[Request, Answer]]) -> None:
        if not batch:
            return
        try:
            answers = await self._write([each.request for each in batch])
        except BrokenData:
            if len(batch) == 1:  # it gets its own transaction and error
                batch[0].resolve([])
                return
            for half in (batch[: len(batch) // 2], batch[len(batch) // 2 :]):
                await self._write_for([each for each in half if not each.answer.done()])
        except BaseException as error:
            for each in batch:
                each.fail(error)
            if not isinstance(error, Exception):
                raise
        else:
            for place, each in enumerate(batch):
                each.resolve([answers[place]] if place in answers else [])

    async def _write_one(self, request: Request) -> Answer:
        return (await self._write([request]))[0]

    def _next(self) -> list[_Waiting[Request, Answer]]:
        """Return the oldest waiting requests, as many as fit into one write."""
        batch: list[_Waiting[Request, Answer]] = []
        size = 0
        for each in [*self._waiting]:
            if each.answer.done():  # its caller was canceled, and hasn't removed it yet
                del self._waiting[each]
                continue
            size += self._size(each.request)
            if len(batch) == self._most or (batch and size > BYTES):
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
