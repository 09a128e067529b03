"""Taking results: stored, then acknowledged; refusals cost nothing, and one is an alarm."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import cast

import pytest

from schedd.core.dispatch.placement import Unable
from schedd.core.dispatch.successes import EPOCH, SECOND, Success, Successes
from schedd.core.events import (
    AttemptEnded,
    DeadLettered,
    GreaterTokenSeen,
    RunsSucceeded,
    StaleResult,
    dead_run,
)
from schedd.core.ids import Epoch, IncarnationId, JobId, RunId, ShardId, Token, new_id, token_of
from schedd.core.jobs.definition import Definition
from schedd.core.jobs.notifications import Notices
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import AuditRecord, LiveRun, ResultDecision, RunKey, Verdict
from schedd.core.runs.records import Unstarted
from schedd.core.runs.retry import ReportedOutcome
from schedd.dispatch.run_index import RunIndex
from schedd.dispatch.workers.worker_audit import WorkerAudit
from schedd.ports import WakeUps
from schedd.results.result_collector import (
    AUDITED_A_MINUTE,
    BATCH,
    NEVER_ASSIGNED,
    NO_SUCH_RUN,
    QUEUE,
    STRAYS_A_MINUTE,
    SUCCESSES,
    TOO_MANY_STRAYS,
    AssignmentRefusal,
    ResultCollector,
)
from schedd.results.result_decision import ReceivedResult
from schedd.runtime.definition_cache import DefinitionCache
from schedd.runtime.definition_texts import CachedDefinition
from schedd.store.results.result_writes import ResultWrites
from schedd.store.user_store import UserStore
from schedkit.bounds.tables import MOST_IN_BATCH
from schedkit.errors import OutcomeUnknown, Unavailable
from schedkit.outcome_digest import outcome_digest
from support.definitions import cached_definition
from support.fake_of import fake_of
from support.loop_turns import turns_during
from support.runs import NOW, RecordingLine, SetClock, owning, run, running, worker


@fake_of(ResultWrites)
@dataclass
class Rows:
    """A store that fails once by `fails`, after its write if the outcome is in doubt."""

    runs: dict[RunKey, LiveRun]
    fails: list[Exception] = field(default_factory=list)
    accept_fails: list[Exception] = field(default_factory=list)
    outdo_fails: list[Exception] = field(default_factory=list)
    accepted: list[ResultDecision] = field(default_factory=list)
    succeeded: list[list[Success]] = field(default_factory=list)
    """Plain successes, by transaction."""
    left: set[RunId] = field(default_factory=set)
    """Runs whose rows aren't as expected."""
    refused: list[Unstarted] = field(default_factory=list)
    begun: list[list[RunKey]] = field(default_factory=list)
    outdone: list[tuple[ShardId, Epoch]] = field(default_factory=list)
    stale: bool = False
    """All results are."""
    cancelled: bool = False
    """A user has cancelled the runs, by their rows."""
    meanwhile: Callable[[], None] = lambda: None
    """A hook while results are stored."""
    read: list[RunKey] = field(default_factory=list)

    async def reported_runs(self, keys: Sequence[RunKey]) -> dict[RunKey, LiveRun]:
        self.read += keys
        return {key: self.runs[key] for key in keys if key in self.runs}

    async def accept(self, reports: Sequence[ResultDecision]) -> list[Verdict]:
        self.meanwhile()
        if self.accept_fails:
            raise self.accept_fails.pop()
        known = {report.key for report in self.accepted}
        again = [report.key in known and report in self.accepted for report in reports]
        self.accepted += reports
        if self.fails:
            raise self.fails.pop()
        if self.stale:
            return [Verdict.STALE] * len(reports)
        fresh = Verdict.CANCELLED if self.cancelled else Verdict.ACCEPTED
        return [Verdict.REPEATED if each else fresh for each in again]

    async def accept_successes(self, successes: Successes) -> list[Success]:
        self.meanwhile()
        self.succeeded.append([*successes])
        if self.fails:
            raise self.fails.pop()
        return [one for one in successes if one.run_id in self.left]

    async def started(self, starts: Sequence[tuple[RunKey, Token, datetime]]) -> None:
        if self.fails:
            raise self.fails.pop()
        self.begun.append([key for key, _, _ in starts])

    async def refuse(self, unstarted: Sequence[Unstarted]) -> list[RunKey]:
        self.refused += unstarted
        return [one.key for one in unstarted]

    async def outdo(self, shard: ShardId, seen: Epoch) -> None:
        if self.outdo_fails:
            raise self.outdo_fails.pop()
        self.outdone.append((shard, seen))


