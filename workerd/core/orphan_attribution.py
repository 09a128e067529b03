"""Whose is a process whose parent has died? What its birth tells when nothing else does.

    attempt A   ├────────────┤
    attempt B        ├──────────────────┤
    orphan               ×                  born while A and B lived: it may belong to either,
                                            so it is left until both are over, and then ended

Invariants
- What may belong to an attempt that still runs is left to it.
- What was born while no attempt lived belongs to none, and is left in peace for good.
- An attempt's life lasts until nothing of it was found any more, for what is being killed may
  give birth until it is dead.
- Times are clock ticks since boot, as /proc tells them; equal ticks count as "while it lived".
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto

from schedkit.records import dataclass

_REMEMBERED = 1024


class Fate(Enum):
    """What is to be done with an orphan."""

    LEAVE = auto()
    END = auto()


@dataclass(frozen=True, slots=True)
class Life:
    """That of one attempt, or of several that overlapped."""

    began: int
    ended: int


class Kinship:
    """The attempts that live, and the times in which any has lived."""

    def __init__(self) -> None:
        self._running: dict[int, int] = {}
        """First process → when it was born."""
        self._ending: list[int] = []
        """When those began that are over, but may have left something."""
        self._over: deque[Life] = deque(maxlen=_REMEMBERED)

    def began(self, pid: int, at: int) -> None:
        """An attempt's first process was born."""
        self._running[pid] = at

    def ended(self, pid: int) -> None:
        """That attempt is over; what it left is to be ended."""
        self._ending.append(self._running.pop(pid))

    def settled(self, at: int) -> None:
        """At this time nothing lived any more that was to be ended."""
        if not self._ending:
            return
        life = Life(min(self._ending), at)
        self._ending.clear()
        while self._over and life.began <= self._over[-1].ended:
            earlier = self._over.pop()
            life = Life(min(earlier.began, life.began), max(earlier.ended, life.ended))
        self._over.append(life)

    def fate(self, born: int) -> Fate:
        """Of an orphan that was born then, and of which nothing else is known."""
        if any(began <= born for began in self._running.values()):
            return Fate.LEAVE
        ending = any(began <= born for began in self._ending)
        past = any(life.began <= born <= life.ended for life in self._over)
        return Fate.END if ending or past else Fate.LEAVE
