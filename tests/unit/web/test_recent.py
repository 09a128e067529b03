"""A value that was read a moment ago is valid for a while, and then read again."""

from __future__ import annotations

import asyncio

from schedd.web.pages.page import Recent
from schedkit.errors import Unavailable


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_a_value_is_read_again_when_it_is_no_longer_valid() -> None:
    clock, read = Clock(), list[float]()
    recent = Recent(clock)

    async def reading() -> int:
        read.append(clock.now)
        return len(read)

    assert [await recent.get_or_read("a", 10.0, reading) for _ in range(3)] == [1, 1, 1]
    assert await recent.get_or_read("b", 10.0, reading) == 2
    clock.now += 10.5
    assert await recent.get_or_read("a", 10.0, reading) == 3
    assert read == [100.0, 100.0, 110.5]


class Slow:
    """A reading that takes until it is let go, or fails then."""

    def __init__(self) -> None:
        self.begun = 0
        self.let_go = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> int:
        self.begun += 1
        number = self.begun
        await self.let_go.wait()
        if self.error is not None:
            raise self.error
        return number

    async def asked(self, many: int) -> list[asyncio.Task[int]]:
        """By so many at once, who all wait."""
        recent = Recent()
        tasks = [
            asyncio.create_task(recent.get_or_read("a", 60.0, self), name=f"asks {number}")
            for number in range(many)
        ]
        await asyncio.sleep(0)
        return tasks


async def test_a_caller_during_a_read_waits_for_that_read() -> None:
    """Else all who look when it is good no longer read it, each after the others."""
    slow = Slow()
    tasks = await slow.asked(5)
    slow.let_go.set()
    assert await asyncio.gather(*tasks) == [1] * 5
    assert slow.begun == 1


async def test_an_unavailable_database_is_reported_to_all_waiting_callers() -> None:
    slow = Slow()
    slow.error = Unavailable("the database is away")
    tasks = await slow.asked(5)
    slow.let_go.set()
    assert await asyncio.gather(*tasks, return_exceptions=True) == [slow.error] * 5
    assert slow.begun == 1


async def test_an_error_of_one_caller_is_not_reported_to_others() -> None:
    """Other callers may have more rights."""
    slow = Slow()
    slow.error = PermissionError("not you")
    tasks = await slow.asked(2)
    slow.let_go.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert slow.begun == 2
