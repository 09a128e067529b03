"""Plain successes in batches (P5.2): the short form of accepting results."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection

from schedd.core.dispatch.successes import EPOCH, Success, Successes
from schedd.core.ids import IncarnationId, RunId, ShardId, Token, new_id
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import LiveRun, Verdict
from schedd.store.jobs import jobs
from schedd.store.results import accept_successes
from schedkit.outcome_digest import outcome_digest
from support.store import (
    START,
    STARTED,
    Member,
    World,
    draft,
    firing,
    job_record,
    ok,
    report,
    successes,
    wait_for_waiter,
)


async def running(world: World, me: Member, *, at: datetime = START, **changes) -> LiveRun:
    """Return a dispatched run of a job of its own."""
    [run] = (await me.fire(firing(await world.job(due=at)))).runs
    [assigned] = await me.assigned(draft(run, **changes))
    return assigned


async def states(world: World, runs: Sequence[LiveRun]) -> list[str]:
    return [(await world.run_row(run.key.run_id))["state"] for run in runs]


async def test_a_batch_of_successes_ends_its_runs(world: World) -> None:
    me = await world.member()
    runs = [await running(world, me) for _ in range(5)]
    await world.sql("UPDATE runs SET error = 'old', exit_code = 3, reason = 'SIGNAL'")

    assert await me.store.results.accept_successes(successes(runs)) == []

    for number, run in enumerate(runs):
        row = await world.run_row(run.key.run_id)
        assert (row["state"], row["reason"], row["error"]) == ("SUCCEEDED", None, "")
        assert (row["exit_code"], row["digest"], row["attempt"]) == (None, None, 1)
        started = EPOCH + timedelta(microseconds=STARTED + number)
        assert (row["started_at"], row["finished_at"]) == (started, started + timedelta(seconds=1))
        assert not await world.is_live(run.key.run_id)


@pytest.mark.parametrize(
    "wrong", ["token", "sender", "scheduled", "state", "cancelling", "run", "ended"]
)
async def test_a_row_that_isnt_as_expected_is_left_out_of_its_successes(
    world: World, wrong: str
) -> None:
    me = await world.member()
    runs = [await running(world, me) for _ in range(5)]
    sent = successes(runs)
    match wrong:
        case "token":
            sent.tokens[2] = Token(runs[2].token - 1)
        case "sender":
            sent.senders[2] = IncarnationId(new_id())
        case "scheduled":
            sent.scheduled[2] += 1
        case "run":
            sent.run_ids[2] = RunId(new_id())
        case "state":
            await me.store.results.accept([report(runs[2], state=State.RETRYING, retry_at=START)])
        case "cancelling":
            await me.store.users.cancel_run(runs[2].key.run_id, ok("cancel"))
        case "ended":
            assert await me.store.results.accept_successes(successes(runs[2:3])) == []
    before = await world.run_row(runs[2].key.run_id)

    [left] = await me.store.results.accept_successes(sent)

    assert left == sent[2]
    assert await world.run_row(runs[2].key.run_id) == before
    others = [*runs[:2], *runs[3:]]
    assert await states(world, others) == ["SUCCEEDED"] * 4
    assert not any([await world.is_live(run.key.run_id) for run in others])
    assert await world.is_live(runs[2].key.run_id) is (wrong != "ended")


async def test_a_batch_without_a_right_row_writes_nothing(world: World) -> None:
    me = await world.member()
    runs = [await running(world, me) for _ in range(3)]
    sent = successes(runs, tokens=[Token(1)] * 3)
    assert await me.store.results.accept_successes(sent) == [*sent]
    assert await states(world, runs) == ["RUNNING"] * 3


async def test_runs_of_two_days_end_in_one_successes(world: World) -> None:
    me = await world.member()
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    times = [midnight - timedelta(seconds=1), midnight - timedelta(microseconds=1), midnight]
    runs = [await running(world, me, at=at) for at in [*times, START]]
    places = await world.sql("SELECT DISTINCT tableoid::regclass::text FROM runs")
    assert len(places) == 3, places

    assert await me.store.results.accept_successes(successes(runs)) == []

    assert await states(world, runs) == ["SUCCEEDED"] * 4
    assert not any([await world.is_live(run.key.run_id) for run in runs])


async def test_a_batch_accepted_by_two_members_at_once_ends_each_run_once(world: World) -> None:
    me = await world.member()
    other = await world.member(take=False)
    runs = [await running(world, me) for _ in range(40)]
    one, two = await asyncio.gather(
        me.store.results.accept_successes(successes(runs)),
        other.store.results.accept_successes(successes(runs[::-1])),
    )
    assert {len(one), len(two)} == {0, 40}
    assert await states(world, runs) == ["SUCCEEDED"] * 40


async def test_a_batch_waits_for_a_locked_row_and_ends_its_present_version(world: World) -> None:
    """The row's position has changed meanwhile. Rows behind it aren't locked yet (P1.6)."""
    me = await world.member()
    runs = [await running(world, me) for _ in range(4)]
    runs.sort(key=lambda run: (run.key.scheduled_at, run.key.run_id))
    held = asyncio.Event()
    loop = asyncio.get_running_loop()

    def write_the_first(connection: Connection) -> None:
        one, *behind = [(run.key.scheduled_at, run.key.run_id) for run in runs]
        find = "WHERE scheduled_at = %s AND run_id = %s"
        connection.exec_driver_sql(f"UPDATE runs SET start_by = now() {find}", one)
        loop.call_soon_threadsafe(held.set)
        wait_for_waiter(connection)
        for each in behind:
            connection.exec_driver_sql(f"SELECT 1 FROM runs {find} FOR UPDATE NOWAIT", each).one()

    holding = asyncio.create_task(me.store.database.call(write_the_first), name="hold")
    await held.wait()
    shuffled = [runs[2], runs[3], runs[1], runs[0]]
    assert await me.store.results.accept_successes(successes(shuffled)) == []
    await holding
    assert await states(world, runs) == ["SUCCEEDED"] * 4


async def test_a_success_that_waits_for_the_move_of_its_job_leaves_no_live_row(
    world: World,
) -> None:
    me = await world.member()
    run = await running(world, me)
    held, loop = asyncio.Event(), asyncio.get_running_loop()

    def move(connection: Connection) -> None:
        lock = "SELECT 1 FROM shards WHERE id IN (%s, 7) ORDER BY id FOR NO KEY UPDATE"
        connection.exec_driver_sql(lock, (run.shard,))
        jobs.move(connection, run.job_id, ShardId(7))
        loop.call_soon_threadsafe(held.set)
        wait_for_waiter(connection)

    moving = asyncio.create_task(me.store.database.call(move), name="move")
    await held.wait()
    assert await me.store.results.accept_successes(successes([run])) == []
    await moving
    assert await states(world, [run]) == ["SUCCEEDED"]
    assert await world.sql("SELECT shard FROM live") == []


async def test_a_cancel_that_a_batch_waits_for_is_seen(world: World) -> None:
    me = await world.member()
    runs = [await running(world, me) for _ in range(2)]
    held = asyncio.Event()
    loop = asyncio.get_running_loop()

    def cancel(connection: Connection) -> None:
        connection.exec_driver_sql(
            "UPDATE runs SET cancelling = true WHERE run_id = %s", (runs[0].key.run_id,)
        )
        loop.call_soon_threadsafe(held.set)
        wait_for_waiter(connection)

    cancelling = asyncio.create_task(me.store.database.call(cancel), name="cancel")
    await held.wait()
    sent = successes(runs)
    assert await me.store.results.accept_successes(sent) == [sent[0]]
    await cancelling
    assert await states(world, runs) == ["RUNNING", "SUCCEEDED"]


async def test_a_batch_that_raises_is_bisected_and_the_broken_one_is_returned(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = await world.member()
    runs = [await running(world, me) for _ in range(5)]
    real = accept_successes.accept_successes

    def fails(connection: Connection, some: Successes) -> list[Success]:
        left = real(connection, some)
        if runs[3].key.run_id in some.run_ids:
            raise ValueError("broken")
        return left

    monkeypatch.setattr(accept_successes, "accept_successes", fails)
    sent = successes(runs)
    assert await me.store.results.accept_successes(sent) == [sent[3]]
    assert await states(world, runs) == ["SUCCEEDED"] * 3 + ["RUNNING", "SUCCEEDED"]


def digest(run: LiveRun) -> bytes:
    return outcome_digest(str(run.key.run_id), run.token)


async def test_a_repeated_plain_success_is_recognised_without_a_stored_digest(
    world: World,
) -> None:
    """P5.2: in a batch, and as a single result of an older worker. Another outcome is stale."""
    me = await world.member()
    [one, other] = runs = [await running(world, me) for _ in range(2)]
    accept = me.store.results.accept
    assert await me.store.results.accept_successes(successes(runs)) == []
    before = await world.run_row(one.key.run_id)

    assert await accept([report(one, digest=digest(one))]) == [Verdict.REPEATED]
    assert await accept([report(one, digest=digest(other))]) == [Verdict.STALE]
    assert await accept([report(one, digest=b"", state=State.FAILED)]) == [Verdict.STALE]
    forged = report(one, digest=digest(one), sender=IncarnationId(new_id()))
    assert await accept([forged]) == [Verdict.STALE]
    later = Token(one.token + 1)
    next_ = report(one, token=later, digest=outcome_digest(str(one.key.run_id), later))
    assert await accept([next_]) == [Verdict.STALE]

    assert await world.run_row(one.key.run_id) == before


async def test_a_row_without_a_digest_repeats_nothing_in_another_state(world: World) -> None:
    me = await world.member()
    run = await running(world, me)
    await world.sql(
        "UPDATE runs SET state = 'CANCELLED' WHERE run_id = %s RETURNING 1", run.key.run_id
    )
    verdicts = await me.store.results.accept([report(run, digest=digest(run))])
    assert verdicts == [Verdict.STALE]


async def test_a_plain_success_after_a_single_result_is_decided_by_its_digest(
    world: World,
) -> None:
    """The worker sends each spooled result again, in a batch perhaps."""
    me = await world.member()
    same, another = [await running(world, me) for _ in range(2)]
    await me.store.results.accept([report(same, digest=digest(same)), report(another)])
    sent = successes([same, another])
    assert await me.store.results.accept_successes(sent) == [*sent]
    verdicts = await me.store.results.accept(
        [report(run, digest=digest(run)) for run in (same, another)]
    )
    assert verdicts == [Verdict.REPEATED, Verdict.STALE]


async def test_the_end_of_a_chains_parent_in_a_batch_arrives_at_its_children(
    world: World,
) -> None:
    """P5.3"""
    me = await world.member()
    parent = await world.job(name="a")
    child = job_record(due=None, name="b")
    child = replace(child, definition=replace(child.definition, after=("a",)))
    await me.store.users.create_job(child, None, ok("create"))
    [run] = (await me.fire(firing(parent))).runs
    runs = [*await me.assigned(draft(run)), await running(world, me)]

    assert await me.store.results.accept_successes(successes(runs)) == []

    arrived = await world.sql("SELECT child, parent, run_id, state FROM chain_arrivals")
    ids = (child.definition.job_id, parent.definition.job_id, run.key.run_id)
    assert arrived == [(*ids, "SUCCEEDED")]


async def test_a_batch_of_an_unknown_outcome_is_left_out_when_it_is_tried_again(
    world: World,
) -> None:
    """Results that the first COMMIT stored are recognised, and nothing is written twice."""
    me = await world.member()
    runs = [await running(world, me) for _ in range(3)]
    sent = successes(runs)
    assert await me.store.results.accept_successes(sent) == []
    rows = [await world.run_row(run.key.run_id) for run in runs]
    assert await me.store.results.accept_successes(sent) == [*sent]
    assert [await world.run_row(run.key.run_id) for run in runs] == rows
