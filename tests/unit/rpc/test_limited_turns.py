"""Items are released at a limited rate, in turn by host."""

from __future__ import annotations

import asyncio

import pytest

from schedd.rpc import limited_turns
from schedd.rpc.limited_turns import FREE_A_TICK, TICK, LimitedTurns
from support.wait import WAIT_TIMEOUT, wait_until_async

HERE, THERE = "ipv4:10.0.0.1", "ipv6:[fd00::1]"
A_TICK = 4
RATE = A_TICK / TICK


@pytest.fixture
def released() -> list[int]:
    return []


@pytest.fixture
def turns(released: list[int]) -> LimitedTurns[int]:
    """Turns without a burst. Negative items don't count against the rate."""

    def release(item: int) -> bool:
        released.append(item)
        return item >= 0

    return LimitedTurns(RATE, 0, release)


async def wait_for_ticks(released: list[int], most: int) -> None:
    before = len(released)
    await wait_until_async(lambda: len(released) > before, WAIT_TIMEOUT, "a tick")
    assert len(released) - before <= most


async def test_each_tick_releases_as_many_as_the_rate_allows(
    turns: LimitedTurns[int], released: list[int]
) -> None:
    for item in range(10):
        turns.add(HERE, item)
    sizes = []
    while turns:
        before = len(released)
        turns._release_some()
        sizes.append(len(released) - before)
    assert (sizes, released) == ([A_TICK, A_TICK, 2], [*range(10)])


async def test_waiting_items_are_released_without_further_calls(
    turns: LimitedTurns[int], released: list[int]
) -> None:
    began = asyncio.get_running_loop().time()
    for item in range(20):
        turns.add(HERE, item)
    await wait_until_async(lambda: len(released) == 20, WAIT_TIMEOUT, "all items")
    assert asyncio.get_running_loop().time() - began >= 5 * TICK - 0.01
    assert len(turns) == 0


async def test_hosts_are_released_in_turn(turns: LimitedTurns[int], released: list[int]) -> None:
    for item in range(1_000):
        turns.add(HERE, item)
    turns.add(THERE, 5_000)
    turns._release_some()
    assert released == [0, 5_000, 1, 2]


async def test_items_outside_of_the_rate_are_released_at_once_up_to_a_limit(
    turns: LimitedTurns[int], released: list[int]
) -> None:
    for item in range(1, 1_000):
        turns.add(HERE, -item)
    turns._release_some()
    assert len(released) == FREE_A_TICK


async def test_a_discarded_item_is_not_released(
    turns: LimitedTurns[int], released: list[int]
) -> None:
    for item in range(3):
        turns.add(HERE, item)
    turns.discard(HERE, 1)
    turns.discard(HERE, 1)
    turns.discard(THERE, 2)
    turns._release_some()
    assert released == [0, 2]
    turns.add(HERE, 4)
    turns.clear()
    turns._release_some()
    assert (released, len(turns)) == ([0, 2], 0)


async def test_the_host_with_most_items_makes_room_for_others(turns: LimitedTurns[int]) -> None:
    for item in range(3):
        turns.add(HERE, item)
    assert turns.displace(HERE) is None, "its own newest item would gain nothing"
    assert turns.displace(THERE) == 2
    turns.add(THERE, 5)
    assert turns.displace(THERE) is None, "each has as many afterwards as the other had before"
    assert turns.displace("ipv4:10.0.0.3") == 1
    assert turns.displace("ipv4:10.0.0.3") is None, "one of each"
    assert len(turns) == 2


async def test_the_burst_returns_after_a_quiet_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr(limited_turns, "boottime", lambda: now)
    turns: LimitedTurns[int] = LimitedTurns(RATE, 3, lambda _: True)
    assert [turns.take_burst() for _ in range(5)] == [True, True, True, False, False]
    now += 2.5 / RATE
    assert [turns.take_burst() for _ in range(3)] == [True, True, False]
    now += 3_600
    turns.add(HERE, 1)
    assert not turns.take_burst(), "an item waits"
    turns.clear()
    assert [turns.take_burst() for _ in range(4)] == [True, True, True, False]


async def test_the_burst_grows_only_while_nothing_is_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1_000.0
    monkeypatch.setattr(limited_turns, "boottime", lambda: now)
    turns: LimitedTurns[int] = LimitedTurns(RATE, 3, lambda _: True)
    assert [turns.take_burst() for _ in range(4)] == [True, True, True, False]
    turns.add(HERE, 1)
    now += 2.5 / RATE
    turns._release_some()
    assert not turns.take_burst()


async def test_items_are_released_after_a_failed_release() -> None:
    released = list[int]()

    def release(item: int) -> bool:
        if item == 1:
            raise LookupError("broken")
        released.append(item)
        return True

    turns: LimitedTurns[int] = LimitedTurns(RATE, 0, release)
    for item in range(3):
        turns.add(HERE, item)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    await wait_until_async(lambda: released == [0, 2], WAIT_TIMEOUT, "the other items")
