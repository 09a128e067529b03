"""Faults, numbered and written down: begin, took effect, end, healed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from faults.history import Nemesis, Recorder
from support.wait import WaitTimedOut, wait_until

T = TypeVar("T")
Phase = Literal["begin", "took_effect", "end", "healed"]


class NoEffect(AssertionError):
    """The nemesis could not inject the fault, or couldn't verify it."""


@dataclass(slots=True)
class Fault:
    """Fault in progress. The journal writes `begin` and `healed`; its maker the rest."""

    journal: Journal
    number: int
    name: str
    target: str
    seen: bool = False
    ended: bool = False

    def took_effect(self, **detail: Any) -> None:
        """Record that it took effect; `detail`: how that was seen."""
        self.seen = True
        self._write("took_effect", detail)

    def effect_of(self, look: Callable[[], T], within: float, what: str) -> T:
        """Wait until `look` sees the effect, and write it down; raises NoEffect if it doesn't."""
        try:
            found = wait_until(look, within, what)
        except WaitTimedOut as late:
            raise NoEffect(f"{self.name} of {self.target}: {late}") from late
        self.took_effect(what=what, seen=str(found)[:200])
        return found

    def end(self, **detail: Any) -> None:
        """Record that its undoing begins: from here on the system may heal."""
        if not self.ended:
            self.ended = True
            self._write("end", detail)

    def _write(self, phase: Phase, detail: dict[str, Any]) -> None:
        self.journal.write(self.number, self.name, self.target, phase, detail)


@dataclass(slots=True)
class Journal:
    """Where faults are written; one for a run. `began`, `healed`: the window of all of them."""

    recorder: Recorder
    began: float | None = None
    healed: float | None = None
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @contextmanager
    def fault(self, name: str, target: str, **detail: Any) -> Iterator[Fault]:
        """The whole of a fault. Its maker calls `took_effect` and `end` in between.

        Raises:
            NoEffect: the block was left without either.
        """
        fault = Fault(self, next(self._numbers), name, target)
        self.write(fault.number, name, target, "begin", detail)
        yield fault
        if not fault.seen:
            raise NoEffect(f"{name} of {target} was never seen to work")
        fault.end()
        self.write(fault.number, name, target, "healed", {})

    def write(
        self, number: int, name: str, target: str, phase: Phase, detail: dict[str, Any]
    ) -> None:
        """Record one moment of a fault."""
        now = time.time()
        if phase == "begin" and self.began is None:
            self.began = now
        if phase == "healed":
            self.healed = now
        self.recorder.nemesis(Nemesis(now, number, name, target, phase, detail))
