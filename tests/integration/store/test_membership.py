"""Tenures, terms and shards (P2.5): who may take, and what ends a right."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import UTC, datetime

import pytest
from sqlalchemy import Connection

from schedd.core.ids import Epoch, ShardId, TenureId, Term, Timeline, new_id
from schedd.core.runs.model import Tenure
from schedd.store.cluster import membership
from support.store import START, World, firing
from support.wait import WAIT_TIMEOUT, wait_until_async

HEAD_START = 1704067200


async def test_a_taken_shard_has_its_owner_timeline_and_an_epoch_past_the_clocks_floor(
    world: World,
) -> None:
    """P2.7: past whatever a database that is restored from a backup may count to."""
    me = await world.member(take=False)

    taken = await me.take()

    assert len(taken) == 256
    rows = await me.store.membership.read_shards()
    assert {row.id: row.epoch for row in rows} == taken
    assert {(row.owner, row.timeline) for row in rows} == {(me.tenure, me.timeline)}
    assert min(taken.values()) > time.time() - HEAD_START - 60


async def test_epochs_grow_by_at_least_one_where_the_clock_is_behind(world: World) -> None:
    """P2.7: a clock that went back makes no epoch repeat."""
    me = await world.member(take=False)
    await world.sql("UPDATE shards SET epoch = %s WHERE id = 3", 2**31)

    assert (await me.take(3))[ShardId(3)] == 2**31 + 1


async def test_a_second_takeover_by_the_same_owner_raises_the_epoch_too(world: World) -> None:
    """P2.7: its own batches of before are void then."""
    me = await world.member()
    before = me.epochs[ShardId(0)]

    assert (await me.take(0))[ShardId(0)] > before


async def test_one_of_two_takers_succeeds(world: World) -> None:
    one = await world.member(take=False)
    two = await world.member(take=False)
    seen = {row.id: row.epoch for row in await one.store.membership.read_shards()}

    first, second = await asyncio.gather(
        *(
            each.store.membership.take_shards(each.tenure, each.timeline, seen)
            for each in (one, two)
        )
    )

    assert not first.keys() & second.keys()
    assert first.keys() | second.keys() == seen.keys()


async def test_a_shard_is_taken_at_the_epoch_that_was_seen_or_not_at_all(world: World) -> None:
    """P2.5: the compare-and-set is needed; the member's row may have been taken again meanwhile."""
    me = await world.member()
    seen = dict(me.epochs)
    await me.take(0)

    again = await me.store.membership.take_shards(me.tenure, me.timeline, seen)

    assert ShardId(0) not in again
    assert len(again) == 255


async def test_shards_of_a_live_owner_cannot_be_taken_but_those_of_a_fenced_one(
    world: World,
) -> None:
    """P2.5: whatever a map says."""
    me = await world.member()
    other = await world.member(take=False)

    assert await other.take() == {}
    await me.store.membership.fence_own(me.tenure)
    assert len(await other.take()) == 256


async def test_a_released_shard_is_free(world: World) -> None:
    me = await world.member()
    other = await world.member(take=False)

    await me.store.membership.release(me.claim(1, 2))

    assert set(await other.take()) == {1, 2}


async def test_a_release_frees_only_the_shards_that_are_still_its_own(world: World) -> None:
    me = await world.member()
    old = me.claim(1)
    await me.take(1)

    await me.store.membership.release(old)

    [row] = [row for row in await me.store.membership.read_shards() if row.id == 1]
    assert row.owner == me.tenure


async def test_a_release_waits_for_the_owners_batch_in_flight(world: World) -> None:
    me = await world.member()
    held, through = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    ended: list[str] = []

    def batch(connection: Connection) -> None:
        from schedd.store.cluster.fence import lock_shards

        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        lock_shards(connection, me.claim(0))
        loop.call_soon_threadsafe(held.set)
        through.wait(WAIT_TIMEOUT)
        ended.append("batch")

    flying = asyncio.create_task(me.store.database.on_lane([0], batch), name="batch")
    await held.wait()
    releasing = asyncio.create_task(me.store.membership.release(me.claim(0)), name="release")
    await wait_until_async(lambda: blocked(world), WAIT_TIMEOUT, "the release to wait")
    through.set()
    await releasing
    ended.append("release")
    await flying

    assert ended == ["batch", "release"]


async def test_a_fenced_tenure_takes_no_shards(world: World) -> None:
    """P2.5: it may not know yet, and its map may still name it."""
    me = await world.member(take=False)
    await me.store.membership.fence_own(me.tenure)

    assert await me.take() == {}
    assert await me.store.membership.unfenced_tenures() == []


async def test_no_shard_is_taken_under_another_timeline_than_that_of_the_server(
    world: World,
) -> None:
    """P2.6: who took for the old timeline would hold claims that no batch could use."""
    me = await world.member(take=False)
    me.timeline = Timeline(me.timeline + 1)

    assert await me.take() == {}


