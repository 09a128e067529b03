"""Who is told what waits here: once for all workers that can do the same, and where it is news.

    the queue ──once for each skill──→ heads ──news for workers of so many slots?──→ each of them

A worker deals by the order of heads, and by no more slots than it has. So it is no news to it that
of much there is a little less or more: a queue of ten thousand is told to a thousand workers when
it begins and when it ends, not each time that some of it were handed out. That its oldest is
another by now is news, for by that the queues of several owners are one; but where very many would
hear of it, only as often as they may.
"""

from collections.abc import Callable, Sequence
from dataclasses import field
from datetime import timedelta
from typing import Final, TypeAlias

from schedd.core.dispatch.placement import NOTHING, PlacementCriteria, Skill, skill_of
from schedd.core.dispatch.ready_queue import QueueHead
from schedd.core.runs.model import Incarnation
from schedd.dispatch.workers.attached_worker import Attached, is_news
from schedkit.records import dataclass

AGES_A_SECOND: Final = 2_000
"""Frames for the sake of a head's age alone, about: it grows by a second each second where as much
comes as goes. Of ten workers each knows it to 5 ms, of a thousand to half a second.
"""

Demand: TypeAlias = Callable[[Incarnation], Sequence[QueueHead]]
"""What waits at this member that a worker can do."""


@dataclass(slots=True)
class _Alike:
    """Workers that can do the same of what is asked."""

    members: dict[Attached, None] = field(default_factory=dict)
    new: dict[Attached, None] = field(default_factory=dict)
    """Those that have come since, and may have been told something else."""
    told: tuple[QueueHead, ...] = ()
    """All the others, last."""


class Audience:
    """All attached workers, by what they can do."""

    def __init__(self) -> None:
        self._asked = NOTHING
        self._groups: dict[Skill, _Alike] = {}
        self._group_of: dict[Attached, Skill] = {}

    def came(self, attached: Attached) -> None:
        """It is attached, and will be told what waits now apart from the others."""
        skill = skill_of(attached.incarnation, self._asked)
        self._group_of[attached] = skill
        group = self._groups.setdefault(skill, _Alike())
        group.members[attached] = group.new[attached] = None

    def went(self, attached: Attached) -> None:
        """It isn't attached any more."""
        skill = self._group_of.pop(attached)
        group = self._groups[skill]
        del group.members[attached]
        group.new.pop(attached, None)
        if not group.members:
            del self._groups[skill]

    def tell(self, demand: Demand, asked: PlacementCriteria) -> None:
        """Tell each what waits for it, if that is news. `asked`: all that `demand` looks at."""
        self._tell_apart(asked)
        near = timedelta(seconds=len(self._group_of) / AGES_A_SECOND)
        for group in self._groups.values():
            one = next(iter(group.members))
            heads = tuple(demand(one.incarnation))
            if is_news(heads, group.told, one.incarnation.slots, near):
                group.told = heads
                group.new = group.members
            for attached in group.new:
                attached.tell_demand(heads, near)
            group.new = {}

    def _tell_apart(self, asked: PlacementCriteria) -> None:
        """Labels that were asked for once are looked at ever after; a name only where some run is
        for it alone.
        """
        known = self._asked
        if asked.labels <= known.labels and (
            asked.names == known.names or (asked.names and asked.names < known.names)
        ):
            return
        self._asked = PlacementCriteria(known.labels | asked.labels, asked.names)
        members = [*self._group_of]
        self._groups.clear()
        for attached in members:
            self.came(attached)
