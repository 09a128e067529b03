"""The leader's map: the owner of each shard, as one versioned value in etcd. Pure.

    {"term": 7, "timeline": 1, "owners": {"<tenure>": [0, 3, 8, …], …}}

Invariants
- The map has the term of the leader that wrote it. Members ignore a map of a lower term (`newer`).
- The map is only advice: the row of a shard decides which tenure owns it.
- Equal maps have equal encodings, so an unchanged map needs no write.
"""

from collections.abc import Mapping
from dataclasses import field
from functools import lru_cache
from typing import Final

from schedd.core.cluster import etcd_values
from schedd.core.cluster.etcd_values import number, parsed, uuid
from schedd.core.ids import SHARDS, ShardId, TenureId, Term, Timeline
from schedkit.records import dataclass

NO_TIMELINE: Final = Timeline(0)
"""A timeline lower than every timeline of a database."""
MOST_TERM: Final = 1 << 53
"""Maximum term. Real terms are far below: they count seconds since 2024, or elections."""
MOST_TIMELINE: Final = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class ShardMap:
    """The assigned owner of each shard. Missing shards have no owner. `timeline`: the database's,
    as the leader saw it. A member that sees a lower one is connected to a server that was replaced.
    """

    term: Term
    assigned: Mapping[ShardId, TenureId] = field(default_factory=dict)
    timeline: Timeline = NO_TIMELINE

    def shards_of_tenure(self, tenure: TenureId | None) -> frozenset[ShardId]:
        return frozenset(shard for shard, owner in self.assigned.items() if owner == tenure)


NO_MAP: Final = ShardMap(Term(0))


def newer(known: ShardMap, seen: ShardMap) -> ShardMap:
    """Return the map to follow: `seen` in etcd, unless its term is lower than `known`'s."""
    return known if seen.term < known.term else seen


def encode(shard_map: ShardMap) -> bytes:
    owners: dict[str, list[ShardId]] = {}
    for shard, tenure in sorted(shard_map.assigned.items()):
        owners.setdefault(str(tenure), []).append(shard)
    term, timeline = shard_map.term, shard_map.timeline
    return etcd_values.encoded({"term": term, "timeline": timeline, "owners": owners})


@lru_cache(maxsize=4)
def decode(value: bytes) -> ShardMap:
    """Return the map of a value, which each change of another key asks for again. Raises
    InvalidValue.
    """
    return etcd_values.read("map", value, "shard map", _decoded)


def _decoded(value: bytes) -> ShardMap:
    found = parsed(value)
    term = Term(number(found["term"], 0, MOST_TERM))
    timeline, owners = Timeline(number(found["timeline"], 0, MOST_TIMELINE)), found["owners"]
    if not isinstance(owners, dict):
        raise TypeError("owners isn't an object")
    assigned = {
        ShardId(number(shard, 0, SHARDS - 1)): TenureId(uuid(tenure))
        for tenure, shards in owners.items()
        for shard in shards
    }
    return ShardMap(term, assigned, timeline)
