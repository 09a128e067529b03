"""Assigning: which standing member is to own which shard, and writing that down.

Who is given shards, each rule only if it leaves somebody:
    not draining · a worker attached · by weight

Invariants
- The map is written only when it differs, or when it is of another term than ours, so that each
  term's map can be told from the one before it.
- Written under the mandate: a leader that was replaced can't overwrite its successor's map.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from schedd.core.coordination import Get, Put
from schedd.core.ids import ShardId, TenureId
from schedd.core.membership import MAP, MemberView
from schedd.core.partition import owners
from schedd.core.shard_map import ShardMap, encode
from schedd.leader.term import Leadership, TermOver
from schedd.ports import Coordination

log = logging.getLogger(__name__)


def assign(members: Collection[MemberView]) -> Mapping[ShardId, TenureId]:
    """Each shard's tenure; empty when nobody may own any."""
    able = [member for member in members if member.weight > 0]
    able = _prefer(able, lambda member: not member.draining)
    able = _prefer(able, lambda member: member.attached)
    tenures = {member.name: member.tenure for member in able}
    chosen = owners({member.name: member.weight for member in able})
    return {shard: tenures[name] for shard, name in chosen.items()}


def _prefer(members: list[MemberView], good: Callable[[MemberView], bool]) -> list[MemberView]:
    """Those that are good, or all if none is."""
    return [member for member in members if good(member)] or members


async def publish(coordination: Coordination, leadership: Leadership, shard_map: ShardMap) -> bool:
    """Write the map if it isn't what stands there. Whether it was written.

    Raises:
        TermOver: the mandate has gone, or trust has passed.
    """
    guards, value = leadership.mandate.guards, encode(shard_map)
    present = await coordination.txn(guards, [Get(MAP)])
    if not present.succeeded:
        raise TermOver("the election key is another's")
    [entry] = present.read
    if entry is not None and entry.value == value:
        return False
    leadership.check()
    written = await coordination.txn(guards, [Put(MAP, value)])
    if not written.succeeded:
        raise TermOver("the election key is another's")
    log.info(
        "map of term %d written: %d shards over %d members",
        shard_map.term,
        len(shard_map.assigned),
        len(set(shard_map.assigned.values())),
        extra={"term": shard_map.term},
    )
    return True
