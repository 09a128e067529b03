"""The map: who is to own which shard (`core/cluster/shard_assignment.py`), written down for all to
follow.

Invariants
- The map is written only when it differs, or when it is of another term than ours, so that each
  term's map can be told from the one before it.
- Written under the mandate: a leader that was replaced can't overwrite its successor's map.
"""

from __future__ import annotations

import logging

from schedd.cluster.leader.term import Leadership, TermOver
from schedd.core.cluster.coordination import Get, Put
from schedd.core.cluster.membership import MAP
from schedd.core.cluster.shard_map import ShardMap, encode
from schedd.ports import Coordination

log = logging.getLogger(__name__)


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
