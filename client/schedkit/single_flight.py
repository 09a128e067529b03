"""Share one flight of costly work among concurrent callers of a key (single flight).

    caller ──▶ a flight that is new enough? ─ yes ──▶ wait for it ◀── other callers
                 └─ no ──▶ queue one ──▶ its turn: the work begins ──▶ value or error

The rules are in docs/decisions/2026-11-29-one-single-flight-and-one-group-commit.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

RUNNING: Final = -inf
"""`since`: any running flight is new enough."""
NEXT: Final = inf
"""`since`: only a flight that begins after the call is new enough."""


class SingleFlight(Generic[K, V]):
    """Flights by key. `name`: of their tasks. `at_once`: flights of all keys that run at the same
    time, without limit by default. `shares`: the errors that all callers of a flight receive.
    """

    def __init__(
        self,
        name: str,
        *,
        at_once: int | None = None,
        shares: tuple[type[Exception], ...] = (Exception,),
    ) -> None:
        self._name = name
        self._shares = shares
        self._turn: AbstractAsyncContextManager[None] = (
            nullcontext() if at_once is None else asyncio.Semaphore(at_once)
        )
        self._running: dict[K, _Flight[V]] = {}
        self._queued: dict[K, _Flight[V]] = {}

    async def get(self, key: K, work: Callable[[], Awaitable[V]], *, since: float) -> V:
        """Return the value of a flight that began at `since` (monotonic seconds) or later. Do the
        work if there is none. Raises what the work raises.
        """
        while True:
            running = self._running.get(key)
            new_enough = running is not None and running.callers and running.began >= since
            joined = running if new_enough else self._queued.get(key)
            if (flight := joined) is None:
                flight = self._queued[key] = _Flight[V]()
                flight.task = asyncio.create_task(self._fly(key, flight, work), name=self._name)
            try:
                return await self._wait(key, flight)
            except Exception as error:
                if joined is None or isinstance(error, self._shares):
                    raise

    async def _fly(self, key: K, flight: _Flight[V], work: Callable[[], Awaitable[V]]) -> V:
        if (before := self._running.get(key)) is not None:
            await asyncio.wait([before.task])
        async with self._turn:
            self._running[key] = self._queued.pop(key)
            flight.began = monotonic()
            try:
                return await work()
            finally:
                del self._running[key]

    async def _wait(self, key: K, flight: _Flight[V]) -> V:
        flight.callers += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.callers -= 1
            if not flight.callers:
                if self._queued.get(key) is flight:
                    del self._queued[key]
                flight.task.cancel()


@dataclass(slots=True, eq=False)
class _Flight(Generic[V]):
    """A flight. `callers`: callers that wait for it; without any it is being canceled."""

    callers: int = 0
    began: float = -inf
    task: asyncio.Task[V] = field(init=False)
