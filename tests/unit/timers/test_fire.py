"""Firing: what follows a refusal, a COMMIT in doubt and the end of trust (P1.4, P3.4, P7.3)."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

import pytest

from schedd.core.cluster.statistics import LATE, Behind
from schedd.core.dispatch.batch_size import LEAST, MOMENT
from schedd.core.ids import Id, JobId
from schedd.core.jobs.definition import CatchUp, CatchUpPolicy
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import Timer
from schedd.core.schedule.calendars.exclusion import Exclusion
from schedd.core.schedule.work_budget import OF_OWNER, spend
from schedd.core.timers.cluster_pauses import Pause, Pauses
from schedd.core.timers.pre_dispatch import Lookahead
from schedd.runtime.definition_texts import CachedDefinition
from schedd.timers.fire import BATCH, CHECK, ENOUGH, RESTS
from schedkit.errors import OutcomeUnknown, Unavailable
from support.firing import JOB, TIMER, Herd, Rows, World
from support.loop_turns import turns_during
from support.runs import NOW


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
    assert len(world.run_index.ready) == 1


async def test_runs_are_created_at_their_lookahead_and_wait_until_due() -> None:
    rows = Rows(TIMER._replace(due_at=NOW + timedelta(seconds=3), nominal=NOW))
    world = World(rows, ahead=Lookahead(timedelta(seconds=2)))
    notified: list[bool] = []
    world.fire.on_ready(lambda: notified.append(True))
    await world.step()
    assert await world.step() == pytest.approx(1.0)
    world.clock.time += timedelta(seconds=0.999)
    await world.step()
    assert rows.fired == []

    world.clock.time += timedelta(seconds=0.001)
    await world.step()

    [made] = rows.fired
    assert made.due_at == NOW + timedelta(seconds=3)
    assert (len(world.run_index.ready), len(world.run_index.waiting)) == (0, 1)
    assert notified, "it may have to be pre-dispatched at once"
    due = rows.timer.due_at
    assert due is not None
    assert world.run_index.timers.next_at() == due - timedelta(seconds=2)


async def test_a_run_that_a_calendar_may_still_exclude_is_created_when_due() -> None:
    rows = Rows(TIMER._replace(due_at=NOW + timedelta(seconds=1), nominal=NOW))
    world = World(rows, ahead=Lookahead(timedelta(seconds=2)))
    world.definitions.exclusion = Exclusion(())
    await world.step()
    assert await world.step() == pytest.approx(1.0)
    assert rows.calls.count("fire") == 0
    world.clock.time += timedelta(seconds=1)
    await world.step()
    assert rows.calls.count("fire") == 1


async def test_a_commit_in_doubt_is_followed_by_a_read_of_the_rows() -> None:
    """P1.4: it did stand, so nothing is fired again, and the scan finds the run."""
    rows = Rows(fails=[OutcomeUnknown("no answer to COMMIT")])
    world = World(rows)

    with pytest.raises(Unavailable):
        await world.step()
    assert len(world.run_index.ready) == 0
    await world.step()

    assert rows.calls == ["load", "fire", "reread"]
    assert world.run_index.timers.next_at() == NOW + timedelta(seconds=5)


async def test_a_timer_whose_commit_is_in_doubt_is_behind_until_its_row_is_read() -> None:
    rows = Rows(fails=[OutcomeUnknown("no answer to COMMIT")])
    world = World(rows)
    assert world.fire.behind() == Behind()

    with pytest.raises(Unavailable):
        await world.step()
    world.clock.time += timedelta(seconds=9)
    assert world.fire.behind() == Behind(1, timedelta(seconds=9)), "its row says what happened"
    await world.step()
    assert world.fire.behind() == Behind()


async def test_a_job_begins_to_catch_up_with_its_first_created_run() -> None:
    trusted = [False]
    world = World(Rows(), trusted=lambda: trusted[0])
    world.definitions.catch_up = CatchUp(CatchUpPolicy.ALL, timedelta(days=1))
    world.clock.time += timedelta(hours=6)
    with pytest.raises(Unavailable, match="lease in etcd may have expired"):
        await world.step()
    assert not world.run_index.timers.has_begun(JOB)

    trusted[0] = True
    await world.step()
    assert world.run_index.timers.has_begun(JOB)
    for _ in range(30):
        await world.step()
    assert not world.run_index.timers.has_begun(JOB), "nothing of it is late any more"


async def test_a_timer_whose_batch_is_under_way_or_was_put_back_is_behind() -> None:
    world = World(Rows(), trusted=False)
    world.clock.time += timedelta(seconds=60)
    seen: list[Behind] = []
    read = world.definitions.newest

    async def newest(jobs: Collection[JobId]) -> dict[JobId, CachedDefinition]:
        seen.append(world.fire.behind())
        return await read(jobs)

    world.definitions.newest = newest  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="lease in etcd may have expired"):
        await world.step()

    minute = Behind(1, timedelta(minutes=1))
    assert seen[-1] == minute, "asked while it hangs"
    assert world.fire.behind() == minute
    world.cluster_pause.pauses = Pauses(1, (Pause(NOW, "ops"),))
    assert world.fire.behind() == Behind(), "who pauses wants it so"


async def test_a_timer_due_just_now_isnt_behind() -> None:
    world = World(Rows(), trusted=False)
    world.clock.time += LATE
    with pytest.raises(Unavailable, match="lease in etcd may have expired"):
        await world.step()
    assert world.fire.behind() == Behind()
    world.clock.time += timedelta(milliseconds=1)
    assert world.fire.behind().timers == 1


async def test_nothing_is_written_once_trust_has_passed() -> None:
    """P1.7: the read before took its time, and another may own the shard by now."""
    rows = Rows()

    with pytest.raises(Unavailable, match="lease in etcd may have expired"):
        await World(rows, trusted=False).step()

    assert "fire" not in rows.calls


async def test_a_step_that_needs_too_much_work_is_tried_once_an_hour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A try takes the owner's only thread for a minute of work."""
    tries: list[object] = []

    def endless(timer: Timer, *_: object) -> None:
        tries.append(timer)
        spend(OF_OWNER + 1)

    monkeypatch.setattr("schedd.timers.fire.firing_of", endless)
    rows = Rows()
    world = World(rows)

    async def both() -> None:
        await world.step()
        await world.fire.plans.step()

    await both()
    assert len(tries) == 2, "on the loop, then in the thread"
    for _ in range(10):
        world.clock.time += timedelta(minutes=5)
        await both()
    assert len(tries) == 2
    world.clock.time += timedelta(minutes=10)
    await both()
    assert len(tries) == 4
    assert rows.fired == []