class Definitions(DefinitionCache):
    def __init__(self) -> None:
        self.read_for: list[LiveRun] = []
        self.readable = True
        self.changes: dict[str, object] = {}
        """Other fields of the definition."""
        self.forgotten: list[JobId] = []

    async def of_runs(self, runs: Iterable[LiveRun]) -> dict[JobId, CachedDefinition]:
        self.read_for += runs
        if not self.readable:
            return {}
        job = running(1, worker()).job_id
        return self._of([job])

    def cached(self, jobs: Iterable[JobId]) -> dict[JobId, CachedDefinition]:
        return self._of(jobs) if self.readable else {}

    def _of(self, jobs: Iterable[JobId]) -> dict[JobId, CachedDefinition]:
        definition = replace(Definition(1, "default", action="shell"), **self.changes)
        return dict.fromkeys(jobs, cached_definition(definition))

    def forget_ended(self, jobs: Iterable[JobId]) -> None:
        self.forgotten += jobs


class Silent:
    def jobs_changed(self, changed: object) -> None: ...
    def runs_ready(self, shards: object) -> None: ...
    def runs_changed(self, runs: object) -> None: ...
    def cluster_changed(self) -> None: ...


@fake_of(UserStore)
class AuditRows:
    """Return the records of the audit log."""

    def __init__(self) -> None:
        self.rows: list[AuditRecord] = []

    async def audit(self, entry: AuditRecord) -> None:
        self.rows.append(entry)


class World:
    def __init__(self, *fails: Exception) -> None:
        self.run = running(1, worker())
        self.rows = Rows({self.run.key: self.run}, list(fails))
        self.events: list[object] = []
        self.line = RecordingLine()
        self.now = 1_000.0
        self.audit = AuditRows()
        self.definitions = Definitions()
        self.collector = ResultCollector(
            self.definitions,
            cast("ResultWrites", self.rows),
            SetClock(),
            cast("WakeUps", Silent()),
            self.events.append,
            WorkerAudit(self.audit),
            boot=lambda: self.now,
        )

    def succeeds(self) -> None:
        """The worker reports, and reports again if it isn't answered."""
        self.ends(ReportedOutcome.SUCCEEDED)

    def ends(self, outcome: ReportedOutcome, name: str = "w1", token: Token | None = None) -> None:
        """The worker reports this end."""
        assert self.run.incarnation is not None
        reported = ReceivedResult(
            key=self.run.key,
            token=self.run.token if token is None else token,
            worker=name,
            sender=self.run.incarnation,
            digest=b"d",
            outcome=outcome,
            reason=None,
            error="",
            exit_code=0,
            started_at=NOW,
            finished_at=NOW,
            result=None,
            output=None,
            retry_after=None,
            stored=False,
        )
        self.collector.reported(reported, self.line)


@pytest.mark.parametrize("error", [Unavailable("away"), OutcomeUnknown("no answer to COMMIT")])
async def test_nothing_is_acknowledged_before_its_commit_was_seen(error: Exception) -> None:
    """P5.1: otherwise the worker would delete the only copy of the result."""
    world = World(error)
    world.succeeds()
    with pytest.raises(Unavailable):
        await world.collector.step()
    assert world.line.acknowledged == []
    await world.collector.step()
    assert world.line.acknowledged == [(world.run.key.run_id, world.run.token, False)]


async def test_a_repeated_result_of_an_ended_run_reads_no_definition() -> None:
    """The definition was dropped at the first result: a run that runs once needs none."""
    world = World()
    world.succeeds()
    await world.collector.step()
    assert world.definitions.read_for == [world.run]

    world.rows.runs[world.run.key] = replace(world.run, state=State.SUCCEEDED)
    world.succeeds()
    await world.collector.step()

    assert world.definitions.read_for == [world.run]
    assert len(world.line.acknowledged) == 2


async def test_a_result_resent_while_it_is_stored_is_answered_on_the_stream_it_came_by() -> None:
    """Its worker lost the first stream meanwhile: an answer on that one is lost."""
    world = World()
    world.succeeds()
    broken, world.line = world.line, RecordingLine()
    world.rows.meanwhile = world.succeeds
    await world.collector.step()
    assert broken.acknowledged == []
    assert world.line.acknowledged == [(world.run.key.run_id, world.run.token, False)]


async def test_a_run_takes_no_slot_from_its_result_on_though_that_isnt_stored_yet() -> None:
    world = World()
    run_index = world.collector.run_index = RunIndex(owning(0))
    world.run = replace(world.run, due_at=NOW - timedelta(minutes=10))
    run_index.put_runs([world.run], NOW)
    assert run_index.running.late == [world.run]

    world.succeeds()

    assert run_index.running.late == []
    assert list(run_index.running.values()) == [world.run], "it is the database that says so"


