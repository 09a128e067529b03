"""How far one member may still push: by its newest grant, and by what it was promised before that.

    promised 5 ──grant of less, serial──→ seen ──its reach──→ pushed, or let go of
               └──── kept: 5 ───────────────┘└─ kept: that ──┘

A member chooses runs for slots that it was granted, writes them down, and pushes them. A grant that
is lowered meanwhile crosses them on the way; they needn't be refused for that.

Invariants
- A member that answers pushes no further than the greatest of: what it is promised now; what it was
  promised before each lowering that it hasn't answered; its reach, as it answered the last one.
  (But for what another member relays by its stream: that is within nobody's promise.)
- As far as that goes slots are kept free for it. Whoever is dealt slots gets them out of what is
  free beyond all that is kept (`grants`); so what is pushed within a promise finds its slots.
- An earlier promise is kept for `KEPT_FOR` until it is answered, and a reach for as long: a refusal
  costs nothing, slots that lie idle do.
- Nothing is kept for a member that doesn't answer, as older ones don't. It has what it is dealt.

All counts are of slots since the stream began; `at` is in seconds of the boot clock.
"""

from __future__ import annotations

from collections import deque
from math import inf

from schedkit.records import dataclass

KEPT_FOR = 3.0
"""Seconds: more than a run takes from its choice to its push, and a member to read a frame. One
that hangs is silent only after two heartbeats and a second.
"""


@dataclass(frozen=True, slots=True)
class _Earlier:
    """How far a member may go under grants before the one of this serial."""

    serial: int
    reach: int
    since: float


class Promises:
    """What one member was granted on one stream, and how far that still goes."""

    def __init__(self) -> None:
        self.answers = False
        """The member answers grants that promise less."""
        self.received = 0
        """Of all assignments that came by this stream, taken or refused."""
        self.promised = 0
        """`received + slots` of the newest grant."""
        self._serial = 0
        self._unanswered: deque[_Earlier] = deque()
        self._answered = _Earlier(0, 0, -inf)

    @property
    def slots(self) -> int:
        """What it may push by its newest grant."""
        return self.promised - self.received

    @property
    def serial(self) -> int:
        """Which grant is to be answered; 0: none."""
        return self._serial if self._unanswered else 0

    def grant(self, slots: int, at: float) -> None:
        """Promise so many slots from now on, more or less than before."""
        promised = self.received + slots
        if promised < self.promised and self.answers:
            while self._unanswered and not _counts(self._unanswered[0], at):
                self._unanswered.popleft()
            while self._unanswered and self._unanswered[-1].reach <= self.promised:
                self._unanswered.pop()  # this one is kept longer, and is answered later
            self._serial += 1
            self._unanswered.append(_Earlier(self._serial, self.promised, at))
        self.promised = promised

    def reached(self, serial: int, slots: int, at: float) -> None:
        """The member has seen the grant of this serial. What it does under earlier ones goes no
        further than `slots`: less than that, when it says so again.
        """
        bound, since = self._answered.reach, self._answered.since
        while self._unanswered and self._unanswered[0].serial <= serial:
            bound, since = max(bound, self._unanswered.popleft().reach), at
        self._answered = _Earlier(serial, min(slots, bound), since)

    def kept(self, at: float) -> int:
        """Slots that it may still push into, whatever it is granted now."""
        if not self.answers:
            return 0
        earlier = (self._answered, *self._unanswered)
        reach = max([self.promised, *(each.reach for each in earlier if _counts(each, at))])
        return max(0, reach - self.received)


def _counts(earlier: _Earlier, at: float) -> bool:
    return at - earlier.since < KEPT_FOR
