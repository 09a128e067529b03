"""A term: one unbroken leadership, counted in PostgreSQL.

    mandate ─→ read the term ─→ mandate and trust still valid? ─→ raise it, compare-and-set ─→ act
                                                                       └─ raised by another: ended

Because of this order, a member that was suspended after the read can't raise the term: another
leader has raised it meanwhile. A member that was suspended before the read checks its mandate
later.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn, Protocol

from schedd.cluster.leader.election import Mandate, holds
from schedd.core.ids import Term
from schedd.ports import Coordination
from schedd.store.cluster.membership_store import MembershipStore
from schedkit.tasks import guard, heed_cancellation

log = logging.getLogger(__name__)


class TermOver(Exception):
    """Another member leads, or may lead: this leadership has ended."""


OUTRANKED: Final = "another member has become leader, with a greater term"
REPLACED: Final = "another member has become leader: this member lost the leader's key in etcd"
UNTRUSTED: Final = "this leader's lease in etcd may have expired"


class Duty(Protocol):
    """A loop of the leader; `schedkit.tasks.Loop` is one."""

    name: str

    async def run(self) -> NoReturn: ...


@dataclass(frozen=True, slots=True)
class Leadership:
    """A term that was opened under a mandate. `check` guards each effect."""

    mandate: Mandate
    term: Term
    trusted: Callable[[], bool]

    def check(self) -> None:
        """Check the trust window. Call this before each effect.

        Raises:
            TermOver: the trust window has passed.
        """
        if not self.trusted():
            raise TermOver(UNTRUSTED)


async def open_term(
    coordination: Coordination,
    store: MembershipStore,
    mandate: Mandate,
    trusted: Callable[[], bool],
    above: int = 0,
) -> Leadership:
    """Raise the term above the term of the map that members follow (`above`).

    Raises:
        TermOver: the mandate was lost, or another leader was faster.
        Unavailable: the outcome is unknown; campaign again.
    """
    seen = await store.read_term()
    if not await holds(coordination, mandate):
        raise TermOver(REPLACED)
    if not trusted():
        raise TermOver(UNTRUSTED)
    term = await store.raise_term(seen, mandate.tenure, above)
    if term is None:
        raise TermOver(OUTRANKED)
    return Leadership(mandate, term, trusted)


async def lead(leadership: Leadership, duties: Sequence[Duty]) -> None:
    """Run the duties until the term ends. Return only when none of them runs any more."""
    log.info("became leader: term %d", leadership.term, extra={"term": leadership.term})
    try:
        async with asyncio.TaskGroup() as group:
            for duty in duties:
                group.create_task(guard(duty.run, duty.name), name=f"leader: {duty.name}")
            await asyncio.Event().wait()  # until a duty fails or the task is canceled
    except* TermOver as ends:
        why = "; ".join(str(end) for end in ends.exceptions)
        log.warning("term %d ended: %s", leadership.term, why, extra={"term": leadership.term})
    heed_cancellation()
