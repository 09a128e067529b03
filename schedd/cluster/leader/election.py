"""Elections: one key, held by the member that created it, on its membership lease.

    absent ──txn: create on our lease──→ a mandate ──checked again (`holds`)──→ a term
       ↑                                      └── withdrawn, or the lease ended ──┐
       └──────────────────────────────────────────────────────────────────────────┘

Invariants
- A mandate has the key's create revision and its holder (the value). Every transaction under the
  mandate compares both.
- A key without a lease isn't a member's (`delete_invalid`).
- A lost answer counts as a defeat. If the key turns out to be ours, it is deleted (`withdraw`), and
  the next election decides.
"""

import logging
from dataclasses import dataclass

from schedd.core.cluster.coordination import NO_LEASE, Compare, Delete, LeaseId, Put, Revision
from schedd.core.cluster.membership import HEIR, LEADER, encode_leader
from schedd.core.ids import TenureId
from schedd.ports import Coordination

log = logging.getLogger(__name__)


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
    """Try once to become leader; return None if another member leads.

    A victory deletes the request for an heir.

    Raises:
        Unavailable: etcd didn't answer; nothing was won.
    """
    put = Put(LEADER, encode_leader(tenure), lease)
    made = await coordination.txn([Compare.absent(LEADER)], [put, Delete(HEIR)])
    return Mandate(tenure, made.revision) if made.succeeded else None


async def delete_invalid(coordination: Coordination) -> None:
    """Delete an election key that no member wrote: without a lease, it would never expire.

    A leader whose key was overwritten has lost its mandate already.
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
