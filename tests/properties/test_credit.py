"""A worker that deals its slots again and again finds room for all runs pushed meanwhile.

    members (what they choose, push and let go of) ──pushed, reach──→ a worker (the real dealing)
                                                   ←─────granted─────

Each stream keeps its order. All else is drawn: who asks for how much, when what is delivered, sent
in place of what wasn't sent yet, chosen, pushed or let go of, and which run ends.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedd.core.dispatch.placement import SlotOffer
from schedd.dispatch.workers.attached_slots import AttachedSlots, SlotReservation
from schedd.dispatch.workers.attached_worker import Attached
from support.runs import RecordingLine, worker
from workerd.core.credit import Credit
from workerd.core.ids import Address
from workerd.core.slot_split import DemandHead, deal

NOW = 0.0


@dataclass(frozen=True)
class Pushed:
    """An assignment on its way to the worker."""

    slots: int


@dataclass(frozen=True)
class Reach:
    """An answer on its way to the worker."""

    serial: int
    slots: int


@dataclass(frozen=True)
class Granted:
    """A grant on its way to a member."""

    slots: int
    received: int
    serial: int


class Down(RecordingLine):
    """From a member to the worker."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: deque[Pushed | Reach] = deque()

    def reach(self, serial: int, slots: int) -> None:
        self.sent.append(Reach(serial, slots))


@dataclass
class Member:
    """A stream: both ends and the messages between them."""

    asks: int = 0
    credit: Credit = field(default_factory=Credit)
    up: deque[Granted] = field(default_factory=deque)
    line: Down = field(default_factory=Down)
    under_way: deque[tuple[SlotReservation, int]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.attached = Attached(worker(), self.line)

    def choose(self, slots: int) -> None:
        who, available = self.attached.incarnation, self.attached.available
        if 0 < slots <= available:
            choice = SlotReservation(AttachedSlots({who.id: self.attached}))
            choice.reserve_slots(SlotOffer(who, available), slots)
            self.under_way.append((choice, slots))

    def release(self, *, pushed: bool) -> None:
        if self.under_way:
            choice, slots = self.under_way.popleft()
            if pushed:
                self.attached.pushed += slots
                self.line.sent.append(Pushed(slots))
            choice.release()

    def hear(self) -> bool:
        """Receive one grant of those sent so far."""
        if not self.up:
            return False
        granted = self.up.popleft()
        self.attached.grant(granted.slots, granted.received, inf, granted.serial)
        return True


class Desk:
    """A worker and all its members."""

    def __init__(self, slots: int) -> None:
        self.free = slots
        self.running: list[int] = []
        self.members = {Address(f"m{number}"): Member() for number in range(3)}

    def deal(self, *, in_place: bool) -> None:
        """`in_place`: of grants that weren't sent yet, where there are any."""
        demands = {
            name: [DemandHead(2, float(each.asks), each.asks)] if each.asks else []
            for name, each in self.members.items()
        }
        kept = {name: each.credit.reserved_slots(NOW) for name, each in self.members.items()}
        assert sum(kept.values()) <= self.free
        for name, share in deal(self.free, demands, {}, kept=kept).items():
            member = self.members[name]
            before = member.credit.limit
            member.credit.grant(share.slots, NOW)
            if member.credit.limit != before:
                if in_place and member.up:
                    member.up.pop()
                received, serial = member.credit.received, member.credit.serial
                member.up.append(Granted(share.slots, received, serial))
        assert sum(each.credit.reserved_slots(NOW) for each in self.members.values()) <= self.free

    def take(self, member: Member) -> bool:
        """Receive one message of this stream."""
        if not member.line.sent:
            return False
        match member.line.sent.popleft():
            case Pushed(slots):
                member.credit.received += slots
                assert slots <= self.free, "it would be refused"
                self.free -= slots
                self.running.append(slots)
            case Reach(serial, slots):
                member.credit.reached(serial, slots, NOW)
        return True

    def end(self) -> None:
        if self.running:
            self.free += self.running.pop()

    def rush(self) -> None:
        """All use all that they believe to have, at the same time."""
        for member in self.members.values():
            member.choose(member.attached.available)
        for member in self.members.values():
            while member.under_way:
                member.release(pushed=True)
            while self.take(member):
                pass

    def rest(self) -> None:
        """All is delivered, and nothing more is chosen."""
        moved = True
        while moved:
            self.deal(in_place=False)
            moved = False
            for member in self.members.values():
                while member.hear() or self.take(member):
                    moved = True


_WHAT = st.sampled_from(["asks", "deal", "hear", "choose", "push", "drop", "take", "end"])
_STEPS = st.lists(st.tuples(_WHAT, st.integers(0, 2), st.integers(0, 5)), min_size=20, max_size=100)


@pytest.mark.slow
@given(st.integers(1, 8), _STEPS)
def test_runs_pushed_within_the_credit_find_their_slots_and_no_slot_is_kept_unused(
    slots: int, steps: list[tuple[str, int, int]]
) -> None:
    desk = Desk(slots)
    for what, who, number in steps:
        member = desk.members[Address(f"m{who}")]
        match what:
            case "asks":
                member.asks = number
                desk.deal(in_place=False)
            case "deal":
                desk.deal(in_place=number > 2)
            case "hear":
                while member.hear():
                    pass
            case "choose":
                member.choose(max(number, 1))
            case "push" | "drop":
                member.release(pushed=what == "push")
            case "take":
                desk.take(member)
                desk.deal(in_place=number > 2)
            case _:
                desk.end()
                desk.deal(in_place=number > 2)
    desk.rush()
    desk.rest()
    assert sum(each.credit.slots for each in desk.members.values()) == desk.free
    for member in desk.members.values():
        assert member.credit.reserved_slots(NOW) == member.credit.slots == member.attached.available
