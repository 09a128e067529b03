"""What a handler on the loop raises, and what is raised in it: whose doing it was."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from schedproto.v1 import job_pb2
from support.fake_member import FakeMember
from support.wait import PATIENCE
from workerd.core.outcome import Cause, Outcome, Reason, Verdict
from workerd.executors.base import Attempt, Stop
from workerd.executors.fitting import fit_of
from workerd.executors.python import Caller


class Panic(BaseException):
    """What a module in Rust raises where it should not."""


async def called(function: Any, stop: Stop) -> Outcome:
    action = job_pb2.PythonAction(handler="h")
    assignment = FakeMember().assignment(incarnation="i", python=action)
    attempt = Attempt(assignment, "w1", datetime.now(UTC))
    async with asyncio.timeout(PATIENCE):
        return await Caller().call(function, fit_of(function), attempt, stop, loop=True)


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


async def test_the_workers_own_end_is_no_outcome_of_a_coroutine() -> None:
    waits = asyncio.Event()

    async def forever(_payload: Any, _ctx: Any) -> None:
        waits.set()
        await asyncio.Event().wait()

    call = asyncio.create_task(called(forever, Stop()))
    await waits.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
