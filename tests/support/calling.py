"""Calls of handlers as a worker makes them, without a worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from schedproto.v1 import job_pb2
from support.attempts import attempt_start
from support.fake_member import FakeMember
from support.wait import WAIT_TIMEOUT
from workerd.core.outcome import AttemptOutcome
from workerd.executors.base import AttemptStart, StartedBatch, Stop
from workerd.executors.handlers.attempt_call import CalledFunction
from workerd.executors.handlers.handler_loops import HandlerLoops
from workerd.executors.handlers.payload_types import fit_of
from workerd.executors.python import HandlerCaller
from workerd.metrics import WorkerMetrics


@asynccontextmanager
async def handler_loops(block_after: float = 1.0) -> AsyncIterator[HandlerLoops]:
    """Loops that are watched."""
    loops = HandlerLoops(WorkerMetrics(), block_after)
    watching = asyncio.create_task(loops.watch())
    try:
        yield loops
    finally:
        watching.cancel()
        await loops.close(0.1)


def attempt_of(payload: str = "null", **how: Any) -> AttemptStart:
    """Return an attempt of the handler `h`."""
    action = job_pb2.PythonAction(handler="h")
    assignment = FakeMember().assignment(incarnation="i", python=action, payload=payload, **how)
    return attempt_start(assignment, "w1", datetime.now(UTC), most_result=1 << 24)


async def called(
    function: Any,
    stop: Stop | None = None,
    *,
    loops: HandlerLoops | None = None,
    loop: bool = True,
    payload: str = "null",
    **how: Any,
) -> AttemptOutcome:
    """The outcome of one call, on these loops or others."""
    if loops is None:
        async with handler_loops() as own:
            return await called(function, stop, loops=own, loop=loop, payload=payload, **how)
    target = CalledFunction("h", function, fit_of(function))

    def begin(batch: StartedBatch, places: Sequence[int]) -> None:
        HandlerCaller(loops).begin(target, batch, places, loop=loop)

    return await outcome_of(begin, attempt_of(payload, **how), stop)


async def outcome_of(
    begin: Callable[[StartedBatch, Sequence[int]], object],
    attempt: AttemptStart,
    stop: Stop | None = None,
) -> AttemptOutcome:
    """The outcome of an attempt, which `begin` begins. A cancel is the worker's end."""
    ended: asyncio.Future[AttemptOutcome] = asyncio.get_running_loop().create_future()

    def on_end(_batch: StartedBatch, _places: Sequence[int], outcome: AttemptOutcome) -> None:
        if not ended.done():
            ended.set_result(outcome)

    attempt.stop = stop = stop or attempt.stop
    attempt.started.on_end = on_end
    begin(attempt.started, [attempt.place])
    try:
        async with asyncio.timeout(WAIT_TIMEOUT):
            return await ended
    except asyncio.CancelledError:
        stop.abandon()
        raise
