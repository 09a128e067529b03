"""The scan: who is lost is judged on a list that is newer than the rows (P4.3, P6.4)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, cast

import pytest

from schedd.cluster.worker_leases import WorkerLeases
from schedd.core.cluster.worker_liveness import WorkerLiveness
from schedd.core.dispatch.packed_runs import Holdings
from schedd.core.dispatch.placement import Need
from schedd.core.dispatch.ready_bucket_ids import line_id_of
from schedd.core.dispatch.ready_queue import ReadyQueue
from schedd.core.events import AssignmentsNotStarted, EndedUnreported, RunsRescued
from schedd.core.ids import NO_TOKEN, Epoch, IncarnationId, JobId, RunId, ShardId, Token
from schedd.core.jobs.definition import Definition, Overlap, Priority
from schedd.core.runs.change_stream import Cursor, WrittenRuns
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import (
    Claim,
    DispatchedBatch,
    LiveKey,
    LiveRun,
    Loss,
    OverlapCandidates,
    RunKey,
)
from schedd.core.runs.records import OverlapOutcome, Unstarted
from schedd.core.timers.pre_dispatch import Lookahead
from schedd.dispatch.overlap import OverlapEnforcer
from schedd.dispatch.run_index import RunIndex
from schedd.dispatch.workers.registry import WorkerRegistry
from schedd.reconcile import scan
from schedd.reconcile.rescue import Rescue
from schedd.reconcile.scan import FIRST_PARTS, FULL_EVERY, PART, SCAN_EVERY, Scan
from schedd.runtime.definition_cache import DefinitionCache
from schedd.runtime.definition_texts import CachedDefinition
from schedd.store.owner import OwnerStore
from schedkit.clock import boottime
from schedkit.errors import Unavailable
from support.definitions import cached_definition
from support.fake_of import fake_of
from support.loop_turns import turns_during
from support.owner_context import owner_context
from support.runs import NOW, RecordingLine, SetClock, owning, run, running, worker
from support.wait import WAIT_TIMEOUT, wait_until_async


@fake_of(OwnerStore)
class Rows:
    """The live runs, and how they stood at each moment; notes what is asked in which order."""

    def __init__(self, *runs: LiveRun) -> None:
        self.runs = list(runs)
        self.live: set[IncarnationId] | Exception = set()
        self.missing: set[IncarnationId] = set()
        """Workers without a key that aren't lost."""
        self.calls: list[str] = []
        self.losses: list[Loss] = []
        self.back: list[RunKey] = []
        self.crowds: list[JobId] = []
        self.away = False
        self.locked: set[ShardId] = set()
        self.between: Callable[[], None] = lambda: None
        """A hook between the reads of the rows and of the list."""
        self.timeline = 1
        self.moments: list[set[LiveKey]] = []
        self.hidden: set[RunId] = set()
        """Waiting runs of paused jobs."""
        self.read: list[RunId] = []
        """By key."""
        self.ends = 0
        """How often for the end of the next runs."""

    async def moment(self) -> Cursor:
        self.moments.append({one.live_key for one in self.runs})
        return Cursor(self.timeline, len(self.moments))

    async def written_runs(self, shards: Collection[ShardId], since: Cursor) -> WrittenRuns | None:
        self.calls.append("written rows")
        self.between()
        if since.timeline != self.timeline:
            return None
        before = self.moments[since.transaction - 1]
        written = [one.live_key for one in self.of(shards) if one.live_key not in before]
        return WrittenRuns(await self.moment(), written)

    async def changed_assignments(self, assigned: Sequence[tuple[RunKey, Token]]) -> list[RunId]:
        stands = {
            (one.key, one.token)
            for one in self.runs
            if one.state is State.RUNNING and not one.cancelling
        }
        return [key.run_id for key, token in assigned if (key, token) not in stands]

    async def live_keys(self, shards: Collection[ShardId]) -> list[LiveKey]:
        return [one.live_key for one in self.of(shards)]

    async def runs_by_key(self, keys: Collection[LiveKey], until: datetime) -> list[LiveRun]:
        self.read += [key.run_id for key in keys]
        ready = self.ready_by(until, {key.shard for key in keys})
        return [one for one in ready if one.live_key in keys]

    async def end_of_next(
        self, shards: Collection[ShardId], first: RunKey, count: int, until: datetime
    ) -> RunKey | None:
        self.ends += 1
        keys = sorted(one.key for one in self.of(shards) if first <= one.key)
        return keys[count] if len(keys) > count else None

    async def next_runs(
        self, shards: Collection[ShardId], since: datetime, end: RunKey, until: datetime
    ) -> list[LiveRun]:
        self.calls.append("next rows")
        self.between()
        ready = self.ready_by(until, shards)
        return [one for one in ready if since <= one.ready_at and one.key < end]

    async def live_runs(
        self, shards: Collection[ShardId], states: object, until: datetime
    ) -> list[LiveRun]:
        self.calls.append("rows")
        self.between()
        return self.ready_by(until, shards)

    def of(self, shards: Collection[ShardId]) -> list[LiveRun]:
        return [one for one in self.runs if one.shard in shards]

    def ready_by(self, until: datetime, shards: Collection[ShardId]) -> list[LiveRun]:
        """Runs that are RUNNING, or ready by then."""
        found = [one for one in self.of(shards) if one.key.run_id not in self.hidden]
        return [one for one in found if one.state is State.RUNNING or one.ready_at <= until]

    async def rescue(self, claim: Claim, losses: Sequence[Loss]) -> list[RunKey]:
        if self.away or self.locked & set(claim.epochs):
            raise Unavailable("PostgreSQL: no answer")
        self.losses += losses
        return [loss.key for loss in losses]

    async def part(self, claim: Claim, crowds: Sequence[OverlapCandidates]) -> OverlapOutcome:
        self.crowds += [crowd.job_id for crowd in crowds]
        return OverlapOutcome([], [])

    async def give_back(self, claim: Claim, unstarted: Sequence[Unstarted]) -> list[LiveRun]:
        self.back += [one.key for one in unstarted]
        keys = {one.key for one in unstarted}
        return [replace(run, state=State.PENDING) for run in self.runs if run.key in keys]


