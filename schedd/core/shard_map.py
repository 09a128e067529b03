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
from uuid import UUID

from schedd.core.ids import SHARDS, ShardId, TenureId, Term, Timeline
from schedkit.records import dataclass

NO_TIMELINE: Final = Timeline(0)
"""Less than every timeline of a database."""


class Unreadable(ValueError):
    """A value that isn't what its key promises."""


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
    try:
        parsed = json.loads(value)
        assigned = dict(_pairs(parsed["owners"]))
        return ShardMap(Term(int(parsed["term"])), assigned, Timeline(int(parsed["timeline"])))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Unreadable(f"no shard map: {error!r}") from error


def _pairs(owners: Mapping[str, Iterable[int]]) -> Iterable[tuple[ShardId, TenureId]]:
    for tenure, shards in owners.items():
        for shard in shards:
            if not 0 <= shard < SHARDS:
                raise ValueError(f"shard {shard} is outside 0..{SHARDS - 1}")
            yield ShardId(shard), TenureId(UUID(tenure))
