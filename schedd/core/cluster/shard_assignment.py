"""Which member is to own which shard, of those that are there. Pure, and the same everywhere.

Who is given shards, each rule only if it leaves somebody:
    not draining · a worker attached · by weight
"""

from collections.abc import Callable, Collection, Mapping

from schedd.core.cluster.membership import MemberView
from schedd.core.cluster.partition import owners
from schedd.core.ids import ShardId, TenureId


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
