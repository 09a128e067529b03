"""Waiting for runs to change: told at once by what this member stores itself.

What another member stores is found by looking again; whoever waits decides how soon.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence

from schedd.core.ids import RunId


class Watchers:
    """The port `Changes`."""

    def __init__(self) -> None:
        self._waiting: dict[RunId, set[asyncio.Event]] = defaultdict(set)

    def changed(self, runs: Iterable[RunId]) -> None:
        """Wake those who wait for one of these."""
        for run in runs:
            for event in self._waiting.get(run, ()):
                event.set()

    async def wait(self, runs: Sequence[RunId], timeout: float) -> None:
        """Return when one of these may have changed, at the latest after `timeout` seconds."""
        event = asyncio.Event()
        for run in runs:
            self._waiting[run].add(event)
        try:
            async with asyncio.timeout(timeout):
                await event.wait()
        except TimeoutError:
            return
        finally:
            for run in runs:
                self._waiting[run].discard(event)
                if not self._waiting[run]:
                    del self._waiting[run]
