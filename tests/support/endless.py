"""Streams that don't end, as far as a test wants them."""

from __future__ import annotations

import asyncio
from typing import Any


async def first(count: int, stream: Any) -> list[Any]:
    """So many of a stream that doesn't end."""
    found = []
    async with asyncio.timeout(10):
        async for one in stream:
            found.append(one)
            if len(found) == count:
                break
    await stream.aclose()
    return found
