"""Which worker gets a run: among those that can do it, the one with the most granted slots free."""

from collections.abc import Iterable
from dataclasses import dataclass

from schedd.core.ids import IncarnationId
from schedd.core.model import Definition, Incarnation


@dataclass(slots=True)
class Offer:
    """Slots that a worker has granted to this member and that are still unused."""

    incarnation: Incarnation
    slots: int

    @property
    def id(self) -> IncarnationId:
        """The incarnation's id."""
        return self.incarnation.id


def able(worker: Incarnation, definition: Definition) -> bool:
    """Whether the worker has the executor, and the handler, that the job needs."""
    if definition.action not in worker.actions:
        return False
    return not definition.handler or definition.handler in worker.handlers


def choose(definition: Definition, offers: Iterable[Offer]) -> Offer | None:
    """Spread: the able worker with the most slots left; ties go by the incarnation's id."""
    fit = (o for o in offers if o.slots >= definition.slots and able(o.incarnation, definition))
    return max(fit, key=lambda offer: (offer.slots, offer.id.int), default=None)
