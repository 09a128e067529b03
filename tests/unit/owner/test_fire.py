"""Firing: what follows a refusal, a COMMIT in doubt and the end of trust (PROTOCOL 1, 3, 7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, cast
from uuid import UUID

import pytest

from schedd.core import schedule
from schedd.core.batch_size import LEAST, MOMENT
from schedd.core.calendars import Exclusion
from schedd.core.early import NEVER, Ahead
from schedd.core.ids import Epoch, JobId, ShardId
from schedd.core.lifecycle import State
from schedd.core.model import (
    CatchUp,
    CatchUpPolicy,
    Claim,
    Definition,
    Firing,
    LiveRun,
    NewRun,
    Priority,
    Timer,
)
from schedd.core.pauses import Pause, Pauses
from schedd.core.records import Fired
from schedd.owner import fire, near_future
from schedd.owner.board import Board
from schedd.owner.brake import Brake
from schedd.owner.catalogue import Catalogue
from schedd.owner.fire import BATCH, ENOUGH, RESTS, Fire
from schedd.owner.near_future import LOAD_LIMIT, READ_AHEAD, NearFuture
from schedd.owner.transact import Transactor
from schedd.owner.wordings import Known
from schedd.ports import OwnerStore, PauseStore
from schedkit.errors import OutcomeUnknown, Unavailable
from schedproto.v1 import job_pb2
from support.runs import NOW, SetClock, owning, run
from support.turns import turns_during

JOB = run(1).job_id
TIMER = Timer(JOB, run(1).shard, 1, NOW, NOW)
EVERY = schedule.EverySchedule(timedelta(seconds=5))


@dataclass
class Rows:
    """One timer, and a fire statement that does as it is told."""

    timer: Timer = TIMER
    fails: list[Exception] = field(default_factory=list)
    behind: bool = False
    """The database's clock is far behind: its guard refuses."""
    switched: int = 0
    """How often the cluster was paused or resumed."""
    seconds: float = 0.0
    """That it took to fire."""
    fired: list[NewRun] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)

    async def due_timers(
        self, shards: Collection[int], until: datetime, limit: int, *, latest: bool = False
    ) -> list[Timer]:
        self.calls.append("load")
        return [self.timer] if self.timer.due_at and self.timer.due_at <= until else []

    async def timers(self, jobs: Collection[JobId]) -> list[Timer]:
        self.calls.append("reread")
        return [self.timer]

    async def fire(self, claim: Claim, firings: Sequence[Firing], switched: int = 0) -> Fired:
        self.calls.append("fire")
        [step] = firings
        if self.behind or switched != self.switched or step.due_at != self.timer.due_at:
            return Fired([], [step.job_id], frozenset())
        self.fired += step.runs
        self.timer = replace(
            self.timer,
            due_at=step.next_due_at,
            nominal=step.next_nominal,
            fired=self.timer.fired + step.counted,
        )
        if self.fails:
            raise self.fails.pop()
        return Fired([_live(step)] if step.runs else [], [], frozenset())


def _live(step: Firing) -> LiveRun:
    new = step.runs[0]
    return LiveRun(
        new.key, step.job_id, step.shard, State.PENDING, Priority.MEDIUM, new.due_at, new.due_at
    )


class Definitions(Catalogue):
    """Of any job; `urgent` ones are HIGH, once they have been read."""

    def __init__(self, urgent: Collection[JobId] = ()) -> None:
        self._urgent = urgent
        self.max_runs = 0
        self.catch_up = CatchUp()
        self.exclusion: Exclusion | None = None
        self.read_of: set[JobId] = set()

    async def at_generations(self, wanted: dict[JobId, int]) -> dict[JobId, Known]:
        return await self.newest(wanted)

    async def newest(self, jobs: Collection[JobId]) -> dict[JobId, Known]:
        self.read_of.update(jobs)
        return {job: self._made(job) for job in jobs}

    def knows(self, job: JobId) -> bool:
        return job in self.read_of

    def priority_of(self, job: JobId) -> Priority:
        urgent = job in self._urgent and job in self.read_of
        return Priority.HIGH if urgent else Priority.MEDIUM

    def _made(self, job: JobId) -> Known:
        priority = Priority.HIGH if job in self._urgent else Priority.MEDIUM
        definition = Definition(
            job,
            1,
            "default",
            "j",
            action="shell",
            priority=priority,
            max_runs=self.max_runs,
            catch_up=self.catch_up,
        )
        compiled = schedule.compile(EVERY, "default/j", job)
        excluding = None if self.exclusion is None else compiled
        compiled = replace(compiled, exclusion=self.exclusion, excluding=excluding)
        return Known(definition, compiled, job_pb2.Job())

    def forget(self, jobs: object) -> None: ...


