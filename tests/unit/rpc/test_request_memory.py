"""Memory of requests is bounded, however many call (docs/operations/connection-limits.md)."""

from __future__ import annotations

import asyncio

import pytest

from schedd.rpc.request_decoding import SOON, WHILE_READ, RequestMemory
from support.wait import WAIT_TIMEOUT, wait_until_async

MOST = 10 * WHILE_READ


@pytest.fixture
def in_hand() -> RequestMemory:
    return RequestMemory(MOST)


class Call:
    """A call that holds its request until `end`."""

    def __init__(self, in_hand: RequestMemory, size: int) -> None:
        self._in_hand, self._size = in_hand, size
        self.read, self.ends = False, asyncio.Event()
        self.task = asyncio.create_task(self._run(), name="call")

    async def _run(self) -> None:
        async with self._in_hand.admit_call() as turn:
            self.read = True
            turn.weighs(self._size)
            await self.ends.wait()

    async def end(self) -> None:
        self.ends.set()
        await self.task


async def read_states(*calls: Call) -> list[bool]:
    for _ in range(5):
        await asyncio.sleep(0)
    return [call.read for call in calls]


async def test_a_request_over_the_limit_waits_for_one_that_ends(in_hand: RequestMemory) -> None:
    one, other = Call(in_hand, MOST // 2), Call(in_hand, MOST // 2)
    third, fourth = Call(in_hand, MOST), Call(in_hand, 10)
    assert await read_states(one, other, third, fourth) == [True, True, False, False]
    await one.end()
    assert await read_states(third, fourth) == [True, True], (
        "how much they weigh is known once read"
    )
    fifth = Call(in_hand, 10)
    await other.end()
    assert await read_states(fifth) == [False]
    await third.end()
    assert await read_states(fifth) == [True]
    await fourth.end()
    await fifth.end()
    assert in_hand.taken == 0


async def test_a_slow_sender_delays_no_other_for_long(in_hand: RequestMemory) -> None:
    async def sends_nothing() -> None:
        async with in_hand.admit_call():
            await asyncio.Event().wait()

    slow = [asyncio.create_task(sends_nothing(), name="slow") for _ in range(10)]
    await asyncio.sleep(0)
    other = Call(in_hand, 10)
    assert await read_states(other) == [False]
    await wait_until_async(lambda: other.read, SOON + WAIT_TIMEOUT, "the other to be read")
    for one in slow:
        one.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    await other.end()
    assert in_hand.taken == 0


async def test_any_number_of_small_requests_is_read_at_once(in_hand: RequestMemory) -> None:
    calls = [Call(in_hand, 100) for _ in range(2_000)]
    await wait_until_async(lambda: all(call.read for call in calls), WAIT_TIMEOUT, "all to be read")
    assert in_hand.taken == 2_000 * 100
    for call in calls:
        await call.end()
    assert in_hand.taken == 0


async def test_a_caller_that_leaves_while_waiting_or_just_admitted_holds_nothing(
    in_hand: RequestMemory,
) -> None:
    large, waiting, next_one = Call(in_hand, MOST), Call(in_hand, 1), Call(in_hand, 1)
    assert await read_states(large, waiting, next_one) == [True, False, False]
    large.ends.set()
    await large.task  # both were let in, and neither has run
    waiting.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting.task
    assert await read_states(next_one) == [True]
    await next_one.end()
    assert in_hand.taken == 0


async def test_a_caller_that_leaves_while_memory_is_full_is_dropped_at_once(
    in_hand: RequestMemory,
) -> None:
    large = Call(in_hand, MOST)
    waiting = [Call(in_hand, 1) for _ in range(100)]
    await read_states(large)
    for one in waiting:
        one.task.cancel()
    await asyncio.gather(*(one.task for one in waiting), return_exceptions=True)
    assert len(in_hand._waiting) == 0
    await large.end()


async def test_a_failed_call_releases_its_memory(in_hand: RequestMemory) -> None:
    async def fails() -> None:
        async with in_hand.admit_call() as turn:
            turn.weighs(MOST)
            raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        await fails()
    assert in_hand.taken == 0
