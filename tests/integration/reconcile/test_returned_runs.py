"""Runs given back unstarted, and when they may be dispatched again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import LiveRun, Loss
from schedd.core.runs.records import Unstarted
from support.store import Member, World, draft, firing

WITNESS = """
CREATE TABLE waits (n int GENERATED ALWAYS AS IDENTITY, wait interval);
CREATE FUNCTION witness() RETURNS trigger LANGUAGE plpgsql AS '
    BEGIN
        INSERT INTO waits (wait) VALUES (NEW.ready_at - statement_timestamp());
        RETURN NULL;
    END';
CREATE TRIGGER witness AFTER UPDATE ON runs FOR EACH ROW WHEN (NEW.ready_at <> OLD.ready_at)
    EXECUTE FUNCTION witness();
"""
"""Writes down how long a run has to wait, by the clock that will judge it."""


async def one_run(world: World) -> tuple[Member, LiveRun]:
    me = await world.member()
    [run] = (await me.fire(firing(await world.job()))).runs
    return me, run


async def test_a_run_waits_longer_after_each_refusal(world: World) -> None:
    me, run = await one_run(world)
    await world.sql(WITNESS)
    for _ in range(4):
        [assigned] = await me.assigned(draft(run))
        await me.store.results.refuse([Unstarted(run.key, run.shard, assigned.token)])
        assert (await world.run_row(run.key.run_id))["state"] == "PENDING"
    waits = [wait for (wait,) in await world.sql("SELECT wait FROM waits ORDER BY n")]
    assert len(waits) == 4
    assert waits == sorted(set(waits))
    assert waits[0] < timedelta(seconds=0.1), "the first refusal is a crossing on the way"
    assert waits[-1] > 4 * timedelta(seconds=0.02)


async def test_a_lost_run_that_its_worker_may_still_be_killing_waits_for_that(
    world: World,
) -> None:
    """P6.6: else two of its attempts would run at once."""
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
