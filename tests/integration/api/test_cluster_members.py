"""Members and shards as a person sees them."""

from __future__ import annotations

from dataclasses import replace

from schedd.core.cluster.membership import EMPTY_VIEW
from schedd.core.ids import SHARDS, IncarnationId, Term, new_id
from schedproto.v1 import cluster_service_pb2 as wire
from support.web import member


async def test_members_are_listed_as_live_draining_or_lost_with_their_details(api):
    [first] = api.world.members
    second = await api.world.member(take=False)
    leads = replace(member("m1", attached=True, tzdata="2026a"), tenure=first.tenure)
    fenced = replace(member("m2", database=False), tenure=second.tenure)
    leaving = member("m3", draining=True)
    await second.store.membership.fence_own(second.tenure)
    api.cluster.now = replace(
        EMPTY_VIEW, members=(leads, fenced, leaving), leader=leads.tenure, term=Term(7)
    )
    one, two, three = (await api("ListMembers", wire.ListMembersRequest())).members
    assert (one.role, one.state, one.shards) == (
        wire.Member.ROLE_LEADER,
        wire.Member.STATE_LIVE,
        SHARDS,
    )
    assert (one.attached, one.database, one.tzdata) == (True, True, "2026a")
    assert (two.state, two.role) == (wire.Member.STATE_LOST, wire.Member.ROLE_UNSPECIFIED)
    assert three.state == wire.Member.STATE_DRAINING


async def test_the_cluster_lists_its_problems_and_none_when_healthy(api):
    [first] = api.world.members
    leads = replace(member("member-1"), tenure=first.tenure)
    seen = replace(EMPTY_VIEW, members=(leads,), leader=leads.tenure, term=Term(7))
    api.cluster.now = replace(seen, workers=frozenset({IncarnationId(new_id())}))
    assert not (await api("GetCluster", wire.GetClusterRequest())).problems

    api.cluster.now = replace(seen, leader=None, members=())
    problems = " ".join((await api("GetCluster", wire.GetClusterRequest())).problems)
    assert "no leader" in problems
    assert f"{SHARDS} of {SHARDS} shards" in problems
    assert "no worker" in problems

    api.cluster.now = seen
    await first.store.membership.fence_own(first.tenure, "the lease is lost")
    without = await api("GetCluster", wire.GetClusterRequest())
    assert (without.owned, without.members, without.leader) == (0, 0, "")
    assert without.lost_members == ["member-1"]
    [lost] = (await api("ListMembers", wire.ListMembersRequest())).members
    assert (lost.state, lost.role) == (wire.Member.STATE_LOST, wire.Member.ROLE_UNSPECIFIED)
    assert lost.HasField("lost_at"), "as the status says"
    assert f"{SHARDS} of {SHARDS} shards have no live owner" in without.problems
    shards = (await api("ListShards", wire.ListShardsRequest())).shards
    assert {shard.owner for shard in shards} == {""}

    api.cluster.trust = False
    assert "isn't trusted" in (await api("GetCluster", wire.GetClusterRequest())).problems[0]
