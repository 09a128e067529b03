"""Assignments that were asked back, until each is settled (PROTOCOL 3).

asked ─→ answered: given up, or started
     └─→ past its `start_by`: it can't be started any more

However many are asked back together, one question waits for them all: for the one that may start
longest, until that is answered too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, TypeAlias

from schedd.core.ids import IncarnationId, RunId, Token
from schedd.core.runs.model import LiveRun
from schedd.dispatch.workers.remote_workers import Elsewhere

At: TypeAlias = tuple[RunId, Token]

ASKED_AT_ONCE: Final = 16
"""Workers elsewhere that are asked at the same time."""


class Question:
    """Assignments that were asked back together. `left`: seconds from now that each may take."""

    def __init__(self, left: Mapping[At, float]) -> None:
        now = asyncio.get_running_loop().time()
        soonest_first = sorted(left.items(), key=lambda each: each[1])
        self._ends = {at: now + seconds for at, seconds in soonest_first}
        self._last_answered = asyncio.Event()

    @property
    def open(self) -> Collection[At]:
        """Those without an answer."""
        return self._ends.keys()

    def answered(self, at: At) -> None:
        """This one was given up, or has started."""
        if at == next(reversed(self._ends), None):
            self._last_answered.set()
        self._ends.pop(at, None)

    async def resolved(self) -> None:
        """Return when each was answered, or its time has passed."""
        try:
            while self._ends:
                self._last_answered.clear()
                async with asyncio.timeout_at(next(reversed(self._ends.values()))):
                    await self._last_answered.wait()
        except TimeoutError:
            return  # the last one's time has passed, so have the others'


class Revocations:
    """Who waits for the answer to which revoke; several may wait for one."""

    def __init__(self) -> None:
        self._asked: dict[At, list[Question]] = {}

    def answered(self, at: At) -> None:
        """Its worker gave it up, or says that it has started."""
        for question in self._asked.pop(at, ()):
            question.answered(at)

    @contextmanager
    def asking(self, left: Mapping[At, float]) -> Iterator[Question]:
        """Around the sending of revokes: answers count from the beginning on."""
        question = Question(left)
        for at in left:
            self._asked.setdefault(at, []).append(question)
        try:
            yield question
        finally:
            for at in question.open:
                self._asked[at].remove(question)
                if not self._asked[at]:
                    del self._asked[at]


async def ask_elsewhere(
    elsewhere: Elsewhere,
    away: Mapping[IncarnationId, Sequence[LiveRun]],
    answered: Callable[[At], None],
) -> None:
    """Ask these workers by other members, some at a time; tell each answer as it comes."""
    turn = asyncio.Semaphore(ASKED_AT_ONCE)

    async def ask(incarnation: IncarnationId, runs: Sequence[LiveRun]) -> None:
        async with turn:
            for at in await elsewhere.revoke(incarnation, runs):
                answered(at)

    async with asyncio.TaskGroup() as group:
        for incarnation, runs in away.items():
            group.create_task(ask(incarnation, runs), name=f"revoke of {incarnation}")
