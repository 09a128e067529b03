"""How many rejected calls are answered a second."""

from __future__ import annotations

import asyncio

import pytest

from schedd.rpc import auth_interceptor, limited_turns
from schedd.rpc.auth_interceptor import BURST, RATE, RejectionRate
from schedd.rpc.limited_turns import TICK

HERE = "ipv4:10.0.0.1"
A_TICK = round(RATE * TICK)


@pytest.fixture
async def rate(monkeypatch: pytest.MonkeyPatch) -> RejectionRate:
    """Return a rate whose burst is used up and doesn't return."""
    monkeypatch.setattr(limited_turns, "boottime", lambda: 1_000.0)
    found = RejectionRate()
    for _ in range(BURST):
        await found.wait_until_allowed(HERE)
    assert len(found) == 0
    return found


async def test_calls_past_the_burst_are_held_and_answered_at_the_rate(rate: RejectionRate) -> None:
    began = asyncio.get_running_loop().time()
    await asyncio.gather(*(rate.wait_until_allowed(HERE) for _ in range(60)))
    took = asyncio.get_running_loop().time() - began
    assert took >= (60 / A_TICK - 1) * TICK - 0.01
    assert len(rate) == 0


async def test_calls_of_callers_that_left_are_released(rate: RejectionRate) -> None:
    held = [asyncio.create_task(rate.wait_until_allowed(HERE)) for _ in range(10)]
    await asyncio.sleep(0)
    assert len(rate) == 10
    for each in held:
        each.cancel()
    await asyncio.wait(held)
    assert len(rate) == 0


async def test_calls_past_the_most_that_are_held_are_answered_at_once(
    rate: RejectionRate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth_interceptor, "MOST_HELD", 3)
    held = [asyncio.create_task(rate.wait_until_allowed(HERE)) for _ in range(3)]
    await asyncio.sleep(0)
    at_once = asyncio.create_task(rate.wait_until_allowed(HERE))
    await asyncio.sleep(0)
    assert at_once.done()
    assert len(rate) == 3
    await asyncio.wait(held)
