"""Assign each shard to a live member. Pure: every member computes the same assignment.

Members are eligible by these rules; a rule is skipped if it would leave no member:
    not draining · a worker attached · by weight
"""

from collections.abc import Callable, Collection, Mapping

from schedd.core.cluster.membership import MemberView
from schedd.core.cluster.partition import owners
from schedd.core.ids import ShardId, TenureId


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
