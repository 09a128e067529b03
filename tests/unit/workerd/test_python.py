"""Exceptions raised by or in a handler on the loop, and their attribution."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import threading
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from schedclient import Context
from schedkit.clock import utcnow
from schedkit.errors import Misconfigured
from support.attempts import attempt_start
from support.calling import called, handler_loops
from support.fake_member import FakeMember
from support.wait import WAIT_TIMEOUT, wait_until_async
from workerd.core.outcome import AttemptVerdict, Cause, OutcomeReason
from workerd.executors.base import Stop
from workerd.executors.handlers import attempt_call
from workerd.executors.handlers.attempt_call import (
    CANCELED,
    AttemptContext,
    CalledFunction,
    HandlerCall,
)
from workerd.executors.handlers.payload_types import fit_of
from workerd.executors.python import check


class Panic(BaseException):
    """An exception like those of panicking modules in Rust."""


@pytest.mark.parametrize(
    "error",
    [Panic("oh no"), asyncio.CancelledError("oh no"), SystemExit("oh no"), KeyboardInterrupt(),
     GeneratorExit("oh no"), BaseExceptionGroup("oh no", [Panic()])],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
async def test_any_exception_of_a_coroutine_fails_only_its_attempt(error: BaseException) -> None:
    async def raises(_payload: Any, _ctx: Any) -> None:
        await asyncio.sleep(0)
        raise error

    outcome = await called(raises)
    assert (outcome.verdict, outcome.reason) == (AttemptVerdict.FAILED, OutcomeReason.EXCEPTION)
    assert outcome.error == f"{type(error).__name__}: {error}"
    assert b"Traceback" in outcome.output[0].data


async def begun(event: threading.Event) -> None:
    """Return when a handler, in another thread, has set it."""
    await wait_until_async(event.is_set, WAIT_TIMEOUT, "the handler's start")


async def test_a_stopped_coroutine_failed_by_the_stop_and_not_by_its_exception() -> None:
    stop, waits = Stop(), threading.Event()

    async def panics_when_stopped(_payload: Any, _ctx: Any) -> None:
        waits.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise Panic

    call = asyncio.create_task(called(panics_when_stopped, stop))
    await begun(waits)
    stop.ask(Cause.CANCEL)
    assert (await call).verdict is AttemptVerdict.CANCELLED


@pytest.mark.parametrize("swallows", [False, True])
async def test_the_workers_own_end_is_no_outcome_of_a_coroutine(swallows: bool) -> None:
    waits, stop = threading.Event(), Stop()

    async def forever(_payload: Any, _ctx: Any) -> None:
        waits.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if swallows:
                return
            raise

    call = asyncio.create_task(called(forever, stop))
    await begun(waits)
    stop.over = True
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_coroutine_may_cancel_its_own_task() -> None:
    """A cancel that was never requested is the coroutine's failure, or ignored."""

    async def cancels_itself(_payload: Any, _ctx: Any) -> None:
        me().cancel()
        await asyncio.sleep(0)

    async def cancels_itself_last(_payload: Any, _ctx: Any) -> None:
        me().cancel()

    async def has_a_timeout_of_old(_payload: Any, _ctx: Any) -> None:
        """Cancel as libraries older than `Task.uncancel` do."""
        asyncio.get_running_loop().call_soon(me().cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        assert me().cancelling()

    failed = await called(cancels_itself)
    assert failed.verdict is AttemptVerdict.FAILED
    assert failed.error == CANCELED
    for each in (cancels_itself_last, has_a_timeout_of_old):
        assert (await called(each)).verdict is AttemptVerdict.SUCCEEDED


async def test_a_coroutine_may_stop_its_loop() -> None:
    """A handler may stop its loop, or raise SystemExit in a task: other runs continue."""

    async def stops_the_loop(_payload: Any, _ctx: Any) -> None:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0.01)

    async def ends_the_process(_payload: Any, _ctx: Any) -> None:
        async def leaves() -> None:
            raise SystemExit(3)

        await asyncio.wait([asyncio.create_task(leaves())])

    async def closes_the_loop(_payload: Any, _ctx: Any) -> None:
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop().close()

    async with handler_loops() as loops:
        for each in (stops_the_loop, ends_the_process, closes_the_loop, stops_the_loop):
            assert (await called(each, loops=loops)).verdict is AttemptVerdict.SUCCEEDED


async def test_a_coroutine_that_was_stopped_before_it_could_begin_never_begins() -> None:
    stop, began = Stop(), threading.Event()

    async def begins(_payload: Any, _ctx: Any) -> None:
        began.set()

    stop.ask(Cause.CANCEL)
    assert (await called(begins, stop)).verdict is AttemptVerdict.CANCELLED
    assert not began.is_set()