class Leases(WorkerLeases):
    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.ttl = 3.0
        self.named: Collection[IncarnationId] = ()

    async def liveness(self, named: Collection[IncarnationId]) -> WorkerLiveness:
        self.rows.calls.append("live workers")
        if isinstance(self.rows.live, Exception):
            raise self.rows.live
        self.named = named
        live = frozenset(self.rows.live)
        return WorkerLiveness(live, frozenset(named) - live - self.rows.missing)

    async def look_again(self) -> frozenset[IncarnationId]:
        return (await self.liveness(self.named)).gone

    def forget_missing(self) -> None:
        self.named = ()


class Definitions(DefinitionCache):
    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    async def of_runs(self, runs: Sequence[LiveRun]) -> dict[JobId, CachedDefinition]:  # type: ignore[override]  # a list is what the scan gives
        known = cached_definition(Definition(1, "default", action="shell", **self.fields))
        return {run.job_id: known for run in runs}


class Silent:
    def jobs_changed(self, changed: object) -> None: ...
    def runs_ready(self, shards: object) -> None: ...
    def runs_changed(self, runs: object) -> None: ...
    def cluster_changed(self) -> None: ...


class World:
    async def step(self) -> float:
        """Take a step of the scan, and one of the rescue."""
        pause = await self.scan.step()
        await self.rescue.step()
        return pause

    def __init__(self, *runs: LiveRun, shards: Sequence[int] = (0,), **job: Any) -> None:
        self.rows = Rows(*runs)
        self.events: list[object] = []
        self.clock = SetClock()
        self.workers = WorkerRegistry(self.clock, lambda _event: None)
        self.run_index = RunIndex(owning(*shards))
        self.leases = Leases(self.rows)
        context = owner_context(
            self.run_index,
            Definitions(**job),
            workers=self.workers,
            store=self.rows,
            clock=self.clock,
            wake_ups=Silent(),
            emit=self.events.append,
        )
        self.scan = Scan(context, OverlapEnforcer(context))
        self.rescue = Rescue(context, self.leases, self.scan)


async def test_a_run_whose_worker_has_no_key_is_lost() -> None:
    """P6.4: the list is read after the rows, so a run dispatched later is in neither."""
    alive, gone = running(1, worker(1)), running(2, worker(2))
    world = World(alive, gone)
    world.rows.live = {worker(1).id}

    await world.step()

    assert world.rows.calls[:2] == ["rows", "live workers"]
    [loss] = world.rows.losses
    assert (loss.key, loss.token, loss.incarnation) == (gone.key, gone.token, gone.incarnation)
    assert (loss.state, loss.reason) == (State.RETRYING, Reason.WORKER_LOST)


async def test_no_worker_is_lost_while_the_list_is_in_doubt() -> None:
    """P6.4: without a list read after the rows nothing is judged."""
    world = World(running(1, worker(1)))
    world.rows.live = Unavailable("etcd was restored")
    with pytest.raises(Unavailable):
        await world.step()
    assert world.rows.losses == []


async def test_deletion_watched_a_worker_whose_key_is_merely_missing_keeps_its_runs() -> None:
    """P6.4: a restore of etcd may have removed the key, and its holder will create it again."""
    world = World(running(1, worker(1)), running(2, worker(2)))
    world.rows.missing = {worker(1).id}

    await world.step()

    assert [loss.incarnation for loss in world.rows.losses] == [worker(2).id]
    assert world.rows.back == []


