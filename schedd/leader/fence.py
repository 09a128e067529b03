"""Fencing: a tenure without a key in etcd loses its row in PostgreSQL, and with it its shards.

    unfenced rows  −  keys, listed afterwards  =  departed  ──→ fenced
    unfenced rows  ∩  keys                     =  standing  ──→ may be given shards

Members put the key first and the row second, so a row that was read before the list and has no
key in it belongs to a tenure whose key has gone for good. Were the list read first, a member that
joined between the two would be fenced at once.
"""

from __future__ import annotations

import logging

from schedd.core.membership import MEMBERS, MemberView, members_of
from schedd.leader.term import Leadership, TermOver
from schedd.ports import Coordination, MembershipStore

log = logging.getLogger(__name__)


async def fence_departed(
    coordination: Coordination, store: MembershipStore, leadership: Leadership
) -> list[MemberView]:
    """Fence the tenures that have gone; the members that stand, with row and key.

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
    return [members[tenure.id] for tenure in tenures if tenure.id in members]
