"""Split free slots among members: first to the best heads of their queues, then the rest evenly.

    rank of a head = when it began to wait - 60 s for each class of priority     (smallest first)

So aging lifts a head by one class each 60 s, and no clock is needed: the owners' queues are
ordered by the same number.

Invariants
- The total granted never exceeds the free slots, nor the free slots minus those reserved for other
  members by earlier grants (`credit`). The grants of those members are lowered at once; the slots
  go to the next member when they are no longer reserved.
- A head of smaller rank is served first, whichever member has it: one order of priority holds over
  all owners.
- A member that gets slots is sent the best head of other members without slots (`before`). Its own
  heads may have been served by another worker meanwhile. Then it must not use the slots for runs of
  lower rank: the slots wait for its new heads, and are split again.
- A head whose runs need more slots than are free doesn't block the others. After it has waited for
  a minute, slots are reserved for it: for a minute, after two more minutes for four, and so on. So
  neither this head nor the others starve. Each head has one width. A mixed head would be as old as
  its oldest run and as narrow as its narrowest. It would get slots that no run may use.
- Slots without demand are split evenly, so an idle cluster starts work without asking. The
  remainder stays with the members that had it.
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
"""Changes of rank below this aren't sent: members compare it with half a class of tolerance."""


@dataclass(frozen=True, slots=True)
class DemandHead:
    """The first runs of one priority and width in a member's queue."""

    priority: int
    """The greater value has priority."""
    since: float
    """When its oldest run began to wait, as Unix time on cluster time."""
    slots: int
    """Slots of all its runs."""
    least: int = 1
    """Slots of each run. Of an older member, which merges all widths: of the narrowest run."""

    @property
    def rank(self) -> float:
        """The smaller value has priority."""
        return self.since - AGING * self.priority


@dataclass(frozen=True, slots=True)
class Share:
    slots: int
    before: DemandHead | None = None
    """The best head of other members that gets no slots."""

    def like(self, other: Share) -> bool:
        if self.before is None or other.before is None:
            return self.before is other.before
        return abs(self.before.rank - other.before.rank) < NEAR


NOTHING = Share(0)
_NONE: Mapping[Address, int] = {}


class _Request(NamedTuple):
    """Slots for a head, or, without a head, for a member from the slots without demand."""

    member: Address
    head: DemandHead | None
    slots: int


def deal(
    free: int,
    demands: Mapping[Address, Sequence[DemandHead]],
    previous: Mapping[Address, int],
    now: float = -inf,
    kept: Mapping[Address, int] = _NONE,
) -> dict[Address, Share]:
    """Return a share for each member in `demands`, also for members without heads. `now`: cluster
    time, as in `DemandHead.since`. `kept`: free slots that are reserved for a member.
    """
    left = max(free, 0)
    heads = [
        (head, member) for member, own in demands.items() for head in own if _fits(head, left, now)
    ]
    heads.sort(key=lambda each: each[0].rank)
    requests: list[_Request] = []
    for head, member in heads:
        share = min(head.slots, left) if _fits(head, left, now) else 0
        requests.append(_Request(member, head, share))
        left -= share
    if left and demands:
        each, remainder = divmod(left, len(demands))
        favoured = sorted(demands, key=lambda member: (-previous.get(member, 0), member))
        for place, member in enumerate(favoured):
            requests.append(_Request(member, None, each + (place < remainder)))
    return _shares(requests, free, demands, kept)


def _shares(
    requests: Iterable[_Request], free: int, members: Iterable[Address], kept: Mapping[Address, int]
) -> dict[Address, Share]:
    """Meet these requests, the best first, from the slots reserved for their members, and from
    those reserved for no member.
    """
    granted = dict.fromkeys(members, 0)
    own = {**granted, **kept}
    spare = max(free - sum(kept.values()), 0)
    without: dict[Address, DemandHead] = {}  # the best of each, best first
    for member, head, slots in requests:
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
    """Return whether a head can use slots now, or must have them reserved."""
    return head.least <= free or _reserves_now(now - head.since)


def _reserves_now(waited: float) -> bool:
    """Return whether slots are reserved now: from one minute to two, four to eight, 16 to 32."""
    return waited >= AGING and int(log2(waited / AGING)) % 2 == 0
