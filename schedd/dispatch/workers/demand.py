"""Send demand (the heads of the ready queue) to workers, once for each group with the same skills.

    the queue ──once for each skill──→ heads ──if they change its split of slots──→ each worker

A worker divides its slots by the order of heads, and by no more slots than it has. So small changes
of a long queue don't matter to it: a queue of ten thousand runs is sent to a thousand workers when
it begins and when it ends, not after each batch. A new oldest run does matter, because workers
merge the queues of several owners by age. With very many workers it is sent less often.
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
"""Approximate limit on frames that only update a head's age, which changes all the time in a busy
queue. Ten workers know it to 5 ms, a thousand to half a second.
"""

Demand: TypeAlias = Callable[[Incarnation], Sequence[QueueHead]]
"""Returns the queue heads at this member that a worker can do."""


@dataclass(slots=True)
class _Alike:
    """Workers with the same skills."""

    members: dict[Attached, None] = field(default_factory=dict)
    new: dict[Attached, None] = field(default_factory=dict)
    """Workers of the group that attached since, and may have received other heads."""
    sent: tuple[QueueHead, ...] = ()
    """Heads last sent to all other workers of the group."""


class WorkerDemand:
    """All attached workers, grouped by skill."""

    def __init__(self) -> None:
        self._asked = NOTHING
        self._groups: dict[Skill, _Alike] = {}
        self._group_of: dict[Attached, Skill] = {}

    def add_worker(self, attached: Attached) -> None:
        """Add an attached worker; it is sent the current heads separately."""
        skill = skill_of(attached.incarnation, self._asked)
        self._group_of[attached] = skill
        group = self._groups.setdefault(skill, _Alike())
        group.members[attached] = group.new[attached] = None

    def remove_worker(self, attached: Attached) -> None:
        """Remove a worker."""
        skill = self._group_of.pop(attached)
        group = self._groups[skill]
        del group.members[attached]
        group.new.pop(attached, None)
        if not group.members:
            del self._groups[skill]

    def send_heads(self, demand: Demand, asked: PlacementCriteria) -> None:
        """Send each worker its queue heads, if they matter. `asked`: the criteria of `demand`."""
        self._tell_apart(asked)
        near = timedelta(seconds=len(self._group_of) / AGES_A_SECOND)
        for group in self._groups.values():
            one = next(iter(group.members))
            heads = tuple(demand(one.incarnation))
            if is_news(heads, group.sent, one.incarnation.slots, near):
                group.sent = heads
                group.new = group.members
            for attached in group.new:
                attached.tell_demand(heads, near)
            group.new = {}

    def _tell_apart(self, asked: PlacementCriteria) -> None:
        """Group workers by these criteria too. Labels are compared from then on; a name only while
        some run is bound to it.
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
            self.add_worker(attached)