async def test_a_paused_cluster_reads_nothing_from_the_database() -> None:
    rows = Rows()
    world = World(rows)
    world.cluster_pause.pauses = Pauses(1, (Pause(NOW, "ops"),))

    assert await world.step() > 0

    assert rows.calls == []


async def test_timers_changed_in_a_pause_are_loaded_only_at_its_end() -> None:
    """A million jobs may be imported meanwhile; no statement could read them at once."""
    rows = Rows()
    world = World(rows)
    world.cluster_pause.pauses = Pauses(1, (Pause(NOW, "ops"),))
    world.fire.changed([JOB])
    await world.step()

    world.cluster_pause.pauses = Pauses(2, (Pause(NOW, "ops", ended=NOW),))
    world.near.reload()
    await world.step()

    assert rows.calls[0] == "load"
    assert "reread" not in rows.calls


async def test_an_owner_that_missed_a_pause_is_rejected_and_reads_it() -> None:
    """P3: the row judges; the member then reads the pauses, and accounts for what fell due."""
    rows = Rows(switched=2)
    world = World(rows)
    looked: list[bool] = []
    world.cluster_pause.read_soon = lambda: looked.append(True)  # type: ignore[method-assign]  # a spy

    await world.step()
    assert looked == [True]

    began = NOW - timedelta(seconds=1)
    world.cluster_pause.pauses = Pauses(2, (Pause(began, "ops", ended=NOW + timedelta(seconds=3)),))
    await world.step()
    world.clock.time += timedelta(seconds=1)
    await world.step()
    assert rows.timer.due_at == NOW + timedelta(seconds=5)
    assert rows.fired[0].state is State.SKIPPED


