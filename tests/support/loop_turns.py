"""Count the rounds of the event loop in which other tasks could run, during some work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable


async def turns_during(work: Awaitable[object]) -> int:
    """The rounds of the loop in which another task could run."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count(), name="count")
    try:
        await work
    finally:
        counting.cancel()
    return turns
