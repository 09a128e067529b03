"""What comes back unstarted, and when it may go out again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from schedd.core.lifecycle import Reason, State
from schedd.core.model import LiveRun, Loss
from schedd.core.records import Unstarted
from support.store import Member, World, draft, firing


async def one_run(world: World) -> tuple[Member, LiveRun]:
    me = await world.member()
    [run] = (await me.fire(firing(await world.job()))).runs
    return me, run


async def test_a_run_that_is_refused_again_and_again_waits_ever_longer(world: World) -> None:
    me, run = await one_run(world)
    waits: list[timedelta] = []
    for _ in range(4):
        [assigned] = await me.assigned(draft(run))
        before = datetime.now(UTC)
        await me.store.results.refuse([Unstarted(run.key, run.shard, assigned.token)])
        row = await world.run_row(run.key.run_id)
        waits.append(row["ready_at"] - before)
        assert row["state"] == "PENDING"
    assert waits == sorted(waits)
    assert waits[0] < timedelta(seconds=0.1), "the first refusal is a crossing on the way"
    assert waits[-1] > 4 * timedelta(seconds=0.02)


async def test_a_lost_run_that_its_worker_may_still_be_killing_waits_for_that(
    world: World,
) -> None:
    me, run = await one_run(world)
    [assigned] = await me.assigned(draft(run))
    assert assigned.incarnation is not None
    loss = Loss(
        run.key,
        run.shard,
        assigned.token,
        assigned.incarnation,
        State.RETRYING,
        Reason.WORKER_LOST,
        wait=timedelta(seconds=12),
    )
    before = datetime.now(UTC)

    await me.store.owner.rescue(me.claim(run.shard), [loss])

    soon = datetime.now(UTC) + timedelta(seconds=10)
    assert await me.store.owner.live_runs([run.shard], [State.RETRYING], soon) == []
    [waiting] = await me.store.owner.live_runs([run.shard], [State.RETRYING])
    assert waiting.ready_at - before > timedelta(seconds=11)
