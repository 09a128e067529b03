"""The contract of single flight: which callers share a flight, and how it begins and ends."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest

from schedkit.single_flight import NEXT, RUNNING, SingleFlight


class Work:
    """Flights that last until they are released. Each returns its number, or raises `error`."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.canceled = 0
        self.error: Exception | None = None
        self.let_go = asyncio.Event()

    async def __call__(self) -> int:
        self.begun.append("")
        number = len(self.begun)
        try:
            await self.let_go.wait()
        except asyncio.CancelledError:
            self.canceled += 1
            raise
        if self.error is not None:
            raise self.error
        return number


Flights = SingleFlight[str, int]
Caller = asyncio.Task[int]


async def call(flights: Flights, work: Work, since: float = RUNNING, key: str = "a") -> Caller:
    """Return a caller that waits."""
    caller = asyncio.create_task(flights.get(key, work, since=since), name="caller")
    for _ in range(3):
        await asyncio.sleep(0)
    return caller


async def cancel(caller: Caller) -> None:
    caller.cancel()
    await asyncio.wait([caller])
    for _ in range(3):
        await asyncio.sleep(0)


def seconds_ago(seconds: float) -> float:
    return monotonic() - seconds


@pytest.mark.parametrize(
    ("since", "flight"),
    [(RUNNING, 1), (seconds_ago(60), 1), (seconds_ago(-86_400), 2), (NEXT, 2)],
    ids=["any running", "began since", "began before", "only the next"],
)
async def test_a_caller_joins_the_running_flight_only_if_it_is_new_enough(
    since: float, flight: int
) -> None:
    flights, work = Flights("test"), Work()
    first = await call(flights, work)
    second = await call(flights, work, since)
    work.let_go.set()
    assert await asyncio.gather(first, second) == [1, flight]
    assert not flights._running
    assert not flights._queued


@pytest.mark.parametrize("since", [RUNNING, NEXT])
async def test_a_flight_that_has_not_begun_accepts_every_caller(since: float) -> None:
    flights, work = Flights("test"), Work()
    work.let_go.set()
    callers = [flights.get("a", work, since=since) for _ in range(50)]
    assert await asyncio.gather(*callers) == [1] * 50


async def test_callers_during_a_flight_share_the_next_one_which_begins_after_it() -> None:
    flights, work = Flights("test"), Work()
    first = await call(flights, work)
    others = [await call(flights, work, NEXT) for _ in range(5)]
    assert len(work.begun) == 1
    work.let_go.set()
    assert await asyncio.gather(first, *others) == [1] + [2] * 5


async def test_each_key_has_flights_of_its_own() -> None:
    flights, work = Flights("test"), Work()
    callers = [await call(flights, work, key=key) for key in "aba"]
    work.let_go.set()
    assert await asyncio.gather(*callers) == [1, 2, 1]


async def test_flights_over_the_limit_are_queued_and_can_be_joined() -> None:
    flights, work = Flights("test", at_once=1), Work()
    callers = [await call(flights, work, NEXT, key) for key in ("a", "b", "b")]
    assert len(work.begun) == 1
    work.let_go.set()
    assert await asyncio.gather(*callers) == [1, 2, 2]


@pytest.mark.parametrize("leaves", [0, 1], ids=["the first caller", "another"])
async def test_a_canceled_caller_ends_the_flight_for_no_other(leaves: int) -> None:
    flights, work = Flights("test"), Work()
    callers = [await call(flights, work) for _ in range(3)]
    await cancel(callers.pop(leaves))
    work.let_go.set()
    assert await asyncio.gather(*callers) == [1, 1]
    assert work.canceled == 0


async def test_the_last_canceled_caller_ends_the_flight_and_the_next_one_begins() -> None:
    flights, work = Flights("test"), Work()
    callers = [await call(flights, work) for _ in range(2)]
    queued = await call(flights, work, NEXT)
    for caller in callers:
        await cancel(caller)
    assert (work.canceled, len(work.begun)) == (1, 2)
    work.let_go.set()
    assert await queued == 2


async def test_a_queued_flight_without_callers_never_begins() -> None:
    flights, work = Flights("test"), Work()
    first = await call(flights, work)
    await cancel(await call(flights, work, NEXT))
    work.let_go.set()
    assert await first == 1
    assert await flights.get("a", work, since=NEXT) == 2
    assert not flights._running
    assert not flights._queued


async def test_a_flight_that_is_being_canceled_is_not_joined_and_ends_before_the_next() -> None:
    flights, ends, order = Flights("test"), asyncio.Event(), list[str]()

    async def slow_to_end() -> int:
        try:
            return await asyncio.Future()
        finally:
            await ends.wait()
            order.append("ended")

    async def second() -> int:
        order.append("begun")
        return 2

    left = asyncio.create_task(flights.get("a", slow_to_end, since=RUNNING), name="caller")
    for _ in range(3):
        await asyncio.sleep(0)
    await cancel(left)
    late = asyncio.create_task(flights.get("a", second, since=RUNNING), name="caller")
    for _ in range(3):
        await asyncio.sleep(0)
    ends.set()
    assert await late == 2
    assert order == ["ended", "begun"]


async def test_an_error_is_shared_and_the_next_flight_begins_without_it() -> None:
    flights, work = Flights("test"), Work()
    work.error = ValueError("broken")
    callers = [await call(flights, work) for _ in range(3)]
    work.let_go.set()
    assert await asyncio.gather(*callers, return_exceptions=True) == [work.error] * 3
    work.error = None
    assert await flights.get("a", work, since=RUNNING) == 2


@pytest.mark.parametrize(("error", "begun"), [(OSError("shared"), 1), (ValueError("own"), 3)])
async def test_an_error_that_is_not_shared_fails_only_the_caller_that_began(
    error: Exception, begun: int
) -> None:
    flights, work = Flights("test", shares=(OSError,)), Work()
    work.error = error
    callers = [await call(flights, work) for _ in range(3)]
    work.let_go.set()
    assert await asyncio.gather(*callers, return_exceptions=True) == [error] * 3
    assert len(work.begun) == begun
