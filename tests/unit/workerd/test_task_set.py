"""Tasks of attempts: which failures count, and how long `close` waits."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest

from support.wait import WAIT_TIMEOUT, wait_until_async
from workerd.task_set import TaskSet


async def waits(go: asyncio.Event) -> None:
    await go.wait()


async def fails() -> None:
    raise LookupError("a bug")


async def swallows(go: asyncio.Event) -> None:
    while not go.is_set():
        try:
            await go.wait()
        except asyncio.CancelledError:
            continue


@pytest.mark.parametrize("early", [False, True])
async def test_a_bug_is_reported_before_and_after_the_wait_for_it(early: bool) -> None:
    task_set = TaskSet()
    if early:
        task_set.start(fails(), "fails")
        await wait_until_async(lambda: not len(task_set) or None, WAIT_TIMEOUT, "its end")
    failed = asyncio.create_task(task_set.failed())
    if not early:
        await asyncio.sleep(0)
        assert not failed.done()
        task_set.start(fails(), "fails")
        task_set.start(fails(), "fails too")
    with pytest.raises(LookupError, match="a bug"):
        await asyncio.wait_for(failed, WAIT_TIMEOUT)


async def test_an_ended_or_canceled_task_is_not_a_bug() -> None:
    task_set, go = TaskSet(), asyncio.Event()
    failed = asyncio.create_task(task_set.failed())
    for name in ("ends", "is cancelled"):
        task_set.start(waits(go), name)
        if name == "ends":
            go.set()
            await wait_until_async(lambda: not len(task_set) or None, WAIT_TIMEOUT, "its end")
            go.clear()
    await task_set.close(WAIT_TIMEOUT)
    assert not len(task_set)
    assert not failed.done()
    failed.cancel()
    await asyncio.wait([failed])
    assert failed.cancelled()


async def test_close_waits_a_bounded_time_for_a_task_that_ignores_its_cancel() -> None:
    task_set, go = TaskSet(), asyncio.Event()
    task_set.start(swallows(go), "swallows")
    (task,) = (each for each in asyncio.all_tasks() if each.get_name() == "swallows")
    await asyncio.sleep(0)
    since = monotonic()
    await task_set.close(0.05)
    assert monotonic() - since >= 0.05
    assert not task.done()
    go.set()
    await task


async def test_a_task_started_during_a_cancel_is_awaited() -> None:
    task_set, done = TaskSet(), asyncio.Event()

    async def tells() -> None:
        await asyncio.sleep(0.01)
        done.set()

    async def has_a_last_word() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            task_set.start(tells(), "tells")

    task_set.start(has_a_last_word(), "has a last word")
    await asyncio.sleep(0)
    await task_set.close(WAIT_TIMEOUT)
    assert done.is_set()


async def test_a_second_bug_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    task_set = TaskSet()
    for name in ("one", "another"):
        task_set.start(fails(), name)
    await wait_until_async(lambda: not len(task_set) or None, WAIT_TIMEOUT, "their ends")
    with pytest.raises(LookupError):
        await task_set.failed()
    assert [record.getMessage() for record in caplog.records] == ["another task failed: another"]


async def test_a_task_that_cant_be_canceled_does_not_keep_others_from_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Odd(asyncio.Future[None]):
        def cancel(self, msg: object = None) -> bool:
            raise ValueError(msg)

    task_set, odd, go = TaskSet(), Odd(), asyncio.Event()

    async def waits_for_what_is_odd() -> None:
        await odd

    tasks = [task_set.start(waits_for_what_is_odd(), "odd")]
    tasks += [task_set.start(waits(go), "waits") for _ in range(3)]
    await asyncio.sleep(0)
    await task_set.close(0.02)
    assert [each.cancelled() for each in tasks] == [False, True, True, True]
    assert [record.getMessage() for record in caplog.records] == ["task odd can't be canceled"]
    odd.set_result(None)
    await tasks[0]
