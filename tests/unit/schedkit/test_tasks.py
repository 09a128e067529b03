"""Loops that step, back off and wake up, on the real event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from schedkit.backoff import Backoff
from schedkit.errors import Fault, Rejected, Unavailable
from schedkit.tasks import Loop, Turns, Waker, guard

SOON = 5.0
LONG = 3600.0


async def test_an_endless_loop_that_returns_is_a_bug() -> None:
    async def returns() -> None:
        return None

    with pytest.raises(Fault, match="'firing' returned"):
        await guard(returns, "firing")


async def test_a_guarded_loop_ends_by_cancellation_without_a_bug() -> None:
    started = asyncio.Event()

    async def forever() -> None:
        started.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(guard(forever, "firing"), name="firing")
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_sleep_ends_when_woken() -> None:
    waker = Waker()
    sleeping = asyncio.create_task(waker.wait(LONG), name="sleeper")
    await asyncio.sleep(0)
    waker.wake()
    assert await asyncio.wait_for(sleeping, SOON) is True


async def test_a_wake_before_the_sleep_is_not_lost_and_serves_one_sleep() -> None:
    waker = Waker()
    waker.wake()
    waker.wake()
    assert await waker.wait(LONG) is True
    assert await waker.wait(0) is False


async def test_a_sleep_without_a_wake_up_ends_after_its_time() -> None:
    assert await Waker().wait(0.01) is False


async def test_a_second_sleeper_is_a_bug_as_it_would_take_the_wake_ups_of_the_first() -> None:
    waker = Waker()
    sleeping = asyncio.create_task(waker.wait(LONG), name="sleeper")
    await asyncio.sleep(0)
    with pytest.raises(AssertionError, match="two sleepers"):
        await waker.wait(0)
    waker.wake()
    assert await asyncio.wait_for(sleeping, SOON) is True


async def test_a_wake_up_of_a_sleep_that_is_cancelled_at_once_serves_the_next_sleep() -> None:
    waker = Waker()
    sleeping = asyncio.create_task(waker.wait(LONG), name="sleeper")
    await asyncio.sleep(0)
    waker.wake()
    sleeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeping
    assert await waker.wait(LONG) is True


class Steps:
    """A step that follows a script: an exception to raise, or the pause to ask for."""

    def __init__(self, *script: Unavailable | float | None) -> None:
        self.taken = 0
        self._script = list(script)
        self._progress = asyncio.Condition()

    async def __call__(self) -> float | None:
        async with self._progress:
            self.taken += 1
            self._progress.notify_all()
        outcome = self._script.pop(0) if self._script else None
        if isinstance(outcome, Unavailable):
            raise outcome
        return outcome

    async def reach(self, count: int) -> None:
        async with asyncio.timeout(SOON), self._progress:
            await self._progress.wait_for(lambda: self.taken >= count)


@asynccontextmanager
async def running(loop: Loop) -> AsyncIterator[None]:
    task = asyncio.create_task(loop.run(), name=loop.name)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_loop_steps_each_interval() -> None:
    steps = Steps()
    async with running(Loop("firing", steps, interval=0.001)):
        await steps.reach(3)
    assert steps.taken >= 3


async def test_a_loop_steps_at_once_when_woken() -> None:
    steps = Steps()
    loop = Loop("firing", steps, interval=LONG)
    async with running(loop):
        await steps.reach(1)
        loop.wake()
        await steps.reach(2)
    assert steps.taken == 2, "and not a third time"


async def test_a_step_may_request_the_next_one_before_the_interval() -> None:
    steps = Steps(0.0, 0.001)
    async with running(Loop("firing", steps, interval=LONG)):
        await steps.reach(3)
    assert steps.taken == 3


async def test_a_loop_continues_after_an_outage_and_logs_it_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "schedkit.tasks")
    away = Unavailable("etcd does not answer")
    steps = Steps(away, away, away, None, 0.0)
    backoff = Backoff(0.001, 0.001)
    loop = Loop("firing", steps, interval=0.001, backoff=backoff)
    async with running(loop):
        await steps.reach(6)
    levels = [(record.levelname, record.message.split(";")[0]) for record in caplog.records]
    assert levels == [
        ("WARNING", "firing: etcd does not answer"),
        ("INFO", "firing: available again"),
    ]


async def test_a_loop_continues_after_a_rejection_and_waits_longer_each_time() -> None:
    steps = Steps(*(Rejected("login_rejected", "the login is rejected", "") for _ in range(3)))
    waits: list[float] = []

    class Noted(Backoff):
        def next(self) -> float:
            waits.append(super().next())
            return waits[-1]

    backoff = Noted(0.001, 5.0, jitter=0.0)
    async with running(Loop("firing", steps, interval=LONG, backoff=backoff)):
        await steps.reach(4)
    assert waits == sorted({*waits})
    assert len(waits) == 3


async def test_a_wake_up_does_not_shorten_a_backoff() -> None:
    steps = Steps(Unavailable("away"))
    loop = Loop("firing", steps, interval=0.0, backoff=Backoff(LONG, LONG))
    async with running(loop):
        await steps.reach(1)
        loop.wake()
        for _ in range(10):
            await asyncio.sleep(0)
        assert steps.taken == 1


async def test_a_bug_in_a_step_ends_the_loop() -> None:
    async def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await Loop("firing", broken, interval=LONG).run()


async def test_concurrent_tasks_share_the_limit_of_one_turn_of_the_loop() -> None:
    turns, done, finished = Turns(10), [0] * 4, asyncio.Event()

    async def work(worker: int) -> None:
        async for some in turns.batches_of(range(100)):
            done[worker] += len(some)

    async with asyncio.TaskGroup() as group:
        for worker in range(len(done)):
            group.create_task(work(worker), name=f"worker {worker}")
        most, before = 0, 0
        while not finished.is_set():
            await asyncio.sleep(0)
            most, before = max(most, sum(done) - before), sum(done)
            assert max(done) - min(done) <= 20, "first come, first served"
            if sum(done) == 400:
                finished.set()
    assert most == 10


async def test_work_within_the_limit_never_waits() -> None:
    turns = Turns(10)
    for _ in range(10):
        waiting = turns.wait_until_allowed(1)
        with pytest.raises(StopIteration):
            waiting.send(None)
