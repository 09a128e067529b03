"""Runs that wait too long end, wherever they wait in the run index."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import cast

import pytest

from schedd.cluster.cluster_pause import ClusterPause
from schedd.core.dispatch.ready_bucket_ids import line_id_of
from schedd.core.events import DeadLettered, DeadRun, EndedUnreported, RunsMissed
from schedd.core.ids import Id, JobId, RunId
from schedd.core.jobs.definition import Definition, Placement
from schedd.core.runs.broadcast import WORKER_AWAY
from schedd.core.runs.deadlines import DeadlineExpiry
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import Claim, LiveRun, RunKey
from schedd.core.timers.cluster_pauses import NO_PAUSES, Pause, Pauses
from schedd.dispatch.run_index import RunIndex
from schedd.dispatch.workers.attached_worker import Attached
from schedd.dispatch.workers.registry import WorkerRegistry
from schedd.reconcile import deadlines
from schedd.reconcile.deadlines import BATCH, LOOK_EVERY, READ_AT_ONCE, SHARE, Deadlines
from schedd.runtime.definition_texts import CachedDefinition
from schedd.store.cluster.cluster_pauses import PauseStore
from schedd.store.owner import OwnerStore
from schedkit.errors import Unavailable
from support.dispatching import SHELL, Definitions
from support.dispatching import World as Dispatching
from support.fake_of import fake_of
from support.owner_context import owner_context
from support.runs import NOW, RecordingLine, SetClock, owning, run, worker

HURRIED = replace(SHELL, start_deadline=timedelta(seconds=30), run_timeout=timedelta(seconds=100))


@fake_of(OwnerStore)
@dataclass
class Rows:
    """Rows that end the given runs, except `continuing`."""

    ended: list[DeadlineExpiry] = field(default_factory=list)
    continuing: set[RunKey] = field(default_factory=set)
    away: bool = False

    async def end_waiting(self, claim: Claim, ends: Sequence[DeadlineExpiry]) -> list[RunKey]:
        if self.away:
            raise Unavailable("no database")
        self.ended += [end for end in ends if end.key not in self.continuing]
        return [end.key for end in ends if end.key not in self.continuing]


@dataclass
class RecordedWakeUps:
    runs: list[object] = field(default_factory=list)
    jobs: list[object] = field(default_factory=list)

    def runs_changed(self, runs: Sequence[object]) -> None:
        self.runs += runs

    def jobs_changed(self, changed: Sequence[object]) -> None:
        self.jobs += changed

    def runs_ready(self, shards: object) -> None: ...


class Some(Definitions):
    """`unreadable` ones stay unread, however often they are requested."""

    unreadable: frozenset[JobId] | set[JobId] = frozenset()

    async def newest(self, jobs: Collection[JobId]) -> dict[JobId, CachedDefinition]:
        return await super().newest([job for job in jobs if job not in self.unreadable])

    def definition_of(self, job: JobId) -> Definition | None:  # type: ignore[override]
        return super().definition_of(job) if self.knows(job) else None

    def known_of(self, job: JobId) -> CachedDefinition | None:
        return super().known_of(job) if self.knows(job) else None


class World:
    def __init__(self, definition: Definition = HURRIED) -> None:
        self.rows, self.wake_ups = Rows(), RecordedWakeUps()
        self.events: list[object] = []
        self.definitions = Some(definition)
        self.run_index = RunIndex(owning(0))
        self.clock = SetClock()
        self.workers = WorkerRegistry(self.clock, lambda _event: None)
        self.cluster_pause = ClusterPause(cast("PauseStore", None), lambda _event: None)
        self.deadlines = Deadlines(
            owner_context(
                self.run_index,
                self.definitions,
                workers=self.workers,
                store=self.rows,
                clock=self.clock,
                cluster_pause=self.cluster_pause,
                wake_ups=self.wake_ups,
                emit=self.events.append,
            )
        )

    def attached(self, number: int) -> Attached:
        found = self.workers.attached(worker(number).id)
        assert found is not None
        return found


def waits(number: int, ago: float, **changes: object) -> LiveRun:
    due = NOW - timedelta(seconds=ago)
    return replace(run(number), due_at=due, ready_at=due, **changes)  # type: ignore[arg-type]


async def test_a_waiting_run_ends_at_its_deadline_in_each_state() -> None:
    world = World()
    fresh, ready, held = waits(1, 29), waits(2, 31), waits(3, 31)
    later = replace(waits(4, 101), state=State.RETRYING, ready_at=NOW + timedelta(seconds=9))
    tried = replace(waits(5, 99), state=State.RETRYING)
    world.run_index.put_runs([fresh, ready, later, tried], NOW)
    world.run_index.hold(held)

    assert await world.deadlines.step() == pytest.approx(LOOK_EVERY, abs=0.5)

    assert {(end.key, end.state, end.reason) for end in world.rows.ended} == {
        (ready.key, State.MISSED, Reason.START_DEADLINE),
        (held.key, State.MISSED, Reason.START_DEADLINE),
        (later.key, State.FAILED, Reason.RUN_TIMEOUT),
    }
    assert {bool(end.fingerprint) for end in world.rows.ended if end.state is State.FAILED} == {
        True
    }
    assert {one.key for one in world.run_index.waiting_runs()} == {fresh.key, tried.key}
    assert len(world.wake_ups.runs) == 3
    assert world.events == [
        EndedUnreported(State.MISSED, Reason.START_DEADLINE, 2),
        RunsMissed(Reason.START_DEADLINE, 2),
        EndedUnreported(State.FAILED, Reason.RUN_TIMEOUT, 1),
        DeadLettered((DeadRun(later.key.run_id, later.job_id, Reason.RUN_TIMEOUT, later.attempt),)),
    ]


async def test_a_run_that_continues_meanwhile_stays() -> None:
    world = World()
    assigned = waits(1, 31)
    world.rows.continuing = {assigned.key}
    world.run_index.put_runs([assigned], NOW)
    await world.deadlines.step()
    assert [one.key for one in world.run_index.waiting_runs()] == [assigned.key]
    assert not world.wake_ups.runs


@pytest.mark.slow
async def test_a_reported_run_not_ended_in_a_full_batch_is_ended_in_the_next_one() -> None:
    world = World()
    for number in range(BATCH + 3):
        world.deadlines.passed(waits(number + 1, 31))
    assert await world.deadlines.step() == 0.0
    assert await world.deadlines.step() == pytest.approx(LOOK_EVERY, abs=0.5)
    assert len({end.key for end in world.rows.ended}) == BATCH + 3
    await world.deadlines.step()
    assert len(world.rows.ended) == BATCH + 3


async def test_a_run_reported_during_a_database_outage_is_ended_later() -> None:
    world = World()
    world.deadlines.passed(waits(1, 31))
    world.rows.away = True
    with pytest.raises(Unavailable):
        await world.deadlines.step()
    world.rows.away = False
    await world.deadlines.step()
    assert [end.key for end in world.rows.ended] == [run(1).key]


async def test_a_run_that_doesnt_end_has_its_definition_read_again() -> None:
    world = World()
    assigned = waits(1, 31)
    world.rows.continuing = {assigned.key}
    world.definitions.stale[assigned.job_id] = HURRIED
    world.run_index.put_runs([assigned], NOW)
    await world.deadlines.step()
    assert world.definitions.stale == {}


async def test_a_held_run_replaces_one_that_dispatch_took_off_the_run_index() -> None:
    world = World()
    ready: list[int] = []
    world.deadlines.on_ready(lambda: ready.append(1))
    passed, held = waits(1, 31), waits(2, 1, job_id=waits(1, 31).job_id)
    world.run_index.hold(held)
    world.deadlines.passed(passed)
    await world.deadlines.step()
    assert held.key.run_id in world.run_index.ready
    assert ready == [1]


async def test_steps_over_waiting_runs_are_rarer_the_longer_they_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    seconds = [100.0]
    monkeypatch.setattr(deadlines, "boottime", lambda: seconds[0])

    def walk() -> Iterator[LiveRun]:
        seconds[0] += 0.2
        yield from ()

    monkeypatch.setattr(world.run_index, "waiting_runs", walk)
    assert await world.deadlines.step() == pytest.approx(0.2 * SHARE)
    seconds[0] += 1.0
    world.deadlines.passed(waits(1, 31))
    assert await world.deadlines.step() == pytest.approx(0.2 * SHARE - 1.0)
    assert [end.key for end in world.rows.ended] == [run(1).key], "and not the whole board for it"


async def test_definitions_that_cant_be_read_keep_no_others_from_being_read() -> None:
    world = World()
    world.definitions.unread = {run(number + 1).job_id for number in range(READ_AT_ONCE + 1)}
    world.definitions.unreadable = {run(number + 1).job_id for number in range(READ_AT_ONCE)}
    hurried = waits(READ_AT_ONCE + 1, 31)
    world.run_index.put_runs([*(waits(n + 1, 31) for n in range(READ_AT_ONCE)), hurried], NOW)
    for _ in range(2):
        world.deadlines._look_at = 0.0
        await world.deadlines.step()
    assert [end.key for end in world.rows.ended] == [hurried.key]


async def test_a_run_of_a_schedule_that_ends_is_reported() -> None:
    world = World()
    world.definitions.default = replace(HURRIED, max_runs=3)
    world.run_index.put_runs([waits(1, 31)], NOW)
    await world.deadlines.step()
    assert world.rows.ended[0].counted
    assert world.wake_ups.jobs == [(run(1).job_id, run(1).shard)]


async def test_deadlines_end_no_run_while_the_cluster_is_paused() -> None:
    world = World()
    world.cluster_pause.pauses = Pauses(1, (Pause(NOW, "ops"),))
    world.run_index.put_runs([waits(1, 31)], NOW)
    await world.deadlines.step()
    assert not world.rows.ended


async def test_dispatch_sends_no_run_past_its_deadline() -> None:
    world = Dispatching()
    world.attach(worker(slots=4), grant=4)
    passed: list[LiveRun] = []
    world.dispatch._passed = passed.append
    world.definitions.default = HURRIED
    world.run_index.put_runs([waits(1, 31), waits(2, 1)], NOW)
    await world.run_until_idle()
    assert world.handed() == {2}
    assert [one.key.run_id.number for one in passed] == [1]
    assert [one.key.run_id.number for one in world.run_index.waiting_runs()] == []


async def test_a_broadcasts_child_waits_for_its_workers_return_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deadlines, "LOOK_AT_LEAST_EVERY", 0.0)
    monkeypatch.setattr(deadlines, "LOOK_EVERY", 0.0)
    world = World(replace(SHELL, placement=Placement.BROADCAST, pause_after_failures=1, max_runs=9))
    parent = run(9).key.run_id
    here, away = (run(number, parent=parent, target=f"w{number}") for number in (1, 2))
    tried = replace(run(3, parent=parent, target="w2"), state=State.RETRYING, losses=1)
    world.run_index.put_runs([here, away, tried], NOW)
    line = RecordingLine()
    world.workers.attach(worker(1), line)

    await world.deadlines.step()
    world.clock.time = NOW + WORKER_AWAY - timedelta(seconds=1)
    await world.deadlines.step()
    assert world.rows.ended == []
    world.workers.attach(worker(2), line)  # for a moment: the wait starts again
    await world.deadlines.step()
    world.workers.detach(world.attached(2))
    world.clock.time += timedelta(seconds=2)
    await world.deadlines.step()
    assert world.rows.ended == []
    world.clock.time += WORKER_AWAY
    await world.deadlines.step()

    assert {(end.key, end.state, end.reason) for end in world.rows.ended} == {
        (one.key, State.FAILED, Reason.WORKER_LOST) for one in (away, tried)
    }
    for end in world.rows.ended:
        assert (end.fingerprint, end.pause_after, end.counted, end.notices) == ("", 0, False, None)


async def test_a_run_that_waits_only_in_rows_is_ended_by_a_scan() -> None:
    world = World()
    fresh, over = waits(1, 29), waits(2, 31)

    await world.deadlines.check_unloaded_runs([fresh, over])
    await world.deadlines.step()

    assert [(end.key, end.reason) for end in world.rows.ended] == [
        (over.key, Reason.START_DEADLINE)
    ]
    assert world.events == [
        EndedUnreported(State.MISSED, Reason.START_DEADLINE, 1),
        RunsMissed(Reason.START_DEADLINE, 1),
    ]


async def test_runs_without_a_deadline_that_wait_only_in_rows_arent_looked_up() -> None:
    world = World()
    patient, unknown = waits(1, 31, line=line_id_of((), paced=True)), waits(2, 29)
    hasty = waits(3, 29, line=line_id_of((), hurried=True))
    child = replace(patient, job_id=JobId(Id.from_int(4)), parent=RunId(Id.from_int(5)))
    world.definitions.unread = {one.job_id for one in (patient, unknown, hasty, child)}

    await world.deadlines.check_unloaded_runs([patient, unknown, hasty, child])

    assert world.definitions.unread == {patient.job_id}


async def test_remaining_runs_wait_while_the_cluster_is_paused() -> None:
    world = World()
    world.cluster_pause.pauses = Pauses(1, (Pause(NOW, "ops"),))

    await world.deadlines.check_unloaded_runs([waits(1, 31)])
    world.cluster_pause.pauses = NO_PAUSES
    await world.deadlines.step()

    assert world.rows.ended == []


async def test_a_step_takes_only_as_many_unloaded_runs_as_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    monkeypatch.setattr(deadlines, "BATCH", 3)
    over = [waits(number, 31) for number in range(1, 8)]
    await world.deadlines.check_unloaded_runs(over)
    await world.deadlines.step()
    assert {end.key for end in world.rows.ended} == {run.key for run in over[:3]}
    await world.deadlines.check_unloaded_runs(over[3:])
    await world.deadlines.step()
    assert len(world.rows.ended) == 6


async def test_an_unavailable_database_doesnt_break_the_scan_that_reports_remaining_runs() -> None:
    world = World()

    async def away(_jobs: object) -> dict[JobId, CachedDefinition]:
        raise Unavailable("no database")

    read = world.definitions.newest
    world.definitions.newest = away  # type: ignore[assignment]  # as the database is
    await world.deadlines.check_unloaded_runs([waits(1, 31)])
    world.definitions.newest = read  # type: ignore[method-assign]  # it is back
    await world.deadlines.step()
    assert world.rows.ended == [], "nothing was judged"

    await world.deadlines.check_unloaded_runs([waits(1, 31)])
    await world.deadlines.step()
    assert [end.key for end in world.rows.ended] == [waits(1, 31).key], "the next scan does it"
