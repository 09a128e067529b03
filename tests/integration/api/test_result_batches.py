"""Batches of successes on a real database: what follows from a success follows in a batch, too.

Runs are triggered by calls and dispatched in rows. A real collector stores what a worker reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from schedd.cluster.ownership import Ownership
from schedd.core.events import AttemptEnded, Event, RunsSucceeded, StaleResult
from schedd.core.ids import IncarnationId, RunId, Token, new_id
from schedd.core.jobs.definition import Overlap
from schedd.core.runs.lifecycle import LIVE, Reason, State
from schedd.core.runs.model import DispatchedBatch, LiveRun
from schedd.dispatch.run_index import RunIndex
from schedd.dispatch.workers.worker_audit import WorkerAudit
from schedd.ports import WakeUps
from schedd.results.result_collector import ResultCollector
from schedd.runtime.definition_cache import DefinitionCache
from schedd.store.results import accept_successes
from schedkit.outcome_digest import outcome_digest
from schedproto.v1 import job_pb2
from schedproto.v1 import job_service_pb2 as jobs
from schedproto.v1 import run_service_pb2 as runs
from support.runs import RecordingLine
from support.store import INCARNATION, Member, draft, report, successes

SHELL = job_pb2.ShellAction(argv=["true"])
HOOK = job_pb2.Notification(webhook="https://example.org/hook")


@dataclass
class Collecting:
    """A member that dispatches runs and collects their results."""

    api: Any
    me: Member = field(init=False)
    line: RecordingLine = field(default_factory=RecordingLine)
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.me = self.api.world.members[0]
        self.collector = ResultCollector(
            DefinitionCache(self.me.store.owner),
            self.me.store.results,
            self.api.clock,
            cast("WakeUps", self.api.nudged),
            self.events.append,
            WorkerAudit(self.me.store.users),
        )
        ownership = Ownership(self.me.tenure, self.me.timeline, 2)
        ownership.gain(dict(self.me.epochs))
        self.collector.run_index = RunIndex(ownership)

    async def job(self, name: str, **changes: Any) -> None:
        when = {} if "after" in changes else {"on_demand": True}
        spec = job_pb2.Job(name=name, shell=SHELL, **when, **changes)
        await self.api("CreateJob", jobs.CreateJobRequest(job=spec))

    async def dispatched(self, *names: str) -> list[LiveRun]:
        """Trigger a run of each job and dispatch it."""
        ids = []
        for name in names:
            request = jobs.TriggerJobRequest(job=name, overlap=job_pb2.OVERLAP_ALLOW)
            ids.append((await self.api("TriggerJob", request)).run_id)
        live = await self.me.store.owner.live_runs(sorted(self.me.epochs), LIVE)
        of = {str(run.key.run_id): run for run in live}
        found: list[LiveRun] = []
        for id_ in ids:  # each alone: their shards may have different lanes
            found += await self.me.assigned(draft(of[id_], overlap=Overlap.ALLOW))
        index = self.collector.run_index
        assert index is not None
        for one in found:
            index.dispatched(DispatchedBatch.of([one]))
        await self.collector._definition_cache.of_runs(found)
        return found

    async def collect(self, some: Sequence[LiveRun], **changes: Any) -> None:
        """Report that these runs succeeded, and store that."""
        self.collector.succeeded("worker-1", successes(some, **changes), self.line)
        await self.collector.step()

    @property
    def plain(self) -> int:
        """How many runs ended by the short form."""
        return sum(len(one.durations) for one in self.events if isinstance(one, RunsSucceeded))

    async def states(self, *names: str) -> list[str]:
        return [state for name in names for state, _, _ in await self.api.rows(name)]


@pytest.fixture
def at(api: Any) -> Collecting:
    return Collecting(api)


async def test_a_batch_ends_its_runs(at: Collecting) -> None:
    await at.job("a")
    some = await at.dispatched("a", "a", "a")
    await at.collect(some)
    assert at.plain == 3
    assert await at.states("a") == ["SUCCEEDED"] * 3
    assert sorted(run for run, _, _ in at.line.acknowledged) == sorted(r.key.run_id for r in some)
    assert at.collector.run_index is not None
    assert at.collector.run_index.running == {}
    assert {one.key.run_id for one in some} <= {*at.api.nudged.runs}


async def test_a_success_in_a_batch_ends_the_failures_in_a_row_of_its_job(at: Collecting) -> None:
    await at.job("a", pause_after_failures=2)
    await at.job("b")
    await at.job("c")
    failed, one = await at.dispatched("a", "a")
    await at.me.store.results.accept(
        [report(failed, state=State.FAILED, reason=Reason.EXIT_CODE, dead=True, pause_after=2)]
    )
    assert await at.api.world.sql("SELECT failures FROM failing") == [(1,)]
    await at.collect([one, *await at.dispatched("b", "c")])
    assert at.plain == 2
    assert await at.api.world.sql("SELECT failures FROM failing") == []
    assert await at.states("b", "c") == ["SUCCEEDED"] * 2
    assert sorted(await at.states("a")) == ["FAILED", "SUCCEEDED"]


async def test_a_success_in_a_batch_notifies_of_a_recovery_and_of_a_late_start(
    at: Collecting,
) -> None:
    await at.job("a", on_failure=HOOK, on_recovery=HOOK)
    late = job_pb2.Notification(webhook="https://example.org/hook")
    late.after.FromMilliseconds(1)
    await at.job("b", on_late=late)
    await at.job("c")
    failed, recovered = await at.dispatched("a", "a")
    definitions = await at.collector._definition_cache.of_runs([failed])
    notices = definitions[failed.job_id].definition.notices
    await at.me.store.results.accept(
        [report(failed, state=State.FAILED, reason=Reason.EXIT_CODE, notices=notices)]
    )
    others = await at.dispatched("b", "c")
    now = round(at.api.clock.now().timestamp() * 1e6) + 1_000_000
    await at.collect([recovered, *others], started=[now] * 3, finished=[now] * 3)
    assert at.plain == 1
    kinds = await at.api.world.sql("SELECT kind FROM notifications ORDER BY kind")
    assert [kind for (kind,) in kinds] == ["run.failed", "run.late", "run.recovered"]


async def test_the_child_of_a_chain_arrives_by_a_success_in_a_batch(at: Collecting) -> None:
    await at.job("a")
    await at.job("b", after=job_pb2.After(jobs=["a"]))
    await at.job("c")
    await at.collect(await at.dispatched("a", "c"))
    assert at.plain == 2
    assert await at.api.world.sql("SELECT state FROM chain_arrivals") == [("SUCCEEDED",)]


async def test_a_canceled_run_of_a_batch_ends_cancelled(at: Collecting) -> None:
    await at.job("a")
    some = await at.dispatched("a", "a", "a")
    await at.api("CancelRun", runs.CancelRunRequest(run_id=str(some[1].key.run_id)))
    await at.collect(some)
    assert at.plain == 2
    assert sorted(await at.states("a")) == ["CANCELLED", "SUCCEEDED", "SUCCEEDED"]
    assert len(at.line.acknowledged) == 3
    [ended] = [one for one in at.events if isinstance(one, AttemptEnded)]
    assert ended.state is State.CANCELLED


async def test_a_run_that_this_member_doesnt_know_ends_as_the_others_of_its_batch(
    at: Collecting,
) -> None:
    await at.job("a")
    some = await at.dispatched("a", "a", "a")
    assert at.collector.run_index is not None
    at.collector.run_index.running.discard(some[0].key.run_id)
    await at.collect(some)
    assert at.plain == 2
    assert await at.states("a") == ["SUCCEEDED"] * 3
    rows = [await at.api.world.run_row(one.key.run_id) for one in some]
    digests = [None if row["digest"] is None else bytes(row["digest"]) for row in rows]
    assert digests == [outcome_digest(str(some[0].key.run_id), some[0].token), None, None]


async def test_stale_results_among_good_ones_are_audited_and_the_good_ones_stored(
    at: Collecting,
) -> None:
    await at.job("a")
    some = await at.dispatched("a", "a", "a", "a")
    stale = Token(some[1].token - 1)
    forged, unknown = IncarnationId(new_id()), RunId(new_id())
    await at.collect(
        some,
        tokens=[some[0].token, stale, some[2].token, some[3].token],
        senders=[INCARNATION, INCARNATION, forged, INCARNATION],
        run_ids=[*(one.key.run_id for one in some[:3]), unknown],
    )
    assert at.plain == 1
    assert sorted(await at.states("a")) == ["RUNNING"] * 3 + ["SUCCEEDED"]
    answers = {run: is_stale for run, _, is_stale in at.line.acknowledged}
    assert answers == {
        some[0].key.run_id: False,
        some[1].key.run_id: True,
        some[2].key.run_id: True,
        unknown: True,
    }
    assert len([one for one in at.events if isinstance(one, StaleResult)]) == 3
    assert len(await at.me.store.users.list_audit("result", None, None, None, 10)) == 2


@pytest.mark.parametrize("again", ["batch", "single result"])
async def test_a_repeated_success_is_acknowledged_and_changes_nothing(
    at: Collecting, again: str
) -> None:
    """The acknowledgement was lost. An older worker may send the spooled result alone."""
    await at.job("a")
    some = await at.dispatched("a", "a")
    await at.collect(some)
    before = [await at.api.world.run_row(one.key.run_id) for one in some]
    answered = sorted(at.line.acknowledged)
    at.line.acknowledged.clear()

    if again == "batch":
        await at.collect(some)
        assert sorted(at.line.acknowledged) == answered
    else:
        verdicts = await at.me.store.results.accept(
            [report(one, digest=outcome_digest(str(one.key.run_id), one.token)) for one in some]
        )
        assert [one.value for one in verdicts if one] == ["REPEATED"] * 2

    assert [await at.api.world.run_row(one.key.run_id) for one in some] == before
    assert at.plain == 2


async def test_a_result_whose_statement_cant_be_written_is_stored_alone(
    at: Collecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    await at.job("a")
    some = await at.dispatched("a", "a", "a")
    real = accept_successes.accept_successes

    def fails(connection: Any, batch: Any) -> Any:
        if some[0].key.run_id in batch.run_ids:
            raise ValueError("broken")
        return real(connection, batch)

    monkeypatch.setattr(accept_successes, "accept_successes", fails)
    await at.collect(some)
    assert at.plain == 2
    assert await at.states("a") == ["SUCCEEDED"] * 3
    assert len(at.line.acknowledged) == 3


async def test_a_broadcasts_child_ends_alone(at: Collecting) -> None:
    """Its parent ends with the last child."""
    await at.job("a")
    some = await at.dispatched("a", "a")
    await at.api.world.sql(
        "UPDATE runs SET parent = %s WHERE run_id = %s", new_id(), some[0].key.run_id
    )
    assert at.collector.run_index is not None
    known = await at.me.store.results.reported_runs([some[0].key])
    at.collector.run_index.running.add(known[some[0].key])
    await at.collect(some)
    assert at.plain == 1
    assert await at.states("a") == ["SUCCEEDED"] * 2
