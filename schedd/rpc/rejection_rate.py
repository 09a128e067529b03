"""Limit the rate at which a member answers calls that it can't authenticate.

A client that keeps N calls open can then cause RATE calls a second, however large N is. Without the
limit it causes as many as the event loop can answer, and all other callers wait behind N calls.

Invariants
- A held call has no request in this process: the request is read after authentication.
- Calls past MOST_HELD are answered at once, so memory is bounded.
"""

import asyncio
from typing import Final

from schedd.rpc.limited_turns import LimitedTurns

RATE: Final = 200.0
"""Rejected calls that are answered a second, of all hosts."""
BURST: Final = 64
"""Rejected calls that are answered at once after a quiet second."""
MOST_HELD: Final = 8_192


class RejectionRate:
    """The rejected calls of one member."""

    def __init__(self) -> None:
        self._held: LimitedTurns[asyncio.Future[None]] = LimitedTurns(RATE, BURST, _release)

    def __len__(self) -> int:
        return len(self._held)

    async def wait_until_allowed(self, host: str) -> None:
        """Wait until a rejected call of this host may be answered."""
        if len(self._held) >= MOST_HELD or self._held.take_burst():
            return
        mine = asyncio.get_running_loop().create_future()
        self._held.add(host, mine)
        try:
            await mine
        finally:  # the caller may have disconnected
            self._held.discard(host, mine)


def _release(held: asyncio.Future[None]) -> bool:
    if not held.done():
        held.set_result(None)
    return True
