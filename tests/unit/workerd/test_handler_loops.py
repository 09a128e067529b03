"""Handlers that block their event loop: the worker names them, and other runs continue."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from support.calling import called, handler_loops
from support.wait import WAIT_TIMEOUT, wait_until_async
from workerd.core.outcome import AttemptOutcome, AttemptVerdict, Cause, OutcomeReason
from workerd.executors.base import Stop
from workerd.executors.handlers.handler_loops import HandlerLoops

BLOCK_AFTER = 0.1


class Blocking:
    """A handler that blocks its loop until `go` is set."""

    def __init__(self) -> None:
        self.began, self.go = threading.Event(), threading.Event()

    async def handle(self, _payload: Any, _ctx: Any) -> str:
        self.began.set()
        self.go.wait(WAIT_TIMEOUT)
        return "after all"


async def nothing(_payload: Any, _ctx: Any) -> str:
    return threading.current_thread().name


async def blocked(
    loops: HandlerLoops, handler: Blocking, **how: Any
) -> asyncio.Task[AttemptOutcome]:
    call = asyncio.create_task(called(handler.handle, loops=loops, **how))
    await wait_until_async(handler.began.is_set, WAIT_TIMEOUT, "the blocking handler's start")
    await wait_until_async(lambda: loops.blocks, WAIT_TIMEOUT, "the block")
    return call


@pytest.mark.slow
async def test_a_handler_that_blocks_its_loop_is_named_with_its_place_and_stack(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handler = Blocking()
    async with handler_loops(BLOCK_AFTER) as loops:
        call = await blocked(loops, handler)
        (block,) = loops.blocks
        assert block.run is not None
        assert block.run.log_fields.items() >= {"handler": "h", "job": "probe"}.items()
        assert block.place.endswith("in handle")
        (line,) = [each for each in caplog.records if each.levelno == logging.WARNING]
        assert line.getMessage().startswith("handler blocks its event loop")
        assert vars(line)["handler"] == "h"
        assert "self.go.wait" in vars(line)["stack"]
        handler.go.set()
        assert (await call).verdict is AttemptVerdict.SUCCEEDED
        await wait_until_async(lambda: not loops.blocks, WAIT_TIMEOUT, "the end of the block")
        assert "no longer blocks" in caplog.text


@pytest.mark.slow
async def test_a_block_by_a_task_or_a_callback_of_a_handler_names_that_handler() -> None:
    go = threading.Event()

    async def by_a_task(_payload: Any, _ctx: Any) -> None:
        async def block() -> None:
            go.wait(WAIT_TIMEOUT)

        await asyncio.create_task(block())

    async def by_a_callback(_payload: Any, _ctx: Any) -> None:
        asyncio.get_running_loop().call_soon(go.wait, WAIT_TIMEOUT)
        await asyncio.sleep(0)

    async with handler_loops(BLOCK_AFTER) as loops:
        for each in (by_a_task, by_a_callback):
            go.clear()
            call = asyncio.create_task(called(each, loops=loops))
            (block,) = await wait_until_async(lambda: loops.blocks, WAIT_TIMEOUT, "the block")
            assert block.run is not None
            assert block.run.handler == "h"
            go.set()
            await call
            await wait_until_async(lambda: not loops.blocks, WAIT_TIMEOUT, "its end")


@pytest.mark.slow
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
        await wait_until_async(lambda: not loops.blocks, WAIT_TIMEOUT, "the end of the block")
        again = await called(nothing, loops=loops)
        assert again.result is not None
        assert again.result.data == b'"handler loop 1"'


async def test_runs_that_had_not_begun_when_a_loop_was_blocked_move_to_another() -> None:
    handler = Blocking()
    async with handler_loops(BLOCK_AFTER) as loops:
        calls = [asyncio.create_task(called(each, loops=loops)) for each in
                 (handler.handle, nothing, nothing, nothing)]  # fmt: skip
        outcomes = await asyncio.gather(*calls[1:])
        assert all(each.verdict is AttemptVerdict.SUCCEEDED for each in outcomes)
        assert not calls[0].done()
        handler.go.set()
        assert (await calls[0]).verdict is AttemptVerdict.SUCCEEDED


async def test_the_timeout_of_a_blocking_handler_is_enforced_and_named() -> None:
    handler, stop = Blocking(), Stop()
    async with handler_loops(BLOCK_AFTER) as loops:
        call = await blocked(loops, handler, stop=stop, kill_after=0.05)
        stop.ask(Cause.TIMEOUT)
        outcome = await call
        assert outcome.reason is OutcomeReason.TIMEOUT
        assert "blocked its event loop for 0." in outcome.error
        assert "in handle" in outcome.error
        handler.go.set()


async def test_a_run_canceled_before_its_loop_is_free_never_begins() -> None:
    handler, stop, began = Blocking(), Stop(), threading.Event()

    async def begins(_payload: Any, _ctx: Any) -> None:
        began.set()

    async with handler_loops(WAIT_TIMEOUT) as loops:
        blocks = asyncio.create_task(called(handler.handle, loops=loops))
        await wait_until_async(handler.began.is_set, WAIT_TIMEOUT, "the blocking handler's start")
        waits = asyncio.create_task(called(begins, stop, loops=loops))
        await asyncio.sleep(0)
        stop.ask(Cause.CANCEL)
        assert (await waits).verdict is AttemptVerdict.CANCELLED
        handler.go.set()
        await blocks
        assert (await called(nothing, loops=loops)).verdict is AttemptVerdict.SUCCEEDED
        assert not began.is_set()


@pytest.mark.slow
async def test_when_all_loops_are_blocked_the_worker_says_why_it_takes_no_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("workerd.executors.handlers.handler_loops.MOST_LOOPS", 2)
    handlers = [Blocking(), Blocking()]
    async with handler_loops(BLOCK_AFTER) as loops:
        calls = [asyncio.create_task(called(each.handle, loops=loops)) for each in handlers]
        why = await wait_until_async(lambda: loops.refusal_reason, WAIT_TIMEOUT, "a refusal")
        assert why == "handlers block all 2 event loops of this worker: h"
        for each in handlers:
            each.go.set()
        await asyncio.gather(*calls)
        await wait_until_async(lambda: not loops.refusal_reason, WAIT_TIMEOUT, "no refusal")


class Long:
    """A handler that ends only when it is canceled."""

    def __init__(self) -> None:
        self.began, self.canceled = threading.Event(), threading.Event()

    async def handle(self, _payload: Any, _ctx: Any) -> None:
        self.began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.canceled.set()
            raise


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cause", "verdict"),
    [
        (Cause.CANCEL, AttemptVerdict.CANCELLED),
        (Cause.TIMEOUT, AttemptVerdict.FAILED),
        (Cause.DRAIN, AttemptVerdict.RETURNED),
        (Cause.LEASE_LOST, AttemptVerdict.RETURNED),
    ],
)
@pytest.mark.parametrize("most_loops", [1, 8])
async def test_a_stop_reaches_a_run_that_was_submitted_to_a_blocked_loop(
    cause: Cause, verdict: AttemptVerdict, most_loops: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one loop the run waits for that loop. With two it begins on the second."""
    monkeypatch.setattr("workerd.executors.handlers.handler_loops.MOST_LOOPS", most_loops)
    blocking, long, stop = Blocking(), Long(), Stop()
    async with handler_loops(BLOCK_AFTER) as loops:
        first = asyncio.create_task(called(blocking.handle, loops=loops))
        await wait_until_async(blocking.began.is_set, WAIT_TIMEOUT, "the blocking handler's start")
        second = asyncio.create_task(called(long.handle, stop, loops=loops))
        await wait_until_async(lambda: loops.blocks, WAIT_TIMEOUT, "the block")
        if most_loops > 1:
            await wait_until_async(long.began.is_set, WAIT_TIMEOUT, "the start on the second loop")
        blocking.go.set()
        assert (await first).verdict is AttemptVerdict.SUCCEEDED
        await wait_until_async(lambda: not loops.blocks, WAIT_TIMEOUT, "the end of the block")
        await wait_until_async(long.began.is_set, WAIT_TIMEOUT, "the start")
        stop.ask(cause)
        assert (await second).verdict is verdict
        assert long.canceled.is_set()


