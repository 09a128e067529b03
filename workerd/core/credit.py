"""The credit of one member: slots of its newest grant, and of earlier ones that it may still use.

    granted 5 ──lower grant, serial──→ seen ──its reach──→ dispatched, or given up
              └──── reserved: 5 ────────┘└─ reserved: reach ─┘

A member chooses runs for granted slots, stores the assignments, and sends them. A lowered grant can
cross them on the way; these assignments aren't rejected.

Invariants
- A member dispatches at most up to the greatest of: its grant now; its grant
  before each lowering that it hasn't answered; its reach, as it answered the last lowering.
  (Assignments that another member relays over the stream are outside of any credit.)
- Up to that limit slots are reserved for the member. Other members are granted slots only from the
  rest (`slot_split`), so assignments within the credit always find their slots.
- An earlier grant is reserved for `KEPT_FOR` unless it is answered, and a reach for as long: a
  rejection costs nothing, idle slots do.

All counts are slots since the stream began. `at` is in seconds of the boot clock.
"""

from collections import deque
from math import inf

from schedkit.records import dataclass

KEPT_FOR = 3.0
"""Seconds: more than a member takes to dispatch a chosen run, or to read a frame. A member that
hangs counts as silent only after two heartbeats and a second.
"""


@dataclass(frozen=True, slots=True)
class _Earlier:
    """The limit of the grants before the one of this serial."""

    serial: int
    reach: int
    since: float


class Credit:
    """The slots that one member was granted on one stream, and may still use."""

    def __init__(self) -> None:
        self.received = 0
        """Slots of all assignments received over this stream, accepted or rejected."""
        self.limit = 0
        """`received + slots` of the newest grant."""
        self._serial = 0
        self._unanswered: deque[_Earlier] = deque()
        self._answered = _Earlier(0, 0, -inf)

    @property
    def slots(self) -> int:
        """Slots that the member may use by its newest grant."""
        return self.limit - self.received

    @property
    def serial(self) -> int:
        """The serial of the grant that must be answered; 0 if none must be."""
        return self._serial if self._unanswered else 0

    def grant(self, slots: int, at: float) -> None:
        """Grant so many slots from now on, more or fewer than before."""
        limit = self.received + slots
        if limit < self.limit:
            while self._unanswered and not _counts(self._unanswered[0], at):
                self._unanswered.popleft()
            while self._unanswered and self._unanswered[-1].reach <= self.limit:
                self._unanswered.pop()  # this one is kept longer, and is answered later
            self._serial += 1
            self._unanswered.append(_Earlier(self._serial, self.limit, at))
        self.limit = limit

    def reached(self, serial: int, slots: int, at: float) -> None:
        """Record the member's answer to the grant of this serial: under earlier grants it uses at
        most `slots`. A later answer may lower that again.
        """
        bound, since = self._answered.reach, self._answered.since
        while self._unanswered and self._unanswered[0].serial <= serial:
            bound, since = max(bound, self._unanswered.popleft().reach), at
        self._answered = _Earlier(serial, min(slots, bound), since)

    def reserved_slots(self, at: float) -> int:
        """Return the slots to reserve for the member, whatever it is granted now."""
        earlier = (self._answered, *self._unanswered)
        reach = max([self.limit, *(each.reach for each in earlier if _counts(each, at))])
        return max(0, reach - self.received)


def _counts(earlier: _Earlier, at: float) -> bool:
    return at - earlier.since < KEPT_FOR
