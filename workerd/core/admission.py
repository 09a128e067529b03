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

Assignments that were sent together are offered and started together: the state of a batch is one
byte for each run, and a decision about a batch without surprises is a handful of updates of
dictionaries. Otherwise each of its runs is decided alone, by the same rules and in their order.

Two clocks are arguments. `at`: seconds of the boot clock, for `not_before`. `judged`: seconds of
the judging clock (cluster_time), for `start_by` and for the removal of entries.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, MutableSequence, Sequence
from enum import Enum, auto
from typing import Final, TypeVar

from schedkit.records import dataclass
from workerd.core.ids import AssignmentKey, Incarnation, RunId, Token

T = TypeVar("T")

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
    HELD = auto()
    RUNNING = auto()
    ENDED = auto()


ABSENT, HELD, RUNNING, ENDING = range(4)
"""States in `OfferedBatch.states`. Runs that use no slots are absent. Ending runs have ended, but
use their slots.
"""
_STATES: Final[Sequence[AssignmentState | None]] = (None, *AssignmentState)


class OfferedBatch:
    """Assignments, as admission reads them. All but the keys and states are common to the batch."""

    def __init__(
        self,
        keys: Sequence[AssignmentKey],
        incarnation: Incarnation,
        slots: int,
        start_by: float,
        not_before: float | None = None,
    ) -> None:
        """`slots`: of each run. `start_by`: on the judging clock. `not_before`: on the boot one."""
        self.keys = keys
        self.incarnation = incarnation
        self.slots = slots
        self.start_by = start_by
        self.not_before = not_before
        self.states = bytearray(len(keys))
        self.active = 0
        """Number of runs that use slots."""
        self._places: dict[AssignmentKey, int] | None = None

    def place(self, key: AssignmentKey) -> int:
        if self._places is None:
            count = len(self.keys)
            self._places = dict(zip(reversed(self.keys), reversed(range(count)), strict=True))
        return self._places[key]

    def places(self, state: int, among: range | None = None) -> Sequence[int]:
        """Return the places of the runs in a state."""
        states, among = self.states, range(len(self.keys)) if among is None else among
        if states.count(state, among.start, among.stop) == len(among):
            return among
        return [place for place in among if states[place] == state]


def fill(column: MutableSequence[T], places: Sequence[int], value: T) -> None:
    if isinstance(places, range):
        column[places.start : places.stop] = [value] * len(places)
    else:
        for place in places:
            column[place] = value


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


class _Seen:
    """The greatest tokens of some runs, and whether they were taken."""

    __slots__ = ("_tokens", "forget_at", "keys", "taken")

    def __init__(self, keys: Sequence[AssignmentKey], taken: bool, forget_at: float) -> None:
        self.keys = keys
        self.taken = taken
        self.forget_at = forget_at
        self._tokens: dict[RunId, Token] | None = None

    def token(self, run: RunId) -> Token:
        if self._tokens is None:
            self._tokens = dict(self.keys)
        return self._tokens[run]