class World:
    def __init__(
        self,
        rows: Rows,
        *,
        trusted: bool = True,
        urgent: Collection[JobId] = (),
        ahead: Ahead = NEVER,
    ) -> None:
        self.clock = SetClock()
        self.definitions = Definitions(urgent)
        self.board = Board(owning(0), self.definitions.priority_of, ahead=ahead)
        transactor = Transactor(self.board.ownership, lambda: trusted, lambda _event: None)
        self.brake = Brake(cast("PauseStore", None), lambda _event: None)
        self.placeable: Callable[[], int] = lambda: len(self.board.ready)
        self.near = NearFuture(
            self.board, self.definitions, cast("OwnerStore", rows), self.clock, self.brake
        )
        self.fire = Fire(
            self.board,
            self.near,
            self.definitions,
            cast("OwnerStore", rows),
            transactor,
            self.clock,
            self.brake,
            lambda _event: None,
            lambda: self.placeable(),
            boot=lambda: rows.seconds,
        )

    async def step(self) -> float:
        """Both loops, one after the other; seconds until the next of either."""
        return min(await self.near.step(), await self.fire.step())


async def test_a_timer_that_the_databases_clock_holds_back_is_tried_again_after_a_pause() -> None:
    """P7.3: a member whose time is ahead must not ask the database in a tight loop."""
    rows = Rows(behind=True)
    world = World(rows)

    assert await world.step() == 0.0
    pause = await world.step()
    for _ in range(5):
        await world.step()

    assert rows.calls == ["load", "fire", "reread"]
    assert 0.2 <= pause <= 1.0
    rows.behind = False
    world.clock.time += timedelta(seconds=pause)
    await world.step()
    assert len(world.board.ready) == 1


async def test_runs_are_made_so_long_before_they_are_due_and_wait_for_their_instant() -> None:
    rows = Rows(replace(TIMER, due_at=NOW + timedelta(seconds=3), nominal=NOW))
    world = World(rows, ahead=Ahead(timedelta(seconds=2)))
    told: list[bool] = []
    world.fire.on_ready(lambda: told.append(True))
    await world.step()
    assert await world.step() == pytest.approx(1.0)
    world.clock.time += timedelta(seconds=0.999)
    await world.step()
    assert rows.fired == []

    world.clock.time += timedelta(seconds=0.001)
    await world.step()

    [made] = rows.fired
    assert made.due_at == NOW + timedelta(seconds=3)
    assert (len(world.board.ready), len(world.board.waiting)) == (0, 1)
    assert told, "it may have to be armed at once"
    due = rows.timer.due_at
    assert due is not None
    assert world.board.timers.next_at() == due - timedelta(seconds=2)


async def test_what_a_calendar_may_still_exclude_is_made_when_it_is_due() -> None:
    rows = Rows(replace(TIMER, due_at=NOW + timedelta(seconds=1), nominal=NOW))
    world = World(rows, ahead=Ahead(timedelta(seconds=2)))
    world.definitions.exclusion = Exclusion(())
    await world.step()
    assert await world.step() == pytest.approx(1.0)
    assert rows.calls.count("fire") == 0
    world.clock.time += timedelta(seconds=1)
    await world.step()
    assert rows.calls.count("fire") == 1