async def test_each_takeover_is_in_the_shard_log(world: World) -> None:
    me = await world.member(take=False)
    first = await me.take(7)
    second = await me.take(7)

    rows = await world.sql("SELECT shard, epoch, tenure FROM shard_log ORDER BY seq")
    assert rows == [
        (7, first[ShardId(7)], me.tenure),
        (7, second[ShardId(7)], me.tenure),
    ]


async def test_a_term_is_raised_only_by_a_member_that_saw_its_value(world: World) -> None:
    """P2.2: of two who read the same term one leads. P2.7: it grows past the clock's floor."""
    one, two = await world.member(take=False), await world.member(take=False)
    seen = await one.store.membership.read_term()

    term = await one.store.membership.raise_term(seen, one.tenure)
    late = await two.store.membership.raise_term(seen, two.tenure)

    assert term is not None
    assert term > time.time() - HEAD_START - 60
    assert late is None
    assert await two.store.membership.read_term() == term
    next_term = await two.store.membership.raise_term(term, two.tenure)
    assert next_term is not None
    assert next_term > term


async def test_a_leader_whose_term_has_ended_fences_no_member(world: World) -> None:
    """P2.2: who lives is its successor's to say."""
    me, leader = await world.member(), await world.member(take=False)
    term = await leader.store.membership.raise_term(Term(0), leader.tenure)
    assert term is not None

    assert not await leader.store.membership.fence([me.tenure], Term(term - 1))
    assert len(await leader.store.membership.unfenced_tenures()) == 2
    assert await leader.store.membership.fence([me.tenure], term)
    assert [t.id for t in await leader.store.membership.unfenced_tenures()] == [leader.tenure]


async def test_fencing_twice_keeps_the_first_instant(world: World) -> None:
    me = await world.member()
    await me.store.membership.fence_own(me.tenure)
    first = await world.sql("SELECT fenced_at FROM tenures")
    await me.store.membership.fence_own(me.tenure)

    assert await world.sql("SELECT fenced_at FROM tenures") == first


async def test_a_takeover_succeeds_while_the_fenced_owner_sleeps_in_a_transaction(
    world: World,
) -> None:
    """P2.4: it would sleep for 30 s, and none of its own timeouts would end it."""
    sleeper = await world.member()
    taker = await world.member(take=False)
    asleep, woken = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def sleep_inside(connection: Connection) -> None:
        from schedd.store.cluster.fence import lock_shards

        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        lock_shards(connection, sleeper.claim(0, 2))
        loop.call_soon_threadsafe(asleep.set)
        woken.wait(30)

    sleeping = asyncio.create_task(sleeper.store.database.on_lane([0], sleep_inside), name="s")
    await asleep.wait()
    await taker.store.membership.fence_own(sleeper.tenure)
    started = time.monotonic()

    taken = await taker.take()

    assert len(taken) == 256
    assert 0.4 < time.monotonic() - started < 10
    woken.set()
    [outcome] = await asyncio.gather(sleeping, return_exceptions=True)
    assert isinstance(outcome, Exception)


async def test_the_fencer_ends_no_backend_of_another_tenure(world: World) -> None:
    """P2.4: a live member that is merely slow is waited for."""
    holder = await world.member()
    fencer = await world.member(take=False)
    term = await fencer.store.membership.raise_term(Term(0), fencer.tenure)
    assert term is not None
    victim = await world.member(take=False)
    holding, woken = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def hold(connection: Connection) -> str:
        connection.exec_driver_sql(
            "SELECT 1 FROM tenures WHERE id = %s FOR UPDATE", (victim.tenure,)
        )
        loop.call_soon_threadsafe(holding.set)
        woken.wait(30)
        return "alive"

    held = asyncio.create_task(holder.store.database.call(hold), name="hold")
    await holding.wait()
    fencing = asyncio.create_task(
        fencer.store.membership.fence([victim.tenure], term), name="fence"
    )
    await wait_until_async(lambda: blocked(world), WAIT_TIMEOUT, "the fence to wait")
    done, _ = await asyncio.wait([fencing], timeout=1.2)
    assert not done
    woken.set()

    assert await held == "alive"
    assert await fencing


async def test_the_fencer_gets_past_a_member_that_sleeps_on_its_own_tenure(world: World) -> None:
    """P2.4: as in the middle of a taking, which holds the tenure's row."""
    sleeper, fencer = await world.member(take=False), await world.member(take=False)
    term = await fencer.store.membership.raise_term(Term(0), fencer.tenure)
    assert term is not None
    asleep, woken = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def sleep_inside(connection: Connection) -> None:
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        seen = {ShardId(0): Epoch(0)}
        membership.take_shards(connection, sleeper.tenure, sleeper.timeline, seen)
        loop.call_soon_threadsafe(asleep.set)
        woken.wait(30)

    sleeping = asyncio.create_task(sleeper.store.database.call(sleep_inside), name="sleeping")
    await asleep.wait()
    started = time.monotonic()

    assert await fencer.store.membership.fence([sleeper.tenure], term)

    assert 0.4 < time.monotonic() - started < 10, "the sleeper has no timeout, and sleeps for 30 s"
    woken.set()
    [outcome] = await asyncio.gather(sleeping, return_exceptions=True)
    assert isinstance(outcome, Exception)
    assert len(await fencer.take()) == 256


