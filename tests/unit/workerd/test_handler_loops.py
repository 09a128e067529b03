"""Handlers that block their event loop: who is named, and what goes on meanwhile."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

import pytest

from support.calling import called, handler_loops
from support.wait import PATIENCE, wait_until_async
from workerd.core.outcome import Cause, Outcome, Reason, Verdict
from workerd.executors.base import Stop
from workerd.executors.handler_loops import HandlerLoops

BLOCK_AFTER = 0.1


class Blocking:
    """A handler that blocks its loop until it is told to go on."""

    def __init__(self) -> None:
        self.began, self.go = threading.Event(), threading.Event()

    async def handle(self, _payload: Any, _ctx: Any) -> str:
        self.began.set()
        self.go.wait(PATIENCE)
        return "after all"


async def nothing(_payload: Any, _ctx: Any) -> str:
    return threading.current_thread().name


async def blocked(loops: HandlerLoops, handler: Blocking, **how: Any) -> asyncio.Task[Outcome]:
    call = asyncio.create_task(called(handler.handle, loops=loops, **how))
    await wait_until_async(handler.began.is_set, PATIENCE, "the blocking handler's start")
    await wait_until_async(lambda: loops.blocks, PATIENCE, "the block")
    return call


async def test_a_handler_that_blocks_its_loop_is_named_with_its_place_and_stack(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handler = Blocking()
    async with handler_loops(BLOCK_AFTER) as loops:
        call = await blocked(loops, handler)
        (block,) = loops.blocks
        assert block.run is not None
        assert (block.run.handler, block.run.job) == ("h", "probe")
        assert block.place.endswith("in handle")
        (line,) = [each for each in caplog.records if each.levelno == logging.WARNING]
        assert line.getMessage().startswith("handler blocks its event loop")
        assert vars(line)["handler"] == "h"
        assert "self.go.wait" in vars(line)["stack"]
        handler.go.set()
        assert (await call).verdict is Verdict.SUCCEEDED
        await wait_until_async(lambda: not loops.blocks, PATIENCE, "the end of the block")
        assert "free again" in caplog.text


async def test_a_block_by_a_task_or_a_callback_of_a_handler_names_that_handler() -> None:
    async def by_a_task(_payload: Any, _ctx: Any) -> None:
        async def block() -> None:
            time.sleep(0.5)  # noqa: ASYNC251 - it blocks

        await asyncio.create_task(block())

    async def by_a_callback(_payload: Any, _ctx: Any) -> None:
        asyncio.get_running_loop().call_later(0.01, time.sleep, 0.5)
        await asyncio.sleep(0.3)

    async with handler_loops(BLOCK_AFTER) as loops:
        for each in (by_a_task, by_a_callback):
            call = asyncio.create_task(called(each, loops=loops))
            (block,) = await wait_until_async(lambda: loops.blocks, PATIENCE, "the block")
            assert block.run is not None
            assert block.run.handler == "h"
            await call
            await wait_until_async(lambda: not loops.blocks, PATIENCE, "its end")


async def test_new_runs_use_another_loop_while_one_is_blocked_and_the_first_again_afterwards() -> (
    None
):
    handler = Blocking()
    async with handler_loops(BLOCK_AFTER) as loops:
        call = await blocked(loops, handler)
        outcomes = await asyncio.gather(*(called(nothing, loops=loops) for _ in range(9)))
        assert {each.result.data for each in outcomes if each.result} == {b'"handler loop 2"'}
        handler.go.set()
        await call
        await wait_until_async(lambda: not loops.blocks, PATIENCE, "the end of the block")
        again = await called(nothing, loops=loops)
        assert again.result is not None
        assert again.result.data == b'"handler loop 1"'


async def test_runs_that_had_not_begun_when_a_loop_was_blocked_move_to_another() -> None:
    handler = Blocking()
    async with handler_loops(BLOCK_AFTER) as loops:
        calls = [asyncio.create_task(called(each, loops=loops)) for each in
                 (handler.handle, nothing, nothing, nothing)]  # fmt: skip
        outcomes = await asyncio.gather(*calls[1:])
        assert all(each.verdict is Verdict.SUCCEEDED for each in outcomes)
        assert not calls[0].done()
        handler.go.set()
        assert (await calls[0]).verdict is Verdict.SUCCEEDED


async def test_the_timeout_of_a_blocking_handler_is_enforced_and_says_so() -> None:
    handler, stop = Blocking(), Stop()
    async with handler_loops(BLOCK_AFTER) as loops:
        call = await blocked(loops, handler, stop=stop, kill_after=0.05)
        stop.ask(Cause.TIMEOUT)
        outcome = await call
        assert outcome.reason is Reason.TIMEOUT
        assert "blocked its event loop for 0." in outcome.error
        assert "in handle" in outcome.error
        handler.go.set()


async def test_a_run_that_is_canceled_before_its_loop_was_free_never_begins() -> None:
    handler, stop, began = Blocking(), Stop(), threading.Event()

    async def begins(_payload: Any, _ctx: Any) -> None:
        began.set()

    async with handler_loops(PATIENCE) as loops:
        blocks = asyncio.create_task(called(handler.handle, loops=loops))
        await wait_until_async(handler.began.is_set, PATIENCE, "the blocking handler's start")
        waits = asyncio.create_task(called(begins, stop, loops=loops))
        await asyncio.sleep(0)
        stop.ask(Cause.CANCEL)
        assert (await waits).verdict is Verdict.CANCELLED
        handler.go.set()
        await blocks
        assert (await called(nothing, loops=loops)).verdict is Verdict.SUCCEEDED
        assert not began.is_set()


async def test_when_all_loops_are_blocked_the_worker_says_why_it_takes_no_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("workerd.executors.handler_loops.MOST_LOOPS", 2)
    handlers = [Blocking(), Blocking()]
    async with handler_loops(BLOCK_AFTER) as loops:
        calls = [asyncio.create_task(called(each.handle, loops=loops)) for each in handlers]
        why = await wait_until_async(lambda: loops.refuses, PATIENCE, "a refusal")
        assert why == "handlers block all 2 event loops of this worker: h"
        for each in handlers:
            each.go.set()
        await asyncio.gather(*calls)
        await wait_until_async(lambda: not loops.refuses, PATIENCE, "no refusal")
