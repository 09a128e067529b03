"""Which worker gets a run: among those that can do it, the one with the most granted slots free."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from schedd.core.ids import IncarnationId
from schedd.core.model import Definition, Incarnation


@dataclass(frozen=True, slots=True)
class Need:
    """What a run asks of its worker. Runs of equal need wait in one line."""

    action: str
    handler: str = ""
    slots: int = 1


def need_of(definition: Definition) -> Need:
    """What each run of this job asks for."""
    return Need(definition.action, definition.handler, definition.slots)


@dataclass(slots=True)
class Offer:
    """Slots that a worker has granted to this member and that are still unused."""

    incarnation: Incarnation
    slots: int
    last: float = inf
    """The greatest rank (`ready_queue`) of a run that they are for: what goes after it leaves them
    to another member.
    """

    @property
    def id(self) -> IncarnationId:
        """The incarnation's id."""
        return self.incarnation.id


def able(worker: Incarnation, need: Need) -> bool:
    """Whether the worker has the executor, the handler and, all of them free, the slots."""
    if need.action not in worker.actions or need.slots > worker.slots:
        return False
    return not need.handler or need.handler in worker.handlers


def choose(need: Need, rank: float, offers: Iterable[Offer]) -> Offer | None:
    """Spread: of the able workers whose slots are for such a rank the one with the most left; ties
    go by the incarnation's id.
    """
    fit = (
        o for o in offers if o.slots >= need.slots and rank <= o.last and able(o.incarnation, need)
    )
    return max(fit, key=lambda offer: (offer.slots, offer.id.int), default=None)
