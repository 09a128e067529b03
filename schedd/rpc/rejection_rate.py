"""Limit the rate at which a member answers calls that it can't authenticate.

    rejected call -> burst left? -> answered at once
                        no: held -> A_TICK of them each TICK, in turn by host -> answered

A client that keeps N calls open can then cause RATE calls a second, however large N is. Without the
limit it causes as many as the event loop can answer, and all other callers wait behind N calls.

Invariants
- A held call has no request in this process: the request is read after authentication.
- Calls past MOST_HELD are answered at once, so memory is bounded.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

from schedkit.clock import boottime

RATE: Final = 200.0
"""Rejected calls that are answered a second, of all hosts."""
BURST: Final = 64
"""Rejected calls that are answered at once after a quiet second."""
MOST_HELD: Final = 8_192
TICK: Final = 0.02
A_TICK: Final = round(RATE * TICK)


class RejectionRate:
    """The rejected calls of one member."""

    def __init__(self) -> None:
        self._held: OrderedDict[str, dict[asyncio.Future[None], None]] = OrderedDict()
        """By host, the host whose turn is next first; each in order of arrival."""
        self._count = 0
        self._burst, self._counted_at = float(BURST), boottime()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return self._count

    async def wait_until_allowed(self, peer: str) -> None:
        """Wait until a rejected call of this peer (`scheme:host:port`) may be answered."""
        if self._count >= MOST_HELD or (not self._held and self._burst_left()):
            return
        host, mine = peer.rpartition(":")[0], asyncio.get_running_loop().create_future()
        self._held.setdefault(host, {})[mine] = None
        self._count += 1
        if self._timer is None:
            self._start()
        try:
            await mine
        finally:
            self._count -= 1
            if mine in (held := self._held.get(host, {})):  # the caller left
                self._remove(host, held, mine)

    def _burst_left(self) -> bool:
        now = boottime()
        self._burst = min(BURST, self._burst + (now - self._counted_at) * RATE)
        self._counted_at = now
        if self._burst < 1:
            return False
        self._burst -= 1
        return True

    def _start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK, self._release)

    def _release(self) -> None:
        self._timer = None
        for _ in range(A_TICK):
            if not self._held:
                return
            host, held = next(iter(self._held.items()))
            first = next(iter(held))
            self._remove(host, held, first)
            if host in self._held:
                self._held.move_to_end(host)
            if not first.done():
                first.set_result(None)
        self._start()

    def _remove(
        self, host: str, held: dict[asyncio.Future[None], None], one: asyncio.Future[None]
    ) -> None:
        del held[one]
        if not held:
            del self._held[host]
