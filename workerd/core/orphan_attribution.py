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

_REMEMBERED = 1024


class OrphanAttribution:
    """The running attempts, and the times in which any has run."""

    def __init__(self) -> None:
        self._running: dict[int, int] = {}
        """PID of the first process → its start time."""
        self._ending: list[int] = []
        """Start times of ended attempts that may have left processes."""
        self._over: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED)
        """When ended attempts began and ended; overlapping ones are one entry."""

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
        began, ended = min(self._ending), at
        self._ending.clear()
        while self._over and began <= self._over[-1][1]:
            earlier = self._over.pop()
            began, ended = min(earlier[0], began), max(earlier[1], ended)
        self._over.append((began, ended))

    def must_end(self, born: int) -> bool:
        """Decide about an orphan of which only the start time is known."""
        if any(began <= born for began in self._running.values()):
            return False
        return any(began <= born for began in self._ending) or any(
            began <= born <= ended for began, ended in self._over
        )
