"""What is armed: each is started when its instant has come, by one timer for all of them.

    put ─→ heap by boot time ──due──→ a few ─→ everybody else's turn ─→ the next few …
    let_start ─→ what has ended ──nothing is due any more, or its moment is over──→ a few …

Of a herd that is due at one instant a few are started in a turn of the loop: each gets to its
executor before the next few are looked at, and heartbeats go out between. What has ended meanwhile
waits for a moment until all have started: nobody misses a result a second later, and a late start
is late. It keeps its slot, so there is an end to the starts. What is of the herd itself waits
longest; the end of another may be what the next run of its job waits for. Nor does the interpreter
look for cycles meanwhile: to go through all that has started takes a quarter of the time.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
from collections.abc import Callable
from math import inf
from typing import Final

from schedkit.clock import boottime
from workerd.core.ids import AssignmentKey

AT_ONCE: Final = 32
"""Starts, or ends, in one turn of the loop: about a millisecond of it."""
LOOKS_EVERY: Final = 1.0
"""Seconds. The loop's own clock stands still while the machine is suspended, boot time doesn't."""
PATIENCE: Final = 0.5
"""Seconds that an end waits, for it is on no disk yet; then ends have half of each turn."""
OF_THE_HERD: Final = 4.0
"""The same of what was armed. What isn't started within five goes back to its member, and costs
both more than what is told later.
"""
MOST_UNSWEPT: Final = 5.0
"""Seconds without a look for cycles: what handlers leave in them takes memory."""


class Armed:
    """Calls `start(key)` once `at`, in seconds of the boot clock, has come."""

    def __init__(self, start: Callable[[AssignmentKey], None]) -> None:
        self._start = start
        self._at: dict[AssignmentKey, float] = {}
        self._heap: list[tuple[float, int, AssignmentKey]] = []
        """An entry is stale unless its time is the one in `_at`."""
        self._count = 0
        self._ended: list[tuple[float, int, asyncio.Future[None]]] = []
        """A heap, by the end of their patience."""
        self._timer: asyncio.Handle | None = None
        self._rings_at = 0.0
        self._herd_since: float | None = None
        """Since when some that were due have waited for others."""
        self._rests = False
        """The collector does, because of them."""

    def __len__(self) -> int:
        return len(self._at)

    def put(self, key: AssignmentKey, at: float) -> None:
        """Have it started then; one that is there already is moved."""
        self._at[key] = at
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, key))
        if self._timer is None or at < self._rings_at:
            self._ring(at)

    async def let_start(self, *, armed: bool) -> None:
        """Return once nothing that is due waits for its start, or a moment has passed. `armed`: who
        asks was so itself.
        """
        first, now = self._first(), boottime()
        if not self._ended and (first is None or first[0] > now):
            return
        turn = asyncio.get_running_loop().create_future()
        self._count += 1
        patience = OF_THE_HERD if armed else PATIENCE
        heapq.heappush(self._ended, (now + patience, self._count, turn))
        if self._timer is None:
            self._ring(now)
        await turn

    def discard(self, key: AssignmentKey) -> None:
        """Never start it, if it waits here."""
        self._at.pop(key, None)

    def _ring(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop, now = asyncio.get_running_loop(), boottime()
        self._rings_at = at = min(at, now + LOOKS_EVERY)
        due, wait = at <= now, at - now
        self._timer = loop.call_soon(self._come) if due else loop.call_later(wait, self._come)

    def _come(self) -> None:
        self._timer = None
        now, started = boottime(), 0
        tired = self._ended and self._ended[0][0] < now
        most = AT_ONCE // 2 if tired else AT_ONCE
        try:
            while started < most and (first := self._first()) and first[0] <= now:
                heapq.heappop(self._heap)
                del self._at[first[2]]
                started += 1
                self._start(first[2])
        finally:
            first = self._first()
            herd = first is not None and first[0] <= now
            self._let_end(AT_ONCE - started, before=now if herd else inf)
            self._sweep(now, herd=herd)
            if first is not None or self._ended:
                self._ring(first[0] if first and not self._ended else boottime())

    def _sweep(self, now: float, *, herd: bool) -> None:
        """Have the collector rest while a herd starts, but not for ever."""
        if herd and self._herd_since is None:
            self._herd_since, self._rests = now, gc.isenabled()
            gc.disable()
        over = self._herd_since is not None and now - self._herd_since > MOST_UNSWEPT
        if self._rests and (over or not herd):
            self._rests = False
            gc.enable()
        if not herd:
            self._herd_since = None

    def _let_end(self, most: int, *, before: float) -> None:
        """So many whose patience is over before then."""
        while most and self._ended and self._ended[0][0] < before:
            most -= 1
            _, _, turn = heapq.heappop(self._ended)
            if not turn.done():  # else its attempt was cancelled
                turn.set_result(None)

    def _first(self) -> tuple[float, int, AssignmentKey] | None:
        while self._heap:
            at, _, key = self._heap[0]
            if self._at.get(key) == at:
                return self._heap[0]
            heapq.heappop(self._heap)
        return None
