"""The tasks of attempts: whose failure counts, and who is waited for."""

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
async def test_a_bug_is_heard_of_whenever_it_came(early: bool) -> None:
    nursery = TaskSet()
    if early:
        nursery.start(fails(), "fails")
        await wait_until_async(lambda: not len(nursery) or None, WAIT_TIMEOUT, "its end")
    failed = asyncio.create_task(nursery.failed())
    if not early:
        await asyncio.sleep(0)
        assert not failed.done()
        nursery.start(fails(), "fails")
        nursery.start(fails(), "fails too")
    with pytest.raises(LookupError, match="a bug"):
        await asyncio.wait_for(failed, WAIT_TIMEOUT)


async def test_who_has_ended_or_was_cancelled_is_no_bug() -> None:
    nursery, go = TaskSet(), asyncio.Event()
    failed = asyncio.create_task(nursery.failed())
    for name in ("ends", "is cancelled"):
        nursery.start(waits(go), name)
        if name == "ends":
            go.set()
            await wait_until_async(lambda: not len(nursery) or None, WAIT_TIMEOUT, "its end")
            go.clear()
    await nursery.close(WAIT_TIMEOUT)
    assert not len(nursery)
    assert not failed.done()
    failed.cancel()
    await asyncio.wait([failed])
    assert failed.cancelled()


async def test_a_task_that_ignores_its_cancel_is_waited_for_so_long_and_no_longer() -> None:
    nursery, go = TaskSet(), asyncio.Event()
    nursery.start(swallows(go), "swallows")
    (task,) = (each for each in asyncio.all_tasks() if each.get_name() == "swallows")
    await asyncio.sleep(0)
    since = monotonic()
    await nursery.close(0.05)
    assert monotonic() - since >= 0.05
    assert not task.done()
    go.set()
    await task


async def test_what_one_starts_as_it_is_cancelled_has_its_end() -> None:
    nursery, done = TaskSet(), asyncio.Event()

    async def tells() -> None:
        await asyncio.sleep(0.01)
        done.set()

    async def has_a_last_word() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            nursery.start(tells(), "tells")

    nursery.start(has_a_last_word(), "has a last word")
    await asyncio.sleep(0)
    await nursery.close(WAIT_TIMEOUT)
    assert done.is_set()


async def test_a_second_bug_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    nursery = TaskSet()
    for name in ("one", "another"):
        nursery.start(fails(), name)
    await wait_until_async(lambda: not len(nursery) or None, WAIT_TIMEOUT, "their ends")
    with pytest.raises(LookupError):
        await nursery.failed()
    assert [record.getMessage() for record in caplog.records] == ["another task failed: another"]


async def test_one_that_cant_be_cancelled_keeps_nobody_from_being_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Odd(asyncio.Future[None]):
        def cancel(self, msg: object = None) -> bool:
            raise ValueError(msg)

    nursery, odd, go = TaskSet(), Odd(), asyncio.Event()

    async def waits_for_what_is_odd() -> None:
        await odd

    tasks = [nursery.start(waits_for_what_is_odd(), "odd")]
    tasks += [nursery.start(waits(go), "waits") for _ in range(3)]
    await asyncio.sleep(0)
    await nursery.close(0.02)
    assert [each.cancelled() for each in tasks] == [False, True, True, True]
    assert [record.getMessage() for record in caplog.records] == ["task odd can't be canceled"]
    odd.set_result(None)
    await tasks[0]
