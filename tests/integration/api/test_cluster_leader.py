"""Transfer of leadership: who is refused and why, and what the audit says."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from schedd.api.errors import (
    AbortedError,
    CallError,
    FailedPreconditionError,
    MemberUnavailableError,
    NotFoundError,
    OutcomeUnknownError,
)
from schedd.core.cluster.membership import EMPTY_VIEW, ClusterView
from schedd.core.ids import Term
from schedkit.errors import OutcomeUnknown
from schedproto.v1 import cluster_service_pb2 as wire
from support.wait import wait_until_async
from support.web import member


def cluster(leader: str | None, *members: Any, term: int = 7) -> ClusterView:
    tenure = next((one.tenure for one in members if one.name == leader), None)
    return replace(EMPTY_VIEW, members=members, leader=tenure, term=Term(term))


M1 = member("m1", attached=True)
M2 = member("m2", attached=True)
M3 = member("m3", weight=200)
IDLE = member("idle", weight=0, attached=True)
LEAVING = member("leaving", draining=True)
CUT = member("cut", database=False)
ALL = (M1, M2, M3, IDLE, LEAVING, CUT)


def transfer(name: str = "") -> wire.TransferLeaderRequest:
    return wire.TransferLeaderRequest(member=name, reason="upgrade", request_id="r1")


async def audited(api: Any) -> list[wire.AuditEntry]:
    """Newest first."""
    listed = await api("ListAudit", wire.ListAuditRequest(action="transfer-leader"))
    return list(listed.entries)


async def audited_outcome(api: Any) -> wire.AuditEntry:
    line, asked = await audited(api)
    assert asked.outcome == "asked"
    return line


@pytest.mark.parametrize("name", ["m3", "idle"])
async def test_a_named_member_that_can_lead_is_requested(api, name):
    """Weight 0 owns no shard, and leading takes none."""
    api.cluster.now = cluster("m1", *ALL)
    api.cluster.next = cluster(name, *ALL, term=9)
    moved = await api("TransferLeader", transfer(name))
    assert (moved.old_leader, moved.new_leader) == ("m1", name)
    assert (moved.old_term, moved.new_term) == (7, 9)
    line = await audited_outcome(api)
    assert (line.outcome, line.object, line.actor) == ("ok", "cluster/leader", "tester")
    assert json.loads(line.before) == {"leader": "m1", "term": 7}
    assert json.loads(line.after) == {"leader": name, "term": 9, "reason": "upgrade"}
    assert line.source == "test request:r1"


async def test_a_transfer_without_a_name_picks_a_member_with_workers_and_weight(api):
    api.cluster.now = cluster("m1", *ALL)
    api.cluster.next = cluster("m2", *ALL, term=9)
    assert (await api("TransferLeader", transfer())).new_leader == "m2"
    assert api.cluster.heirs == [M2.tenure]


@pytest.mark.parametrize(
    ("leader", "name", "error", "reason"),
    [
        ("m1", "m9", NotFoundError, "NO_SUCH_MEMBER"),
        ("m1", "m1", FailedPreconditionError, "LEADS_ALREADY"),
        ("m1", "leaving", FailedPreconditionError, "UNFIT"),
        ("m1", "cut", FailedPreconditionError, "UNFIT"),
        (None, "m2", FailedPreconditionError, "NO_LEADER"),
    ],
)
async def test_an_impossible_transfer_is_rejected_with_its_reason_and_audited(
    api: Any, leader: str | None, name: str, error: type[CallError], reason: str
) -> None:
    api.cluster.now = cluster(leader, *ALL)
    with pytest.raises(error) as refused:
        await api("TransferLeader", transfer(name))
    assert (refused.value.reason, bool(refused.value.remedy)) == (reason, True)
    assert api.cluster.heirs == []
    [line] = await audited(api)
    assert (line.outcome, line.reason) == ("refused", reason)


async def test_a_lone_leader_has_no_eligible_successor(api):
    api.cluster.now = cluster("m1", M1, IDLE, LEAVING)
    with pytest.raises(FailedPreconditionError) as refused:
        await api("TransferLeader", transfer())
    assert refused.value.reason == "NO_ELIGIBLE_MEMBER"


async def test_a_leader_that_changed_meanwhile_aborts_the_transfer(api):
    api.cluster.now, api.cluster.willing = cluster("m1", *ALL), False
    with pytest.raises(AbortedError):
        await api("TransferLeader", transfer("m2"))


async def test_a_transfer_is_audited_before_the_leader_is_asked(api, monkeypatch):
    """A member that dies right after it leaves who asked, for what, and why."""
    api.cluster.now = cluster("m1", *ALL)
    seen: list[wire.AuditEntry] = []

    async def looked(_view: ClusterView, _heir: object) -> bool:
        seen.extend(await audited(api))
        return False

    monkeypatch.setattr(api.cluster, "ask", looked)
    with pytest.raises(AbortedError):
        await api("TransferLeader", transfer("m2"))
    [line] = seen
    assert (line.outcome, line.object, line.actor) == ("asked", "cluster/leader", "tester")
    assert json.loads(line.before) == {"leader": "m1", "term": 7}
    assert json.loads(line.after) == {"leader": "m2", "reason": "upgrade"}
    assert line.source == "test request:r1"


async def test_a_caller_that_leaves_before_the_outcome_is_written_is_audited_too(api, monkeypatch):
    api.cluster.now = cluster("m1", *ALL)
    api.cluster.next = cluster("m2", *ALL, term=9)
    follows = api.cluster.follows

    async def followed(term: Term) -> ClusterView:
        after: ClusterView = await follows(term)
        asking.cancel()
        return after

    monkeypatch.setattr(api.cluster, "follows", followed)
    asking = asyncio.create_task(api("TransferLeader", transfer("m2")), name="asking")
    with pytest.raises(asyncio.CancelledError):
        await asking
    outcomes = [line.outcome for line in await audited(api)]
    assert {"unknown", "asked"} <= set(outcomes), "the other line may have been on its way"


async def test_when_another_member_won_the_error_names_the_leader(api):
    api.cluster.now = cluster("m1", *ALL)
    api.cluster.next = cluster("m3", *ALL, term=9)
    with pytest.raises(AbortedError, match="m3 was elected leader, not m2"):
        await api("TransferLeader", transfer("m2"))
    line = await audited_outcome(api)
    assert json.loads(line.after)["leader"] == "m3"


async def test_a_request_that_etcd_didnt_answer_is_audited_as_unknown(api, monkeypatch):
    async def lost(_view: ClusterView, _heir: object) -> bool:
        raise OutcomeUnknown("etcd: no answer")

    api.cluster.now = cluster("m1", *ALL)
    monkeypatch.setattr(api.cluster, "ask", lost)
    with pytest.raises(OutcomeUnknown):
        await api("TransferLeader", transfer("m2"))
    line = await audited_outcome(api)
    assert (line.outcome, line.reason) == ("unknown", "UNAVAILABLE")


async def test_a_caller_that_disconnects_before_the_answer_is_still_audited(api):
    """The leader steps down though no caller waits for it."""
    api.cluster.now = cluster("m1", *ALL)
    asking = asyncio.create_task(api("TransferLeader", transfer("m2")), name="asking")
    await wait_until_async(lambda: bool(api.cluster.heirs), 5, "the request")
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    line = await audited_outcome(api)
    assert (line.outcome, line.reason) == ("unknown", "GONE")


async def test_a_successor_that_isnt_seen_in_time_is_unknown(api):
    api.cluster.now = cluster("m1", *ALL)
    with pytest.raises(OutcomeUnknownError):
        await api("TransferLeader", transfer("m2"), deadline=0.05)
    line = await audited_outcome(api)
    assert (line.outcome, line.reason) == ("unknown", "NO_SUCCESSOR_YET")


async def test_a_member_without_a_trusted_lease_rejects_a_transfer(api):
    api.cluster.now = cluster("m1", *ALL)
    api.cluster.trust = False
    with pytest.raises(MemberUnavailableError):
        await api("TransferLeader", transfer("m2"))
    assert api.cluster.heirs == []
    [line] = await audited(api)
    assert (line.outcome, line.reason) == ("refused", "NOT_TRUSTED")