class Admission:
    """The worker's register of runs. Not thread-safe: used by the event loop only."""

    def __init__(self, slots: int, incarnation: Incarnation) -> None:
        self._incarnation = incarnation
        self._slots = slots
        self._used = 0
        self._seen: dict[RunId, _Seen] = {}
        self._oldest: deque[_Seen] = deque()
        """Entries of `_seen`, and entries that were replaced there."""
        self._holdings: dict[AssignmentKey, OfferedBatch | None] = {}
        """The batches of runs in hand; None: the run has ended, and needs no batch."""
        self.draining = False

    @property
    def free(self) -> int:
        """Slots without a run that is held or running."""
        return self._slots - self._used

    @property
    def used(self) -> int:
        return self._used

    def holdings(self) -> Iterator[tuple[AssignmentKey, AssignmentState]]:
        for key in self._holdings:
            if (state := self.state(key)) is not None:
                yield key, state

    def find(self, key: AssignmentKey) -> OfferedBatch | None:
        """Return the batch of this assignment; None if it uses no slots."""
        return self._holdings.get(key)

    def state(self, key: AssignmentKey) -> AssignmentState | None:
        """Return the state of this assignment; None if it isn't in hand."""
        if (batch := self._holdings.get(key)) is not None:
            return _STATES[batch.states[batch.place(key)]]
        return AssignmentState.ENDED if key in self._holdings else None

    def offer(
        self, batch: OfferedBatch, judged: float, *, trusted: bool, unable: str = ""
    ) -> Mapping[int, AlreadyTaken | NotTaken]:
        """Decide about received assignments. `unable`: why no executor here can run them.

        Returns:
            The answers to those that weren't accepted, by their places in the batch.
        """
        keys = batch.keys
        forget_at = max(batch.start_by, judged) + GRACE
        seen = _Seen(keys, True, forget_at)
        fresh = dict.fromkeys([run for run, _ in keys], seen)
        if (
            unable
            or self._objection(batch, judged, trusted) is not None
            or batch.slots * len(keys) > self.free
            or len(fresh) < len(keys)
            or not self._seen.keys().isdisjoint(fresh)
            or not self._holdings.keys().isdisjoint(keys)  # its `seen` may be that of a later token
        ):
            answers = {}
            for place in range(len(keys)):
                answer = self._offer_one(batch, place, judged, forget_at, trusted, unable)
                if answer is not None:
                    answers[place] = answer
            return answers
        self._seen.update(fresh)
        self._oldest.append(seen)
        self._holdings.update(dict.fromkeys(keys, batch))
        self._accept(batch, range(len(keys)))
        return {}

    def _accept(self, batch: OfferedBatch, places: Sequence[int]) -> None:
        fill(batch.states, places, HELD)
        batch.active += len(places)
        self._used += batch.slots * len(places)

    def _offer_one(
        self,
        batch: OfferedBatch,
        place: int,
        judged: float,
        forget_at: float,
        trusted: bool,
        unable: str,
    ) -> AlreadyTaken | NotTaken | None:
        """Decide about one assignment. None: it is accepted."""
        key = batch.keys[place]
        if (state := self.state(key)) is not None:
            return AlreadyTaken(state)
        if (seen := self._seen.get(key.run)) is not None:
            greatest = seen.token(key.run)
            if key.token < greatest:
                return NotTaken(RejectReason.GREATER_TOKEN_SEEN, greatest)
            if key.token == greatest:
                return (
                    AlreadyTaken(None) if seen.taken else NotTaken(RejectReason.REVOKED, greatest)
                )
        why = self._objection(batch, judged, trusted)
        if why is None and unable:
            why = RejectReason.UNABLE
        if why is None and batch.slots > self.free:
            why = RejectReason.NO_SLOT
        self._remember(key, taken=why is None, forget_at=forget_at)
        if why is not None:
            return NotTaken(why, key.token, unable if why is RejectReason.UNABLE else "")
        self._holdings[key] = batch
        self._accept(batch, [place])
        return None

    def start(
        self, batch: OfferedBatch, places: range, at: float, judged: float, *, trusted: bool
    ) -> tuple[Sequence[int], NotYet | RejectReason | None]:
        """Decide, at the moment of their start, about the runs at these places that are held.

        Returns:
            Their places, and why they didn't start; None: they are running. Any answer but `NotYet`
            is final: rejected runs are no longer held.
        """
        held = batch.places(HELD, places)
        why = self._objection(batch, judged, trusted)
        if why is not None:
            self._withdraw(batch, held)
            return held, why
        if batch.not_before is not None and at < batch.not_before:
            return held, NotYet(batch.not_before)
        fill(batch.states, held, RUNNING)
        return held, None

    def end_executions(self, batch: OfferedBatch, places: Sequence[int]) -> None:
        """Free the slots of ended executions; their results wait to be acknowledged."""
        fill(batch.states, places, ABSENT)
        self._release(batch, places)
        self._holdings.update(dict.fromkeys([batch.keys[place] for place in places]))

    def _release(self, batch: OfferedBatch, places: Sequence[int]) -> None:
        batch.active -= len(places)
        self._used -= batch.slots * len(places)

    def acknowledged(self, keys: Iterable[AssignmentKey]) -> None:
        """Remove assignments whose results are stored or rejected. Ignore unknown ones."""
        holdings = self._holdings
        for key in keys:
            if holdings.get(key, True) is None:
                del holdings[key]

    def revoke(self, key: AssignmentKey, judged: float) -> bool:
        """Prevent the start of this assignment. Return False if it had started already."""
        if key in self._holdings:
            batch = self._holdings[key]
            if batch is None or batch.states[place := batch.place(key)] != HELD:
                return False
            self._withdraw(batch, [place])
            return True
        seen = self._seen.get(key.run)
        greatest = None if seen is None else seen.token(key.run)
        if seen is not None and greatest == key.token:
            return not seen.taken
        if greatest is None or greatest < key.token:
            self._remember(key, taken=False, forget_at=judged + UNKNOWN_FOR)
        return True

    def withdraw_all(self) -> Sequence[tuple[OfferedBatch, Sequence[int]]]:
        """Remove all assignments that haven't started. Return their batches and places."""
        withdrawn = [
            (batch, places)
            for batch in dict.fromkeys(self._holdings.values())
            if batch is not None and (places := batch.places(HELD))
        ]
        for batch, places in withdrawn:
            self._withdraw(batch, places)
        return withdrawn

    def renew(self, incarnation: Incarnation) -> Sequence[tuple[OfferedBatch, Sequence[int]]]:
        """Change the incarnation. Remove assignments of the earlier one that haven't started."""
        self._incarnation = incarnation
        return self.withdraw_all()

    def forget(self, judged: float) -> None:
        """Remove entries whose `start_by` has passed and that aren't in hand."""
        while self._oldest and self._oldest[0].forget_at <= judged:
            seen = self._oldest.popleft()
            current = [key for key in seen.keys if self._seen.get(key.run) is seen]
            kept = [key for key in current if key in self._holdings]
            if kept:
                again = _Seen(kept, seen.taken, judged + GRACE)
                self._seen.update(dict.fromkeys([run for run, _ in kept], again))
                self._oldest.append(again)
            if len(kept) < len(current):
                for run, _ in current:
                    if self._seen[run] is seen:
                        del self._seen[run]

    def _objection(self, offer: OfferedBatch, judged: float, trusted: bool) -> RejectReason | None:
        if offer.incarnation != self._incarnation:
            return RejectReason.OTHER_INCARNATION
        if self.draining:
            return RejectReason.DRAINING
        if not trusted or judged > offer.start_by:
            return RejectReason.TOO_LATE
        return None

    def _withdraw(self, batch: OfferedBatch, places: Sequence[int]) -> None:
        fill(batch.states, places, ABSENT)
        self._release(batch, places)
        for place in places:
            key = batch.keys[place]
            del self._holdings[key]
            seen = self._seen.get(key.run)
            if (
                seen is not None
                and seen.taken
                and (seen.keys is batch.keys or seen.token(key.run) == key.token)
            ):
                self._remember(key, taken=False, forget_at=seen.forget_at)

    def _remember(self, key: AssignmentKey, *, taken: bool, forget_at: float) -> None:
        self._seen[key.run] = seen = _Seen((key,), taken, forget_at)
        self._oldest.append(seen)