async def test_starts_are_written_down_some_at_a_time_and_again_if_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a herd a heartbeat tells thousands."""
    monkeypatch.setattr("schedd.results.result_collector.BATCH", 2)
    world = World(Unavailable("away"))
    run_index = world.collector.run_index = RunIndex(owning(0))
    runs = [running(number, worker()) for number in range(1, 4)]
    run_index.put_runs(runs, NOW)
    for one in runs:
        world.collector.started(one.key.run_id, one.token, NOW)

    with pytest.raises(Unavailable):
        await world.collector.step()
    assert await world.collector.step() == 0.0
    await world.collector.step()

    first, second, third = (one.key for one in runs)
    assert world.rows.begun == [[first, second], [third]]


@pytest.mark.parametrize(
    ("token", "sender", "started", "lacks"),
    [
        (7, worker().id, None, True),
        (7, worker().id, NOW, False),
        (6, worker().id, None, False),
        (7, worker(2).id, None, False),
    ],
)
def test_the_start_of_an_assignment_is_missing_until_its_own_worker_reports_it(
    token: int, sender: IncarnationId, started: datetime | None, lacks: bool
) -> None:
    world = World()
    run_index = world.collector.run_index = RunIndex(owning(0))
    one = replace(running(1, worker()), started_at=started)
    run_index.put_runs([one], NOW)
    assert world.collector.lacks_start(one.key.run_id, Token(token), sender) == lacks
    assert not world.collector.lacks_start(run(2).key.run_id, Token(7), worker().id), "no worker's"


async def test_a_start_isnt_written_beside_the_result_that_contains_it() -> None:
    world = World()
    run_index = world.collector.run_index = RunIndex(owning(0))
    run_index.put_runs([world.run], NOW)
    world.collector.started(world.run.key.run_id, world.run.token, NOW)
    world.succeeds()
    await world.collector.step()
    assert [report.started_at for report in world.rows.accepted] == [NOW]
    assert world.rows.begun == []


async def test_the_end_of_a_run_dispatched_here_is_stored_without_reading_a_row() -> None:
    """The token says which attempt it was, and after an end nothing follows."""
    world = World()
    run_index = world.collector.run_index = RunIndex(owning(0))
    run_index.put_runs([world.run], NOW)
    world.rows.runs.clear()

    world.succeeds()
    await world.collector.step()

    assert [report.state for report in world.rows.accepted] == [State.SUCCEEDED]
    assert world.line.acknowledged
    assert run_index.running == {}, "it is over for its owner too"
    assert world.rows.read == []


@pytest.mark.parametrize(
    "other", [{"token": Token(2)}, {"incarnation": IncarnationId(new_id())}, {"key": run(7).key}]
)
async def test_the_row_is_read_for_any_other_dispatch(other: dict[str, object]) -> None:
    """The entry of the run index may be older than its row, or newer than the report."""
    world = World()
    run_index = world.collector.run_index = RunIndex(owning(0))
    run_index.running.add(replace(world.run, **other))  # type: ignore[arg-type]

    world.succeeds()
    await world.collector.step()

    assert world.rows.read == [world.run.key]


async def test_the_state_of_a_run_before_a_retry_is_read_from_its_row() -> None:
    """The run may have been cancelled meanwhile, or its job deleted."""
    world = World()
    run_index = world.collector.run_index = RunIndex(owning(0))
    run_index.put_runs([world.run], NOW)
    world.rows.runs[world.run.key] = replace(world.run, state=State.CANCELLED)

    world.ends(ReportedOutcome.FAILED)
    await world.collector.step()

    assert [report.state for report in world.rows.accepted] == [State.RETRYING]
    assert world.rows.read == [world.run.key]
    assert (run_index.running, len(run_index.waiting)) == ({}, 0)


async def test_dispatch_is_notified_when_a_late_run_reports_and_others_wait() -> None:
    world = World()
    run_index = world.collector.run_index = RunIndex(owning(0))
    notified: list[bool] = []
    world.collector.on_ready(lambda: notified.append(True))
    late = NOW - timedelta(minutes=10)
    world.run = replace(world.run, due_at=late)
    run_index.put_runs([world.run, run(2, due_at=late)], NOW)

    world.succeeds()

    assert notified == [True]


def refusal(run: LiveRun, *, greatest: Token) -> AssignmentRefusal:
    assert run.incarnation is not None
    return AssignmentRefusal(
        run.key, run.token, "w1", run.incarnation, "GREATER_TOKEN_SEEN", greatest
    )


async def test_a_token_greater_than_any_issued_raises_an_alarm_and_the_epoch() -> None:
    """P4.4: otherwise the run would be dispatched and rejected for ever."""
    world = World()
    run_index = world.collector.run_index = RunIndex(owning(0, 1, epoch=5))
    seen = token_of(Epoch(9), 3)
    world.collector.refused(refusal(world.run, greatest=seen))

    await world.collector.step()

    assert world.rows.outdone == [(world.run.shard, Epoch(9))]
    assert world.run.shard not in run_index.ownership.epochs, "it will be taken again"
    assert [e.greatest for e in world.events if isinstance(e, GreaterTokenSeen)] == [seen]


async def test_the_member_that_receives_the_alarm_neednt_own_the_shard() -> None:
    world = World()
    world.collector.refused(refusal(world.run, greatest=token_of(Epoch(9), 3)))
    await world.collector.step()
    assert world.rows.outdone == [(world.run.shard, Epoch(9))]


async def test_a_late_frame_of_an_earlier_token_is_no_alarm() -> None:
    world = World()
    late = refusal(world.run, greatest=world.run.token)
    world.collector.refused(replace(late, token=Token(world.run.token - 1)))
    await world.collector.step()
    assert world.rows.outdone == []


async def test_a_refusal_of_another_workers_assignment_raises_no_alarm() -> None:
    """P4.4: else any worker could burn any shard's epochs."""
    world = World()
    stranger = refusal(world.run, greatest=token_of(Epoch(9), 3))
    world.collector.refused(replace(stranger, sender=IncarnationId(new_id())))
    await world.collector.step()
    late = replace(stranger, token=Token(world.run.token - 1))
    world.collector.refused(late)
    await world.collector.step()
    assert world.rows.outdone == []


