"""Firing after an outage: what is late, what is due meanwhile, and each job's window."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest

from schedd.core.ids import Epoch, Id, JobId, ShardId
from schedd.core.jobs.definition import CatchUp, CatchUpPolicy
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import Claim, Firing, LiveRun, NewRun, Timer
from schedd.core.runs.records import FireOutcome
from schedd.timers import fire
from schedd.timers.timer_loader import LOAD_LIMIT
from schedkit.errors import Unavailable
from support.firing import TIMER, Rows, World, live_of
from support.runs import NOW


@dataclass
class Outage(Rows):
    """Timers that are far behind, each due every five seconds; and what becomes of it."""

    behind_by: dict[JobId, timedelta] = field(default_factory=dict)
    timers_of: dict[JobId, Timer] = field(init=False)
    batches: list[list[JobId]] = field(default_factory=list)
    rows: dict[JobId, list[NewRun]] = field(default_factory=dict)
    live: list[LiveRun] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.timers_of = {
            job: TIMER._replace(job_id=job, due_at=NOW - late, nominal=NOW - late)
            for job, late in self.behind_by.items()
        }

    def _due(self) -> Collection[Timer]:
        return self.timers_of.values()

    async def timers(self, jobs: Collection[JobId]) -> list[Timer]:
        return [self.timers_of[job] for job in jobs]

    async def fire(self, claim: Claim, firings: Sequence[Firing], switched: int = 0) -> FireOutcome:
        self.batches.append([step.job_id for step in firings])
        made = []
        for step in firings:
            self.rows.setdefault(step.job_id, []).extend(step.runs)
            self.timers_of[step.job_id] = self.timers_of[step.job_id]._replace(
                due_at=step.next_due_at, nominal=step.next_nominal
            )
            made += [
                replace(live_of(step), key=new.key, ready_at=new.ready_at or new.due_at)
                for new in step.runs
                if new.state is State.PENDING
            ]
        self.live += made
        return FireOutcome(made, [], frozenset())


def outage(count: int, seconds: float, policy: CatchUpPolicy) -> tuple[World, Outage]:
    """Return so many jobs, due every five seconds, that no owner looked at for so long."""
    jobs = [JobId(Id.from_int(number)) for number in range(1, count + 1)]
    rows = Outage(behind_by=dict.fromkeys(jobs, timedelta(seconds=seconds)))
    world = World(rows)
    world.definitions.catch_up = CatchUp(policy)
    return world, rows


async def caught_up(world: World) -> None:
    for _ in range(1_000):
        if await world.step() > 0:
            return
    raise AssertionError("it never catches up")


@pytest.mark.parametrize(
    ("policy", "runs", "paced"),
    [
        (CatchUpPolicy.ALL, 121, {True}),
        (CatchUpPolicy.LATEST, 1, set()),
        (CatchUpPolicy.NONE, 1, set()),
    ],
)
async def test_a_late_run_records_the_time_at_which_it_was_made(
    policy: CatchUpPolicy, runs: int, paced: set[bool]
) -> None:
    """NOW itself is on time: it is ready when it is due, and takes the older in under `latest`."""
    world, rows = outage(3, 600, policy)
    await caught_up(world)

    for made in rows.rows.values():
        ran = [run for run in made if run.state is State.PENDING]
        assert [run.due_at for run in ran] == sorted(run.due_at for run in ran)
        assert len(ran) == runs
        assert {run.ready_at for run in ran if run.due_at < NOW} == ({NOW} if paced else set())
        assert {run.paced for run in ran if run.due_at < NOW} == paced
        assert (ran[-1].due_at, ran[-1].ready_at, ran[-1].paced) == (NOW, None, False)
        assert sum(run.count for run in made) == 121, "each instant is accounted for once"


async def test_the_one_late_run_of_a_job_that_catches_up_with_the_latest_isnt_paced() -> None:
    world, rows = outage(1, 600, CatchUpPolicy.LATEST)
    world.clock.time = NOW + timedelta(seconds=2.5)
    await caught_up(world)
    [run] = [run for made in rows.rows.values() for run in made if run.state is State.PENDING]
    assert (run.due_at, run.ready_at, run.paced) == (NOW, world.clock.time, False)


@pytest.mark.slow
async def test_timers_due_during_a_catch_up_fire_first_and_soon() -> None:
    """A batch takes a few instants of each timer that is far behind, however many it has."""
    world, rows = outage(400, 600, CatchUpPolicy.ALL)
    fresh = JobId(Id.from_int(2**64))
    rows.timers_of[fresh] = TIMER._replace(
        job_id=fresh, due_at=NOW + timedelta(seconds=2), nominal=NOW + timedelta(seconds=2)
    )
    await world.step()
    assert fresh not in rows.batches[-1]
    assert len(rows.live) <= fire.ROWS * fire.BATCH

    world.clock.time = NOW + timedelta(seconds=2)
    await world.step()
    assert rows.batches[-1] == [fresh]

    await caught_up(world)
    late = [job for job in rows.rows if job != fresh]
    assert {sum(run.count for run in rows.rows[job]) for job in late} == {121}
    assert {tuple(run.due_at for run in rows.rows[job]) for job in late} == {
        tuple(NOW - timedelta(seconds=600 - 5 * n) for n in range(121))
    }, "in order"


@pytest.mark.slow
async def test_a_recurring_timer_is_soon_on_time_beside_a_missed_herd() -> None:
    """Its instants are made in order, so those that fall due now wait for all before them; the herd
    holds nothing up.
    """
    world, rows = outage(20_000, 60, CatchUpPolicy.ALL)
    missed = NOW - timedelta(seconds=4)
    for job, timer in rows.timers_of.items():
        if job.number > 60:
            rows.timers_of[job] = timer._replace(due_at=missed, nominal=missed)
    for _ in range(12):
        await world.step()

    ticking = [job for job in rows.timers_of if job.number <= 60]
    assert {sum(run.count for run in rows.rows[job]) for job in ticking} == {13}
    assert len(rows.rows) < 12 * fire.BATCH


@pytest.mark.slow
async def test_the_last_missed_run_has_no_herd_before_it() -> None:
    world, rows = outage(3 * LOAD_LIMIT, 600, CatchUpPolicy.LATEST)
    last = JobId(Id.from_int(3 * LOAD_LIMIT))
    missed = NOW - timedelta(seconds=30)
    rows.timers_of[last] = rows.timers_of[last]._replace(due_at=missed, nominal=missed)
    await world.step()

    assert last in rows.batches[0]


async def test_no_time_leaves_its_window_while_other_jobs_catch_up() -> None:
    world, rows = outage(50, 3_600, CatchUpPolicy.ALL)
    for minutes in (0, 10, 20, 30):
        world.clock.time = NOW + timedelta(minutes=minutes)
        await world.step()

    assert {run.state for made in rows.rows.values() for run in made} == {State.PENDING}
    assert all(len(made) > 50 for made in rows.rows.values())


async def test_the_window_is_measured_again_once_nothing_is_behind() -> None:
    world, rows = outage(50, 300, CatchUpPolicy.ALL)
    while await world.step() == 0.0:
        pass
    world.clock.time = NOW + timedelta(minutes=90)
    await world.step()

    [missed, *_] = [run for run in rows.rows[JobId(Id.from_int(1))] if run.state is State.MISSED]
    assert missed.count == 30 * 12 - 1


@pytest.mark.slow
async def test_a_timer_due_after_the_first_step_has_its_own_window() -> None:
    """The database was away for three hours, in the middle of catching up with ten minutes."""
    world, rows = outage(30, 600, CatchUpPolicy.ALL)
    await world.near.step()
    await world.fire.step()
    made = rows.rows[JobId(Id.from_int(1))]
    assert 0 < len(made) < 121, "it takes several steps"
    world.clock.time = NOW + timedelta(hours=3)
    await caught_up(world)

    states = {run.due_at: run.state for run in made}
    assert {state for due, state in states.items() if due <= NOW} == {State.PENDING}
    [missed] = [run for run in made if run.state is State.MISSED]
    assert NOW < missed.due_at <= NOW + timedelta(minutes=6), "the step at hand goes to its end"
    assert missed.scheduled_until == NOW + timedelta(hours=2) - timedelta(seconds=5)


async def step_without_database(world: World, rows: Rows) -> None:
    """A step that found the database away."""
    works = rows.fire

    async def away(*_: object) -> FireOutcome:
        raise Unavailable("no database")

    rows.fire = away  # type: ignore[method-assign]
    await world.near.step()
    with pytest.raises(Unavailable):
        await world.fire.step()
    rows.fire = works  # type: ignore[method-assign]


@pytest.mark.parametrize(("moved", "state"), [(7, State.COALESCED), (0, State.MISSED)])
async def test_a_takeover_measures_only_the_windows_of_the_shards_jobs(
    moved: int, state: State
) -> None:
    world, rows = outage(1, 3_000, CatchUpPolicy.LATEST)
    await step_without_database(world, rows)
    world.run_index.ownership.drop([ShardId(moved)])
    world.run_index.ownership.gain({ShardId(moved): Epoch(6)})
    world.clock.time = NOW + timedelta(minutes=90)
    while await world.step() == 0.0:
        pass

    [made] = rows.rows.values()
    assert min(made, key=lambda run: run.due_at).state is state


async def test_a_retried_step_measures_the_window_from_its_first_try() -> None:
    world, rows = outage(1, 3_000, CatchUpPolicy.LATEST)
    await step_without_database(world, rows)
    world.clock.time = NOW + timedelta(minutes=90)
    while await world.step() == 0.0:
        pass

    [made] = rows.rows.values()
    first = min(made, key=lambda run: run.due_at)
    assert first.state is State.COALESCED, "it was inside, and no time was missed"