async def test_a_fence_waits_for_a_takeover_in_flight(world: World) -> None:
    """P2.5: else a tenure could be fenced, and take a shard afterwards."""
    me = await world.member(take=False)
    took, through = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    order: list[str] = []

    def taking(connection: Connection) -> None:
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        membership.take_shards(connection, me.tenure, me.timeline, {ShardId(0): Epoch(0)})
        loop.call_soon_threadsafe(took.set)
        through.wait(WAIT_TIMEOUT)
        order.append("taken")

    flying = asyncio.create_task(me.store.database.call(taking), name="taking")
    await took.wait()
    fencing = asyncio.create_task(me.store.membership.fence_own(me.tenure), name="fence")
    fencing.add_done_callback(lambda _: order.append("fenced"))
    await wait_until_async(lambda: blocked(world), WAIT_TIMEOUT, "the fence to wait")
    through.set()
    await asyncio.gather(flying, fencing)

    assert order == ["taken", "fenced"]


async def test_a_new_term_waits_for_transactions_of_the_old_term(world: World) -> None:
    """P2.2: else a leader that was replaced could fence under a term that is over."""
    old, new = await world.member(take=False), await world.member(take=False)
    term = await old.store.membership.raise_term(Term(0), old.tenure)
    assert term is not None
    held, through = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def under_the_term(connection: Connection) -> None:
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        assert membership.holds_term(connection, term)
        loop.call_soon_threadsafe(held.set)
        through.wait(WAIT_TIMEOUT)

    doing = asyncio.create_task(old.store.database.call(under_the_term), name="doing")
    await held.wait()
    raising = asyncio.create_task(new.store.membership.raise_term(term, new.tenure), name="raise")
    await wait_until_async(lambda: blocked(world), WAIT_TIMEOUT, "the new term to wait")
    through.set()
    await doing
    assert await raising


@pytest.mark.parametrize(("ahead", "raised"), [(5, 6), (10**9, 65_536)])
async def test_the_epoch_is_raised_above_that_of_a_token_within_bounds(
    world: World, ahead: int, raised: int
) -> None:
    """P4.4: raised above it, but a worker that names any number doesn't use the epochs up."""
    me = await world.member()
    before = me.epochs[ShardId(3)]
    await me.store.results.outdo(ShardId(3), Epoch(before + ahead))
    [row] = [row for row in await me.store.membership.read_shards() if row.id == 3]
    assert (row.epoch, row.owner) == (before + raised, me.tenure)
    assert (await me.fire(firing(await world.job(shard=3)))).lost == {3}, "its claim is void"
    assert (await me.take(3))[ShardId(3)] > row.epoch
    await me.store.results.outdo(ShardId(3), before)
    assert me.claim(3).epochs == {3: row.epoch + 1}


async def test_a_claim_of_another_timeline_is_void(world: World) -> None:
    """P1.1: the timeline of the claim is compared with the row's."""
    me = await world.member()
    me.timeline = Timeline(me.timeline + 1)
    assert (await me.fire(firing(await world.job()))).lost == {0}


async def test_the_probe_returns_clock_timeline_and_role(world: World) -> None:
    me = await world.member(take=False)

    probe = await me.store.membership.probe()

    assert abs((probe.now - datetime.now(UTC)).total_seconds()) < 5
    assert probe.now.tzinfo is UTC
    assert (probe.timeline, probe.in_recovery) == (1, False)


async def test_the_cluster_has_one_id(world: World) -> None:
    me, other = await world.member(take=False), await world.member(take=False)
    assert await me.store.membership.cluster_id() == await other.store.membership.cluster_id()


async def test_connections_carry_the_name_of_their_tenure(world: World) -> None:
    me = await world.member()
    await me.fire(firing(await world.job()))

    names = await world.sql(
        "SELECT DISTINCT application_name FROM pg_stat_activity"
        " WHERE datname = current_database() AND backend_type = 'client backend'"
    )

    assert names == [(f"schedd/{me.tenure}",)]


async def test_opening_a_tenure_twice_changes_nothing(world: World) -> None:
    me = await world.member(take=False)
    tenure = Tenure(TenureId(new_id()), "twice", START)

    await me.store.membership.open_tenure(tenure)
    await me.store.membership.open_tenure(tenure)

    assert tenure in await me.store.membership.unfenced_tenures()


async def blocked(world: World) -> bool:
    """Whether some backend waits for another's lock."""
    waiting = "SELECT 1 FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0"
    return bool(await world.sql(waiting))