async def test_the_epoch_of_a_shard_is_raised_for_tokens_once_a_minute_at_most() -> None:
    """P4.4: each alarm has the shard taken again, and its jobs wait for that."""
    world = World()
    run_index = world.collector.run_index = RunIndex(owning(0, epoch=5))
    for epoch in (9, 10, 11):
        world.collector.refused(refusal(world.run, greatest=token_of(Epoch(epoch), 1)))
        await world.collector.step()
        run_index.ownership.gain({ShardId(0): Epoch(epoch + 1)})
        world.now += 29.9
    assert world.rows.outdone == [(ShardId(0), Epoch(9))]
    world.collector.refused(refusal(world.run, greatest=token_of(Epoch(12), 1)))
    await world.collector.step()
    assert world.rows.outdone == [(ShardId(0), Epoch(9)), (ShardId(0), Epoch(12))]


async def test_an_alarm_that_wasnt_written_down_is_raised_again() -> None:
    world = World()
    world.rows.outdo_fails = [Unavailable("away")]
    world.collector.refused(refusal(world.run, greatest=token_of(Epoch(9), 3)))
    with pytest.raises(Unavailable):
        await world.collector.step()
    await world.collector.step()
    assert world.rows.outdone == [(world.run.shard, Epoch(9))]


async def test_a_refusal_names_its_worker() -> None:
    """P4.2"""
    world = World()
    sender = IncarnationId(new_id())
    world.collector.refused(replace(refusal(world.run, greatest=Token(0)), sender=sender))
    await world.collector.step()
    assert [one.sender for one in world.rows.refused] == [sender]


async def test_an_unable_worker_is_reported_only_by_its_own_current_refusal() -> None:
    """Others are asked first then: during an upgrade, say, those of the new version."""
    world = World()
    reported: list[tuple[object, ...]] = []
    world.collector.on_unable(lambda *one: reported.append(one))
    run_index = world.collector.run_index = RunIndex(owning(0))
    run_index.put_runs([replace(world.run, generation=4)], NOW)
    unable = replace(refusal(world.run, greatest=Token(0)), why="UNABLE", detail="no limits")
    world.collector.refused(replace(unable, sender=IncarnationId(new_id())))
    world.collector.refused(replace(unable, token=Token(world.run.token - 1)))
    world.collector.refused(replace(unable, why="NO_SLOT"))
    assert reported == []
    world.collector.refused(unable)
    assert reported == [(world.run.incarnation, world.run.job_id, Unable(4, "no limits"))]


