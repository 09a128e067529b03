"""Run the computations of calls within a work budget (`core/schedule/work_budget`): small ones on
the event loop, large ones in one thread, one at a time for each caller.

    compute ──ON_LOOP──▶ answer
               └─ more ──caller's turn──▶ thread ──OF_CALL──▶ answer
                                                    └─ more ──▶ RESOURCE_EXHAUSTED

The event loop runs one computation at a time and then yields, so many calls together block it no
longer than one. A caller has one computation in the thread at a time, so a caller with many calls
delays the others by one computation. A cancelled call ends its computation.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from schedd.api.errors import LimitReachedError
from schedd.api.services import Caller
from schedd.core.schedule.work_budget import OF_CALL, ON_LOOP, TooMuchWork
from schedd.runtime.budgeted_work import ComputingThread, on_loop

T = TypeVar("T")

_THREAD: Final = ComputingThread("computation")
_ATTEMPTS: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]] = WeakKeyDictionary()
_turns: Final[WeakValueDictionary[str, asyncio.Lock]] = WeakValueDictionary()


def _attempts() -> asyncio.Lock:
    loop = asyncio.get_running_loop()
    if (lock := _ATTEMPTS.get(loop)) is None:
        lock = _ATTEMPTS[loop] = asyncio.Lock()
    return lock


async def compute(caller: Caller, computation: Callable[[], T]) -> T:
    """Return the result of a pure computation. Raises LimitReachedError over the budget."""
    async with _attempts():
        try:
            return await on_loop(ON_LOOP, computation)
        except TooMuchWork:  # repeated in the thread, with warm caches
            await asyncio.sleep(0)
    turn = _turns.setdefault(caller.actor, asyncio.Lock())
    async with turn:
        try:
            return await _THREAD.run(OF_CALL, computation)
        except TooMuchWork as error:
            raise too_expensive() from error


def too_expensive() -> LimitReachedError:
    """Return the error for a computation that exceeds the budget of a call."""
    return LimitReachedError(
        "computing the fire times of this schedule exceeds the CPU budget of one call"
        f" ({OF_CALL / 1_000_000:g} s)",
        reason="SCHEDULE_TOO_EXPENSIVE",
        remedy="request fewer fire times or a shorter range, or simplify cron and exclude",
    )
