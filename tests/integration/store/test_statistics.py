"""Queue statistics, read now and then from a real PostgreSQL for those who watch the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Connection, make_url

from schedd.core.cluster.partition import shard_of_pool
from schedd.core.cluster.statistics import StatsWatch
from schedd.core.events import Called, Event, Service
from schedd.core.runs.lifecycle import State
from schedd.core.runs.pools import pool_key
from schedd.store.connection.database import Database
from schedd.store.postgres import Stores
from schedd.store.reconcile.stats import StatisticsStore
from schedkit.errors import Unavailable
from support.postgres import ScratchServer
from support.store import START, Member, World, ok

HERE = shard_of_pool("default", "reports")
ELSEWHERE = (HERE + 1) % 256


async def test_pools_are_reported_with_their_jobs_and_pools_of_other_shards_arent(
    world: World,
) -> None:
    me = await world.member()
    await me.store.pools.set("default", "reports", 3, None, 0, "ann", ok("set"))
    job = await world.job(shard=HERE, due=None, pool="reports")
    await world.job(shard=HERE, due=None)
    await world.job(shard=HERE, due=None, pool="reports", ephemeral=True)

    stock = await me.store.statistics.read_queue_stats([HERE])
    assert stock.pools == {pool_key("default", "reports"): (job.definition.job_id,)}
    assert (await me.store.statistics.read_queue_stats([ELSEWHERE])).pools == {}


async def test_a_pool_of_many_jobs_is_sampled(world: World) -> None:
    me = await world.member()
    await me.store.pools.set("default", "reports", 3, None, 0, "ann", ok("set"))
    for _ in range(22):
        await world.job(shard=HERE, due=None, pool="reports")
    [jobs] = (await me.store.statistics.read_queue_stats([HERE])).pools.values()
    assert len(jobs) == 20


async def test_timers_that_should_have_fired_are_counted_since_the_first_was_due(
    world: World,
) -> None:
    me = await world.member()
    await world.job(shard=3, due=START)
    await world.job(shard=3, due=START + timedelta(hours=1))
    await world.job(shard=3, due=None)
    [(now,)] = await world.sql("SELECT clock_timestamp()")
    assert isinstance(now, datetime)
    await world.job(shard=3, due=now + timedelta(hours=1))

    stock = await me.store.statistics.read_queue_stats([3])
    assert stock.overdue == 2
    assert stock.behind > now - START
    nowhere = await me.store.statistics.read_queue_stats([4])
    assert (nowhere.overdue, nowhere.behind) == (0, timedelta(0))


async def test_a_transaction_that_vacuum_waits_for_is_seen_and_ages(world: World) -> None:
    me, watch = await world.member(), StatsWatch()
    async with open_transaction(me, "SELECT txid_current()"):
        first = watch.add_reading(await me.store.statistics.read_database_stats())
        later = watch.add_reading(await me.store.statistics.read_database_stats())
    assert later > first > timedelta(0)


async def test_a_role_without_stats_rights_sees_that_a_transaction_writes_and_its_age(
    world: World, dsn: str, server: ScratchServer
) -> None:
    me, watch = await world.member(), StatsWatch()
    server.execute("CREATE ROLE peeper LOGIN")
    await world.sql("GRANT SELECT ON cluster, dead_letters TO peeper")
    url = make_url(dsn).set(username="peeper").render_as_string(hide_password=False)
    database = Database(url, lanes=1)
    statistics = StatisticsStore(database)
    try:
        async with open_transaction(me, "SELECT txid_current()"):
            reading = await statistics.read_database_stats()
            assert reading.oldest < timedelta(seconds=1), "it may not see when that began"
            assert not reading.holds
            watch.add_reading(reading)
            await world.sql("SELECT txid_current()")
            await asyncio.sleep(1.0)  # what is measured
            later = await statistics.read_database_stats()
            assert watch.add_reading(later) > timedelta(seconds=1)
        last = await statistics.read_database_stats()
        assert watch.add_reading(last) < timedelta(seconds=1)
    finally:
        database.close()
        await world.sql("REVOKE SELECT ON cluster, dead_letters FROM peeper")
        server.execute("DROP ROLE peeper")


async def test_each_transaction_is_timed_under_the_call_that_it_is_made_for(dsn: str) -> None:
    events: list[Event] = []
    store = Stores(Database(dsn, lanes=1, emit=events.append))
    try:
        await store.membership.read_shards()
        await store.owner.live_runs([], [State.PENDING])
        await store.check()
    finally:
        store.close()
    called = [event for event in events if isinstance(event, Called)]
    assert [event.call for event in called] == [
        "membership.read_shards",
        "owner.live_runs",
        "other",
        "other",
    ]
    assert all(event.service is Service.DATABASE and not event.failed for event in called)
    assert all(0 < event.took < 20 for event in called)


async def test_a_failed_call_is_timed_too_and_reported_as_failed() -> None:
    events: list[Event] = []
    database = Database("postgresql://127.0.0.1:1/nowhere", lanes=1, emit=events.append)
    try:
        with pytest.raises(Unavailable):
            await Stores(database).membership.read_term()
    finally:
        database.close()
    [event] = [event for event in events if isinstance(event, Called)]
    assert (event.call, event.failed) == ("membership.read_term", True)


@asynccontextmanager
async def open_transaction(me: Member, statement: str) -> AsyncIterator[None]:
    """Keep another session open that has run this and now idles, for the time of the block."""
    ends, began = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def sleeps(connection: Connection) -> None:
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        connection.exec_driver_sql(statement)
        loop.call_soon_threadsafe(began.set)
        asyncio.run_coroutine_threadsafe(ends.wait(), loop).result(20)

    sleeping = asyncio.create_task(me.store.database.call(sleeps), name="sleeper")
    await began.wait()
    try:
        yield
    finally:
        ends.set()
        await sleeping
