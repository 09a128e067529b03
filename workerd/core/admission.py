"""Decide which assignments this worker accepts and starts: each at most once, on any network.

    offer ─┬─ HELD ──┐ start
           ├─ PRE_DISPATCHED ─┴───────→ RUNNING ──ended──→ ENDED ──acknowledged──→ (removed)
           └─ refused           ↑ revoke and cancel before this arrow: never started

Invariants (docs/protocol-rules.md, P4.1 and P4.2)
- `seen[run]` is the greatest token accepted, rejected, revoked or canceled. A token below it is
  rejected. The same token gets the same answer: an accepted one is never started again, a rejected
  one stays rejected.
- Whether an assignment may start (incarnation, draining, trust, `not_before`, `start_by`) is
  judged at the moment it starts, on a clock that never goes back.
- A slot is free again when the execution has ended, not when its result is acknowledged.
- An entry of `seen` is removed only after its `start_by`, when a start is rejected anyway.

Two clocks are arguments. `at`: seconds of the boot clock, for `not_before`. `judged`: seconds of
the judging clock (cluster_time), for `start_by` and for the removal of entries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import Enum, auto

from schedkit.records import dataclass, replace
from workerd.core.ids import AssignmentKey, Incarnation, RunId, Token

GRACE = 10.0
"""Seconds that an entry outlives its `start_by`: more than any error of a measured offset."""
UNKNOWN_FOR = 900.0
"""Seconds that a revoke or cancel of an assignment never received is remembered."""


class RejectReason(Enum):
    """Why an assignment is rejected. No rejection costs the run an attempt."""

    NO_SLOT = auto()
    DRAINING = auto()
    TOO_LATE = auto()
    GREATER_TOKEN_SEEN = auto()
    OTHER_INCARNATION = auto()
    UNABLE = auto()
    REVOKED = auto()


class AssignmentState(Enum):
    """The state of an accepted assignment."""

    HELD = auto()
    PRE_DISPATCHED = auto()
    RUNNING = auto()
    ENDED = auto()


@dataclass(frozen=True, slots=True)
class OfferedAssignment:
    """The parts of an assignment that admission reads."""

    key: AssignmentKey
    incarnation: Incarnation
    slots: int
    start_by: float
    """On the judging clock."""
    not_before: float | None = None
    """On the boot clock."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The assignment is accepted: start it at `not_before`."""


@dataclass(frozen=True, slots=True)
class AlreadyTaken:
    """The assignment was accepted before, and is in this state. Start nothing."""

    state: AssignmentState | None
    """None: its result was acknowledged."""


@dataclass(frozen=True, slots=True)
class NotTaken:
    """The assignment is rejected, or no longer held. `greatest`: the greatest token of its run."""

    why: RejectReason
    greatest: Token
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Started:
    """Start it now."""


@dataclass(frozen=True, slots=True)
class NotYet:
    """Ask again at boot time `until`."""

    until: float


@dataclass(slots=True)
class _Seen:
    token: Token
    taken: bool
    forget_at: float


@dataclass(slots=True)
class _Holding:
    offer: OfferedAssignment
    state: AssignmentState


