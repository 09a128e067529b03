"""Assignments that were asked back, until each is settled (PROTOCOL 3).

asked ─→ answered: given up, or started
     └─→ past its `start_by`: it can't be started any more
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TypeAlias

from schedd.core.ids import RunId, Token

At: TypeAlias = tuple[RunId, Token]


class Revocations:
    """Who waits for the answer to which revoke; several may wait for one."""

    def __init__(self) -> None:
        self._waiting: dict[At, set[asyncio.Event]] = defaultdict(set)

    def answered(self, at: At) -> None:
        """Its worker gave it up, or says that it has started."""
        for event in self._waiting.get(at, ()):
            event.set()

    async def settled(self, at: At, within: float) -> bool:
        """Wait for the answer, at most so many seconds; whether it came."""
        event = asyncio.Event()
        self._waiting[at].add(event)
        try:
            async with asyncio.timeout(max(0.0, within)):
                await event.wait()
        except TimeoutError:
            return False
        finally:
            self._waiting[at].discard(event)
            if not self._waiting[at]:
                del self._waiting[at]
        return True