async def test_after_a_commit_in_doubt_the_rows_are_read_before_anything_else() -> None:
    """P1.4: it did stand, so nothing is fired again, and the scan finds the run."""
    rows = Rows(fails=[OutcomeUnknown("no answer to COMMIT")])
    world = World(rows)

    with pytest.raises(Unavailable):
        await world.step()
    assert len(world.board.ready) == 0
    await world.step()

    assert rows.calls == ["load", "fire", "reread"]
    assert world.board.timers.next_at() == NOW + timedelta(seconds=5)


async def test_nothing_is_written_once_trust_has_passed() -> None:
    """P1.7: the read before took its time, and another may own the shard by now."""
    rows = Rows()

    with pytest.raises(Unavailable, match="trust"):
        await World(rows, trusted=False).step()

    assert "fire" not in rows.calls


async def test_while_the_cluster_is_paused_nothing_is_asked_of_the_database() -> None:
    rows = Rows()
    world = World(rows)
    world.brake.pauses = Pauses(1, (Pause(NOW, "ops"),))

    assert await world.step() > 0

    assert rows.calls == []


async def test_what_changes_in_a_pause_is_loaded_at_its_end_and_not_gathered_till_then() -> None:
    """A million jobs may be imported meanwhile; no statement could read them at once."""
    rows = Rows()
    world = World(rows)
    world.brake.pauses = Pauses(1, (Pause(NOW, "ops"),))
    world.fire.changed([JOB])
    await world.step()

    world.brake.pauses = Pauses(2, (Pause(NOW, "ops", ended=NOW),))
    world.near.reload()
    await world.step()

    assert rows.calls[0] == "load"
    assert "reread" not in rows.calls


async def test_who_hasnt_heard_of_a_pause_is_refused_and_asks_after_it() -> None:
    """P3: the row judges; the member then reads the pauses, and accounts for what fell due."""
    rows = Rows(switched=2)
    world = World(rows)
    looked: list[bool] = []
    world.brake.look = lambda: looked.append(True)  # type: ignore[method-assign]  # a spy

    await world.step()
    assert looked == [True]

    began = NOW - timedelta(seconds=1)
    world.brake.pauses = Pauses(2, (Pause(began, "ops", ended=NOW + timedelta(seconds=3)),))
    await world.step()
    world.clock.time += timedelta(seconds=1)
    await world.step()
    assert rows.timer.due_at == NOW + timedelta(seconds=5)
    assert rows.fired[0].state is State.SKIPPED


@dataclass
class Herd(Rows):
    """So many timers, due at one instant."""

    count: int = 0
    each: float = 0.0
    """Seconds that it takes to fire one."""
    batches: list[int] = field(default_factory=list)
    due: dict[JobId, Timer] = field(init=False)

    def __post_init__(self) -> None:
        ids = (JobId(UUID(int=n)) for n in range(self.count))
        self.due = {job: replace(TIMER, job_id=job) for job in ids}

    async def due_timers(
        self, shards: Collection[int], until: datetime, limit: int, *, latest: bool = False
    ) -> list[Timer]:
        self.calls.append("latest" if latest else "load")
        due = sorted(self.due.values(), key=lambda timer: timer.due_at or NOW, reverse=latest)
        return due[:limit]

    async def fire(self, claim: Claim, firings: Sequence[Firing], switched: int = 0) -> Fired:
        self.calls.append("fire")
        self.batches.append(len(firings))
        self.seconds += self.each * len(firings)
        for step in firings:
            del self.due[step.job_id]
        return Fired([_live(step) for step in firings], [], frozenset())


