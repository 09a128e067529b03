"""Who hears of each run that this member stores otherwise: its own feed, and other members'.

    loops, calls ──hints──▶ Ears ──▶ the feed of this member
                                └──▶ Ear of each other member that listens ──▶ its feed

A hint is lost with the process that had it: whoever listens looks the rows through as well. Nobody
listens, and a hint costs nothing.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

from schedd.core.ids import Hint, JobId, RunId

MOST_HEARD: Final = 50_000
"""Runs that are kept for one listener, sixteen bytes each and what a table takes."""


class ChangeListener(Protocol):
    """One who wants to hear."""

    def hear(self, hints: Sequence[Hint]) -> None: ...


class Ear:
    """What another member has to be told. `jobs`: those it cares for; None: all."""

    def __init__(self, jobs: frozenset[JobId] | None, most: int = MOST_HEARD) -> None:
        self._jobs = jobs
        self._most = most
        self._runs: dict[RunId, None] = {}
        self._lost = False
        self._news = asyncio.Event()

    def hear(self, hints: Sequence[Hint]) -> None:
        """These were stored otherwise."""
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
        """Until there is something to take, for at most so many seconds. Whether there is."""
        try:
            async with asyncio.timeout(most):
                return await self._news.wait()
        except TimeoutError:
            return False

    def take(self, most: int) -> tuple[list[RunId], bool]:
        """The first `most` that were heard of, and whether there were more than could be kept."""
        taken = [run for run, _ in zip(self._runs, range(most), strict=False)]
        for run in taken:
            del self._runs[run]
        lost, self._lost = self._lost, False
        if not self._runs:
            self._news.clear()
        return taken, lost


class ChangeBus:
    """All that listen at this member."""

    def __init__(self) -> None:
        self._listeners: set[ChangeListener] = set()

    def hear(self, hints: Sequence[Hint]) -> None:
        """Tell all that listen."""
        for listener in self._listeners:
            listener.hear(hints)

    def add(self, listener: ChangeListener) -> None:
        """It listens from now on."""
        self._listeners.add(listener)

    def remove(self, listener: ChangeListener) -> None:
        """It doesn't any more."""
        self._listeners.discard(listener)

    @contextmanager
    def listening(self, jobs: frozenset[JobId] | None) -> Iterator[Ear]:
        """For this block another member listens."""
        ear = Ear(jobs)
        self.add(ear)
        try:
            yield ear
        finally:
            self.remove(ear)


def cares(jobs: frozenset[JobId] | None, job: JobId | None) -> bool:
    """Whether a run of this job, if that is known, matters to who wants to hear of these."""
    return jobs is None or job is None or job in jobs
