"""Audit lines of rejected changes of the cluster: actor, request and reason."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import cast
from uuid import uuid4

import pytest

from schedd.api.cluster import cluster_changes
from schedd.api.errors import (
    CallError,
    InvalidArgumentError,
    MemberUnavailableError,
    NotFoundError,
    cut,
)
from schedd.api.runs import runs
from schedd.api.services import Caller, Services
from schedd.core.cluster.membership import EMPTY_VIEW, ClusterView, MemberView
from schedd.core.ids import TenureId, Term, new_id
from schedd.core.runs.model import AuditRecord
from schedproto.v1 import cluster_service_pb2 as wire
from schedproto.v1 import run_service_pb2
from support.callers import TESTER

CALLER = Caller(TESTER, "test")
M1 = MemberView("m1", TenureId(new_id()), "m1:1", "m1:2", 100, "1", "", False)


class World:
    """The ports that a rejected call uses: a single member, and the lines of the audit."""

    def __init__(self, *, trust: bool = True) -> None:
        self.trust = trust
        self.lines: list[AuditRecord] = []
        self.cluster = self.store = self

    def trusted(self) -> bool:
        return self.trust

    def view(self) -> ClusterView:
        return replace(EMPTY_VIEW, members=(M1,), leader=M1.tenure, term=Term(7))

    async def audit(self, entry: AuditRecord) -> None:
        self.lines.append(entry)

    def services(self) -> Services:
        return cast("Services", self)


async def test_the_audit_of_a_rejected_transfer_has_the_requested_member_and_the_note() -> None:
    world = World()
    request = wire.TransferLeaderRequest(member="m9", reason="upgrade")
    with pytest.raises(NotFoundError):
        await cluster_changes.transfer_leader(world.services(), CALLER, request)
    [line] = world.lines
    assert (line.outcome, line.reason) == ("refused", "NO_SUCH_MEMBER")
    assert json.loads(line.after) == {"leader": "m9", "reason": "upgrade"}


async def test_the_audit_of_a_transfer_without_an_eligible_member_has_the_note() -> None:
    world = World()
    request = wire.TransferLeaderRequest(reason="upgrade")
    with pytest.raises(CallError):
        await cluster_changes.transfer_leader(world.services(), CALLER, request)
    [line] = world.lines
    assert (line.outcome, line.reason) == ("refused", "NO_ELIGIBLE_MEMBER")
    assert json.loads(line.after) == {"leader": "", "reason": "upgrade"}


@pytest.mark.parametrize(("dry_run", "lines"), [(True, 0), (False, 1)])
async def test_a_refused_rebalance_is_one_line_and_its_dry_run_none(
    dry_run: bool, lines: int
) -> None:
    world = World(trust=False)
    request = wire.RebalanceClusterRequest(dry_run=dry_run)
    with pytest.raises(MemberUnavailableError):
        await cluster_changes.rebalance_cluster(world.services(), CALLER, request)
    assert [line.reason for line in world.lines] == ["NOT_TRUSTED"] * lines


@pytest.mark.parametrize("reason", ["x" * 1_001, "two\nlines"])
async def test_an_invalid_note_is_refused_before_anything_is_done(reason: str) -> None:
    world = World()
    transfer = wire.TransferLeaderRequest(reason=reason)
    with pytest.raises(InvalidArgumentError, match="reason: "):
        await cluster_changes.transfer_leader(world.services(), CALLER, transfer)
    cancel = run_service_pb2.CancelRunRequest(run_id=str(uuid4()), reason=reason)
    with pytest.raises(InvalidArgumentError, match="reason: "):
        await runs.cancel_run(world.services(), CALLER, cancel)
    assert world.lines == []


async def test_a_name_that_is_too_long_is_repeated_in_part() -> None:
    world = World()
    request = wire.TransferLeaderRequest(member="m" * 300)
    with pytest.raises(NotFoundError) as refused:
        await cluster_changes.transfer_leader(world.services(), CALLER, request)
    assert refused.value.message == f"member '{'m' * 139}…' not found"
    [line] = world.lines
    assert json.loads(line.after)["leader"] == f"{'m' * 139}…"


def test_a_name_of_usual_length_is_repeated_whole() -> None:
    assert cut("m" * 140) == "m" * 140