async def test_a_missing_worker_is_looked_up_until_it_is_lost_and_then_scanned() -> None:
    world = World(running(1, worker(1)))
    world.rows.missing = {worker(1).id}
    await world.step()
    pause = world.rescue.loops[1].interval
    assert pause < 3.0 / 3, "two looks are never further apart than a third of the TTL"

    await world.rescue.look_again()
    world.scan.look_at([ShardId(0)])
    world.rows.calls.clear()
    await world.scan.step()
    assert world.rows.calls == ["written rows"], "only the named shard was looked at"

    world.rows.missing.clear()
    await world.rescue.look_again()
    world.scan.look_at([ShardId(0)])
    await world.step()
    assert [loss.incarnation for loss in world.rows.losses] == [worker(1).id]


async def test_no_worker_is_looked_up_once_nothing_runs() -> None:
    world = World(running(1, worker(1)))
    world.rows.missing = {worker(1).id}
    await world.step()
    world.rows.runs.clear()
    world.rescue.wake()
    await world.step()
    world.rows.missing.clear()
    assert await world.leases.look_again() == frozenset()


async def test_a_run_that_a_live_worker_lacks_past_its_start_limit_is_returned() -> None:
    """P4.3: one rule for crash before push, lost frames, takeover and doubt."""
    one, run = worker(1), running(1, worker(1))
    assert run.start_by is not None
    world = World(run)
    world.rows.live = {one.id}
    attached = world.workers.attach(one, RecordingLine())
    after = run.start_by + timedelta(milliseconds=1)
    world.workers.record_heartbeat(
        attached, after, Holdings(), free=4, since_refresh=0, draining=False
    )

    await world.step()

    assert world.rows.back == [run.key]
    assert world.rows.losses == []
    assert world.events == [AssignmentsNotStarted((run.key.run_id,))]


async def test_a_scan_has_the_assignments_of_an_earlier_owner_revoked() -> None:
    """P4.8: from the rows, since no message reached this owner."""
    one, run = worker(1), running(1, worker(1))
    world, line = World(run), RecordingLine()
    world.rows.live = {one.id}
    world.workers.attach(one, line)
    world.clock.time = NOW + timedelta(seconds=1)

    await world.step()
    asking = next(loop for loop in world.rescue.loops if loop.name == "unconfirmed assignments")
    step = asyncio.create_task(cast("Any", asking.step()), name="step")
    await wait_until_async(lambda: bool(line.revoked), WAIT_TIMEOUT, "the worker to be asked")
    world.workers.revoke_answered(run.key.run_id, run.token)
    await step

    assert line.revoked == [(run.key.run_id, run.token)]
    assert world.rows.back == []


async def test_a_lost_worker_is_found_by_the_next_scan_without_a_hint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P6.5: whatever event was lost, its run waits no longer than for the next scan."""
    monkeypatch.setattr("schedd.reconcile.rescue.SCAN_EVERY", 0.02)
    world = World(running(1, worker(1)))
    world.rows.live = {worker(1).id}
    rescuing = [
        asyncio.create_task(one.run(), name=one.name)
        for one in (world.scan.loop, world.rescue.loop)
    ]
    await wait_until_async(
        lambda: "live workers" in world.rows.calls, WAIT_TIMEOUT, "the first scan"
    )

    world.rows.live = set()

    await wait_until_async(lambda: world.rows.losses, WAIT_TIMEOUT, "a scan without a request")
    for task in rescuing:
        task.cancel()
    loss = world.rows.losses[0]
    assert (loss.incarnation, loss.reason) == (worker(1).id, Reason.WORKER_LOST)


async def test_a_lost_run_waits_while_its_worker_may_still_be_killing_it() -> None:
    """P6.6: as long as its job says, or two of its attempts would run at once."""
    killing = timedelta(seconds=30)
    world = World(running(1, worker(1)), kills_on_lease_lost=True, kill_after=killing)
    await world.step()
    [loss] = world.rows.losses
    assert loss.wait > killing


async def test_a_cancelled_run_is_sent_to_its_worker_at_each_scan() -> None:
    one, line = worker(1), RecordingLine()
    run = replace(running(1, one), cancelling=True)
    world = World(run)
    world.rows.live = {one.id}
    world.workers.attach(one, line)
    await world.step()
    assert line.cancelled == [run.key.run_id]


async def test_a_run_that_must_be_killed_is_reported_at_each_scan() -> None:
    """P3.14: the member that marked it may have died before it sent that."""
    one, line = worker(1), RecordingLine()
    run = replace(running(1, one), cancelling=True, killing=True)
    world = World(run)
    world.rows.live = {one.id}
    world.workers.attach(one, line)
    await world.step()
    assert line.killed == [run.key.run_id]


async def test_a_scan_judges_overlap_without_a_free_slot() -> None:
    """P3.14: the run that will be replaced may have the last slot."""
    one = worker(1)
    held = replace(running(1, one), job_id=running(2, one).job_id)
    waits = replace(running(2, one), state=State.PENDING, token=NO_TOKEN)
    world = World(held, waits, overlap=Overlap.CANCEL_OTHER)
    world.rows.live = {one.id}
    await world.step()
    assert world.rows.crowds == [waits.job_id]


async def test_a_worker_whose_loss_wasnt_written_gets_work_when_it_returns() -> None:
    """The lease expired, and heartbeats created it again before any member wrote the worker off."""
    one = worker(1)
    world = World(running(1, one))
    world.workers.granted(world.workers.attach(one, RecordingLine()), slots=2, received=0)
    world.rows.away = True
    with pytest.raises(Unavailable):
        await world.step()
    world.rows.live = {one.id}
    await world.step()
    assert [offer.slots for offer in world.workers.offers()] == [2]


async def test_a_worker_recorded_as_lost_offers_no_slots() -> None:
    one = worker(1)
    world = World(running(1, one))
    world.workers.granted(world.workers.attach(one, RecordingLine()), slots=2, received=0)
    await world.step()
    assert not world.workers.offers()


async def test_runs_that_one_lane_rescued_continue_though_another_lane_failed() -> None:
    """Its worker is written off: sparing it for the other lane's sake would give it work again."""
    one, other = worker(1), worker(2)
    world = World(running(1, one), running(2, other, shard=1), shards=(0, 1))
    for each in (one, other):
        world.workers.granted(world.workers.attach(each, RecordingLine()), slots=2, received=0)
    world.rows.locked = {ShardId(1)}
    with pytest.raises(Unavailable):
        await world.step()
    assert [offer.id for offer in world.workers.offers()] == [other.id]
    [moved, rescued] = world.events
    assert isinstance(moved, EndedUnreported)
    assert (moved.state, moved.count) == (State.RETRYING, 1)
    assert rescued == RunsRescued((running(1, one).key.run_id,), (one.id,))


