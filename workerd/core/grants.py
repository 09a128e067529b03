"""How free slots are dealt to members: to the best heads of their queues, the rest evenly.

    rank of a head = when it began to wait - 60 s for each class of priority     (smallest first)

So waiting lifts a head by one class each 60 s, and no clock is needed: the owners' queues are
ordered by the same number.

Invariants
- Never more is granted in total than is free.
- A head of a smaller rank is served before one of a greater, whichever member has it; so one order
  of priority holds over all owners.
- What nobody asked for is split evenly, so an idle cluster starts work without asking; the
  remainder stays where it was, so that nothing moves without need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workerd.core.ids import Address

AGING = 60.0
"""Seconds of waiting that lift a run by one class of priority."""


@dataclass(frozen=True, slots=True)
class Head:
    """The first of one priority in a member's queue."""

    priority: int
    """Greater goes first."""
    since: float
    """When its oldest began to wait, in seconds of the Unix epoch on cluster time."""
    slots: int
    """That all runs of this priority ask for."""

    @property
    def rank(self) -> float:
        """Smaller goes first."""
        return self.since - AGING * self.priority


def deal(
    free: int, demands: Mapping[Address, Sequence[Head]], previous: Mapping[Address, int]
) -> dict[Address, int]:
    """Slots for each member in `demands`; one without heads is there with an empty sequence."""
    granted = dict.fromkeys(demands, 0)
    left = max(free, 0)
    heads = [(head, member) for member, own in demands.items() for head in own]
    heads.sort(key=lambda each: each[0].rank)
    for head, member in heads:
        share = min(head.slots, left)
        granted[member] += share
        left -= share
    if left and granted:
        each, remainder = divmod(left, len(granted))
        favoured = sorted(granted, key=lambda member: (-previous.get(member, 0), member))
        for place, member in enumerate(favoured):
            granted[member] += each + (place < remainder)
    return granted
