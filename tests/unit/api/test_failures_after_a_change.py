"""Calls whose dependencies fail after the change was made: a caller that is asked to retry would
make it twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from google.protobuf.message import Message

from schedd.api.cluster import cluster_changes
from schedd.api.errors import OutcomeUnknownError
from schedd.api.runs import submit
from schedd.api.services import Caller, Services
from schedd.core.cluster.membership import EMPTY_VIEW, ClusterView, MemberView
from schedd.core.cluster.partition import assign
from schedd.core.ids import TenureId, Term, Timeline, new_id
from schedd.core.runs.model import AuditRecord, LiveRun, Trigger
from schedd.core.runs.records import DatabaseProbe, Submit
from schedd.core.runs.run_records import RunRecord
from schedd.core.timers.cluster_pauses import NO_PAUSES, Pauses
from schedkit.errors import Unavailable
from schedproto.v1 import cluster_service_pb2 as wire
from schedproto.v1 import job_pb2, run_service_pb2
from support.callers import TESTER
from support.runs import NOW, SetClock

CALLER = Caller(TESTER, "test", deadline=1.0)


def member(name: str) -> MemberView:
    return MemberView(name, TenureId(new_id()), f"{name}:1", f"{name}:2", 100, "1", "", False)


class Shard:
    """A shard's row, as far as these calls read it."""

    def __init__(self, number: int, owner: TenureId) -> None:
        self.id, self.owner = number, owner


class World:
    """The ports that these calls use. Once a change is made, `fails` gives no answer any more."""

    cluster_id, version = "it", "1"

    def __init__(self, fails: str) -> None:
        self.fails = fails
        self.made = False
        self.clock = SetClock()
        self.store = self.membership = self.pauses = self.cluster = self.succession = self
        self.wake_ups = self.lines = self
        first, second = member("m1"), member("m2")
        self.seen = replace(EMPTY_VIEW, members=(first, second), leader=first.tenure, term=Term(7))

    async def answer(self, call: str) -> None:
        if self.made and call == self.fails:
            raise Unavailable(f"PostgreSQL: no answer to {call}")

    # -- what changes something --

    async def submit_run(self, submit: Submit) -> RunRecord:
        self.made = True
        made, record = submit.run, submit.record
        stored = LiveRun(
            *(made.key, record.definition.job_id, record.shard, made.state),
            *(submit.priority, NOW, NOW),
        )
        nothing: Any = None
        return RunRecord(
            stored, "default", "", True, Trigger.SUBMIT, None, 0, 1, *[nothing] * 3, "", nothing
        )

    async def pause(self, by: str, note: str, entry: Any) -> Pauses:
        self.made = True
        return NO_PAUSES

    async def resume(self, catch_up: bool | None, since: Any, entry: Any) -> Pauses:
        self.made = True
        return NO_PAUSES

    async def ask(self, view: ClusterView, heir: TenureId) -> bool:
        self.made = True
        return True

    def cluster_changed(self) -> None:
        self.made = True

    # -- what is looked at, and written of it --

    def runs_created(self, runs: Any, definitions: Any = ()) -> None: ...

    def trusted(self) -> bool:
        return True

    def view(self) -> ClusterView:
        return self.seen

    async def follows(self, term: Term) -> ClusterView:
        await self.answer("follows")
        return replace(self.seen, leader=self.seen.members[1].tenure, term=Term(8))

    async def audit(self, entry: AuditRecord) -> None:
        await self.answer("audit")

    async def get_run(self, run_id: Any) -> None:
        await self.answer("get_run")

    async def read_shards(self) -> list[Shard]:
        await self.answer("read_shards")
        wanted = assign(self.seen.members)
        return [Shard(number, owner) for number, owner in wanted.items()]

    async def fenced(self, _: list[TenureId]) -> frozenset[TenureId]:
        return frozenset()

    async def unstarted_attempts(self, *_: Any) -> list[LiveRun]:
        return []

    async def probe(self) -> DatabaseProbe:
        return DatabaseProbe(NOW, Timeline(1), in_recovery=False)


def services(fails: str) -> Services:
    return cast("Services", World(fails))


async def test_a_stored_submit_is_answered_even_if_a_dependency_fails_after_it() -> None:
    """A read after the commit once failed with 503: the caller retried, and two runs existed."""
    spec = job_pb2.Job(shell=job_pb2.ShellAction(argv=["true"]))
    request = run_service_pb2.SubmitRunRequest(spec=spec)
    answered = await submit.submit_run(services("get_run"), CALLER, request)
    assert answered.run_id


Call = Callable[[Services, Caller, Any], Awaitable[Message]]


@pytest.mark.parametrize(
    ("call", "request_", "fails"),
    [
        (cluster_changes.pause_cluster, wire.PauseClusterRequest(), "read_shards"),
        (cluster_changes.resume_cluster, wire.ResumeClusterRequest(), "read_shards"),
        (cluster_changes.transfer_leader, wire.TransferLeaderRequest(), "follows"),
        (cluster_changes.transfer_leader, wire.TransferLeaderRequest(), "audit"),
        (cluster_changes.rebalance_cluster, wire.RebalanceClusterRequest(), "audit"),
        (
            cluster_changes.rebalance_cluster,
            wire.RebalanceClusterRequest(),
            "read_shards",
        ),
    ],
)
async def test_a_completed_cluster_change_is_never_reported_as_not_made(
    call: Call, request_: Message, fails: str
) -> None:
    with pytest.raises(OutcomeUnknownError) as unknown:
        await call(services(fails), CALLER, request_)
    assert unknown.value.reason == "OUTCOME_UNKNOWN"
