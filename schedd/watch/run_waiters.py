"""Waiting for runs to change: told at once by what this member stores itself.

What another member stores is found by looking again; whoever waits decides how soon. Who watches
all runs of a job or of a namespace, here or at another member, hears of it too (`ears`).
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from schedd.core.ids import Hint, RunId
from schedd.watch.change_bus import ChangeBus


class RunWaiter:
    """One who waits."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def wake(self) -> None:
        """There is something else to see."""
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
    """The port `Changes`."""

    def __init__(self) -> None:
        self.ears = ChangeBus()
        self._watched: dict[RunId, set[RunWaiter]] = defaultdict(set)

    def changed(self, hints: Sequence[Hint]) -> None:
        """Wake those who wait for one of these."""
        if self._watched:
            for run, _ in hints:
                for watch in self._watched.get(run, ()):
                    watch.event.set()
        self.ears.hear(hints)

    @contextmanager
    def watching(self, runs: Sequence[RunId]) -> Iterator[RunWaiter]:
        """For this block somebody waits for changes of these, again and again."""
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