@pytest.mark.slow
async def test_runs_of_a_blocked_loop_move_to_a_loop_that_is_free_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("workerd.executors.handlers.handler_loops.MOST_LOOPS", 2)
    handlers = [Blocking(), Blocking()]
    async with handler_loops(BLOCK_AFTER) as loops:
        calls = [asyncio.create_task(called(each.handle, loops=loops)) for each in handlers]
        await wait_until_async(lambda: loops.refusal_reason, WAIT_TIMEOUT, "blocks of all loops")
        waits = asyncio.create_task(called(nothing, loops=loops))
        handlers[0].go.set()
        assert (await waits).verdict is AttemptVerdict.SUCCEEDED
        assert not calls[1].done()
        handlers[1].go.set()
        await asyncio.gather(*calls)


async def test_a_run_that_ended_just_before_its_loop_was_blocked_reports_at_once() -> None:
    handler = Blocking()
    async with handler_loops(BLOCK_AFTER) as loops:
        calls = [
            asyncio.create_task(called(each, loops=loops)) for each in (nothing, handler.handle)
        ]
        assert (await calls[0]).verdict is AttemptVerdict.SUCCEEDED
        assert not calls[1].done()
        handler.go.set()
        await calls[1]


async def cancels_all_tasks() -> None:
    for task in asyncio.all_tasks():
        task.cancel()


