"""The leader's map: which tenure is to own which shard, as one versioned value in etcd. Pure.

    {"term": 7, "timeline": 1, "owners": {"<tenure>": [0, 3, 8, …], …}}

Invariants
- The map carries the term of the leader that wrote it; whoever follows it ignores a lower one
  (`newer`). It is only advice: the shard's row decides who owns it.
- Equal values are encoded alike, so that an unchanged map needs no write.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Final

from schedd.core.cluster import etcd_values
from schedd.core.cluster.etcd_values import number, parsed, uuid
from schedd.core.ids import SHARDS, ShardId, TenureId, Term, Timeline
from schedkit.records import dataclass

NO_TIMELINE: Final = Timeline(0)
"""Less than every timeline of a database."""
MOST_TERM: Final = 1 << 53
"""Terms of real leaders are far below: they count seconds since 2024, or elections."""
MOST_TIMELINE: Final = (1 << 32) - 1
"""PostgreSQL's own."""


@dataclass(frozen=True, slots=True)
class ShardMap:
    """Who is to own what. Shards that are missing are nobody's.

    `timeline`: the database's, as the leader saw it; a member connected to a lower one talks to
    a server that was replaced.
    """

    term: Term
    assigned: Mapping[ShardId, TenureId] = field(default_factory=dict)
    timeline: Timeline = NO_TIMELINE

    def of(self, tenure: TenureId | None) -> frozenset[ShardId]:
        """The shards that this tenure is to own."""
        return frozenset(shard for shard, owner in self.assigned.items() if owner == tenure)


NO_MAP: Final = ShardMap(Term(0))


def newer(known: ShardMap, seen: ShardMap) -> ShardMap:
    """The map to follow after `known` when `seen` stands in etcd."""
    return known if seen.term < known.term else seen


def encode(shard_map: ShardMap) -> bytes:
    """The map as the bytes of its key."""
    owners: dict[str, list[ShardId]] = {}
    for shard, tenure in sorted(shard_map.assigned.items()):
        owners.setdefault(str(tenure), []).append(shard)
    value = {"term": shard_map.term, "timeline": shard_map.timeline, "owners": owners}
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def decode(value: bytes) -> ShardMap:
    """The map that the bytes hold; fields it doesn't know are left alone.

    Raises:
        Unreadable: they hold none.
    """
    return etcd_values.read("map", value, "shard map", _decoded)


def _decoded(value: bytes) -> ShardMap:
    found = parsed(value)
    term = Term(number(found["term"], 0, MOST_TERM))
    timeline = Timeline(number(found["timeline"], 0, MOST_TIMELINE))
    return ShardMap(term, dict(_pairs(found["owners"])), timeline)


def _pairs(owners: object) -> Iterable[tuple[ShardId, TenureId]]:
    if not isinstance(owners, dict):
        raise TypeError("owners isn't an object")
    for tenure, shards in owners.items():
        for shard in shards:
            yield ShardId(number(shard, 0, SHARDS - 1)), TenureId(uuid(tenure))
