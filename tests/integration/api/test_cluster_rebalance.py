"""Rebalancing: what would move, what moved, and what is said when it can't be done."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from schedd.api.errors import FailedPreconditionError, MemberUnavailableError, OutcomeUnknownError
from schedd.core.cluster.membership import EMPTY_VIEW, ClusterView
from schedd.core.cluster.partition import assign
from schedd.core.ids import SHARDS, ShardId, Term
from schedproto.v1 import cluster_service_pb2 as wire
from support.web import member


@pytest.fixture
async def seen(api: Any) -> ClusterView:
    """m1 and m2 are there; m1 owns every shard by the rows."""
    [first] = api.world.members
    one, other = replace(member("m1"), tenure=first.tenure), member("m2")
    seen = replace(EMPTY_VIEW, members=(one, other), leader=one.tenure, term=Term(7))
    api.cluster.now = seen
    return seen


async def test_a_dry_run_says_what_would_move_and_moves_nothing(api, seen):
    wanted = assign(seen.members)
    answer = await api("RebalanceCluster", wire.RebalanceClusterRequest(dry_run=True))
    assert answer.dry_run
    assert {(m.shard, m.old_owner, m.new_owner) for m in answer.moves} == {
        (shard, "m1", "m2") for shard, tenure in wanted.items() if tenure == seen.members[1].tenure
    }
    assert 0 < len(answer.moves) < SHARDS
    assert api.nudged.cluster == 0
    assert not (await api("ListAudit", wire.ListAuditRequest(action="rebalance"))).entries


async def test_a_member_without_a_trusted_lease_rejects_a_rebalance(api, seen):
    api.cluster.trust = False
    for dry_run in (True, False):
        with pytest.raises(MemberUnavailableError) as refused:
            await api("RebalanceCluster", wire.RebalanceClusterRequest(dry_run=dry_run))
        assert (refused.value.code, refused.value.reason) == ("UNAVAILABLE", "NOT_TRUSTED")
    assert api.nudged.cluster == 0


async def test_a_rebalance_returns_once_each_shard_has_its_new_owner(api, seen):
    [first] = api.world.members
    second = await api.world.member(take=False)
    seen = replace(seen, members=(seen.members[0], replace(seen.members[1], tenure=second.tenure)))
    api.cluster.now = seen
    moving = [s for s, tenure in assign(seen.members).items() if tenure == second.tenure]

    asked = asyncio.create_task(
        api("RebalanceCluster", wire.RebalanceClusterRequest(request_id="r1")), name="rebalance"
    )
    done, _ = await asyncio.wait({asked}, timeout=0.3)
    assert not done, "they are m1's yet"
    await first.store.membership.release(first.claim(*moving))
    await second.take(*moving)
    answer = await asked

    assert [ShardId(m.shard) for m in answer.moves] == sorted(moving)
    assert {m.new_owner for m in answer.moves} == {"m2"}
    assert api.nudged.cluster == 1, "the leader looks at once"
    [line] = (await api("ListAudit", wire.ListAuditRequest(action="rebalance"))).entries
    assert (line.outcome, line.object, line.actor) == ("ok", "cluster/shards", "tester")
    assert line.source == "test request:r1"
    assert json.loads(line.before) == {"m1": SHARDS}
    assert json.loads(line.after) == {"m1": SHARDS - len(moving), "m2": len(moving)}


async def test_a_rebalance_that_times_out_is_unknown(api, seen):
    with pytest.raises(OutcomeUnknownError):
        await api("RebalanceCluster", wire.RebalanceClusterRequest(), deadline=0.1)
    [line] = (await api("ListAudit", wire.ListAuditRequest(action="rebalance"))).entries
    assert (line.outcome, line.reason) == ("unknown", "STILL_MOVING")


async def test_a_rebalance_without_a_leader_or_any_owner_is_refused(api, seen):
    api.cluster.now = replace(seen, leader=None)
    with pytest.raises(FailedPreconditionError) as refused:
        await api("RebalanceCluster", wire.RebalanceClusterRequest())
    assert refused.value.reason == "NO_LEADER"
    [line] = (await api("ListAudit", wire.ListAuditRequest(action="rebalance"))).entries
    assert (line.outcome, line.reason, line.object) == ("refused", "NO_LEADER", "cluster/shards")
    api.cluster.now = replace(seen, members=(member("idle", weight=0),))
    with pytest.raises(FailedPreconditionError) as refused:
        await api("RebalanceCluster", wire.RebalanceClusterRequest(dry_run=True))
    assert refused.value.reason == "NO_ELIGIBLE_MEMBER"
