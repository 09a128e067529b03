"""Where work of calls is done: on the event loop while it is little, else in a thread."""

from __future__ import annotations

import asyncio
import threading

from schedd.api.budgeted_calls import compute
from schedd.api.services import Caller
from schedd.core.schedule.work_budget import ON_LOOP, spend
from schedd.runtime.budgeted_work import LARGE, converted
from support.callers import TESTER


async def test_a_large_message_is_converted_in_a_thread_and_a_small_one_in_place() -> None:
    here = threading.get_ident()
    assert await converted(LARGE, threading.get_ident) == here
    assert await converted(LARGE + 1, threading.get_ident) != here


async def test_concurrent_costly_calls_yield_to_other_tasks_between_their_attempts() -> None:
    here, attempts, turns = threading.get_ident(), list[int](), [0]

    def costly() -> None:
        if threading.get_ident() == here:
            attempts.append(turns[0])
        spend(ON_LOOP + 1)

    async def count_turns() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(count_turns())
    await asyncio.gather(*(compute(Caller(TESTER, "test"), costly) for _ in range(10)))
    other.cancel()
    assert len(attempts) == len(set(attempts)) == 10
