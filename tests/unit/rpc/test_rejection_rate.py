"""How many rejected calls are answered a second."""

from __future__ import annotations

import asyncio

import pytest

from schedd.rpc import rejection_rate
from schedd.rpc.rejection_rate import A_TICK, BURST, RejectionRate
from support.wait import wait_until_async

HERE = "ipv4:10.0.0.1:4711"
THERE = "ipv6:[fd00::1]:4711"


@pytest.fixture
async def rate() -> RejectionRate:
    """Return a rate whose burst is used up."""
    found = RejectionRate()
    for _ in range(BURST):
        await found.wait_until_allowed(HERE)
    assert len(found) == 0
    return found


async def test_calls_past_the_burst_are_held_and_answered_at_the_rate(rate: RejectionRate) -> None:
    began = asyncio.get_running_loop().time()
    await asyncio.gather(*(rate.wait_until_allowed(HERE) for _ in range(60)))
    took = asyncio.get_running_loop().time() - began
    assert took >= (60 / A_TICK - 1) * rejection_rate.TICK - 0.01
    assert (len(rate), rate._held) == (0, {})


async def test_hosts_are_answered_in_turn(rate: RejectionRate) -> None:
    many = [asyncio.create_task(rate.wait_until_allowed(HERE)) for _ in range(1_000)]
    await asyncio.sleep(0)
    await rate.wait_until_allowed(THERE)
    assert sum(each.done() for each in many) < 2 * A_TICK
    for each in many:
        each.cancel()
    await asyncio.wait(many)


async def test_calls_of_callers_that_left_are_released(rate: RejectionRate) -> None:
    held = [asyncio.create_task(rate.wait_until_allowed(HERE)) for _ in range(10)]
    await asyncio.sleep(0)
    assert len(rate) == 10
    for each in held:
        each.cancel()
    await asyncio.wait(held)
    assert (len(rate), rate._held) == (0, {})


async def test_calls_past_the_most_that_are_held_are_answered_at_once(
    rate: RejectionRate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rejection_rate, "MOST_HELD", 3)
    held = [asyncio.create_task(rate.wait_until_allowed(HERE)) for _ in range(3)]
    await asyncio.sleep(0)
    async with asyncio.timeout(rejection_rate.TICK / 2):
        await rate.wait_until_allowed(HERE)
    assert len(rate) == 3
    await asyncio.wait(held)


async def test_the_burst_returns_after_a_quiet_time(rate: RejectionRate) -> None:
    async def at_once() -> bool:
        before = len(rate)
        task = asyncio.create_task(rate.wait_until_allowed(HERE))
        await asyncio.sleep(0)
        answered = task.done() and len(rate) == before
        await task
        return answered

    await wait_until_async(at_once, 5, "a call that is answered at once")
