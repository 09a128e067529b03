"""What many ask to be written at one time, written in one transaction.

    a thousand calls ──▶ gathered while the last transaction runs ──▶ one transaction
                         └── what it can't judge ──▶ each by itself

Who asks first is served at once; who asks while a transaction runs, by the next one. So the more
ask, the less each costs, and nobody waits for others to come. Who leaves before its turn isn't
written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from schedd.store.errors import BrokenData

Wish = TypeVar("Wish")
Answer = TypeVar("Answer")

MOST: Final = 500
"""Wishes in one transaction."""
BYTES: Final = 4 * 1024 * 1024
"""And of what they say, unless it is a single one."""


class Together(Generic[Wish, Answer]):
    """Writes for many.

    `write`: the transaction for several; the answers by their places, without those of wishes that
    it couldn't judge and didn't write. `alone`: the transaction for one of those. `size`: the bytes
    of one. Both transactions raise schedkit's errors, or `BrokenData` when nothing was written.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Wish]], Awaitable[Mapping[int, Answer]]],
        alone: Callable[[Wish], Awaitable[Answer]],
        size: Callable[[Wish], int],
    ) -> None:
        self._write = write
        self._alone = alone
        self._size = size
        self._waiting: list[_Waiting[Wish, Answer]] = []
        self._writing: asyncio.Task[None] | None = None

    async def ask(self, wish: Wish) -> Answer:
        """Written, or what stands against it. Raises what its transaction raises."""
        waiting = _Waiting[Wish, Answer](wish, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all(), name="together")
        answers = await waiting.answer
        return answers[0] if answers else await self._alone(wish)

    async def _write_all(self) -> None:
        """Until nobody waits."""
        try:
            while batch := self._next():
                await self._write_for(batch)
        finally:
            self._writing = None
            for left in self._waiting:
                left.answer.cancel()
            self._waiting.clear()

    async def _write_for(self, batch: list[_Waiting[Wish, Answer]]) -> None:
        try:
            answers = await self._write([each.wish for each in batch])
        except BrokenData:  # of one of them: by itself each hears of its own
            answers = {}
        except BaseException as error:
            for each in batch:
                each.fail(error)
            if not isinstance(error, Exception):
                raise
            return
        for place, each in enumerate(batch):
            each.tell([answers[place]] if place in answers else [])

    def _next(self) -> list[_Waiting[Wish, Answer]]:
        """The oldest that still wait, as many as one transaction takes."""
        there = [each for each in self._waiting if not each.answer.done()]
        batch: list[_Waiting[Wish, Answer]] = []
        size = 0
        for each in there[:MOST]:
            size += self._size(each.wish)
            if batch and size > BYTES:
                break
            batch.append(each)
        self._waiting = there[len(batch) :]
        return batch


@dataclass(slots=True)
class _Waiting(Generic[Wish, Answer]):
    """One call. `answer`: its answer, or nothing: to be asked for alone."""

    wish: Wish
    answer: asyncio.Future[list[Answer]]

    def tell(self, answers: list[Answer]) -> None:
        if not self.answer.done():
            self.answer.set_result(answers)

    def fail(self, error: BaseException) -> None:
        if self.answer.done():
            return
        if isinstance(error, Exception):
            self.answer.set_exception(error)
        else:
            self.answer.cancel()
