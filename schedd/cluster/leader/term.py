"""An election, and a term: one unbroken leadership, counted in PostgreSQL.

    mandate ─→ read the term ─→ mandate and trust still valid? ─→ raise it, compare-and-set ─→ act
                                                                       └─ raised by another: ended

Because of this order, a member that was suspended after the read can't raise the term: another
leader has raised it meanwhile. A member that was suspended before the read checks its mandate
later.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, NoReturn, Protocol

from schedd.core.cluster.coordination import NO_LEASE, Compare, Delete, LeaseId, Put, Revision
from schedd.core.cluster.membership import HEIR, LEADER, encode_leader
from schedd.core.ids import TenureId, Term
from schedd.ports import Coordination
from schedd.store.cluster.membership import MembershipStore
from schedkit.records import dataclass
from schedkit.tasks import guard, heed_cancellation

# Elections: one key, held by the member that created it, on its membership lease.
#
#     absent ──txn: create on our lease──→ a mandate ──checked again (`holds`)──→ a term
#        ↑                                      └── withdrawn, or the lease ended ──┐
#        └──────────────────────────────────────────────────────────────────────────┘
#
# Invariants
# - A mandate has the key's create revision and its holder (the value). Every transaction under the
#   mandate compares both.
# - A key without a lease isn't a member's (`delete_invalid`).
# - A lost answer counts as a defeat. If the key turns out to be ours, it is deleted (`withdraw`),
#   and the next election decides.


@dataclass(frozen=True, slots=True)
class Mandate:
    """A won election. `life`: the create revision of the key that proves it."""

    tenure: TenureId
    life: Revision

    @property
    def guards(self) -> tuple[Compare, ...]:
        """The comparisons that every etcd write under this mandate includes."""
        return (
            Compare.created_at(LEADER, self.life),
            Compare.value_is(LEADER, encode_leader(self.tenure)),
        )


async def campaign(coordination: Coordination, tenure: TenureId, lease: LeaseId) -> Mandate | None:
    """Try once to become leader; return None if another member leads. A victory deletes the
    request for an heir. Raises Unavailable: etcd didn't answer; nothing was won.
    """
    put = Put(LEADER, encode_leader(tenure), lease)
    made = await coordination.txn([Compare.absent(LEADER)], [put, Delete(HEIR)])
    return Mandate(tenure, made.revision) if made.succeeded else None


async def delete_invalid(coordination: Coordination) -> None:
    """Delete an election key that no member wrote: without a lease, it would never expire. A
    leader whose key was overwritten has lost its mandate already.
    """
    entry = await coordination.get(LEADER)
    if entry is None or entry.lease != NO_LEASE:
        return
    if (await coordination.txn([Compare.unchanged(entry)], [Delete(LEADER)])).succeeded:
        log.error("invalid etcd key deleted: %s has no lease", LEADER)


async def holds(coordination: Coordination, mandate: Mandate) -> bool:
    """Return whether the mandate is valid now, by a linearizable read."""
    return (await coordination.txn(mandate.guards, [])).succeeded


async def withdraw(coordination: Coordination, tenure: TenureId) -> None:
    """Delete the election key if this tenure holds it, whenever it was created."""
    await coordination.txn([Compare.value_is(LEADER, encode_leader(tenure))], [Delete(LEADER)])


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
        """Check the trust window. Call this before each effect. Raises TermOver: the trust window
        has passed.
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
    """Raise the term above the term of the map that members follow (`above`). Raises TermOver: the
    mandate was lost, or another leader was faster. Raises Unavailable: the outcome is unknown;
    campaign again.
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
