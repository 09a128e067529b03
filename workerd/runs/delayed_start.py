"""Start runs when they are due, at once or later, with one timer for all of them.

    put ─→ heap by boot time ──due──→ a part ─→ a turn of the loop ─→ the next part …
    let_start ─→ ended runs ──no run is due, or the wait expired──→ some of them …

Of many runs that are due at the same time, a part is started in each turn of the loop: its
executors begin before the next part, and heartbeats are sent between. A run of a later part can
still be revoked. Handlers in threads that use the processor delay the loop, which then waits for
the interpreter's lock. So the first part is small. Each part is larger than the one before, or
smaller after a turn of the loop that took long, down to one run. The results of ended runs
wait briefly until all due runs have started: a result may be a second late, a start must not. An
ended run keeps its slot meanwhile, so the number of starts is limited. Ended runs that were
pre-dispatched themselves wait longest; other results may unblock the next run of their job.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Sequence
from math import inf
from typing import Final, Generic, TypeVar

from schedkit.clock import boottime
from workerd.core.admission import HELD, OfferedBatch

B = TypeVar("B", bound=OfferedBatch)

AT_ONCE: Final = 256
"""Starts, or ends, in one turn of the loop at most: about 1 ms."""
FIRST: Final = 4
"""Starts in the first of several turns."""
GROWTH: Final = 4
"""Factor from one batch to the next."""
LONG_TURN: Final = 0.02
"""Seconds of a turn of the loop, with its starts, after which the next batch is smaller. A thread
that computes keeps the interpreter's lock for 5 ms, so four starts of such threads take longer.
"""
LOOKS_EVERY: Final = 1.0
"""Seconds between two checks. The loop's clock stops in a suspend, boot time doesn't."""
MAX_END_DELAY: Final = 0.5
"""Seconds that an ended run waits, as it isn't on disk yet; then ends have half of each turn."""
MAX_DELAYED_END_DELAY: Final = 4.0
"""The same for runs that were pre-dispatched. A run that isn't started within 5 s is returned,
which is more expensive than a late result.
"""


class DelayedStarts(Generic[B]):
    """Calls `start(parts)` at the boot time of runs that are held then: batches, and places."""

    def __init__(self, start: Callable[[Sequence[tuple[B, range]]], None]) -> None:
        self._start = start
        self._at: dict[B, float] = {}
        self._heap: list[tuple[float, int, B, range]] = []
        """An entry is stale unless its time is the one in `_at`."""
        self._count = 0
        self._ended: list[tuple[float, int, asyncio.Future[None]]] = []
        """A heap, by the end of the wait."""
        self._timer: asyncio.Handle | None = None
        self._rings_at = 0.0
        self._batch, self._last_turn = FIRST, inf
        """The size of the next part, and when the last one was started."""

    def put(self, batch: B, at: float) -> None:
        """Start the held runs of a batch at that time; replaces an earlier time."""
        self._at[batch] = at
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, batch, range(len(batch.keys))))
        if self._timer is None or at < self._rings_at:
            self._ring(at)

    async def let_start(self, *, pre_dispatched: bool) -> None:
        """Return when no due run waits for its start, or the wait expired. `pre_dispatched`: the
        ended run was pre-dispatched itself.
        """
        first, now = self._first(), boottime()
        if not self._ended and (first is None or first[0] > now):
            return
        turn = asyncio.get_running_loop().create_future()
        self._count += 1
        delay = MAX_DELAYED_END_DELAY if pre_dispatched else MAX_END_DELAY
        heapq.heappush(self._ended, (now + delay, self._count, turn))
        if self._timer is None:
            self._ring(now)
        await turn

    def _ring(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop, now = asyncio.get_running_loop(), boottime()
        self._rings_at = at = min(at, now + LOOKS_EVERY)
        due, wait = at <= now, at - now
        self._timer = loop.call_soon(self._come) if due else loop.call_later(wait, self._come)

    def _come(self) -> None:
        self._timer = None
        now, parts = boottime(), list[tuple[B, range]]()
        tired = self._ended and self._ended[0][0] < now
        room = most = self._next_batch(now) // (2 if tired else 1) or 1
        while room and (first := self._first()) and first[0] <= now:
            at, number, batch, places = first
            parts.append((batch, places[:room]))
            if len(places) > room:
                heapq.heapreplace(self._heap, (at, number, batch, places[room:]))
            else:
                heapq.heappop(self._heap)
                del self._at[batch]
            room -= len(parts[-1][1])
        try:
            if parts:
                self._start(parts)
        finally:
            first = self._first()
            herd = first is not None and first[0] <= now
            self._last_turn = now if herd else inf
            self._let_end(AT_ONCE - most + room, before=now if herd else inf)
            if first is not None or self._ended:
                self._ring(first[0] if first and not self._ended else boottime())

    def _next_batch(self, now: float) -> int:
        """Return how many runs to start in this turn of the loop."""
        took = now - self._last_turn
        if took < 0:  # the turn before left no due run
            self._batch = FIRST
        elif took > LONG_TURN:
            self._batch = self._batch // GROWTH or 1
        else:
            self._batch = min(GROWTH * self._batch, AT_ONCE)
        return self._batch

    def _let_end(self, most: int, *, before: float) -> None:
        """Let at most `most` ended runs continue whose wait ends before then."""
        while most and self._ended and self._ended[0][0] < before:
            most -= 1
            _, _, turn = heapq.heappop(self._ended)
            if not turn.done():  # otherwise its attempt was canceled
                turn.set_result(None)

    def _first(self) -> tuple[float, int, B, range] | None:
        while self._heap:
            at, number, batch, places = self._heap[0]
            if self._at.get(batch) == at:
                place = batch.states.find(HELD, places.start, places.stop)
                if place == places.start:
                    return self._heap[0]
                if place >= 0:
                    entry = at, number, batch, range(place, places.stop)
                    heapq.heapreplace(self._heap, entry)
                    return entry
                del self._at[batch]
            heapq.heappop(self._heap)
        return None
