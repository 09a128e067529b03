"""What a handler on the loop raises, and what is raised in it: whose doing it was."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from schedkit.errors import Misconfigured
from schedproto.v1 import job_pb2
from support.fake_member import FakeMember
from support.wait import PATIENCE
from workerd.core.outcome import Cause, Outcome, Reason, Verdict
from workerd.executors.base import Attempt, Stop
from workerd.executors.fitting import fit_of
from workerd.executors.python import Caller, check


class Panic(BaseException):
    """What a module in Rust raises where it should not."""


async def called(function: Any, stop: Stop, leave: Any = None, **how: Any) -> Outcome:
    action = job_pb2.PythonAction(handler="h")
    assignment = FakeMember().assignment(incarnation="i", python=action, **how)
    attempt = Attempt(assignment, "w1", datetime.now(UTC), leave=leave)
    async with asyncio.timeout(PATIENCE):
        outcome = await Caller().call(function, fit_of(function), attempt, stop, loop=True)
        await asyncio.sleep(0.001)  # what comes after it is disturbed by nothing
        return outcome


@pytest.mark.parametrize(
    "error",
    [Panic("oh no"), asyncio.CancelledError("oh no"), SystemExit("oh no"), KeyboardInterrupt(),
     GeneratorExit("oh no"), BaseExceptionGroup("oh no", [Panic()])],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
async def test_whatever_a_coroutine_raises_is_its_attempts_failure(error: BaseException) -> None:
    async def raises(_payload: Any, _ctx: Any) -> None:
        await asyncio.sleep(0)
        raise error

    outcome = await called(raises, Stop())
    assert (outcome.verdict, outcome.reason) == (Verdict.FAILED, Reason.EXCEPTION)
    assert outcome.error == f"{type(error).__name__}: {error}"
    assert b"Traceback" in outcome.output[0].data


async def test_a_coroutine_that_was_stopped_has_failed_by_that_and_by_nothing_it_raised() -> None:
    stop, waits = Stop(), asyncio.Event()

    async def panics_when_stopped(_payload: Any, _ctx: Any) -> None:
        waits.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise Panic

    call = asyncio.create_task(called(panics_when_stopped, stop))
    await waits.wait()
    stop.ask(Cause.CANCEL)
    assert (await call).verdict is Verdict.CANCELLED


@pytest.mark.parametrize("swallows", [False, True])
async def test_the_workers_own_end_is_no_outcome_of_a_coroutine(swallows: bool) -> None:
    waits, stop = asyncio.Event(), Stop()

    async def forever(_payload: Any, _ctx: Any) -> None:
        waits.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if swallows:
                return
            raise

    call = asyncio.create_task(called(forever, stop))
    await waits.wait()
    stop.over = True
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_coroutine_may_do_to_its_task_what_it_likes() -> None:
    """What is cancelled in it without anybody's wish is its own failure, or nothing."""

    async def cancels_itself(_payload: Any, _ctx: Any) -> None:
        me().cancel()
        await asyncio.sleep(0)

    async def cancels_itself_last(_payload: Any, _ctx: Any) -> None:
        me().cancel()

    async def has_a_timeout_of_old(_payload: Any, _ctx: Any) -> None:
        """As libraries made them that are older than `Task.uncancel`."""
        asyncio.get_running_loop().call_soon(me().cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        assert me().cancelling()

    failed = await called(cancels_itself, Stop())
    assert (failed.verdict, failed.error) == (Verdict.FAILED, "CancelledError: ")
    for each in (cancels_itself_last, has_a_timeout_of_old):
        assert (await called(each, Stop())).verdict is Verdict.SUCCEEDED
    assert not me().cancelling()


async def test_a_coroutine_that_was_stopped_before_it_could_begin_never_does() -> None:
    stop, begun = Stop(), asyncio.Event()

    async def begins(_payload: Any, _ctx: Any) -> None:
        begun.set()

    stop.ask(Cause.CANCEL)
    assert (await called(begins, stop)).verdict is Verdict.CANCELLED
    assert not begun.is_set()


@pytest.mark.parametrize("killed", [False, True])
async def test_a_coroutine_that_swallows_its_cancel_is_left_behind(
    killed: bool,
) -> None:
    stop, waits, go = Stop(), asyncio.Event(), asyncio.Event()
    told: asyncio.Queue[Outcome] = asyncio.Queue()

    async def swallows(_payload: Any, ctx: Any) -> None:
        while not go.is_set():
            waits.set()
            try:
                await go.wait()
            except asyncio.CancelledError:
                assert not ctx.cancel.is_set()
        assert ctx.cancel.is_set()
        raise Panic

    patience = PATIENCE * 10 if killed else 0.05
    call = asyncio.create_task(called(swallows, stop, told.put_nowait, kill_after=patience))
    await waits.wait()
    stop.ask(Cause.CANCEL)
    stop.ask(Cause.CANCEL, kill=killed)
    async with asyncio.timeout(PATIENCE):
        assert (await told.get()).verdict is Verdict.CANCELLED
    stop.ask(Cause.CANCEL, kill=True)
    await asyncio.sleep(0.01)
    assert not call.done()
    go.set()
    await call
    assert told.empty(), "once is enough"


async def test_a_coroutine_that_ends_in_time_is_not_left_behind() -> None:
    stop, waits = Stop(), asyncio.Event()

    async def tidies_up(_payload: Any, _ctx: Any) -> None:
        waits.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)

    def leave(_outcome: Outcome) -> None:
        raise AssertionError("it ends")

    call = asyncio.create_task(called(tidies_up, stop, leave, kill_after=0.05))
    await waits.wait()
    stop.ask(Cause.TIMEOUT)
    assert (await call).reason is Reason.TIMEOUT
    await asyncio.sleep(0.06)


async def test_a_coroutine_that_swallows_a_drain_is_waited_for() -> None:
    stop, waits, go = Stop(), asyncio.Event(), asyncio.Event()

    async def swallows(_payload: Any, _ctx: Any) -> None:
        waits.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await go.wait()

    call = asyncio.create_task(called(swallows, stop, kill_after=0.01))
    await waits.wait()
    stop.ask(Cause.DRAIN)
    await asyncio.wait([call], timeout=0.1)
    assert not call.done()
    go.set()
    assert (await call).verdict is Verdict.RETURNED


def me() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


@pytest.mark.parametrize(
    ("does", "said"),
    [("sys.exit(0)", "SystemExit: 0"), ("sys.exit()", "SystemExit: "), ("1 / 0", "ZeroDivision")],
)
def test_a_module_that_ends_its_process_can_t_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, said: str
) -> None:
    (tmp_path / "ends_its_process.py").write_text(f"import sys\n{does}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Misconfigured, match=f"can't import 'ends_its_process': {said}"):
        check(["ends_its_process"])
