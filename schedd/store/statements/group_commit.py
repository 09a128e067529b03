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
from typing import Final, Generic, TypeVar

from schedkit.errors import BrokenData, Unavailable
from schedkit.records import dataclass

Wish = TypeVar("Wish")
Answer = TypeVar("Answer")

MOST: Final = 500
"""Wishes in one transaction."""
BYTES: Final = 4 * 1024 * 1024
"""And of what they say, unless it is a single one."""

AT_ONCE: Final = 4
"""Of those that came together and are asked for alone."""


class GroupCommit(Generic[Wish, Answer]):
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
        self._waiting: dict[_Waiting[Wish, Answer], None] = {}
        self._writing: asyncio.Task[None] | None = None

    async def ask(self, wish: Wish) -> Answer:
        """Written, or what stands against it. Raises what its transaction raises."""
        waiting = _Waiting[Wish, Answer](wish, asyncio.get_running_loop().create_future())
        self._waiting[waiting] = None
        self._begin()
        try:
            answers = await waiting.answer
        except asyncio.CancelledError:
            self._waiting.pop(waiting, None)  # what it holds goes now, however long a write takes
            raise
        return answers[0] if answers else await self._alone(wish)

    async def ask_all(
        self, wishes: Sequence[Wish], together: Callable[[Wish], bool]
    ) -> list[Answer | Unavailable]:
        """What `ask` gives for each, in order; those that aren't to be written `together` are asked
        for alone, a few at a time. Raises what is no word of the world's.
        """
        loop = asyncio.get_running_loop()
        waiting = [_Waiting[Wish, Answer](wish, loop.create_future()) for wish in wishes]
        for each in waiting:
            if together(each.wish):
                self._waiting[each] = None
            else:
                each.tell([])
        self._begin()
        try:
            told = await asyncio.gather(*(each.answer for each in waiting), return_exceptions=True)
        except asyncio.CancelledError:
            for each in waiting:
                self._waiting.pop(each, None)
            raise
        answers: dict[int, Answer | Unavailable] = {}
        for place, one in enumerate(told):
            if isinstance(one, Unavailable):
                answers[place] = one
            elif isinstance(one, BaseException):
                raise one
            elif one:
                answers[place] = one[0]
        left = iter([place for place in range(len(wishes)) if place not in answers])

        async def work_off() -> None:
            for place in left:
                try:
                    answers[place] = await self._alone(wishes[place])
                except Unavailable as away:
                    answers[place] = away

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(work_off(), name="alone")
        return [answers[place] for place in range(len(wishes))]

    def _begin(self) -> None:
        """Write, unless that is under way."""
        if self._writing is None and self._waiting:
            self._writing = asyncio.create_task(self._write_all(), name="together")

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
        batch: list[_Waiting[Wish, Answer]] = []
        size = 0
        for each in [*self._waiting]:
            if each.answer.done():  # its caller has left, and hasn't had its turn yet
                del self._waiting[each]
                continue
            size += self._size(each.wish)
            if len(batch) == MOST or (batch and size > BYTES):
                break
            batch.append(each)
        for each in batch:
            del self._waiting[each]
        return batch


@dataclass(slots=True, eq=False)
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
