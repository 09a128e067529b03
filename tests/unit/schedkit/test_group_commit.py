"""Group commit: concurrent requests share a transaction, and each receives its own result."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Mapping, Sequence

import pytest

from schedkit.errors import BrokenData, Unavailable
from schedkit.group_commit import BYTES, MOST, GroupCommit


class Table:
    """A table that writes odd numbers together, and leaves even ones to be written alone."""

    def __init__(self) -> None:
        self.written: list[list[int]] = []
        self.alone: list[int] = []
        self.error: Exception | None = None
        self.open = asyncio.Event()
        self.open.set()
        self.together = GroupCommit(self.write, self.write_alone, lambda number: number)

    async def write(self, numbers: Sequence[int]) -> Mapping[int, str]:
        self.written.append([*numbers])
        await self.open.wait()
        if self.error is not None:
            raise self.error
        return {place: f"all {n}" for place, n in enumerate(numbers) if n % 2}

    async def write_alone(self, number: int) -> str:
        self.alone.append(number)
        if number == 0:
            raise BrokenData("zero")
        return f"alone {number}"


async def test_a_single_request_is_written_at_once() -> None:
    table = Table()
    assert await table.together.ask(1) == "all 1"
    assert await table.together.ask(3) == "all 3"
    assert table.written == [[1], [3]]


async def test_a_request_during_a_transaction_is_written_by_the_next_one() -> None:
    table = Table()
    table.open.clear()
    first = asyncio.create_task(table.together.ask(1))
    await asyncio.sleep(0)
    others = [asyncio.create_task(table.together.ask(2 * n + 1)) for n in range(1, 2 * MOST)]
    await asyncio.sleep(0)
    table.open.set()
    assert await asyncio.gather(first, *others) == [f"all {2 * n + 1}" for n in range(2 * MOST)]
    assert [len(batch) for batch in table.written] == [1, MOST, MOST - 1]


async def test_a_request_that_cant_be_written_together_is_written_alone() -> None:
    table = Table()
    answers = await asyncio.gather(*(table.together.ask(n) for n in (1, 2, 3)))
    assert answers == ["all 1", "alone 2", "all 3"]


async def test_a_value_that_breaks_the_statement_fails_its_own_call_alone() -> None:
    table = Table()
    table.error = BrokenData("one of them")
    answers = await asyncio.gather(*(table.together.ask(n) for n in (1, 0)), return_exceptions=True)
    assert answers[0] == "alone 1"
    assert isinstance(answers[1], BrokenData)


async def test_a_broken_request_is_found_by_bisection_and_the_others_are_written_together() -> None:
    table, written = Table(), list[int]()

    async def write(numbers: Sequence[int]) -> Mapping[int, str]:
        written.append(len(numbers))
        if 0 in numbers:
            raise BrokenData("zero")
        return dict.fromkeys(range(len(numbers)), "together")

    together = GroupCommit(write, table.write_alone, lambda number: number)
    answers = await asyncio.gather(
        *(together.ask(number) for number in range(64)), return_exceptions=True
    )
    assert isinstance(answers[0], BrokenData)
    assert answers[1:] == ["together"] * 63
    assert written == [64, 32, 16, 8, 4, 2, 1, 1, 2, 4, 8, 16, 32]
    assert table.alone == [0]


async def test_a_written_request_is_answered_while_the_rest_of_a_bisection_hangs() -> None:
    hangs = asyncio.Event()

    async def write(numbers: Sequence[int]) -> Mapping[int, str]:
        if 0 in numbers:
            if len(numbers) == 1:
                await hangs.wait()
            raise BrokenData("zero")
        return dict.fromkeys(range(len(numbers)), "together")

    together = GroupCommit(write)
    one, broken, many = (
        asyncio.create_task(together.ask(1), name="one"),
        asyncio.create_task(together.ask(0), name="broken"),
        asyncio.create_task(together.ask_all([2, 3], lambda _: True), name="many"),
    )
    assert await asyncio.wait_for(one, 5) == "together"
    assert [task.done() for task in (broken, many)] == [False, False]
    hangs.set()
    assert await many == ["together", "together"]
    with pytest.raises(BrokenData):
        await broken


async def test_a_request_canceled_during_a_bisection_is_not_written() -> None:
    halves, written = asyncio.Event(), list[list[int]]()

    async def write(numbers: Sequence[int]) -> Mapping[int, str]:
        written.append([*numbers])
        if 0 in numbers:
            await halves.wait()
            raise BrokenData("zero")
        return dict.fromkeys(range(len(numbers)), "together")

    together = GroupCommit(write)
    broken, left, right = (asyncio.create_task(together.ask(n), name=f"{n}") for n in (0, 1, 2))
    for _ in range(3):
        await asyncio.sleep(0)
    left.cancel()
    await asyncio.wait([left])
    halves.set()
    assert await right == "together"
    with pytest.raises(BrokenData):
        await broken
    assert written == [[0, 1, 2], [0], [2], [0]]


@pytest.mark.parametrize("error", [Unavailable("away"), RuntimeError("a defect")])
async def test_a_request_that_may_have_been_written_is_never_written_again(
    error: Exception,
) -> None:
    table = Table()
    table.error = error
    answers = await asyncio.gather(*(table.together.ask(n) for n in (1, 2)), return_exceptions=True)
    assert answers == [error, error]
    assert table.alone == []
    table.error = None
    assert await table.together.ask(5) == "all 5"


async def test_a_request_canceled_before_its_turn_isnt_written() -> None:
    table = Table()
    table.open.clear()
    first, left, last = (asyncio.create_task(table.together.ask(n)) for n in (1, 3, 5))
    await asyncio.sleep(0)
    second = asyncio.create_task(table.together.ask(7))
    await asyncio.sleep(0)
    second.cancel()
    table.open.set()
    assert [*await asyncio.gather(first, left, last)] == ["all 1", "all 3", "all 5"]
    assert all(7 not in batch for batch in table.written)


async def test_large_requests_share_a_transaction_only_while_it_stays_small() -> None:
    table = Table()
    sizes = [BYTES // 2 - 1, BYTES // 2 + 1, BYTES * 3 + 1, 1]
    await asyncio.gather(*(table.together.ask(size) for size in sizes))
    assert table.written == [sizes[:2], sizes[2:3], sizes[3:]]


async def test_a_request_canceled_as_the_next_transaction_begins_isnt_written() -> None:
    table = Table()
    table.open.clear()
    first = asyncio.create_task(table.together.ask(1), name="first")
    await asyncio.sleep(0)
    leaves = asyncio.create_task(table.together.ask(3), name="leaves")
    many = asyncio.create_task(table.together.ask_all([5, 7], lambda _: True), name="many")
    await asyncio.sleep(0)
    leaves.cancel()
    many.cancel()
    table.open.set()
    await asyncio.gather(first, leaves, many, return_exceptions=True)
    await asyncio.sleep(0)
    assert table.written == [[1]]


async def test_a_canceled_writer_ends_its_waiting_requests() -> None:
    table = Table()
    table.open.clear()
    asked = [asyncio.create_task(table.together.ask(n)) for n in (1, 3)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    late = asyncio.create_task(table.together.ask(5))
    await asyncio.sleep(0)
    [writer] = [task for task in asyncio.all_tasks() if task.get_name() == "group-commit"]
    writer.cancel()
    answers = await asyncio.wait_for(
        asyncio.gather(*asked, late, return_exceptions=True), timeout=5
    )
    assert all(isinstance(answer, asyncio.CancelledError) for answer in answers)


async def test_a_callers_many_requests_are_written_together_and_answered_in_order() -> None:
    table = Table()
    answers = await table.together.ask_all([1, 2, 3, 5], lambda number: number != 5)
    assert answers == ["all 1", "alone 2", "all 3", "alone 5"]
    assert table.written == [[1, 2, 3]]


async def test_a_failure_of_some_of_many_requests_is_returned_for_those_only() -> None:
    table = Table()
    requests = [1, BYTES, 3]

    async def write(numbers: Sequence[int]) -> Mapping[int, str]:
        if 1 in numbers:
            raise Unavailable("gone")
        return await Table.write(table, numbers)

    together = GroupCommit(write, table.write_alone, lambda number: number)
    first, second, third = await together.ask_all(requests, lambda _: True)
    assert isinstance(first, Unavailable)
    assert (second, third) == (f"alone {BYTES}", "all 3")


async def test_none_of_a_canceled_callers_many_requests_is_written() -> None:
    table = Table()
    table.open.clear()
    first = asyncio.create_task(table.together.ask(1))
    await asyncio.sleep(0)
    many = asyncio.create_task(table.together.ask_all([3, 5], lambda _: True))
    await asyncio.sleep(0)
    many.cancel()
    await asyncio.wait([many])
    table.open.set()
    assert await first == "all 1"
    assert table.written == [[1]]


@pytest.mark.parametrize("many", [False, True])
async def test_a_canceled_request_is_released_while_a_transaction_hangs(many: bool) -> None:
    """Otherwise a hanging database fills memory with requests that have no caller."""

    class Large:
        pass

    async def write(requests: Sequence[Large | None]) -> Mapping[int, str]:
        await asyncio.Event().wait()
        return {}

    async def alone(request: Large | None) -> str:
        return ""

    together = GroupCommit(write, alone, lambda request: 1)
    first = asyncio.create_task(together.ask(None), name="first")
    await asyncio.sleep(0)
    large = Large()
    gone = weakref.ref(large)
    asked = together.ask_all([large], lambda request: True) if many else together.ask(large)
    leaves = asyncio.create_task(asked, name="leaves")
    await asyncio.sleep(0)
    leaves.cancel()
    await asyncio.gather(leaves, return_exceptions=True)
    del large, asked, leaves
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()
    assert gone() is None
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)


class RunPages:
    """Reads that last until they are released."""

    def __init__(self) -> None:
        self.begun: list[list[int]] = []
        self.canceled = 0
        self.let_go = asyncio.Event()

    async def __call__(self, numbers: Sequence[int]) -> Mapping[int, int]:
        self.begun.append([*numbers])
        try:
            await self.let_go.wait()
        except asyncio.CancelledError:
            self.canceled += 1
            raise
        return dict(enumerate(numbers))


@pytest.mark.parametrize("reads", [True, False])
async def test_a_read_without_callers_is_canceled_and_a_write_never_is(*, reads: bool) -> None:
    read = RunPages()
    together = GroupCommit(read, reads=reads)
    first, second = (asyncio.create_task(together.ask(n), name=f"{n}") for n in (1, 2))
    for _ in range(3):
        await asyncio.sleep(0)
    third = asyncio.create_task(together.ask(3), name="3")
    for leaves in (first, second):
        assert read.begun == [[1, 2]], "the other one still waits for it"
        leaves.cancel()
        await asyncio.wait([leaves])
        await asyncio.sleep(0)
    assert read.canceled == reads
    read.let_go.set()
    assert await asyncio.wait_for(third, 5) == 3
    assert read.begun == [[1, 2], [3]]
    assert await asyncio.wait_for(together.ask(4), 5) == 4


async def test_the_starts_of_two_reads_are_separated_by_a_pause() -> None:
    read = RunPages()
    read.let_go.set()
    together = GroupCommit(read, rest=0.1)
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await together.ask(1) == 1
    assert loop.time() - began < 0.09
    assert await asyncio.gather(together.ask(2), together.ask(3)) == [2, 3]
    assert loop.time() - began >= 0.09
    assert read.begun == [[1], [2, 3]]


async def test_reads_are_limited_to_most_at_once() -> None:
    read = RunPages()
    read.let_go.set()
    together = GroupCommit(read, most=2)
    assert await asyncio.gather(*(together.ask(n) for n in range(5))) == [*range(5)]
    assert read.begun == [[0, 1], [2, 3], [4]]