async def test_the_batch_size_follows_the_time_of_a_batch() -> None:
    """A timer that falls due meanwhile waits for all of it."""
    rows = Herd(count=3_000, each=0.001)
    world = World(rows)

    for _ in range(24):
        rows.seconds += await world.step()

    assert max(rows.batches) * rows.each <= 1.1 * MOMENT
    assert rows.batches[-1] * rows.each >= 0.9 * MOMENT


async def test_firing_rests_while_enough_runs_are_ready_except_for_urgent_timers() -> None:
    """Fired runs wait for a worker anyway, and urgent ones find less before them."""
    rows, urgent = Herd(count=3_000, each=0.001), JobId(Id.from_int(2**64))
    rows.due[urgent] = TIMER._replace(job_id=urgent, due_at=NOW + timedelta(seconds=1))
    world = World(rows, urgent=[urgent])
    world.clock.time = NOW - timedelta(seconds=3)
    await world.step()
    world.clock.time = NOW
    while not (check := await world.step()):
        assert len(world.run_index.ready) < ENOUGH + BATCH

    batches = [*rows.batches]
    assert len(world.run_index.ready) >= ENOUGH
    assert check <= CHECK
    rows.seconds += 0.9 * RESTS * batches[-1] * rows.each
    assert await world.fire.step() <= CHECK, "whatever wakes it"
    assert rows.batches == batches
    world.clock.time = NOW + timedelta(seconds=1)
    assert await world.fire.step() == 0.0
    assert urgent not in rows.due
    assert rows.batches == [*batches, 1]
    rows.seconds += 0.2 * RESTS * batches[-1] * rows.each
    assert await world.fire.step() == 0.0
    assert rows.batches[-1] >= LEAST, "and continues"


async def test_firing_continues_as_soon_as_few_runs_are_ready() -> None:
    """Else workers have nothing to do while timers are due."""
    rows = Herd(count=3_000, each=0.001)
    world = World(rows)
    while not await world.step():
        pass
    batches = [*rows.batches]

    world.placeable = lambda: ENOUGH - 1

    assert await world.fire.step() == 0.0
    assert len(rows.batches) == len(batches) + 1


@pytest.mark.slow
async def test_firing_continues_with_any_number_of_ready_runs() -> None:
    """Nothing may stand behind what waits for workers that never come."""
    rows = Herd(count=20 * ENOUGH, each=0.001)
    world = World(rows)

    rests, began = [], 0.0
    while rows.due:
        if not (check := await world.step()):
            rests.append(rows.seconds - began)
            began = rows.seconds
        rows.seconds += check

    assert max(rests) == pytest.approx((1 + RESTS) * MOMENT, rel=0.1)


@pytest.mark.slow
async def test_firing_doesnt_rest_for_runs_that_no_worker_can_do() -> None:
    """Else others would be fired late, as if their owner had been away, for a pool that is gone."""
    rows = Herd(count=6 * ENOUGH, each=0.001)
    world = World(rows)
    world.placeable = lambda: 0

    while rows.due:
        assert await world.step() == 0.0


async def test_a_load_and_a_batch_of_many_timers_yield_to_other_tasks() -> None:
    """A loop that makes no progress loses the lease, and a busy machine makes 20 ms a second."""
    world = World(Herd(count=10 * BATCH))
    assert await turns_during(world.step()) >= 10 + LEAST // 50


@pytest.mark.parametrize(
    ("max_runs", "fired", "made", "continues"),
    [(0, 0, 1, True), (5, 3, 1, True), (5, 4, 1, False), (5, 5, 0, False), (5, 9, 0, False)],
)
async def test_a_schedule_makes_no_more_runs_than_it_may(
    max_runs: int, fired: int, made: int, continues: bool
) -> None:
    """P3.15."""
    rows = Rows(TIMER._replace(fired=fired))
    world = World(rows)
    world.definitions.max_runs = max_runs

    await world.step()

    assert len(rows.fired) == made
    assert rows.timer.fired == fired + (made if max_runs else 0)
    assert rows.timer.nominal is not None, "where it continues if a run is skipped"
    assert (rows.timer.due_at is not None) == continues