async def test_a_key_deleted_during_a_scan_starts_another_scan_at_once() -> None:
    """P6.5: events hasten it, also when a caller has named a shard meanwhile: that look is a
    smaller one.
    """
    world = World(running(1, worker(1)))
    world.rows.live = {worker(1).id}
    world.rows.between = world.rescue.wake
    pause = await world.step()
    world.scan.look_at([ShardId(0)])
    world.rows.calls.clear()
    await world.step()
    assert pause == 0.0
    assert "live workers" in world.rows.calls


async def test_a_scan_of_many_runs_yields_to_other_tasks() -> None:
    """A loop that makes no progress loses the lease: see `in_turns`."""
    world = World(*(run(n) for n in range(1, 5_001)))
    world.run_index.put_runs(world.rows.runs, NOW)
    assert await turns_during(world.step()) >= 1 + 2 * 5_000 // 200


async def test_a_new_owner_reads_the_backlog_in_parts() -> None:
    """A statement over 30,000 runs takes longer than allowed, at each try."""
    world = World(shards=range(16))
    await world.step()
    assert world.rows.calls.count("rows") == FIRST_PARTS


async def test_a_shard_that_is_gained_is_read_without_another_wake_up() -> None:
    world = World(run(1), run(2, shard=1), shards=[0])
    await world.step()
    world.run_index.ownership.gain({ShardId(1): Epoch(1)})
    while await world.step() == 0:
        pass
    assert world.run_index.all_read
    assert len(world.run_index.ready) == 2


