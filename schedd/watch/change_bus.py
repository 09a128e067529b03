"""Distribute hints of changed runs to this member's feed and to the feeds of other members.

    loops, calls ──hints──▶ ChangeBus ──▶ the feed of this member
                                     └──▶ HintQueue of each subscribed member ──▶ its feed

Hints are lost with the process that held them, so every listener also scans the rows. Without
listeners a hint costs nothing.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

from schedd.core.ids import Hint, JobId, RunId

MOST_HINTS: Final = 50_000
"""Runs that are kept for one listener, 16 bytes each plus table overhead."""


class ChangeListener(Protocol):
    def receive_hints(self, hints: Sequence[Hint]) -> None: ...


class HintQueue:
    """Hints to send to another member. `jobs`: the jobs it watches; None: all."""

    def __init__(self, jobs: frozenset[JobId] | None, most: int = MOST_HINTS) -> None:
        self._jobs = jobs
        self._most = most
        self._runs: dict[RunId, None] = {}
        self._lost = False
        self._news = asyncio.Event()

    def receive_hints(self, hints: Sequence[Hint]) -> None:
        for run, job in hints:
            if not cares(self._jobs, job):
                continue
            if len(self._runs) >= self._most:
                self._lost = True
                break
            self._runs[run] = None
        if self._runs:
            self._news.set()

    async def wait(self, most: float) -> bool:
        """Wait up to `most` seconds for hints; return whether there are any."""
        try:
            async with asyncio.timeout(most):
                return await self._news.wait()
        except TimeoutError:
            return False

    def take_runs(self, most: int) -> tuple[list[RunId], bool]:
        """Return the first `most` runs, and whether some hints were dropped."""
        taken = [run for run, _ in zip(self._runs, range(most), strict=False)]
        for run in taken:
            del self._runs[run]
        lost, self._lost = self._lost, False
        if not self._runs:
            self._news.clear()
        return taken, lost


class ChangeBus:
    """The listeners at this member."""

    def __init__(self) -> None:
        self._listeners: set[ChangeListener] = set()

    def receive_hints(self, hints: Sequence[Hint]) -> None:
        for listener in self._listeners:
            listener.receive_hints(hints)

    def add(self, listener: ChangeListener) -> None:
        self._listeners.add(listener)

    def remove(self, listener: ChangeListener) -> None:
        self._listeners.discard(listener)

    @contextmanager
    def listening(self, jobs: frozenset[JobId] | None) -> Iterator[HintQueue]:
        """Collect hints for another member, for the length of the block."""
        queue = HintQueue(jobs)
        self.add(queue)
        try:
            yield queue
        finally:
            self.remove(queue)


def cares(jobs: frozenset[JobId] | None, job: JobId | None) -> bool:
    """Return whether a run of `job` (None: unknown) matters to a listener for `jobs`."""
    return jobs is None or job is None or job in jobs


# Wait for runs to change. Changes that this member stores wake waiters at once.
#
# Changes that another member stores are found by polling; each waiter sets its interval. Watchers
# of a job or a namespace, at any member, receive hints of these changes too (`change_bus`).


class RunWaiter:
    def __init__(self) -> None:
        self.event = asyncio.Event()

    def wake(self) -> None:
        """Make `wait` return."""
        self.event.set()

    async def wait(self, timeout: float) -> None:
        """Return when a run may have changed since the last time, or after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self.event.wait()
        except TimeoutError:
            return
        finally:
            self.event.clear()


class Watchers:
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