async def test_what_is_held_already_isnt_loaded_again_for_each_batch_that_fires(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More is due at one instant than a load brings: as many loads as it takes, and no more."""
    monkeypatch.setattr(near_future, "LOAD_LIMIT", 4 * BATCH)
    rows = Herd(count=12 * BATCH)
    world = World(rows)

    for _ in range(10):  # before it is due
        world.clock.time = NOW - timedelta(seconds=0.2)
        await world.step()
    assert rows.calls == ["load", "latest"]
    world.clock.time = NOW
    while len(world.board.ready) < 12 * BATCH:
        await world.step()

    assert not rows.due
    assert rows.calls.count("load") <= 6


async def test_what_is_urgent_is_fired_before_a_herd_that_was_due_earlier() -> None:
    """Its definition was read while nothing was due; of what is due, it goes with the first."""
    rows, urgent = Herd(count=4_000), JobId(UUID(int=2**64))
    rows.due[urgent] = replace(TIMER, job_id=urgent, due_at=NOW + timedelta(seconds=1))
    world = World(rows, urgent=[urgent])
    world.clock.time = NOW - timedelta(seconds=3)
    while await world.step() == 0.0:
        pass
    assert len(world.definitions.read_of) == READ_AHEAD < len(rows.due)

    world.clock.time = NOW + timedelta(seconds=0.9)
    await world.step()
    assert urgent in rows.due
    world.clock.time = NOW + timedelta(seconds=1)
    await world.step()

    assert urgent not in rows.due
    assert rows.batches[1:] == [1]


async def test_what_is_urgent_is_seen_behind_a_herd_that_no_load_brings_at_once() -> None:
    """Of what comes after it a load brings the latest, and reads ahead first what they are."""
    rows, urgent = Herd(count=3 * LOAD_LIMIT), JobId(UUID(int=2**64))
    rows.due[urgent] = replace(TIMER, job_id=urgent, due_at=NOW + timedelta(seconds=1))
    world = World(rows, urgent=[urgent])
    world.clock.time = NOW - timedelta(seconds=1)
    while await world.step() == 0.0:
        pass

    world.clock.time = NOW + timedelta(seconds=1)
    await world.step()

    assert urgent not in rows.due
    assert rows.batches == [1]


async def test_what_is_urgent_is_seen_though_something_is_always_due() -> None:
    """It comes within the horizon while a herd is fired for minutes."""
    rows, urgent = Herd(count=3 * LOAD_LIMIT), JobId(UUID(int=2**64))
    rows.due[urgent] = replace(TIMER, job_id=urgent, due_at=NOW + timedelta(seconds=1))
    world = World(rows, urgent=[urgent])
    await world.step()
    assert urgent in rows.due

    world.clock.time = NOW + timedelta(seconds=1)
    await world.step()

    assert urgent not in rows.due
    assert rows.batches[1:] == [1]


@dataclass
class SlowToLoad(Herd):
    """Reads its rows at once, and gives them when it may."""

    read: asyncio.Event = field(default_factory=asyncio.Event)
    given: asyncio.Event = field(default_factory=asyncio.Event)

    async def due_timers(
        self, shards: Collection[int], until: datetime, limit: int, *, latest: bool = False
    ) -> list[Timer]:
        found = await super().due_timers(shards, until, limit, latest=latest)
        self.read.set()
        await self.given.wait()
        return found


async def test_what_is_due_fires_while_a_load_is_under_way_which_brings_no_old_row_of_it() -> None:
    """Reading thousands takes a busy machine half a second, and what is urgent hasn't that."""
    rows = SlowToLoad(count=1)
    [timer] = rows.due.values()
    world = World(rows)
    world.board.put_timers([timer])

    async with asyncio.TaskGroup() as group:
        group.create_task(world.near.step(), name="load")
        await rows.read.wait()
        assert await world.fire.step() == 0.0
        assert not rows.due
        rows.given.set()

    assert world.board.timers.next_at() == NOW + timedelta(seconds=5)
    await world.fire.step()
    assert rows.batches == [1]


async def test_what_was_read_while_a_load_was_under_way_is_newer_than_what_it_brings() -> None:
    rows = SlowToLoad(count=1)
    [job] = rows.due
    world = World(rows)

    async with asyncio.TaskGroup() as group:
        group.create_task(world.near.step(), name="load")
        await rows.read.wait()
        rows.timer = replace(TIMER, job_id=job, due_at=NOW + timedelta(seconds=2))
        world.fire.changed([job])
        await world.fire.step()
        rows.given.set()

    assert world.board.timers.next_at() == NOW + timedelta(seconds=2)


async def test_what_was_left_out_as_its_shard_went_and_came_back_stands_as_it_was_loaded_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It didn't fire: taken for fired, its instant would wait for the next load, and be missed."""
    rows = Rows()
    world = World(rows)
    await world.near.step()
    reads, shard = world.definitions.at_generations, TIMER.shard

    async def meanwhile(wanted: dict[JobId, int]) -> dict[JobId, Known]:
        world.board.ownership.drop([shard])
        return await reads(wanted)

    monkeypatch.setattr(world.definitions, "at_generations", meanwhile)
    fires = world.fire._transactor.by_lane

    async def taken_again(*of: Any) -> list[Any]:
        answers = await fires(*of)
        world.board.ownership.gain({shard: Epoch(6)})
        await world.near.step()
        return answers

    monkeypatch.setattr(world.fire._transactor, "by_lane", taken_again)
    await world.fire.step()

    assert "fire" not in rows.calls
    assert world.board.timers.next_at() == NOW


async def test_what_cant_be_read_ahead_holds_no_load_up(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows()
    world = World(rows)
    world.clock.time = NOW - timedelta(seconds=3)

    async def away(_: object) -> dict[JobId, Known]:
        raise Unavailable("no database")

    monkeypatch.setattr(world.definitions, "newest", away)
    assert await world.near.step() > 0
    assert world.board.timers.next_at() == NOW


async def test_a_load_that_failed_is_made_again_as_soon_as_the_loop_may() -> None:
    rows = Rows()
    world = World(rows)
    loads = rows.due_timers

    async def away(*_: object, **__: object) -> list[Timer]:
        raise Unavailable("no database")

    rows.due_timers = away  # type: ignore[method-assign]  # it is away
    with pytest.raises(Unavailable):
        await world.near.step()
    rows.due_timers = loads  # type: ignore[method-assign]
    await world.near.step()

    assert rows.calls == ["load"]


async def test_a_batch_is_as_large_as_takes_a_moment() -> None:
    """Who falls due meanwhile waits for all of it."""
    rows = Herd(count=3_000, each=0.001)
    world = World(rows)

    for _ in range(24):
        rows.seconds += await world.step()

    assert max(rows.batches) * rows.each <= 1.1 * MOMENT
    assert rows.batches[-1] * rows.each >= 0.9 * MOMENT


async def test_while_enough_is_ready_it_rests_as_it_fired_but_for_what_is_urgent() -> None:
    """What was fired waits for a worker all the same, and what is urgent finds less before it."""
    rows, urgent = Herd(count=3_000, each=0.001), JobId(UUID(int=2**64))
    rows.due[urgent] = replace(TIMER, job_id=urgent, due_at=NOW + timedelta(seconds=1))
    world = World(rows, urgent=[urgent])
    world.clock.time = NOW - timedelta(seconds=3)
    await world.step()
    world.clock.time = NOW
    while not (rest := await world.step()):
        assert len(world.board.ready) < ENOUGH + BATCH

    batches = [*rows.batches]
    assert len(world.board.ready) >= ENOUGH
    assert rest == pytest.approx(
        batches[-1] * rows.each * (len(world.board.ready) / ENOUGH) ** 2, rel=0.01
    )
    assert await world.fire.step() == pytest.approx(rest), "whoever wakes it"
    assert rows.batches == batches
    world.clock.time = NOW + timedelta(seconds=1)
    assert await world.fire.step() == 0.0
    assert urgent not in rows.due
    assert rows.batches == [*batches, 1]
    rows.seconds += rest
    assert await world.fire.step() == 0.0
    assert rows.batches[-1] >= LEAST, "and goes on"


async def test_it_fires_on_however_much_is_ready() -> None:
    """Nothing may stand behind what waits for workers that never come."""
    rows = Herd(count=20 * ENOUGH, each=0.001)
    world = World(rows)

    rests: list[float] = []
    while rows.due:
        rests.append(await world.step())
        rows.seconds += rests[-1]

    assert max(rests) == pytest.approx(RESTS * MOMENT, rel=0.1)


async def test_it_doesnt_rest_for_what_no_worker_could_do() -> None:
    """Else others would be fired late, as if their owner had been away, for a pool that is gone."""
    rows = Herd(count=6 * ENOUGH, each=0.001)
    world = World(rows)
    world.placeable = lambda: 0

    while rows.due:
        assert await world.step() == 0.0


async def test_a_load_that_takes_long_isnt_made_so_often_but_in_time_for_all_that_it_brings() -> (
    None
):
    rows = Herd(count=3)
    world = World(rows)
    world.clock.time = NOW - timedelta(seconds=60)
    slow = rows.due_timers

    async def due_timers(
        shards: Collection[int], until: datetime, limit: int, *, latest: bool = False
    ) -> list[Timer]:
        world.clock.time += timedelta(seconds=1.1)
        return await slow(shards, until, limit, latest=latest)

    rows.due_timers = due_timers  # type: ignore[method-assign]  # a slower one
    began = world.clock.time
    pauses = []
    while world.clock.time < NOW - near_future.HORIZON:
        pause = await world.step()
        pauses.append(pause)
        world.clock.time += timedelta(seconds=max(pause, 0.001))

    assert 4.3 <= (world.clock.time - began).total_seconds() / rows.calls.count("load") <= 5.2


async def test_a_load_and_a_batch_of_many_leave_everybody_else_their_turn() -> None:
    """A loop that makes no progress loses the lease, and a busy machine makes 20 ms a second."""
    world = World(Herd(count=10 * BATCH))
    assert await turns_during(world.step()) >= 10 + LEAST // 50


@pytest.mark.parametrize(
    ("max_runs", "fired", "made", "goes_on"),
    [(0, 0, 1, True), (5, 3, 1, True), (5, 4, 1, False), (5, 5, 0, False), (5, 9, 0, False)],
)
async def test_a_schedule_makes_no_more_runs_than_it_may(
    max_runs: int, fired: int, made: int, goes_on: bool
) -> None:
    """P3.15."""
    rows = Rows(replace(TIMER, fired=fired))
    world = World(rows)
    world.definitions.max_runs = max_runs

    await world.step()

    assert len(rows.fired) == made
    assert rows.timer.fired == fired + (made if max_runs else 0)
    assert rows.timer.nominal is not None, "where it goes on if a run is skipped"
    assert (rows.timer.due_at is not None) == goes_on


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
            job: replace(TIMER, job_id=job, due_at=NOW - late, nominal=NOW - late)
            for job, late in self.behind_by.items()
        }

    async def due_timers(
        self, shards: Collection[int], until: datetime, limit: int, *, latest: bool = False
    ) -> list[Timer]:
        due = [one for one in self.timers_of.values() if one.due_at and one.due_at <= until]
        return sorted(due, key=lambda one: one.due_at or NOW, reverse=latest)[:limit]

    async def timers(self, jobs: Collection[JobId]) -> list[Timer]:
        return [self.timers_of[job] for job in jobs]

    async def fire(self, claim: Claim, firings: Sequence[Firing], switched: int = 0) -> Fired:
        self.batches.append([step.job_id for step in firings])
        made = []
        for step in firings:
            self.rows.setdefault(step.job_id, []).extend(step.runs)
            self.timers_of[step.job_id] = replace(
                self.timers_of[step.job_id], due_at=step.next_due_at, nominal=step.next_nominal
            )
            made += [
                replace(_live(step), key=new.key, ready_at=new.ready_at or new.due_at)
                for new in step.runs
                if new.state is State.PENDING
            ]
        self.live += made
        return Fired(made, [], frozenset())


def outage(count: int, seconds: float, policy: CatchUpPolicy) -> tuple[World, Outage]:
    """So many jobs, due every five seconds, that nobody looked at for so long."""
    jobs = [JobId(UUID(int=number)) for number in range(1, count + 1)]
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
async def test_what_is_late_bears_the_moment_at_which_it_was_made(
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


async def test_what_falls_due_while_much_is_caught_up_with_goes_first_and_soon() -> None:
    """A batch takes a few instants of each timer that is far behind, however many it has."""
    world, rows = outage(400, 600, CatchUpPolicy.ALL)
    fresh = JobId(UUID(int=2**64))
    rows.timers_of[fresh] = replace(
        TIMER, job_id=fresh, due_at=NOW + timedelta(seconds=2), nominal=NOW + timedelta(seconds=2)
    )
    await world.step()
    assert fresh not in rows.batches[-1]
    assert len(rows.live) <= fire.ROWS

    world.clock.time = NOW + timedelta(seconds=2)
    await world.step()
    assert rows.batches[-1] == [fresh]

    await caught_up(world)
    late = [job for job in rows.rows if job != fresh]
    assert {sum(run.count for run in rows.rows[job]) for job in late} == {121}
    assert {tuple(run.due_at for run in rows.rows[job]) for job in late} == {
        tuple(NOW - timedelta(seconds=600 - 5 * n) for n in range(121))
    }, "in order"


async def test_nothing_falls_out_of_its_window_because_others_are_caught_up_with() -> None:
    world, rows = outage(50, 3_600, CatchUpPolicy.ALL)
    for minutes in (0, 10, 20, 30):
        world.clock.time = NOW + timedelta(minutes=minutes)
        await world.step()

    assert {run.state for made in rows.rows.values() for run in made} == {State.PENDING}
    assert all(len(made) > 100 for made in rows.rows.values())


async def test_where_nothing_is_behind_any_more_the_window_is_measured_anew() -> None:
    world, rows = outage(50, 300, CatchUpPolicy.ALL)
    while await world.step() == 0.0:
        pass
    world.clock.time = NOW + timedelta(minutes=90)
    await world.step()

    [missed, *_] = [run for run in rows.rows[JobId(UUID(int=1))] if run.state is State.MISSED]
    assert missed.count == 30 * 12 - 1


async def test_what_fell_due_after_the_first_look_has_a_window_of_its_own() -> None:
    """The database was away for three hours, in the middle of catching up with ten minutes."""
    world, rows = outage(30, 600, CatchUpPolicy.ALL)
    await world.near.step()
    await world.fire.step()
    made = rows.rows[JobId(UUID(int=1))]
    assert 0 < len(made) < 121, "it takes several steps"
    world.clock.time = NOW + timedelta(hours=3)
    await caught_up(world)

    states = {run.due_at: run.state for run in made}
    assert {state for due, state in states.items() if due <= NOW} == {State.PENDING}
    [missed] = [run for run in made if run.state is State.MISSED]
    assert NOW < missed.due_at <= NOW + timedelta(minutes=6), "the step at hand goes to its end"
    assert missed.scheduled_until == NOW + timedelta(hours=2) - timedelta(seconds=5)


async def looked_in_vain(world: World, rows: Rows) -> None:
    """A step that found the database away."""
    works = rows.fire

    async def away(*_: object) -> Fired:
        raise Unavailable("no database")

    rows.fire = away  # type: ignore[method-assign]
    await world.near.step()
    with pytest.raises(Unavailable):
        await world.fire.step()
    rows.fire = works  # type: ignore[method-assign]


@pytest.mark.parametrize(("moved", "state"), [(7, State.COALESCED), (0, State.MISSED)])
async def test_who_takes_a_shard_over_measures_the_windows_of_its_jobs_alone(
    moved: int, state: State
) -> None:
    world, rows = outage(1, 3_000, CatchUpPolicy.LATEST)
    await looked_in_vain(world, rows)
    world.board.ownership.drop([ShardId(moved)])
    world.board.ownership.gain({ShardId(moved): Epoch(6)})
    world.clock.time = NOW + timedelta(minutes=90)
    while await world.step() == 0.0:
        pass

    [made] = rows.rows.values()
    assert min(made, key=lambda run: run.due_at).state is state


async def test_a_step_that_has_to_be_tried_again_measures_the_window_where_it_first_did() -> None:
    world, rows = outage(1, 3_000, CatchUpPolicy.LATEST)
    await looked_in_vain(world, rows)
    world.clock.time = NOW + timedelta(minutes=90)
    while await world.step() == 0.0:
        pass

    [made] = rows.rows.values()
    first = min(made, key=lambda run: run.due_at)
    assert first.state is State.COALESCED, "it was inside, and is no instant that was missed"
