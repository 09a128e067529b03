"""Decide which assignments this worker accepts and starts: each at most once, on any network.

    offer ─┬─ HELD ──start──→ RUNNING ──ended──→ ENDED ──acknowledged──→ (removed)
           └─ refused  ↑ revoke and cancel before this arrow: never started

Invariants (docs/protocol-rules.md, P4.1 and P4.2)
- `seen[run]` is the greatest token accepted, rejected, revoked or canceled. A token below it is
  rejected. The same token gets the same answer: an accepted one is never started again, a rejected
  one stays rejected.
- Whether an assignment may start (incarnation, draining, trust, `not_before`, `start_by`) is
  judged at the moment it starts, on a clock that never goes back.
- A slot is free again when the execution has ended, not when its result is acknowledged.
- An entry of `seen` is removed only after its `start_by`, when a start is rejected anyway.

Assignments that were sent together are offered and started together: for a batch without surprises
a decision is a handful of updates of dictionaries. Otherwise each of its runs is decided alone, by
the same rules and in their order.

Two clocks are arguments. `at`: seconds of the boot clock, for `not_before`. `judged`: seconds of
the judging clock (cluster_time), for `start_by` and for the removal of entries.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from itertools import repeat
from typing import TypeAlias

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
    RUNNING = auto()
    ENDED = auto()


@dataclass(frozen=True, slots=True)
class OfferedBatch:
    """The parts of assignments that admission reads. All but the keys are common to the batch."""

    keys: Sequence[AssignmentKey]
    incarnation: Incarnation
    slots: int
    """Of each run."""
    start_by: float
    """On the judging clock."""
    not_before: float | None = None
    """On the boot clock."""


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
class NotYet:
    """Ask again at boot time `until`."""

    until: float


_Seen: TypeAlias = tuple[Token, bool, float]
"""Of a run: the greatest token, whether it was taken, and when to forget it."""
_Holding: TypeAlias = tuple[OfferedBatch, AssignmentState]


class Admission:
    """The worker's register of runs. Not thread-safe: used by the event loop only."""

    def __init__(self, slots: int, incarnation: Incarnation) -> None:
        self._incarnation = incarnation
        self._slots = slots
        self._used = 0
        self._seen: dict[RunId, _Seen] = {}
        self._oldest: deque[tuple[float, Sequence[RunId]]] = deque()
        """When to look at these entries of `seen`."""
        self._holdings: dict[AssignmentKey, _Holding] = {}
        self.draining = False

    @property
    def free(self) -> int:
        """Slots without a run that is held or running."""
        return self._slots - self._used

    @property
    def used(self) -> int:
        """Slots in use."""
        return self._used

    def holdings(self) -> Iterator[tuple[AssignmentKey, AssignmentState]]:
        """Return all assignments that were accepted and aren't acknowledged."""
        return ((key, state) for key, (_, state) in self._holdings.items())

    def state(self, key: AssignmentKey) -> AssignmentState | None:
        """Return the state of this assignment; None if it isn't in hand."""
        holding = self._holdings.get(key)
        return holding[1] if holding else None

    def offer(
        self, batch: OfferedBatch, judged: float, *, trusted: bool, unable: str = ""
    ) -> Mapping[int, AlreadyTaken | NotTaken]:
        """Decide about received assignments. `unable`: why no executor here can run them.

        Returns:
            The answers to those that weren't accepted, by their places in the batch.
        """
        keys = batch.keys
        runs = [run for run, _ in keys]
        forget_at = max(batch.start_by, judged) + GRACE
        if (
            unable
            or self._objection(batch, judged, trusted) is not None
            or batch.slots * len(keys) > self.free
            or len({*runs}) < len(runs)
            or not self._seen.keys().isdisjoint(runs)
            or not self._holdings.keys().isdisjoint(keys)  # its `seen` may be that of a later token
        ):
            answers = {}
            for place, key in enumerate(keys):
                answer = self._offer_one(key, batch, judged, forget_at, trusted, unable)
                if answer is not None:
                    answers[place] = answer
            return answers
        tokens = [token for _, token in keys]
        self._seen.update(zip(runs, zip(tokens, repeat(True), repeat(forget_at)), strict=False))
        self._oldest.append((forget_at, runs))
        self._holdings.update(zip(keys, repeat((batch, AssignmentState.HELD))))
        self._used += batch.slots * len(keys)
        return {}

    def _offer_one(
        self,
        key: AssignmentKey,
        batch: OfferedBatch,
        judged: float,
        forget_at: float,
        trusted: bool,
        unable: str,
    ) -> AlreadyTaken | NotTaken | None:
        """Decide about one assignment. None: it is accepted."""
        if (state := self.state(key)) is not None:
            return AlreadyTaken(state)
        if (seen := self._seen.get(key.run)) is not None and key.token <= seen[0]:
            greatest, taken, _ = seen
            if key.token < greatest:
                return NotTaken(RejectReason.GREATER_TOKEN_SEEN, greatest)
            return AlreadyTaken(None) if taken else NotTaken(RejectReason.REVOKED, greatest)
        why = self._objection(batch, judged, trusted)
        if why is None and unable:
            why = RejectReason.UNABLE
        if why is None and batch.slots > self.free:
            why = RejectReason.NO_SLOT
        self._remember(key, taken=why is None, forget_at=forget_at)
        if why is not None:
            return NotTaken(why, key.token, unable if why is RejectReason.UNABLE else "")
        self._holdings[key] = batch, AssignmentState.HELD
        self._used += batch.slots
        return None

    def start(
        self, keys: Iterable[AssignmentKey], at: float, judged: float, *, trusted: bool
    ) -> Mapping[AssignmentKey, NotYet | NotTaken]:
        """Decide, at the moment of their start, about assignments that are held.

        Any answer but `NotYet` is final: the run is running, or no longer held.

        Returns:
            The answers to those that didn't start.

        Raises:
            KeyError: one isn't in hand.
        """
        answers: dict[AssignmentKey, NotYet | NotTaken] = {}
        batch = why = running = None
        early = False
        for key in keys:
            offered, state = self._holdings[key]
            if state is not AssignmentState.HELD:
                raise ValueError(f"assignment {key} can't start again: its state is {state.name}")
            if offered is not batch:
                batch, running = offered, (offered, AssignmentState.RUNNING)
                why = self._objection(batch, judged, trusted)
                early = batch.not_before is not None and at < batch.not_before
            if why is not None:
                answers[key] = self._withdraw(key, why)
            elif early:
                assert offered.not_before is not None, "it is later than now"
                answers[key] = NotYet(offered.not_before)
            else:
                assert running is not None, "it was set with its batch"
                self._holdings[key] = running
        return answers

    def rearm(self, key: AssignmentKey, not_before: float) -> None:
        """Correct the boot time at which a pre-dispatched run starts.

        Raises:
            KeyError: it isn't in hand.
        """
        batch, state = self._holdings[key]
        if state is not AssignmentState.HELD or batch.not_before is None:
            raise ValueError(f"assignment {key} isn't pre-dispatched: its state is {state.name}")
        if batch.not_before != not_before:
            self._holdings[key] = replace(batch, not_before=not_before), state

    def end_executions(self, keys: Iterable[AssignmentKey]) -> None:
        """Free the slots of ended executions; their results wait to be acknowledged."""
        for key in keys:
            batch, _ = self._holdings[key]
            self._holdings[key] = batch, AssignmentState.ENDED
            self._used -= batch.slots

    def acknowledged(self, keys: Iterable[AssignmentKey]) -> None:
        """Remove assignments whose results are stored or rejected. Ignore unknown ones."""
        for key in keys:
            holding = self._holdings.get(key)
            if holding is not None and holding[1] is AssignmentState.ENDED:
                del self._holdings[key]

    def revoke(self, key: AssignmentKey, judged: float) -> bool:
        """Prevent the start of this assignment. Return False if it had started already."""
        holding = self._holdings.get(key)
        if holding is not None:
            if holding[1] is not AssignmentState.HELD:
                return False
            self._withdraw(key, RejectReason.REVOKED)
            return True
        seen = self._seen.get(key.run)
        if seen is not None and seen[0] == key.token:
            return not seen[1]
        if seen is None or seen[0] < key.token:
            self._remember(key, taken=False, forget_at=judged + UNKNOWN_FOR)
        return True

    def withdraw_all(self, why: RejectReason) -> list[tuple[AssignmentKey, NotTaken]]:
        """Return all assignments that haven't started."""
        held = AssignmentState.HELD
        waiting = [key for key, (_, state) in self._holdings.items() if state is held]
        return [(key, self._withdraw(key, why)) for key in waiting]

    def renew(self, incarnation: Incarnation) -> list[tuple[AssignmentKey, NotTaken]]:
        """Change the incarnation. Drop assignments of the earlier one that haven't started."""
        self._incarnation = incarnation
        return self.withdraw_all(RejectReason.OTHER_INCARNATION)

    def forget(self, judged: float) -> None:
        """Remove entries whose `start_by` has passed and that aren't in hand."""
        while self._oldest and self._oldest[0][0] <= judged:
            _, runs = self._oldest.popleft()
            kept = []
            for run in runs:
                seen = self._seen.get(run)
                if seen is None or seen[2] > judged:
                    continue
                token, taken, _ = seen
                if (run, token) in self._holdings:
                    self._seen[run] = token, taken, judged + GRACE
                    kept.append(run)
                else:
                    del self._seen[run]
            if kept:
                self._oldest.append((judged + GRACE, kept))

    def _objection(self, offer: OfferedBatch, judged: float, trusted: bool) -> RejectReason | None:
        if offer.incarnation != self._incarnation:
            return RejectReason.OTHER_INCARNATION
        if self.draining:
            return RejectReason.DRAINING
        if not trusted or judged > offer.start_by:
            return RejectReason.TOO_LATE
        return None

    def _withdraw(self, key: AssignmentKey, why: RejectReason) -> NotTaken:
        batch, _ = self._holdings.pop(key)
        self._used -= batch.slots
        token, taken, forget_at = self._seen.get(key.run, (key.token, False, 0.0))
        if taken and token == key.token:
            self._seen[key.run] = token, False, forget_at
        return NotTaken(why, token)

    def _remember(self, key: AssignmentKey, *, taken: bool, forget_at: float) -> None:
        self._seen[key.run] = key.token, taken, forget_at
        self._oldest.append((forget_at, (key.run,)))
