"""Attribute a process whose parent has exited to attempts, by its start time.

    attempt A   ├────────────┤
    attempt B        ├──────────────────┤
    orphan               ×                  started while A and B ran: it may belong to either,
                                            so it is ended when both have ended

Invariants
- An orphan that may belong to a running attempt is left alone.
- An orphan that started while no attempt ran belongs to none, and is never ended.
- An attempt lasts until no process of it is found any more: a process that is being killed may
  still fork.
- Times are clock ticks since boot, as in /proc. Equal ticks count as "while it ran".
"""

from collections import deque
from enum import Enum, auto

from schedkit.records import dataclass

_REMEMBERED = 1024


class Fate(Enum):
    LEAVE = auto()
    END = auto()


@dataclass(frozen=True, slots=True)
class Life:
    """The time of one attempt, or of several that overlapped."""

    began: int
    ended: int


class OrphanAttribution:
    """The running attempts, and the times in which any has run."""

    def __init__(self) -> None:
        self._running: dict[int, int] = {}
        """PID of the first process → its start time."""
        self._ending: list[int] = []
        """Start times of ended attempts that may have left processes."""
        self._over: deque[Life] = deque(maxlen=_REMEMBERED)

    def add_attempt(self, pid: int, at: int) -> None:
        """Record the start of an attempt's first process."""
        self._running[pid] = at

    def end_attempt(self, pid: int) -> None:
        """Record the end of that attempt. Processes that it left must be ended."""
        self._ending.append(self._running.pop(pid))

    def all_ended(self, at: int) -> None:
        """Record that at this time no process of an ended attempt was left."""
        if not self._ending:
            return
        life = Life(min(self._ending), at)
        self._ending.clear()
        while self._over and life.began <= self._over[-1].ended:
            earlier = self._over.pop()
            life = Life(min(earlier.began, life.began), max(earlier.ended, life.ended))
        self._over.append(life)

    def fate(self, born: int) -> Fate:
        """Decide about an orphan of which only the start time is known."""
        if any(began <= born for began in self._running.values()):
            return Fate.LEAVE
        ending = any(began <= born for began in self._ending)
        past = any(life.began <= born <= life.ended for life in self._over)
        return Fate.END if ending or past else Fate.LEAVE