class Admission:
    """The worker's register of runs. Not thread-safe: used by the event loop only."""

    def __init__(self, slots: int, incarnation: Incarnation) -> None:
        self._incarnation = incarnation
        self._slots = slots
        self._used = 0
        self._seen: dict[RunId, _Seen] = {}
        self._oldest: deque[tuple[float, RunId]] = deque()
        self._holdings: dict[AssignmentKey, _Holding] = {}
        self.draining = False

    @property
    def free(self) -> int:
        """Slots without a run that is held, pre-dispatched or running."""
        return self._slots - self._used

    @property
    def used(self) -> int:
        """Slots in use."""
        return self._used

    def holdings(self) -> Iterator[tuple[AssignmentKey, AssignmentState]]:
        """Return all assignments that were accepted and aren't acknowledged."""
        return ((key, holding.state) for key, holding in self._holdings.items())

    def state(self, key: AssignmentKey) -> AssignmentState | None:
        """Return the state of this assignment; None if it isn't in hand."""
        holding = self._holdings.get(key)
        return holding.state if holding else None

    def offer(
        self, offer: OfferedAssignment, judged: float, *, trusted: bool, unable: str = ""
    ) -> Taken | AlreadyTaken | NotTaken:
        """Decide about a received assignment. `unable`: why no executor here can run it."""
        key = offer.key
        if (state := self.state(key)) is not None:
            return AlreadyTaken(state)
        seen = self._seen.get(key.run)
        if seen is not None and key.token <= seen.token:
            if key.token < seen.token:
                return NotTaken(RejectReason.GREATER_TOKEN_SEEN, seen.token)
            if seen.taken:
                return AlreadyTaken(None)
            return NotTaken(RejectReason.REVOKED, seen.token)
        why = self._objection(offer, judged, trusted)
        if why is None and unable:
            why = RejectReason.UNABLE
        if why is None and offer.slots > self.free:
            why = RejectReason.NO_SLOT
        self._remember(key, taken=why is None, forget_at=max(offer.start_by, judged) + GRACE)
        if why is not None:
            return NotTaken(why, key.token, unable if why is RejectReason.UNABLE else "")
        state = AssignmentState.HELD if offer.not_before is None else AssignmentState.PRE_DISPATCHED
        self._holdings[key] = _Holding(offer, state)
        self._used += offer.slots
        return Taken()

    def start(
        self, key: AssignmentKey, at: float, judged: float, *, trusted: bool
    ) -> Started | NotYet | NotTaken:
        """Decide, at the moment of its start, about an assignment that is held or pre-dispatched.

        Any answer but `NotYet` is final: the run is running, or no longer held.

        Raises:
            KeyError: it isn't in hand.
        """
        holding = self._holdings[key]
        if holding.state not in (AssignmentState.HELD, AssignmentState.PRE_DISPATCHED):
            raise ValueError(f"{key} is {holding.state.name}: it can't start again")
        offer = holding.offer
        why = self._objection(offer, judged, trusted)
        if why is not None:
            return self._withdraw(key, why)
        if offer.not_before is not None and at < offer.not_before:
            return NotYet(offer.not_before)
        holding.state = AssignmentState.RUNNING
        return Started()

    def rearm(self, key: AssignmentKey, not_before: float) -> None:
        """Correct the boot time at which a pre-dispatched run starts.

        Raises:
            KeyError: it isn't in hand.
        """
        holding = self._holdings[key]
        if holding.state is not AssignmentState.PRE_DISPATCHED:
            raise ValueError(
                f"{key} can't start: its state is {holding.state.name}, not PRE_DISPATCHED"
            )
        holding.offer = replace(holding.offer, not_before=not_before)

    def end_execution(self, key: AssignmentKey) -> None:
        """Free the slots of an ended execution; its result waits to be acknowledged."""
        holding = self._holdings[key]
        holding.state = AssignmentState.ENDED
        self._used -= holding.offer.slots

    def acknowledged(self, key: AssignmentKey) -> None:
        """Remove an assignment whose result is stored or rejected. Ignore unknown ones."""
        holding = self._holdings.get(key)
        if holding is not None and holding.state is AssignmentState.ENDED:
            del self._holdings[key]

    def revoke(self, key: AssignmentKey, judged: float) -> bool:
        """Prevent the start of this assignment. Return False if it had started already."""
        holding = self._holdings.get(key)
        if holding is not None:
            if holding.state in (AssignmentState.RUNNING, AssignmentState.ENDED):
                return False
            self._withdraw(key, RejectReason.REVOKED)
            return True
        seen = self._seen.get(key.run)
        if seen is not None and seen.token == key.token:
            return not seen.taken
        if seen is None or seen.token < key.token:
            self._remember(key, taken=False, forget_at=judged + UNKNOWN_FOR)
        return True

    def withdraw_all(self, why: RejectReason) -> list[tuple[AssignmentKey, NotTaken]]:
        """Return all assignments that haven't started."""
        waiting = [
            k
            for k, h in self._holdings.items()
            if h.state in (AssignmentState.HELD, AssignmentState.PRE_DISPATCHED)
        ]
        return [(key, self._withdraw(key, why)) for key in waiting]

    def renew(self, incarnation: Incarnation) -> list[tuple[AssignmentKey, NotTaken]]:
        """Change the incarnation. Drop assignments of the earlier one that haven't started."""
        self._incarnation = incarnation
        return self.withdraw_all(RejectReason.OTHER_INCARNATION)

    def forget(self, judged: float) -> None:
        """Remove entries whose `start_by` has passed and that aren't in hand."""
        while self._oldest and self._oldest[0][0] <= judged:
            _, run = self._oldest.popleft()
            seen = self._seen.get(run)
            if seen is None or seen.forget_at > judged:
                continue
            if AssignmentKey(run, seen.token) in self._holdings:
                seen.forget_at = judged + GRACE
                self._oldest.append((seen.forget_at, run))
            else:
                del self._seen[run]

    def _objection(
        self, offer: OfferedAssignment, judged: float, trusted: bool
    ) -> RejectReason | None:
        if offer.incarnation != self._incarnation:
            return RejectReason.OTHER_INCARNATION
        if self.draining:
            return RejectReason.DRAINING
        if not trusted or judged > offer.start_by:
            return RejectReason.TOO_LATE
        return None

    def _withdraw(self, key: AssignmentKey, why: RejectReason) -> NotTaken:
        holding = self._holdings.pop(key)
        self._used -= holding.offer.slots
        seen = self._seen.get(key.run)
        if seen is not None and seen.token == key.token:
            seen.taken = False
        return NotTaken(why, seen.token if seen else key.token)

    def _remember(self, key: AssignmentKey, *, taken: bool, forget_at: float) -> None:
        self._seen[key.run] = _Seen(key.token, taken, forget_at)
        self._oldest.append((forget_at, key.run))