async def test_refusals_are_gathered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the database is away; the scan brings back what was dropped, for it never started."""
    monkeypatch.setattr("schedd.results.result_collector.QUEUE", 2)
    world = World()
    for token in range(1, 5):
        world.collector.refused(replace(refusal(world.run, greatest=Token(0)), token=Token(token)))
    await world.collector.step()
    assert [one.token for one in world.rows.refused] == [1, 2]


async def test_no_refusal_of_a_run_dispatched_here_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A drain gives back thousands; the scan would find them seconds after they were due."""
    monkeypatch.setattr("schedd.results.result_collector.QUEUE", 0)
    world = World()
    other = replace(refusal(world.run, greatest=Token(0)), token=Token(world.run.token - 1))
    run_index = world.collector.run_index = RunIndex(owning(0))
    run_index.put_runs([world.run], NOW)
    world.collector.refused(other)
    world.collector.refused(refusal(world.run, greatest=Token(0)))
    await world.collector.step()
    assert [one.token for one in world.rows.refused] == [world.run.token]


async def test_a_result_resent_while_the_queue_is_full_is_answered_on_the_stream_it_came_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stream by which it came first has ended: an answer on that one is lost."""
    monkeypatch.setattr("schedd.results.result_collector.QUEUE", 1)
    world = World()
    world.succeeds()
    broken, world.line = world.line, RecordingLine()
    world.succeeds()
    await world.collector.step()
    assert broken.acknowledged == []
    assert world.line.acknowledged == [(world.run.key.run_id, world.run.token, False)]


async def test_a_refusal_resent_while_the_queue_is_full_keeps_its_latest_content(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The greater token that its worker has seen meanwhile is an alarm."""
    monkeypatch.setattr("schedd.results.result_collector.QUEUE", 1)
    world = World()
    world.collector.refused(refusal(world.run, greatest=Token(0)))
    world.collector.refused(refusal(world.run, greatest=token_of(Epoch(9), 1)))
    await world.collector.step()
    assert world.rows.outdone == [(world.run.shard, Epoch(9))]


async def test_a_result_counts_without_a_tenure() -> None:
    """M9: while etcd is away results are still accepted."""
    world = World()
    assert world.collector.run_index is None
    world.succeeds()
    await world.collector.step()
    assert [report.state for report in world.rows.accepted] == [State.SUCCEEDED]
    assert world.line.acknowledged


async def test_many_results_yield_to_other_tasks() -> None:
    """A loop that makes no progress loses the lease: see `in_turns`."""
    world = World()
    for number in range(500):
        world.run = replace(world.run, token=Token(number + 1))
        world.succeeds()
    assert await turns_during(world.collector.step()) >= 19
    assert len(world.line.acknowledged) == 500


@pytest.mark.parametrize(
    "outcome", [ReportedOutcome.FAILED, ReportedOutcome.RETURNED, ReportedOutcome.CANCELLED]
)
async def test_a_result_that_cant_be_judged_here_is_left_to_another_member(
    outcome: ReportedOutcome,
) -> None:
    """M13: a newer member's definition says how often the run is tried; here it can't be read."""
    world = World()
    world.definitions.readable = False
    world.ends(outcome)
    assert await world.collector.step() > 0
    assert (world.rows.accepted, world.line.acknowledged) == ([], [])
    world.definitions.readable = True
    world.ends(outcome)
    await world.collector.step()
    assert len(world.line.acknowledged) == 1


async def test_a_result_without_a_judgement_is_stored_by_any_member() -> None:
    """A success, and the end of what is being cancelled: nothing follows from either."""
    world = World()
    world.definitions.readable = False
    world.succeeds()
    world.run = replace(running(2, worker()), cancelling=True)
    world.rows.runs[world.run.key] = world.run
    world.ends(ReportedOutcome.CANCELLED)
    await world.collector.step()
    assert len(world.line.acknowledged) == 2


@pytest.mark.parametrize(
    ("cancelled", "state", "letters"), [(False, "FAILED", 1), (True, "CANCELLED", 0)]
)
async def test_a_failure_is_counted_as_stored_and_a_cancelled_run_isnt_a_dead_letter(
    cancelled: bool, state: str, letters: int
) -> None:
    world = World()
    world.run = replace(world.run, attempt=99)
    world.rows.runs[world.run.key] = world.run
    world.rows.cancelled = cancelled
    world.ends(ReportedOutcome.FAILED)
    await world.collector.step()
    [ended] = [event for event in world.events if isinstance(event, AttemptEnded)]
    assert ended.state == state
    dead = [event.runs for event in world.events if isinstance(event, DeadLettered)]
    assert dead == [(dead_run(world.run, ended.reason),)] * letters
    assert len(world.line.acknowledged) == 1


