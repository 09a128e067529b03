"""How free slots are dealt to members: to the best heads of their queues, the rest evenly.

    rank of a head = when it began to wait - 60 s for each class of priority     (smallest first)

So waiting lifts a head by one class each 60 s, and no clock is needed: the owners' queues are
ordered by the same number.

Invariants
- Never more is granted in total than is free; nor more than is free beyond what is kept for others,
  who may still push into what they were promised before (`promises`). They are dealt less at once,
  and whoever is to have those slots gets them when they are no longer kept.
- A head of a smaller rank is served before one of a greater, whichever member has it; so one order
  of priority holds over all owners.
- Who gets slots is told the best head of others that goes without (`before`). For it may have
  nothing so good any more: another worker has served its heads meanwhile, or they are gone. Then
  the slots aren't for whatever else it has; they wait for its new heads, and are dealt anew.
- A head whose runs are too wide for what is free holds nobody up: its slots would lie idle. When it
  has waited for a minute they are kept for it, so that they may become enough: for a minute, after
  two more for four, and so on. Neither it nor the others stand still for good. So a head is of one
  width: one of a wide run and a younger narrow one would be as old as the one and as narrow as the
  other, and be dealt slots that neither may use.
- What nobody asked for is split evenly, so an idle cluster starts work without asking; the
  remainder stays where it was, so that nothing moves without need.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf, log2
from typing import NamedTuple

from schedkit.records import dataclass
from workerd.core.ids import Address

AGING = 60.0
"""Seconds of waiting that lift a run by one class of priority."""
NEAR = 1.0
"""A rank that moved by less isn't told again: members look at it with half a class of leeway."""


@dataclass(frozen=True, slots=True)
class DemandHead:
    """The first of one priority and width in a member's queue."""

    priority: int
    """Greater goes first."""
    since: float
    """When its oldest began to wait, in seconds of the Unix epoch on cluster time."""
    slots: int
    """That all its runs ask for."""
    least: int = 1
    """That each of them takes. Of an older member, which tells all widths as one: the narrowest."""

    @property
    def rank(self) -> float:
        """Smaller goes first."""
        return self.since - AGING * self.priority


@dataclass(frozen=True, slots=True)
class Share:
    """What one member is granted."""

    slots: int
    before: DemandHead | None = None
    """The best head of other members that goes without."""

    def like(self, other: Share) -> bool:
        """Whether its slots are for the same runs, near enough."""
        if self.before is None or other.before is None:
            return self.before is other.before
        return abs(self.before.rank - other.before.rank) < NEAR


NOTHING = Share(0)
_NOBODY: Mapping[Address, int] = {}


class _Wish(NamedTuple):
    """What a head is to have, or, without one, a member of what nobody asks for."""

    member: Address
    head: DemandHead | None
    slots: int


def deal(
    free: int,
    demands: Mapping[Address, Sequence[DemandHead]],
    previous: Mapping[Address, int],
    now: float = -inf,
    kept: Mapping[Address, int] = _NOBODY,
) -> dict[Address, Share]:
    """A share for each member in `demands`; one without heads is there with an empty sequence.
    `now`: on cluster time, as heads tell since when they wait. `kept`: free slots that a member may
    push into, whatever it is dealt; none if it isn't named.
    """
    left = max(free, 0)
    heads = [
        (head, member) for member, own in demands.items() for head in own if _fits(head, left, now)
    ]
    heads.sort(key=lambda each: each[0].rank)
    wishes: list[_Wish] = []
    for head, member in heads:
        share = min(head.slots, left) if _fits(head, left, now) else 0
        wishes.append(_Wish(member, head, share))
        left -= share
    if left and demands:
        each, remainder = divmod(left, len(demands))
        favoured = sorted(demands, key=lambda member: (-previous.get(member, 0), member))
        for place, member in enumerate(favoured):
            wishes.append(_Wish(member, None, each + (place < remainder)))
    return _shares(wishes, free, demands, kept)


def _shares(
    wishes: Iterable[_Wish], free: int, members: Iterable[Address], kept: Mapping[Address, int]
) -> dict[Address, Share]:
    """As far as these wishes, the best first, can be met out of what is kept for their members, and
    of what is kept for nobody.
    """
    granted = dict.fromkeys(members, 0)
    own = {**granted, **kept}
    spare = max(free - sum(kept.values()), 0)
    without: dict[Address, DemandHead] = {}  # the best of each, best first
    for member, head, slots in wishes:
        mine = min(slots, own[member])
        more = min(slots - mine, spare)
        own[member] -= mine
        spare -= more
        granted[member] += mine + more
        if head is not None and mine + more < head.slots:
            without.setdefault(member, head)
    first = [*without.items()][:2]
    return {
        member: Share(share, next((head for other, head in first if other != member), None))
        for member, share in granted.items()
    }


def _fits(head: DemandHead, free: int, now: float) -> bool:
    """Whether slots are of use to it, or are to be kept for it all the same."""
    return head.least <= free or _kept(now - head.since)


def _kept(waited: float) -> bool:
    """Whether it is its turn: from one minute to two, from four to eight, from 16 to 32."""
    return waited >= AGING and int(log2(waited / AGING)) % 2 == 0