async def test_a_run_that_moves_between_two_parts_of_a_scan_keeps_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P3.2: its job went to the shard that was read first, after the board was looked through."""
    waits, ended = run(1, shard=1), run(2, shard=1)
    world = World(shards=(0, 1))
    world.run_index.put_runs([waits, ended], NOW)
    parts: list[list[ShardId]] = []

    async def live_runs(
        shards: Sequence[ShardId], states: object, until: object, of: object = None
    ) -> list[LiveRun]:
        parts.append(list(shards))
        return [replace(waits, shard=ShardId(0))] if ShardId(0) in shards else []

    monkeypatch.setattr(world.rows, "live_runs", live_runs)
    await world.step()

    assert parts == [[0], [1]]
    assert [(one.key, one.shard) for one in world.run_index.ready] == [(waits.key, 0)]


async def test_the_backlog_since_the_last_scan_is_read_in_as_many_parts() -> None:
    world = World(shards=range(16))
    await world.step()
    world.run_index.put_runs([run(n, shard=n % 16) for n in range(3 * PART)], NOW)
    assert await read_in_full(world) >= 3


async def test_runs_that_the_run_index_doesnt_hold_are_passed_to_their_judges() -> None:
    world = World(*(run(number, due_at=NOW + timedelta(seconds=number)) for number in range(1, 8)))
    world.run_index.ready = ReadyQueue(most=1)
    passed: list[LiveRun] = []

    async def judge(runs: Sequence[LiveRun]) -> None:
        passed.extend(runs)

    world.scan.on_left(judge)
    world.clock.time = NOW + timedelta(seconds=9)
    await world.step()

    here = [one.key.run_id.number for one in world.run_index.ready]
    assert sorted([*here, *(one.key.run_id.number for one in passed)]) == [1, 2, 3, 4, 5, 6, 7]
    assert 1 in here
    assert len(here) <= 2


async def test_a_short_run_index_reads_the_next_runs_in_order_and_no_others() -> None:
    runs = backlog(98)
    world = await leaving(8, *runs)
    world.rows.calls.clear()
    started: list[LiveRun] = []
    while len(started) < 80:
        gone = world.run_index.ready.take_runs(4)
        world.rows.runs = [one for one in world.rows.runs if one not in gone]
        started += gone
        if world.run_index.ready.short:
            world.scan.refill()
            await world.step()
    assert started == runs[:80]
    assert set(world.rows.calls) == {"next rows"}


async def test_the_last_runs_of_a_backlog_are_read_by_a_scan_but_not_right_after_another() -> None:
    world = World(*(run(number) for number in range(1, 8)))
    world.run_index.ready = ReadyQueue(most=2)
    await world.step()
    world.rows.runs = [one for one in world.rows.runs if one in [*world.run_index.ready]]
    world.rows.calls.clear()
    for one in [*world.run_index.ready]:
        world.run_index.ready.discard(one.key.run_id)
    world.scan.refill()
    assert await world.step() < SCAN_EVERY / 2
    assert world.rows.calls == []
    await wait_until_async(lambda: scanned(world), WAIT_TIMEOUT, "the scan")
    assert not world.run_index.ready.leaves_some


def backlog(count: int, **changes: Any) -> list[LiveRun]:
    """So many waiting runs, each due a second after the one before, the last a second ago."""
    times = [NOW - timedelta(seconds=number) for number in range(count, 0, -1)]
    return [
        run(number, key=RunKey(at, run(number).key.run_id), due_at=at, ready_at=at, **changes)
        for number, at in enumerate(times, 1)
    ]


async def leaving(
    most: int, *runs: LiveRun, shards: Sequence[int] = (0,), there: Sequence[LiveRun] = ()
) -> World:
    """A world whose index has left some of these runs in their rows. `there`: other rows."""
    world = World(*runs, *there, shards=shards)
    world.run_index.ready = ReadyQueue(most)
    await world.step()
    assert world.run_index.ready.leaves_some
    return world


@pytest.mark.parametrize("ready_at", [NOW - timedelta(hours=1), NOW + timedelta(minutes=5)])
async def test_a_run_that_becomes_ready_while_others_are_left_in_rows_is_read_in_time(
    ready_at: datetime,
) -> None:
    """At a takeover it was further away than a scan looks. Its row doesn't change again."""
    retry = run(50, state=State.RETRYING, ready_at=ready_at, attempt=1, token=Token(3))
    world = await leaving(2, *backlog(9), there=[retry])
    assert (retry in [*world.run_index.waiting_runs()]) is (ready_at <= NOW)

    world.clock.time = max(NOW, ready_at - timedelta(seconds=1))
    await read_in_full(world)

    assert retry in [*world.run_index.waiting_runs()]
    world.rows.read.clear()
    world.clock.time += timedelta(seconds=2)
    assert await read_by_a_scan(world) == [], "it is here, and the others stay in their rows"


async def test_a_refill_that_finds_no_end_isnt_tried_again_before_a_scan_of_all_rows() -> None:
    """Late runs have early keys: none follows the first one left. Each try reads all keys."""
    world = await leaving(2, *(replace(one, ready_at=NOW) for one in backlog(9)))
    world.rows.runs = world.rows.runs[-7:]
    for one in [*world.run_index.ready]:
        world.run_index.forget(one.key.run_id, one.job_id)
    world.scan._left_at = world.scan._full_again_at = boottime() + WAIT_TIMEOUT
    for _ in range(5):  # as each step of dispatch does
        assert world.run_index.ready.short
        world.scan.refill()
        assert await world.step() > 0
    assert world.rows.ends == 1

    assert await read_in_full(world)
    for one in [*world.run_index.ready]:
        world.run_index.forget(one.key.run_id, one.job_id)
    world.scan.refill()
    await world.step()
    assert world.rows.ends == 2