@pytest.mark.parametrize("killed", [False, True])
async def test_a_coroutine_that_swallows_its_cancel_is_abandoned(killed: bool) -> None:
    stop, waits, ended = Stop(), threading.Event(), threading.Event()
    cancels: list[bool] = []

    async def swallows(_payload: Any, ctx: Any) -> None:
        waits.set()
        while not ctx.cancel.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                cancels.append(ctx.cancel.is_set())
        ended.set()
        raise Panic

    kill_after = WAIT_TIMEOUT * 10 if killed else 0.05
    async with handler_loops() as loops:
        call = asyncio.create_task(called(swallows, stop, loops=loops, kill_after=kill_after))
        await begun(waits)
        stop.ask(Cause.CANCEL)
        await wait_until_async(lambda: cancels, WAIT_TIMEOUT, "its cancel")
        stop.ask(Cause.CANCEL, kill=killed)
        assert (await call).verdict is AttemptVerdict.CANCELLED
        await wait_until_async(ended.is_set, WAIT_TIMEOUT, "the handler's end")
    assert cancels[0] is False, "`ctx.cancel` is set when it is left behind"


async def test_a_coroutine_that_ends_in_time_is_not_abandoned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stop, waits = Stop(), threading.Event()

    async def tidies_up(_payload: Any, _ctx: Any) -> None:
        waits.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)

    call = asyncio.create_task(called(tidies_up, stop, kill_after=WAIT_TIMEOUT))
    await begun(waits)
    stop.ask(Cause.TIMEOUT)
    assert (await call).reason is OutcomeReason.TIMEOUT
    assert "abandoned" not in caplog.text


async def test_a_coroutine_that_swallows_a_drain_is_waited_for() -> None:
    stop, waits, go = Stop(), threading.Event(), threading.Event()

    async def swallows(_payload: Any, _ctx: Any) -> None:
        waits.set()
        while not go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    call = asyncio.create_task(called(swallows, stop, kill_after=0.01))
    await begun(waits)
    stop.ask(Cause.DRAIN)
    await asyncio.wait([call], timeout=0.1)
    assert not call.done()
    go.set()
    assert (await call).verdict is AttemptVerdict.RETURNED


def me() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


@pytest.mark.parametrize(
    ("does", "said"),
    [("sys.exit(0)", "SystemExit: 0"), ("sys.exit()", "SystemExit: "), ("1 / 0", "ZeroDivision")],
)
def test_a_module_that_exits_its_process_can_t_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, said: str
) -> None:
    (tmp_path / "ends_its_process.py").write_text(f"import sys\n{does}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Misconfigured, match=f"'ends_its_process' can't be imported: {said}"):
        check(["ends_its_process"])


@pytest.mark.parametrize("loop", [True, False])
async def test_a_handler_reads_changes_and_copies_its_context_from_any_thread(loop: bool) -> None:
    """Its fields are set when the first of them is used."""
    seen: list[Any] = []

    def read(ctx: Context) -> None:
        with pytest.raises(AttributeError):
            _ = ctx.nothing  # type: ignore[attr-defined]
        threads = [threading.Thread(target=lambda: seen.append(ctx.cancel)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_TIMEOUT)
        assert len(set(map(id, seen))) == 1, "one event for all"
        assert (ctx.job, ctx.attempt, ctx.idempotency_key) == ("probe", 1, ctx.run_id)
        assert replace(ctx, attempt=3).attempt == 3
        assert copy.copy(ctx) == ctx
        assert f"run_id={ctx.run_id!r}" in repr(ctx)

    async def reads_there(_payload: Any, ctx: Context) -> None:
        read(ctx)

    def reads(_payload: Any, ctx: Context) -> None:
        read(ctx)

    outcome = await called(reads_there if loop else reads, loop=loop)
    assert outcome.verdict is AttemptVerdict.SUCCEEDED, outcome.error
    assert seen[0].is_set(), "the attempt has ended"


async def test_a_handler_that_first_reads_its_context_after_the_stop_sees_the_stop() -> None:
    stop, began, go, seen = Stop(), threading.Event(), threading.Event(), list[bool]()

    def reads_late(_payload: Any, ctx: Context) -> None:
        began.set()
        assert go.wait(WAIT_TIMEOUT)
        seen.append(ctx.cancel.is_set())

    call = asyncio.create_task(called(reads_late, stop, loop=False))
    await begun(began)
    stop.ask(Cause.CANCEL)
    go.set()
    assert (await call).verdict is AttemptVerdict.CANCELLED
    assert seen == [True]


async def test_a_finalizer_may_use_a_context_while_another_is_filled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    member = FakeMember()

    def context() -> AttemptContext:
        attempt = attempt_start(member.assignment(incarnation="i"), "w", utcnow())
        target = CalledFunction("h", print, fit_of(print))
        return AttemptContext.of(HandlerCall(target, attempt.started, 0))

    class Session:
        """Garbage of an earlier run, in a cycle."""

        def __init__(self, ctx: Context) -> None:
            self.ctx, self.me = ctx, self

        def __del__(self) -> None:
            self.ctx.log.info("closed")

    first, earlier = context(), context()
    date_at = attempt_call.date_at

    def collecting(microseconds: int) -> datetime:
        gc.collect()
        return date_at(microseconds)

    monkeypatch.setattr(attempt_call, "date_at", collecting)

    def use() -> None:
        Session(earlier)
        assert first.run_id

    thread = threading.Thread(target=use, daemon=True)
    thread.start()
    await asyncio.to_thread(thread.join, WAIT_TIMEOUT)
    assert not thread.is_alive(), "the thread waits for its own lock"
