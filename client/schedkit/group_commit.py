"""Combine requests of concurrent callers into one transaction or statement (group commit).

    a thousand calls ──▶ collected while the last write runs ──▶ one write ──▶ an answer for each
                         └── requests that it can't decide ──▶ one transaction each

The rules are in docs/decisions/2026-11-29-one-single-flight-and-one-group-commit.md.
- No request is delayed to fill a batch: the first caller is served at once.
- A write that fails with `BrokenData` wrote nothing. It is split in halves, until the broken
  request is alone. Any other error is raised to all callers of the write, without a retry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field
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
        self._batch: Sequence[tuple[_Waiting[Request, Answer], int]] = ()
        self._writing: asyncio.Task[None] | None = None
        self._began = -inf

    async def ask(self, request: Request) -> Answer:
        """Write one request. Return its answer, or raise the error of its transaction."""
        found = await self._found([request])
        if not found:
            return await self._alone(request)
        if isinstance(found[0], Exception):
            raise found[0]
        return found[0]

    async def ask_all(
        self, requests: Sequence[Request], together: Callable[[Request], bool]
    ) -> list[Answer | Unavailable]:
        """Return the answers of `ask` to all requests, in order. Requests that aren't `together`
        run in separate transactions, `AT_ONCE` at a time. `Unavailable` is returned as the
        request's answer; other errors are raised.
        """
        places = [place for place, request in enumerate(requests) if together(request)]
        found = await self._found([requests[place] for place in places]) if places else {}
        answers: dict[int, Answer | Unavailable] = {}
        for at, one in found.items():
            if isinstance(one, Exception) and not isinstance(one, Unavailable):
                raise one
            answers[places[at]] = one
        left = iter([place for place in range(len(requests)) if place not in answers])

        async def work_off() -> None:
            for place in left:
                try:
                    answers[place] = await self._alone(requests[place])
                except Unavailable as away:
                    answers[place] = away

        if len(answers) < len(requests):
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(work_off(), name="alone")
        return [answers[place] for place in range(len(requests))]

    async def _found(self, requests: Sequence[Request]) -> Mapping[int, Answer | Exception]:
        """Return answers and errors of a caller's requests by place, without requests that need
        their own transaction.
        """
        waiting: _Waiting[Request, Answer]
        waiting = _Waiting(requests, asyncio.get_running_loop().create_future())
        self._waiting[waiting] = None
        self._begin()
        try:
            await waiting.answered
        except asyncio.CancelledError:
            self._drop(waiting)
            raise
        return waiting.found

    def _begin(self) -> None:
        """Start writing, unless a write is running."""
        if self._writing is None and self._waiting:
            self._writing = asyncio.create_task(self._write_all(), name="group-commit")

    def _drop(self, left: _Waiting[Request, Answer]) -> None:
        """Drop the requests of a canceled caller, before the running write ends."""
        self._waiting.pop(left, None)
        abandoned = self._batch and all(each.answered.done() for each, _ in self._batch)
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
                for left in (*(each for each, _ in self._batch), *self._waiting):
                    left.answered.cancel()
                self._writing, self._batch = None, ()
                self._waiting.clear()

    async def _write_for(self, batch: Sequence[tuple[_Waiting[Request, Answer], int]]) -> None:
        """Write these requests. Callers whose last request is written don't wait for others."""
        if not batch:
            return
        try:
            answers = await self._write([each.requests[at] for each, at in batch])
        except BrokenData:
            if len(batch) > 1:
                for half in (batch[: len(batch) // 2], batch[len(batch) // 2 :]):
                    await self._write_for([one for one in half if not one[0].answered.done()])
                return  # a single request gets its own transaction and error
        except Exception as error:  # noqa: BLE001 - raised to the callers
            for each, at in batch:
                each.found[at] = error
        else:
            for place, answer in answers.items():
                each, at = batch[place]
                each.found[at] = answer
        for each, at in batch:
            each.resolve(at)

    async def _write_one(self, request: Request) -> Answer:
        return (await self._write([request]))[0]

    def _next(self) -> list[tuple[_Waiting[Request, Answer], int]]:
        """Return the oldest waiting requests, as many as fit into one write."""
        batch: list[tuple[_Waiting[Request, Answer], int]] = []
        size = 0
        for each in [*self._waiting]:
            if each.answered.done():  # its caller was canceled, and hasn't removed it yet
                del self._waiting[each]
                continue
            while each.begun < len(each.requests):
                size += self._size(each.requests[each.begun])
                if len(batch) == self._most or (batch and size > BYTES):
                    return batch
                batch.append((each, each.begun))
                each.begun += 1
            del self._waiting[each]
        return batch


@dataclass(slots=True, eq=False)
class _Waiting(Generic[Request, Answer]):
    """A waiting call. `found`: the answers and errors of its requests, by place. A request without
    one needs its own transaction. `begun`: how many of its requests are in a write, or were.
    """

    requests: Sequence[Request]
    answered: asyncio.Future[None]
    found: dict[int, Answer | Exception] = field(default_factory=dict)
    begun: int = 0

    def resolve(self, at: int) -> None:
        """End the wait if this request is the last one."""
        if at == len(self.requests) - 1 and not self.answered.done():
            self.answered.set_result(None)
