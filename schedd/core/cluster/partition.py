"""Which shard a job is in, and which member should own a shard. Pure, and the same everywhere.

    job ──hash of its id, or of its pool──→ shard ──weighted rendezvous──→ member

Rendezvous hashing: each member draws a number for each shard, a hash of both names, and the
highest draw owns it. A member that joins takes only what it now wins; one that leaves gives away
only what it had; nothing else moves. Weights bend the draws: the share of a member is its weight
over the sum of all (Highest Random Weight, Thaler and Ravishankar 1998; the logarithm that makes
weights exact is from Schindelhauer and Schomaker 2005).

Invariants
- The hashes are part of the stored data (`timers.shard`): changing one means moving every job.
- Members are known by name here, not by tenure: one that comes back gets its own shards again.
- Weight 0 owns nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from schedd.core.ids import SHARDS, JobId, ShardId

ALL_SHARDS: Final[tuple[ShardId, ...]] = tuple(map(ShardId, range(SHARDS)))


def shard_of(job: JobId) -> ShardId:
    """The shard of a job that is in no pool."""
    return ShardId(_number(b"job", job.bytes) % SHARDS)


def shard_of_pool(namespace: str, pool: str) -> ShardId:
    """The shard of every job of this pool: its limit is counted by one owner."""
    return ShardId(_number(b"pool", namespace.encode(), pool.encode()) % SHARDS)


def shard_of_job(job: JobId, namespace: str, pool: str) -> ShardId:
    """The shard of a job, in this pool if that isn't empty."""
    return shard_of_pool(namespace, pool) if pool else shard_of(job)


def owner_of(shard: ShardId, weights: Mapping[str, int]) -> str | None:
    """The name of the member that should own the shard; None if no weight is above 0."""
    able = ((_score(shard, name, weight), name) for name, weight in weights.items() if weight > 0)
    return max(able, default=(0.0, None))[1]


def owners(weights: Mapping[str, int]) -> Mapping[ShardId, str]:
    """Every shard's owner; empty if no weight is above 0."""
    return _owners(tuple(sorted(weights.items())))


@lru_cache(maxsize=8)  # a leader asks the same each second
def _owners(weights: tuple[tuple[str, int], ...]) -> Mapping[ShardId, str]:
    known = dict(weights)
    found = ((shard, owner_of(shard, known)) for shard in ALL_SHARDS)
    return {shard: name for shard, name in found if name is not None}


def _score(shard: ShardId, name: str, weight: int) -> float:
    """The member's draw for the shard: above 0, exponentially distributed by weight."""
    uniform = (_number(b"owner", name.encode(), b"%d" % shard) + 0.5) / 2**64
    return -weight / math.log(uniform) if uniform < 1 else math.inf


def _number(kind: bytes, *parts: bytes) -> int:
    """64 bits that depend on every part and on where one part ends and the next begins."""
    digest = blake2b(digest_size=8, person=kind)
    for part in parts:
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return int.from_bytes(digest.digest())