async def test_a_refill_that_finds_no_new_run_isnt_followed_by_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next keys may all be of paused jobs, and each refill reads earlier ones again."""
    world = await leaving(4, *backlog(40))

    async def none(*_: object) -> list[LiveRun]:
        return []

    monkeypatch.setattr(world.rows, "next_runs", none)
    world.scan._left_at = world.scan._full_again_at = boottime() + WAIT_TIMEOUT
    for one in [*world.run_index.ready]:
        world.run_index.forget(one.key.run_id, one.job_id)
    for _ in range(5):
        assert world.run_index.ready.short
        world.scan.refill()
        await world.step()
    assert world.rows.ends == 1

    assert await read_in_full(world)
    assert len(world.run_index.ready) >= 4


async def test_a_refill_that_fails_is_followed_by_a_scan_of_all_rows() -> None:
    """Its statement may take too long, at each try: a scan reads smaller parts then."""
    world = await leaving(4, *backlog(40))
    taken = world.run_index.ready.take_runs(3)
    world.rows.runs = [one for one in world.rows.runs if one not in taken]

    def away() -> None:
        raise Unavailable("PostgreSQL: canceling statement due to statement timeout")

    world.rows.between = away
    world.scan.refill()
    with pytest.raises(Unavailable):
        await world.step()
    world.rows.between = lambda: None
    world.rows.calls.clear()
    await wait_until_async(lambda: scanned(world), WAIT_TIMEOUT, "the scan")
    assert world.rows.calls[0] == "rows"
    assert world.run_index.ready.take_runs(4) == backlog(40)[3:7]


async def test_a_refill_reads_no_run_that_became_ready_after_its_end() -> None:
    """Many retries may: they would be read with each refill."""
    retries = [run(n, state=State.RETRYING, token=Token(3)) for n in range(100, 140)]
    early = [replace(one, key=RunKey(NOW - timedelta(hours=1), one.key.run_id)) for one in retries]
    world = await leaving(4, *backlog(40), there=early)
    world.run_index.ready.take_runs(3)
    put: list[LiveRun] = []
    put_runs = world.run_index.put_runs
    world.run_index.put_runs = lambda runs, now: put.extend(runs) or put_runs(put, now)  # type: ignore[method-assign, func-returns-value, misc]
    world.scan.refill()
    await world.step()
    assert put
    assert {one.state for one in put} == {State.PENDING}


async def test_all_rows_are_read_in_as_many_parts_however_few_runs_the_index_holds() -> None:
    """Between, scans count no runs that are left in their rows."""
    many = [replace(one, shard=ShardId(n % 16)) for n, one in enumerate(backlog(4 * PART + 1))]
    world = await leaving(20, *many, shards=range(16))
    await read_by_a_scan(world)
    assert await read_in_full(world) >= 4


async def read_in_full(world: World) -> int:
    """Read all rows; return in how many parts."""
    world.rows.calls.clear()
    world.scan._full_at = world.scan._left_at = 0.0
    world.scan._scan_at = boottime() + WAIT_TIMEOUT
    await world.step()
    return world.rows.calls.count("rows")


async def scanned(world: World) -> bool:
    await world.step()
    return bool(world.rows.calls)


async def read_by_a_scan(world: World) -> list[RunId]:
    """Return the runs that a scan reads, which also compares all ids."""
    world.rows.read.clear()
    world.scan._compare_at = 0.0
    world.rescue.wake()
    await world.step()
    return sorted(world.rows.read)


async def wrongly_indexed() -> tuple[World, LiveRun]:
    """A run that waits, and since it was read stands on the board otherwise than in its row."""
    waits = run(1)
    world = World(waits)
    await world.step()
    world.run_index.put_runs([replace(waits, priority=Priority.HIGH)], NOW)
    return world, waits


async def test_an_unchanged_run_of_the_run_index_isnt_read_again() -> None:
    stays, moves, ends, runs = run(1), run(2), run(3), running(4, worker())
    world = World(stays, moves, ends, runs)
    world.rows.live = {cast("IncarnationId", runs.incarnation)}
    await world.step()
    assert await read_by_a_scan(world) == []
    assert world.leases.named == {runs.incarnation}, "each running worker is checked at each scan"

    moved, comes, known = replace(moves, token=Token(7)), run(5), run(6)
    world.rows.runs = [stays, moved, runs, comes, known]
    world.run_index.put_runs([known], NOW)
    assert await read_by_a_scan(world) == [comes.key.run_id]
    assert {one.key for one in world.run_index.ready} == {
        one.key for one in (stays, moves, comes, known)
    }


async def test_the_waiting_runs_of_a_changed_job_are_read_again() -> None:
    edited, paused, other = run(1), run(2), run(3)
    world = World(edited, paused, other)
    await world.step()
    newer = replace(edited, generation=2)
    world.rows.runs, world.rows.hidden = [newer, paused, other], {paused.key.run_id}
    world.scan.jobs_changed([edited.job_id, paused.job_id])
    assert await read_by_a_scan(world) == [edited.key.run_id, paused.key.run_id]
    assert [*world.run_index.ready] == [newer, other]


async def test_a_hint_finds_the_runs_of_a_resumed_job() -> None:
    """Its runs were missing here while it was paused, and their rows haven't changed."""
    paused, other = run(1), run(2)
    world = World(paused, other)
    world.rows.hidden = {paused.key.run_id}
    await world.step()
    assert await read_by_a_scan(world) == []
    world.rows.hidden.clear()
    world.scan.look_at([ShardId(0)])
    await world.step()
    assert {one.key for one in world.run_index.ready} == {paused.key, other.key}


async def test_many_missing_runs_are_read_at_once() -> None:
    many = [run(n) for n in range(1, PART + 100)]
    world = World()
    await world.step()
    world.rows.moments[-1] = {one.live_key for one in many}
    world.rows.runs = many
    assert await read_by_a_scan(world) == []
    await world.step()
    assert len(world.run_index.ready) == len(many)