async def test_stale_results_under_made_up_tokens_have_a_bounded_number_of_audit_rows() -> None:
    """A worker can make up any number of tokens; the others keep a row for each result."""
    world = World()
    world.rows.stale = True

    async def made_up(worker: str, count: int) -> list[bool]:
        before = len(world.rows.accepted)
        for n in range(1, count + 1):
            world.ends(ReportedOutcome.SUCCEEDED, worker, Token(world.run.token + n))
        while len(world.rows.accepted) < before + count:
            await world.collector.step()
        return [report.audited for report in world.rows.accepted[before:]]

    assert sum(await made_up("w1", 1_000)) == AUDITED_A_MINUTE
    assert sum(await made_up("w1", 50)) == 0
    assert all(await made_up("w2", 50))
    await world.collector._audit.step()
    [row] = world.audit.rows
    assert row.object == "worker/w1"
    assert json.loads(row.after) == {"count": 1_050 - AUDITED_A_MINUTE, "problem": NEVER_ASSIGNED}
    world.now += 60
    assert all(await made_up("w1", 50))


async def test_a_result_of_a_run_whose_row_cant_be_read_is_acknowledged() -> None:
    world = World()
    world.rows.runs.clear()
    world.succeeds()
    await world.collector.step()
    assert world.line.acknowledged == [(world.run.key.run_id, world.run.token, False)]


async def test_results_of_runs_that_dont_exist_are_limited_a_minute_and_audited_by_worker() -> None:
    world = World()
    world.rows.runs.clear()
    world.rows.stale = True

    async def invented(worker: str, count: int) -> int:
        """Return how many of these results are looked up and answered."""
        before = len(world.line.acknowledged)
        for _ in range(count):
            world.run = replace(world.run, key=world.run.key._replace(run_id=RunId(new_id())))
            world.ends(ReportedOutcome.SUCCEEDED, worker)
            if len(world.collector._results) == BATCH:
                await world.collector.step()
        while world.collector._results:
            await world.collector.step()
        return len(world.line.acknowledged) - before

    assert await invented("w1", 8_000) < STRAYS_A_MINUTE + BATCH
    assert await invented("w1", 10) == 0
    assert await invented("w2", 10) == 10
    stale = [event for event in world.events if isinstance(event, StaleResult)]
    assert not any(event.known for event in stale)
    await world.collector._audit.step()
    rows = {row.object: json.loads(row.after) for row in world.audit.rows}
    assert len(world.audit.rows) == 2
    assert rows["worker/w1"] == {"count": 8_010, "problem": TOO_MANY_STRAYS}
    assert rows["worker/w2"] == {"count": 10, "problem": NO_SUCH_RUN}
    world.now += 60
    assert await invented("w1", 10) == 10


AT = (NOW - EPOCH) // timedelta(microseconds=1)
"""Microseconds since 1970."""


