"""The shard of each job, and the member that should own each shard. Pure, the same everywhere.

    job ──hash of its id, or of its pool──→ shard ──weighted rendezvous──→ member

For each shard, each member has a score, a hash of both names; the highest owns it. So a member that
joins takes only the shards that it now wins, and one that leaves gives up only its own. Shares are
proportional to weights (Thaler and Ravishankar 1998; Schindelhauer and Schomaker 2005).

Invariants
- The hashes are part of the stored data (`timers.shard`): a change of a hash moves every job.
- Members are identified by name, not by tenure: a member that returns gets its own shards again.
- A member of weight 0 owns nothing.
"""

import math
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from schedd.core.cluster.membership import MemberView
from schedd.core.ids import SHARDS, JobId, ShardId, TenureId

ALL_SHARDS: Final[tuple[ShardId, ...]] = tuple(map(ShardId, range(SHARDS)))


def shard_of(job: JobId) -> ShardId:
    """Return the shard of a job without a pool."""
    return ShardId(_number(b"job", job) % SHARDS)


def shard_of_pool(namespace: str, pool: str) -> ShardId:
    """Return the shard of every job of this pool, whose limit one owner counts."""
    return ShardId(_number(b"pool", namespace.encode(), pool.encode()) % SHARDS)


def shard_of_job(job: JobId, namespace: str, pool: str) -> ShardId:
    """Return the shard of a job; `pool` is empty if the job has none."""
    return shard_of_pool(namespace, pool) if pool else shard_of(job)


def owner_of(shard: ShardId, weights: Mapping[str, int]) -> str | None:
    """Return the name of the member that should own the shard; None if no weight is above 0."""
    able = ((_score(shard, name, weight), name) for name, weight in weights.items() if weight > 0)
    return max(able, default=(0.0, None))[1]


def owners(weights: Mapping[str, int]) -> Mapping[ShardId, str]:
    """Return the owner of each shard; empty if no weight is above 0."""
    return _owners(tuple(sorted(weights.items())))


@lru_cache(maxsize=8)  # the leader calls this each second with the same weights
def _owners(weights: tuple[tuple[str, int], ...]) -> Mapping[ShardId, str]:
    known = dict(weights)
    found = ((shard, owner_of(shard, known)) for shard in ALL_SHARDS)
    return {shard: name for shard, name in found if name is not None}


def _score(shard: ShardId, name: str, weight: int) -> float:
    """Return the member's score for the shard: above 0, exponentially distributed by weight."""
    uniform = (_number(b"owner", name.encode(), b"%d" % shard) + 0.5) / 2**64
    return -weight / math.log(uniform) if uniform < 1 else math.inf


def _number(kind: bytes, *parts: bytes) -> int:
    """Return 64 bits that depend on every part, and on the borders between the parts."""
    digest = blake2b(digest_size=8, person=kind)
    for part in parts:
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return int.from_bytes(digest.digest())


# Assign each shard to a live member. Pure: every member computes the same assignment.
#
# Members are eligible by these rules; a rule is skipped if it would leave no member:
#     not draining · a worker attached · by weight


def assign(members: Collection[MemberView]) -> Mapping[ShardId, TenureId]:
    """Return the tenure of each shard; empty if no member may own shards."""
    able = [member for member in members if member.weight > 0]
    able = _prefer(able, lambda member: not member.draining)
    able = _prefer(able, lambda member: member.attached)
    tenures = {member.name: member.tenure for member in able}
    chosen = owners({member.name: member.weight for member in able})
    return {shard: tenures[name] for shard, name in chosen.items()}


def _prefer(members: list[MemberView], good: Callable[[MemberView], bool]) -> list[MemberView]:
    """Return the members that are `good`, or all members if none is."""
    return [member for member in members if good(member)] or members