async def cancels_all_tasks_and_awaits_them() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.wait(others, timeout=0.1)


async def closes_all_coroutines() -> None:
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        with contextlib.suppress(RuntimeError, ValueError):
            task.get_coro().close()  # type: ignore[union-attr]


async def stops_its_loop() -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0)


async def closes_its_loop() -> None:
    asyncio.get_running_loop().close()


async def stops_its_loop_and_closes_it_from_a_thread() -> None:
    loop = asyncio.get_running_loop()
    loop.stop()
    await asyncio.to_thread(loop.close)


async def shuts_its_loop_down() -> None:
    loop = asyncio.get_running_loop()
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()


async def runs_its_loop_again() -> None:
    asyncio.get_running_loop().run_until_complete(asyncio.Future())


def raises(error: BaseException) -> Callable[[], Any]:
    """Return a handler that raises `error`."""

    async def handler() -> NoReturn:
        raise error

    handler.__name__ = f"raises_{type(error).__name__}"
    return handler


def has_a_task_that_raises(error: BaseException) -> Callable[[], Any]:
    """Return a handler whose task raises `error`."""

    async def handler() -> None:
        await asyncio.wait([asyncio.ensure_future(raises(error)())])

    handler.__name__ = f"has_a_task_that_raises_{type(error).__name__}"
    return handler


def fails(*_given: Any, **_named: Any) -> NoReturn:
    raise SystemExit("not this")


async def sets_an_exception_handler_that_exits() -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(fails)
    loop.call_soon(lambda: 1 / 0)
    await asyncio.sleep(0)


async def sets_a_task_factory_that_exits() -> None:
    asyncio.get_running_loop().set_task_factory(fails)


async def sets_debug_mode() -> None:
    asyncio.get_running_loop().set_debug(True)