def batch(runs: Sequence[LiveRun]) -> Successes:
    """Return the plain successes of these runs: each started a second after it was due, and took
    two.
    """
    return Successes(
        [one.key.run_id for one in runs],
        [one.token for one in runs],
        [one.incarnation or worker().id for one in runs],
        [(one.key.scheduled_at - EPOCH) // timedelta(microseconds=1) for one in runs],
        [AT + SECOND] * len(runs),
        [AT + 3 * SECOND] * len(runs),
    )


def dispatched(world: World, *numbers: int, **changes: object) -> list[LiveRun]:
    """Return runs that this member dispatched, with these numbers. Their rows can't be read."""
    if world.collector.run_index is None:
        world.collector.run_index = RunIndex(owning(0))
    runs = [replace(running(number, worker()), **changes) for number in numbers]  # type: ignore[arg-type]
    for one in runs:
        world.collector.run_index.running.add(one)
    world.rows.runs.clear()
    return runs


def answers(runs: Sequence[LiveRun]) -> list[tuple[RunId, Token, bool]]:
    return [(one.key.run_id, one.token, False) for one in runs]


async def test_plain_successes_of_a_batch_are_stored_and_acknowledged_at_once() -> None:
    world = World()
    runs = dispatched(world, 1, 2, 3)
    sent = batch(runs)

    world.collector.succeeded("w1", sent, world.line)
    assert world.line.acknowledged == []
    assert await world.collector.step() == 5.0

    assert world.rows.succeeded == [[*sent]]
    assert (world.rows.accepted, world.rows.read) == ([], [])
    assert (world.line.acknowledged, world.line.batches) == (answers(runs), [3])
    assert world.collector.run_index is not None
    assert world.collector.run_index.running == {}
    assert world.collector.run_index.ended == 3
    assert world.definitions.forgotten == [one.job_id for one in runs]
    assert world.events == [RunsSucceeded([1.0] * 3, [2.0] * 3)]


async def test_the_lateness_of_a_retry_counts_from_the_end_of_its_backoff() -> None:
    world = World()
    runs = dispatched(world, 1, attempt=2, ready_at=NOW + timedelta(seconds=0.75))
    world.collector.succeeded("w1", batch(runs), world.line)
    await world.collector.step()
    assert world.events == [RunsSucceeded([0.25], [2.0])]


@pytest.mark.parametrize(
    "other",
    [
        {"token": Token(8)},
        {"incarnation": worker(2).id},
        {"cancelling": True},
        {"parent": run(9).key.run_id},
        {"generation": 2},
        "unknown run",
        "no tenure",
        "unread definition",
        {"notices": Notices()},
        {"pause_after_failures": 3},
    ],
    ids=str,
)
async def test_a_success_that_isnt_plain_is_stored_as_a_single_result(other: object) -> None:
    """Something may follow from it, or its row isn't known."""
    world = World()
    one, two = dispatched(world, 1, 2)
    run_index = world.collector.run_index
    assert run_index is not None
    match other:
        case "unknown run":
            run_index.running.discard(one.key.run_id)
        case "no tenure":
            world.collector.run_index = None
        case "unread definition":
            world.definitions.readable = False
        case {"notices": _} | {"pause_after_failures": _}:
            world.definitions.changes = other  # type: ignore[assignment]
        case dict():
            run_index.running.add(replace(one, **other))
    sent = batch([one, two])
    world.collector.succeeded("w1", sent, world.line)
    await world.collector.step()

    singles = [report.key.run_id for report in world.rows.accepted]
    plain = [each.run_id for some in world.rows.succeeded for each in some]
    of_all = (isinstance(other, str) and other != "unknown run") or world.definitions.changes
    assert singles == ([one.key.run_id, two.key.run_id] if of_all else [one.key.run_id])
    assert plain == ([] if of_all else [two.key.run_id])
    assert sorted(world.line.acknowledged) == sorted(answers([one, two]))
    report = world.rows.accepted[0]
    assert report.digest == outcome_digest(str(one.key.run_id), one.token)
    assert (report.key, report.token, report.sender) == (one.key, Token(7), worker().id)
    assert (report.state, report.error, report.exit_code) == (State.SUCCEEDED, "", None)
    assert (report.result, report.output) == (None, None)
    assert report.started_at == NOW + timedelta(seconds=1)
    assert report.finished_at == NOW + timedelta(seconds=3)


async def test_a_row_that_isnt_as_expected_is_decided_alone_in_the_same_step() -> None:
    world = World()
    runs = dispatched(world, 1, 2, 3)
    world.rows.left = {runs[1].key.run_id}
    world.rows.cancelled = True
    world.collector.succeeded("w1", batch(runs), world.line)
    await world.collector.step()
    assert [report.key for report in world.rows.accepted] == [runs[1].key]
    assert world.line.batches == [2]
    assert sorted(world.line.acknowledged) == sorted(answers(runs))
    [plain, single] = world.events
    assert plain == RunsSucceeded([1.0] * 2, [2.0] * 2)
    assert isinstance(single, AttemptEnded)
    assert single.state is State.CANCELLED


@pytest.mark.parametrize("error", [Unavailable("away"), OutcomeUnknown("no answer to COMMIT")])
async def test_no_success_of_a_batch_is_acknowledged_before_its_commit_was_seen(
    error: Exception,
) -> None:
    """P5.1"""
    world = World(error)
    runs = dispatched(world, 1, 2)
    world.collector.succeeded("w1", batch(runs), world.line)
    with pytest.raises(Unavailable):
        await world.collector.step()
    assert (world.line.acknowledged, world.events) == ([], [])
    assert len(world.collector.run_index.running) == 2  # type: ignore[union-attr]
    await world.collector.step()
    assert world.line.acknowledged == answers(runs)


async def test_stored_successes_arent_stored_again_if_other_results_fail() -> None:
    world = World()
    runs = dispatched(world, 1, 2)
    world.rows.left = {runs[0].key.run_id}
    world.rows.accept_fails = [Unavailable("away")]
    world.collector.succeeded("w1", batch(runs), world.line)
    with pytest.raises(Unavailable):
        await world.collector.step()
    assert world.line.acknowledged == answers(runs[1:])
    await world.collector.step()
    assert len(world.rows.succeeded) == 1
    assert sorted(world.line.acknowledged) == sorted(answers(runs))


async def test_a_batch_resent_while_it_is_stored_is_answered_on_the_stream_it_came_by() -> None:
    world = World()
    runs = dispatched(world, 1, 2)
    broken, world.line = world.line, RecordingLine()
    world.collector.succeeded("w1", batch(runs), broken)
    resent = batch(runs[1:])
    world.rows.meanwhile = lambda: world.collector.succeeded("w1", resent, world.line)
    await world.collector.step()
    assert broken.acknowledged == answers(runs[:1])
    assert world.line.acknowledged == answers(runs[1:])


async def test_batches_of_several_workers_share_a_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    mine, theirs = dispatched(world, 1, 2), dispatched(world, 3, incarnation=worker(2).id)
    other = RecordingLine()
    world.collector.succeeded("w1", batch(mine), world.line)
    world.collector.succeeded("w2", batch(theirs), other)
    await world.collector.step()
    assert len(world.rows.succeeded) == 1
    assert (world.line.acknowledged, other.acknowledged) == (answers(mine), answers(theirs))


async def test_no_transaction_stores_more_successes_than_its_limit() -> None:
    world = World()
    runs = dispatched(world, *range(1, SUCCESSES + 101))
    for some in (runs[:MOST_IN_BATCH], runs[MOST_IN_BATCH:]):
        world.collector.succeeded("w1", batch(some), world.line)
    assert await world.collector.step() == 0.0
    await world.collector.step()
    assert [len(some) for some in world.rows.succeeded] == [SUCCESSES, 100]
    assert sorted(world.line.acknowledged) == sorted(answers(runs))


async def test_a_full_queue_takes_no_more_successes_but_answers_resent_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("schedd.results.result_collector.QUEUE", 2)
    world = World()
    runs = dispatched(world, 1, 2, 3)
    world.collector.succeeded("w1", batch(runs[:2]), world.line)
    again = RecordingLine()
    world.collector.succeeded("w1", batch(runs[1:]), again)
    await world.collector.step()
    assert world.line.acknowledged == answers(runs[:1])
    assert again.acknowledged == answers(runs[1:2])


async def test_a_start_isnt_written_beside_the_batch_that_contains_it() -> None:
    world = World()
    [one] = dispatched(world, 1)
    world.collector.started(one.key.run_id, one.token, NOW)
    world.collector.succeeded("w1", batch([one]), world.line)
    await world.collector.step()
    assert world.rows.begun == []


async def test_dispatch_is_notified_when_a_late_run_of_a_batch_reports_and_others_wait() -> None:
    world = World()
    late = NOW - timedelta(minutes=10)
    runs = dispatched(world, 1, 2, due_at=late)
    assert world.collector.run_index is not None
    world.collector.run_index.put_runs([run(3, due_at=late)], NOW)
    notified: list[bool] = []
    world.collector.on_ready(lambda: notified.append(True))
    world.collector.succeeded("w1", batch(runs), world.line)
    assert notified == [True]
    assert world.collector.run_index.running.late == []


async def test_a_worker_with_too_many_stale_results_sends_no_batch_either() -> None:
    world = World()
    world.rows.stale = True
    runs = [running(number, worker()) for number in range(1, STRAYS_A_MINUTE + 1)]
    for at in range(0, STRAYS_A_MINUTE, MOST_IN_BATCH):
        world.collector.succeeded("w1", batch(runs[at : at + MOST_IN_BATCH]), world.line)
    while world.collector._queued:
        await world.collector.step()
    world.collector.succeeded("w1", batch(runs[:10]), world.line)
    assert world.collector._queued == 0
    assert all(stale for _, _, stale in world.line.acknowledged)
    assert len(world.line.acknowledged) == STRAYS_A_MINUTE < QUEUE


async def test_successes_wait_while_single_results_fill_the_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("schedd.results.result_collector.QUEUE", 10)
    monkeypatch.setattr("schedd.results.result_collector.BATCH", 2)
    world = World()
    runs = dispatched(world, *range(2, 6))
    world.rows.left = {one.key.run_id for one in runs}  # so each becomes a single result
    others = iter(range(1_000, 1_010))

    def others_arrive() -> None:
        for token in others:
            world.ends(ReportedOutcome.SUCCEEDED, token=Token(token))

    world.rows.meanwhile = others_arrive
    world.collector.succeeded("w1", batch(runs), world.line)
    for _ in range(10):
        await world.collector.step()

    stored = {(report.key.run_id, report.token) for report in world.rows.accepted}
    assert {(one.key.run_id, one.token) for one in runs} <= stored
    assert {token for _, token in stored} >= set(range(1_000, 1_010))


def test_a_success_without_room_in_the_queue_leaves_its_run_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its worker sends it again; until then it takes a slot."""
    monkeypatch.setattr("schedd.results.result_collector.QUEUE", 1)
    world = World()
    runs = dispatched(world, 2, 3, ready_at=NOW + timedelta(seconds=1))
    assert world.collector.run_index is not None
    world.collector.succeeded("w1", batch(runs), world.line)
    assert world.collector.run_index.running.late == runs