async def test_a_run_whose_statement_was_in_doubt_is_read_though_others_are_left_in_rows() -> None:
    """Its COMMIT may have succeeded: it waits here, and runs by its row."""
    world = await leaving(2, *backlog(9))
    [first] = world.run_index.ready.take_runs(1)
    runs = replace(running(1, worker()), key=first.key, job_id=first.job_id)
    world.rows.runs[0] = runs
    world.run_index.put_runs([first], NOW)
    world.run_index.read_again([first])
    world.rows.live = {worker().id}
    assert await read_by_a_scan(world) == [first.key.run_id]
    assert world.run_index.running[first.key.run_id] == runs
    assert first.key.run_id not in world.run_index.ready


async def test_a_hint_of_a_shard_that_isnt_owned_wakes_nothing() -> None:
    world = World(run(1))
    await world.step()
    world.scan.look_at([ShardId(9)])
    assert await world.step() > 0


async def test_a_scan_that_fails_stops_no_other_read(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(run(1), run(2, shard=1), shards=[0])
    await world.step()

    async def away(*_: object) -> WrittenRuns | None:
        raise Unavailable("PostgreSQL: canceling statement due to statement timeout")

    monkeypatch.setattr(world.rows, "written_runs", away)
    monkeypatch.setattr(scan, "SCAN_EVERY", 0.0)
    world.run_index.ownership.gain({ShardId(1): Epoch(1)})
    for _ in range(4):
        with suppress(Unavailable):
            await world.step()
    assert world.run_index.all_read


async def test_a_read_of_all_rows_that_fails_stops_no_scan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A large shard may take too long at each try; lost workers must be found all the same."""
    runs = running(1, worker())
    world = World(runs)
    world.rows.live = {worker().id}
    await world.step()

    async def away(*_: object) -> list[LiveRun]:
        raise Unavailable("PostgreSQL: canceling statement due to statement timeout")

    monkeypatch.setattr(world.rows, "live_runs", away)
    world.scan._full_at = 0.0
    with pytest.raises(Unavailable):
        await world.step()
    world.rows.live = set()
    world.rescue.wake()
    await world.step()
    assert [loss.key for loss in world.rows.losses] == [runs.key]


async def test_a_waiting_run_that_ended_without_a_hint_is_forgotten() -> None:
    stays, ends = run(1), run(2)
    world = World(stays, ends)
    await world.step()
    world.rows.runs = [stays]
    assert await read_by_a_scan(world) == []
    assert [*world.run_index.ready] == [stays]


async def test_runs_that_stay_in_their_rows_arent_read_by_each_scan() -> None:
    """Such runs become ready later, or their job is paused."""
    later = run(2, ready_at=NOW + timedelta(hours=1))
    world = World(run(1), later)
    await world.step()
    assert await read_by_a_scan(world) == []


async def test_all_ids_are_compared_in_a_small_share_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(run(1))
    await world.step()
    compared = 0

    async def slowly(shards: Collection[ShardId]) -> list[LiveKey]:
        nonlocal compared
        compared += 1
        await asyncio.sleep(0.02)
        return [run(1).live_key]

    monkeypatch.setattr(world.rows, "live_keys", slowly)
    for _ in range(5):
        world.rescue.wake()
        await world.step()
    assert compared == 1


async def test_a_run_missing_in_the_run_index_is_read_though_its_row_is_unchanged() -> None:
    waits = run(1)
    world = World(waits)
    await world.step()
    world.run_index.forget(waits.key.run_id, waits.job_id)
    assert await read_by_a_scan(world) == [waits.key.run_id]
    assert [*world.run_index.ready] == [waits]


async def test_a_scan_judges_overlap_of_unchanged_runs() -> None:
    one = run(1)
    other = replace(run(2), job_id=one.job_id)
    world = World(one, other, overlap=Overlap.CANCEL_OTHER)
    await world.step()
    world.rows.crowds.clear()
    assert await read_by_a_scan(world) == []
    assert world.rows.crowds == [one.job_id]


async def test_a_full_scan_at_long_intervals_corrects_the_run_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, waits = await wrongly_indexed()
    assert await read_by_a_scan(world) == []
    assert waits not in [*world.run_index.ready]

    monkeypatch.setattr(scan, "boottime", lambda: boottime() + FULL_EVERY)
    await read_by_a_scan(world)
    await world.step()
    assert [*world.run_index.ready] == [waits]


async def test_a_failed_scan_is_followed_by_a_full_scan() -> None:
    world, waits = await wrongly_indexed()

    def away() -> None:
        raise Unavailable("PostgreSQL: no answer")

    world.rows.runs, world.rows.between = [waits, run(2)], away
    world.rescue.wake()
    with pytest.raises(Unavailable):
        await world.step()
    world.rows.between = lambda: None
    await read_by_a_scan(world)
    await world.step()
    assert waits in [*world.run_index.ready]


@pytest.mark.slow
async def test_a_failing_read_is_logged_once_however_long_it_lasts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, tries, back = World(run(1)), 0, asyncio.Event()

    def away() -> None:
        nonlocal tries
        tries += 1
        if tries <= 8:
            raise Unavailable("PostgreSQL: no answer")
        back.set()

    world.rows.between = away
    caplog.set_level(logging.INFO, "schedkit.tasks")
    task = asyncio.create_task(world.scan.loop.run())
    async with asyncio.timeout(WAIT_TIMEOUT):
        await back.wait()
    await wait_until_async(
        lambda: len(caplog.records) == 2, WAIT_TIMEOUT, "what is said of its end"
    )
    messages = [record.getMessage() for record in caplog.records]
    assert messages[0].startswith("scan: PostgreSQL: no answer; retrying in 0.")
    assert messages[1] == "scan: available again"
    task.cancel()


async def test_a_database_that_went_back_is_read_in_full() -> None:
    world, waits = await wrongly_indexed()
    world.rows.timeline = 2
    await read_by_a_scan(world)
    await world.step()
    assert [*world.run_index.ready] == [waits]


async def test_a_run_left_out_of_the_ready_queue_during_a_scan_is_known_to_be_left_out() -> None:
    old = [run(number) for number in range(1, 5)]
    world = World(*old)
    world.run_index.ready = ReadyQueue(most=2)
    await world.step()
    standing = world.run_index.standing

    def just_before_a_run_is_made(until: datetime) -> Iterator[LiveRun]:
        found = standing(until)
        newer = run(9, ready_at=NOW - timedelta(seconds=1))
        world.rows.runs = [*old, newer]
        world.run_index.put_runs([newer], NOW)
        assert world.run_index.ready.leaves_some
        return found

    world.run_index.standing = just_before_a_run_is_made  # type: ignore[method-assign]  # a moment in it
    await read_by_a_scan(world)
    here = {one.key.run_id.number for one in world.run_index.ready}
    assert here == {1, 2, 3, 4, 9} or world.run_index.ready.leaves_some


async def test_a_running_run_with_an_unchanged_row_is_looked_after_without_reading_it() -> None:
    runs = running(1, worker())
    world = World(runs)
    world.rows.live = {worker().id}
    await world.step()
    world.rows.live = set()
    await read_by_a_scan(world)
    assert world.rows.read == []
    assert [loss.key for loss in world.rows.losses] == [runs.key]


async def test_a_running_run_whose_row_has_another_token_is_read() -> None:
    row = replace(running(1, worker()), token=Token(9))
    world = World(row)
    await world.step()
    world.run_index.running.discard(row.key.run_id)
    world.run_index.dispatched(DispatchedBatch.of([replace(row, token=Token(7))]))
    await read_by_a_scan(world)
    assert world.run_index.running[row.key.run_id] == row


async def test_a_run_that_runs_only_by_the_run_index_is_read_again() -> None:
    waits = run(1, token=Token(7))
    world = World(waits)
    await world.step()
    world.run_index.dispatched(DispatchedBatch.of([running(1, worker())]))
    await read_by_a_scan(world)
    assert [*world.run_index.ready] == [waits]


async def test_new_definitions_sort_the_runs_that_were_there_before() -> None:
    number = line_id_of(("default", "shell", "", 1))
    world = World(*(run(n, line=number) for n in range(1, 6)))
    await world.step()
    [first] = world.run_index.ready.take_runs(1)
    world.run_index.ready.learn(first, Need("shell"), 0)
    world.run_index.ready.add([first], Need("shell"))
    await read_by_a_scan(world)
    assert not world.run_index.ready.heads(lambda need: need is None)


async def test_a_run_is_pre_dispatched_once_its_definition_is_cached() -> None:
    at = NOW + timedelta(seconds=10)
    world = World(run(1, due_at=at, ready_at=at))
    known: list[Need] = []
    world.run_index.lookahead = Lookahead(timedelta(seconds=30), timedelta(seconds=20))
    world.run_index._early_need_of = lambda _: known[0] if known else None
    await world.step()
    known.append(Need("shell"))
    await read_by_a_scan(world)
    assert len(world.run_index.early) == 1


async def test_a_shard_lost_and_retaken_during_its_read_is_read_in_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = run(1)
    world = World(waits)
    await world.step()
    live_runs = world.rows.live_runs

    async def meanwhile(*asked: Any) -> list[LiveRun]:
        await live_runs(*asked)
        world.run_index.ownership.drop([ShardId(0)])
        world.run_index.ownership.gain({ShardId(0): Epoch(6)})
        monkeypatch.setattr(world.rows, "live_runs", live_runs)
        return []

    monkeypatch.setattr(world.rows, "live_runs", meanwhile)
    assert await read_in_full(world) == 1
    assert not world.run_index.all_read
    await read_by_a_scan(world)
    await world.step()
    assert [*world.run_index.ready] == [waits]