async def forgets_its_loop() -> None:
    asyncio.set_event_loop(None)
    asyncio.set_event_loop_policy(None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "conduct",
    [
        cancels_all_tasks,
        cancels_all_tasks_and_awaits_them,
        closes_all_coroutines,
        stops_its_loop,
        closes_its_loop,
        stops_its_loop_and_closes_it_from_a_thread,
        shuts_its_loop_down,
        runs_its_loop_again,
        *(raises(each) for each in (SystemExit(1), KeyboardInterrupt(), GeneratorExit())),
        *map(has_a_task_that_raises, (SystemExit(1), KeyboardInterrupt(), GeneratorExit())),
        sets_an_exception_handler_that_exits,
        sets_a_task_factory_that_exits,
        sets_debug_mode,
        forgets_its_loop,
    ],
    ids=lambda conduct: conduct.__name__,
)
async def test_no_handler_can_keep_other_runs_from_beginning_ending_and_reporting(
    conduct: Callable[[], Any],
) -> None:
    begun = threading.Event()

    async def waits(_payload: Any, _ctx: Any) -> None:
        begun.set()
        await asyncio.sleep(0.2)

    async def handler(_payload: Any, _ctx: Any) -> None:
        await conduct()

    async def returns_much(_payload: Any, _ctx: Any) -> list[str]:
        return ["x" * 1000] * 1000

    async with handler_loops() as loops:
        first = asyncio.create_task(called(waits, loops=loops))
        await wait_until_async(begun.is_set, WAIT_TIMEOUT, "the start of the first run")
        kinds = (waits, handler, nothing, returns_much, nothing)
        calls = [asyncio.create_task(called(each, loops=loops)) for each in kinds]
        outcomes = await asyncio.gather(first, *calls)
        ended = {AttemptVerdict.SUCCEEDED, AttemptVerdict.FAILED}
        assert {each.verdict for each in outcomes} <= ended
        assert outcomes[3].verdict is outcomes[5].verdict is AttemptVerdict.SUCCEEDED
        for each in (waits, nothing, returns_much):
            assert (await called(each, loops=loops)).verdict is AttemptVerdict.SUCCEEDED


async def test_a_run_whose_task_another_handler_cancels_fails_and_says_so() -> None:
    long = Long()

    async def handler(_payload: Any, _ctx: Any) -> None:
        await cancels_all_tasks()

    async with handler_loops() as loops:
        first = asyncio.create_task(called(long.handle, loops=loops))
        await wait_until_async(long.began.is_set, WAIT_TIMEOUT, "the start")
        assert (await called(handler, loops=loops)).verdict is AttemptVerdict.SUCCEEDED
        outcome = await first
        assert (outcome.verdict, outcome.reason) == (AttemptVerdict.FAILED, OutcomeReason.EXCEPTION)
        assert "no cancel of this run was requested" in outcome.error


async def test_a_result_whose_class_raises_when_it_is_inspected_fails_its_run() -> None:
    class Hostile:
        @property
        def __class__(self) -> Any:
            raise RuntimeError("no class")

    async def handler(_payload: Any, _ctx: Any) -> Any:
        return Hostile()

    assert (await called(handler)).verdict is AttemptVerdict.FAILED


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
async def test_each_of_many_runs_begins_once_and_ends_while_loops_block_and_tasks_are_canceled(
    seed: int,
) -> None:
    chance = random.Random(seed)
    begun: Counter[int] = Counter()
    beginning = threading.Lock()

    def handler(number: int, kind: int) -> Callable[[Any, Any], Any]:
        async def handle(_payload: Any, _ctx: Any) -> None:
            with beginning:
                begun[number] += 1
            if kind == 0:
                time.sleep(0.3)  # noqa: ASYNC251 - blocks the loop
            elif kind == 1:
                await cancels_all_tasks()
            elif kind < 6:
                await asyncio.Event().wait()
            else:
                await asyncio.sleep(0)

        return handle

    stops = []
    async with handler_loops(0.05) as loops:
        calls = []
        for number in range(200):
            kind = chance.choice([0, *[1] * 2, *range(2, 40)])
            stop = Stop()
            stops += [stop] if 1 < kind < 6 else []
            work = called(handler(number, kind), stop, loops=loops)
            calls.append(asyncio.create_task(work))
            if chance.random() < 0.2:
                await asyncio.sleep(chance.random() / 50)
        for stop in stops:
            await asyncio.sleep(chance.random() / 50)
            stop.ask(Cause.CANCEL)
        outcomes = await asyncio.gather(*calls)
    assert len(outcomes) == 200
    assert max(begun.values()) == 1
    never = {number for number in range(200) if not begun[number]}
    assert all(outcomes[each].verdict is AttemptVerdict.CANCELLED for each in never)
