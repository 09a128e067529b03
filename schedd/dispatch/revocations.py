"""Assignments that are being revoked, until each is resolved (docs/protocol-rules.md, P3.8).

revoke sent ─→ answered: given up, or started
           └─→ past its `start_by`: it can't start any more

One question waits for all assignments that are revoked together: for the one with the latest
`start_by` first, and then for the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, TypeAlias

from schedd.core.ids import IncarnationId, RunId, Token
from schedd.core.runs.model import LiveRun
from schedd.dispatch.workers.remote_workers import RemoteWorkers

At: TypeAlias = tuple[RunId, Token]

ASKED_AT_ONCE: Final = 16
"""Workers at other members that are asked at the same time."""


class Question:
    """Assignments that are revoked together. `left`: seconds from now until each times out."""

    def __init__(self, left: Mapping[At, float]) -> None:
        now = asyncio.get_running_loop().time()
        soonest_first = sorted(left.items(), key=lambda each: each[1])
        self._ends = {at: now + seconds for at, seconds in soonest_first}
        self._last_answered = asyncio.Event()

    @property
    def open(self) -> Collection[At]:
        """Assignments without an answer."""
        return self._ends.keys()

    def answered(self, at: At) -> None:
        """Note that the assignment was given up or has started."""
        if at == next(reversed(self._ends), None):
            self._last_answered.set()
        self._ends.pop(at, None)

    async def resolved(self) -> None:
        """Wait until each assignment was answered or has timed out."""
        try:
            while self._ends:
                self._last_answered.clear()
                async with asyncio.timeout_at(next(reversed(self._ends.values()))):
                    await self._last_answered.wait()
        except TimeoutError:
            return  # all earlier ones have timed out too


class Revocations:
    """Questions by the revokes whose answers they wait for; several may wait for one."""

    def __init__(self) -> None:
        self._asked: dict[At, list[Question]] = {}

    def answered(self, at: At) -> None:
        """Note that the worker gave the assignment up, or reported its start."""
        for question in self._asked.pop(at, ()):
            question.answered(at)

    @contextmanager
    def asking(self, left: Mapping[At, float]) -> Iterator[Question]:
        """Surround the sending of revokes: answers count from the beginning."""
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
    elsewhere: RemoteWorkers,
    away: Mapping[IncarnationId, Sequence[LiveRun]],
    answered: Callable[[At], None],
) -> None:
    """Revoke through other members, a limited number at a time; report each answer."""
    turn = asyncio.Semaphore(ASKED_AT_ONCE)

    async def ask(incarnation: IncarnationId, runs: Sequence[LiveRun]) -> None:
        async with turn:
            for at in await elsewhere.revoke(incarnation, runs):
                answered(at)

    async with asyncio.TaskGroup() as group:
        for incarnation, runs in away.items():
            group.create_task(ask(incarnation, runs), name=f"revoke of {incarnation}")
