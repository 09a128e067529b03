"""Wait for runs to change. Changes that this member stores wake waiters at once.

Changes that another member stores are found by polling; each waiter sets its interval. Watchers of
a job or a namespace, at any member, receive hints of these changes too (`change_bus`).
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from schedd.core.ids import Hint, RunId
from schedd.watch.change_bus import ChangeBus


class RunWaiter:
    def __init__(self) -> None:
        self.event = asyncio.Event()

    def wake(self) -> None:
        """Make `wait` return."""
        self.event.set()

    async def wait(self, timeout: float) -> None:
        """Return when one of its runs may have changed since the last time, at the latest after
        `timeout` seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                await self.event.wait()
        except TimeoutError:
            return
        finally:
            self.event.clear()


class Watchers:
    """Waiters for changes of runs, at this member."""

    def __init__(self) -> None:
        self.ears = ChangeBus()
        self._watched: dict[RunId, set[RunWaiter]] = defaultdict(set)

    def changed(self, hints: Sequence[Hint]) -> None:
        if self._watched:
            for run, _ in hints:
                for watch in self._watched.get(run, ()):
                    watch.event.set()
        self.ears.receive_hints(hints)

    @contextmanager
    def watching(self, runs: Sequence[RunId]) -> Iterator[RunWaiter]:
        """Yield a waiter for changes of these runs, for the length of the block."""
        watch = RunWaiter()
        for run in runs:
            self._watched[run].add(watch)
        try:
            yield watch
        finally:
            for run in runs:
                self._watched[run].discard(watch)
                if not self._watched[run]:
                    del self._watched[run]
