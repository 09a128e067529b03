"""Checkups read a real PostgreSQL with the daemons' own role."""

from __future__ import annotations

import asyncio

from sqlalchemy import Connection

from schedd.store.schema import revisions
from support.store import World


async def test_a_database_as_schedd_migrate_leaves_it_is_read_whole(world: World) -> None:
    me = await world.member()
    found = await me.store.look()
    assert found.version >= 140000
    assert (found.schema, found.wanted_schema) == (revisions.head(), revisions.head())
    assert found.timeline == me.timeline
    assert not found.in_recovery
    assert found.connections > 0
    assert found.missing_days == 0
    assert {"shards", "timers", "live"} <= {one.name for one in found.tables}
    assert {"fsync", "lock_timeout", "max_connections"} <= found.settings.keys()
    assert 0 < found.age < 1_000_000
    assert found.settings["server_encoding"] == "UTF8"
    assert found.schemas == found.copies == ("public",)


async def test_tables_that_another_schema_hides_are_seen(world: World) -> None:
    me = await world.member()
    for statement in (
        "CREATE SCHEMA copy",
        "CREATE TABLE copy.timers (LIKE public.timers)",
        f"ALTER DATABASE {world.dsn.rpartition('/')[2]} SET search_path = copy, public",
    ):
        await world.sql(statement)
    me.store.database.reconnect()
    found = await me.store.look()
    assert (found.schemas, found.copies) == (("copy", "public"), ("public",))


async def test_a_session_idle_in_a_transaction_is_found(world: World) -> None:
    me = await world.member()
    ends, began = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def sleeps(connection: Connection) -> None:
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        connection.exec_driver_sql("SELECT txid_current()")
        loop.call_soon_threadsafe(began.set)
        asyncio.run_coroutine_threadsafe(ends.wait(), loop).result(20)

    sleeping = asyncio.create_task(me.store.database.call(sleeps), name="sleeper")
    await began.wait()
    other = await world.member(take=False)
    first = await other.store.look()
    await world.sql("SELECT txid_current()")
    later = await other.store.look()
    ends.set()
    await sleeping
    assert later.oldest_transaction > first.oldest_transaction > 0
    assert later.held_back > 0


async def test_a_day_without_a_partition_is_counted(world: World) -> None:
    me = await world.member()
    [(name,)] = await world.sql(
        "SELECT max(c.relname) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
        " WHERE i.inhparent = 'runs'::regclass AND c.relname <= 'runs_' ||"
        " to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYYMMDD')"
    )
    await world.sql(f"DROP TABLE {name}")
    assert (await me.store.look()).missing_days == 1
