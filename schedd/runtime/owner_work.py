"""Computations of an owner, each within a budget of work (`core/schedule/work_budget`): small ones
on the event loop, larger ones in the owner's single thread.
"""

from collections.abc import Callable
from typing import Final, TypeVar

from schedd.core.schedule.work_budget import OF_OWNER, OF_TURN, TooMuchWork
from schedd.runtime.budgeted_work import ComputingThread, on_loop

T = TypeVar("T")

THREAD: Final = ComputingThread("owner computation")


async def computed(computation: Callable[[], T]) -> T:
    """Return the answer of a pure computation. Raises TooMuchWork past `OF_OWNER`."""
    try:
        return await on_loop(OF_TURN, computation)
    except TooMuchWork:
        return await THREAD.run(OF_OWNER, computation)
