"""Fencing: a tenure without a key in etcd loses its row in PostgreSQL, and with it its shards.

    unfenced rows  −  keys, listed afterwards  =  departed  ──→ fenced
    unfenced rows  ∩  keys                     =  standing  ──→ may be given shards

Members put the key first and the row second, so a row that was read before the list and has no
key in it belongs to a tenure whose key has gone for good. Were the list read first, a member that
joined between the two would be fenced at once.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from schedd.cluster.leader.term import Leadership, TermOver
from schedd.core.cluster.membership import MEMBERS, MemberView, members_of
from schedd.ports import Coordination, MembershipStore

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Census:
    """Who was found. `standing`: with row and key. `joining`: with a key, and no row yet."""

    standing: tuple[MemberView, ...]
    joining: tuple[MemberView, ...]


async def fence_departed(
    coordination: Coordination, store: MembershipStore, leadership: Leadership
) -> Census:
    """Fence the tenures that have gone; the members that are here.

    Raises:
        TermOver: the term was raised meanwhile, or trust has passed.
    """
    tenures = await store.unfenced_tenures()
    members = {member.tenure: member for member in members_of(await coordination.list(MEMBERS))}
    departed = [tenure for tenure in tenures if tenure.id not in members]
    if departed:
        leadership.check()
        if not await store.fence([tenure.id for tenure in departed], leadership.term):
            raise TermOver("the term was raised by another leader")
        for tenure in departed:
            log.info("fenced tenure %s of member %s", tenure.id, tenure.member)
    rows = {tenure.id for tenure in tenures}
    return Census(
        standing=tuple(member for member in members.values() if member.tenure in rows),
        joining=tuple(member for member in members.values() if member.tenure not in rows),
    )
