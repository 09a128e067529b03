"""Computations within a budget of work: a little on the event loop, more in one thread.

A thread holds the interpreter while it computes, for `SWITCH_EVERY` (`schedd/app/daemon`) at a
time. So one thread delays each turn of the loop by a millisecond, and many would delay it by many.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from schedd.core.schedule.work_budget import MUCH, OF_OWNER, OF_TURN, Budget, TooMuchWork, limited

T = TypeVar("T")


async def on_loop(units: int, computation: Callable[[], T]) -> T:
    """Compute here and return the answer; after much work, let other tasks run first. Raises
    TooMuchWork past `units`.
    """
    budget = Budget(units)
    with limited(budget):
        answer = computation()
    if units - budget.left > MUCH:
        await asyncio.sleep(0)
    return answer


LARGE: Final = 64 * 1024
"""Bytes of a message whose conversion takes some milliseconds."""

_CONVERTING: Final = ThreadPoolExecutor(1, thread_name_prefix="conversion")


async def converted(size: int, conversion: Callable[[], T]) -> T:
    """Return the result of a conversion of `size` bytes. A large one runs in the single thread for
    conversions.
    """
    if size <= LARGE:
        return conversion()
    return await asyncio.get_running_loop().run_in_executor(_CONVERTING, conversion)


class ComputingThread:
    """Thread for pure computations, one at a time. It starts with the first computation."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, units: int, computation: Callable[[], T]) -> T:
        """Compute in the thread and return the answer. Raises TooMuchWork past `units`. Cancelling
        ends the computation.
        """
        budget = Budget(units)

        def within() -> T:
            with limited(budget):
                return computation()

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, within)
        except asyncio.CancelledError:
            budget.end()
            raise


THREAD: Final = ComputingThread("owner computation")
"""Of all loops of an owner."""


async def computed(computation: Callable[[], T]) -> T:
    """Return the answer of an owner's computation: a small one runs on the event loop, a larger one
    in the owner's thread. Raises TooMuchWork past `OF_OWNER`.
    """
    try:
        return await on_loop(OF_TURN, computation)
    except TooMuchWork:
        return await THREAD.run(OF_OWNER, computation)
