"""The result store behind its port: blocking calls run in threads, each with a timeout."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from schedkit.errors import Unavailable
from schedkit.objects import Objects, StoreAway, parts

log = logging.getLogger(__name__)

T = TypeVar("T")

CALL_TIMEOUT: Final = 60.0
"""Timeout of one call, in seconds; the drivers' own limits are lower."""
MOST_FAILED: Final = 3
_THREADS: Final = 4


class StoredObjects:
    """`schedd.ports.ResultObjects` over a store."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.on_away: Callable[[], object] = lambda: None
        """Called for each call that the store didn't answer."""
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="result store")

    async def parts(self, key: str, size: int, sha256: bytes) -> AsyncIterator[bytes]:
        """Yield the object's parts; each is read on demand."""
        reading = parts(self._objects, key, size, sha256)
        while (part := await self._called(lambda: next(reading, None))) is not None:
            yield part

    async def remove(self, places: Sequence[str]) -> tuple[list[str], list[str]]:
        """Remove objects one by one. A failed removal delays no other; `MOST_FAILED` failures in a
        row end the call, because the store itself is failing.
        """
        gone: list[str] = []
        stuck: list[str] = []
        in_a_row = 0
        for place in places:
            try:
                await self._called(partial(self._objects.remove, place))
            except Unavailable as error:
                log.warning("removal from the result store failed: object=%s %s", place, error)
                stuck.append(place)
                in_a_row += 1
                if in_a_row == MOST_FAILED:
                    break
                continue
            in_a_row = 0
            gone.append(place)
        return gone, stuck

    async def check(self) -> str:
        """Return why the store is unavailable; empty if it isn't."""
        try:
            await self._called(self._objects.check)
        except Unavailable as error:
            return str(error)
        return ""

    def close(self) -> None:
        """Stop the threads, without waiting for calls in progress."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _called(self, call: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CALL_TIMEOUT):
                answer = await loop.run_in_executor(self._threads, call)
        except TimeoutError:
            self.on_away()
            raise StoreAway(
                f"the result store timed out: no answer within {CALL_TIMEOUT:g} s; check its server"
            ) from None
        except Unavailable:
            self.on_away()
            raise
        return answer
