"""Checkups read a real PostgreSQL with the daemons' own role."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta

import psycopg2
import pytest
from sqlalchemy import Connection

from schedctl.dev.servers import postgres
from schedd.core.checkup.facts import DatabaseSession, HeldLock
from schedd.store.cluster.checkup import LONG
from schedd.store.schema import revisions
from schedkit.clock import utcnow
from support.postgres import ScratchServer
from support.sessions import Postgres
from support.store import World
from support.wait import WAIT_TIMEOUT, wait_until_async

STRANGER = "stranger"
"""A role that the daemons' role isn't a member of."""


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


def dsn_of(server: ScratchServer, world: World, role: str) -> str:
    return postgres.dsn(server.port, database=world.dsn.rpartition("/")[2], role=role)


@contextmanager
def transaction(
    server: ScratchServer, world: World, statement: str, role: str = postgres.ROLE
) -> Iterator[DatabaseSession]:
    """An open transaction of a role's session, after it ran the statement."""
    dsn, options = dsn_of(server, world, role), "-c idle_in_transaction_session_timeout=0"
    with (
        closing(psycopg2.connect(dsn, options=options, application_name="psql")) as session,
        session.cursor() as cursor,
    ):
        cursor.execute(statement)
        yield DatabaseSession(session.get_backend_pid(), role, "psql")


@pytest.fixture
def stranger(server: ScratchServer, world: World) -> Iterator[str]:
    server.execute(f"CREATE ROLE {STRANGER} LOGIN")
    admin = dsn_of(server, world, postgres.ADMIN)
    server.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {STRANGER}", admin)
    yield STRANGER
    server.execute(f"DROP OWNED BY {STRANGER}", admin)
    server.execute(f"DROP ROLE {STRANGER}")


async def test_a_long_lock_of_a_table_is_found_with_its_session_while_reads_wait(
    server: ScratchServer, world: World
) -> None:
    me = await world.member()
    statement = "LOCK TABLE runs, shards, cluster IN ACCESS EXCLUSIVE MODE"
    assert await me.store.read_locks() == ()
    with transaction(server, world, statement) as holder:
        reads = asyncio.create_task(me.store.membership.read_shards(), name="a read that waits")
        me.store.database.reconnect()
        [found] = await wait_until_async(me.store.read_locks, WAIT_TIMEOUT, "the lock")
        await asyncio.gather(reads, return_exceptions=True)
    tables, modes = ("cluster", "runs", "shards"), ("AccessExclusiveLock",)
    assert found.since is not None
    assert utcnow() - found.since > timedelta(seconds=LONG), "short locks are usual"
    assert found == HeldLock(holder, tables, modes, granted=True, since=found.since)


async def test_a_lock_of_another_role_is_found_without_its_age(
    server: ScratchServer, world: World, stranger: str
) -> None:
    me = await world.member()
    statement = "LOCK TABLE jobs IN SHARE MODE"
    with transaction(server, world, statement, stranger) as holder:
        found = await me.store.read_locks()
    assert found == (HeldLock(holder, ("jobs",), ("ShareLock",), granted=True, since=None),)


async def test_a_session_whose_rows_another_waits_for_is_found(
    server: ScratchServer, world: World, stranger: str
) -> None:
    me = await world.member()
    locks = "SELECT FROM shards WHERE id = 0 FOR UPDATE"
    with transaction(server, world, locks, stranger) as holder:
        waiting = asyncio.create_task(world.sql(locks), name="waits for a row")
        found = await wait_until_async(me.store.read_locks, WAIT_TIMEOUT, "the lock")
        await asyncio.gather(waiting, return_exceptions=True)
    assert found == (HeldLock(holder, ("shards",), (), granted=True, since=None),)


async def test_a_session_that_waits_with_locked_rows_isnt_named_as_the_cause(
    server: ScratchServer, world: World, stranger: str
) -> None:
    me = await world.member()
    row = "SELECT 1 FROM shards WHERE id = 0 FOR UPDATE"
    with ExitStack() as stack:
        sessions = Postgres(dsn_of(server, world, stranger), stack)
        holder, between, last = (sessions.session() for _ in range(3))
        holder.run("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
        between.run(row)
        reads = between.begin("SELECT 1 FROM jobs")
        sessions.wait_until_blocked(between)
        locks = last.begin(row)
        sessions.wait_until_blocked(last)
        found = await me.store.read_locks()
        for session, waiting in ((holder, reads), (between, locks)):
            session.commit()
            waiting.result(WAIT_TIMEOUT)
    assert [one.session.pid for one in found] == [holder.pid]


async def test_open_transactions_of_other_roles_are_found_although_their_age_is_hidden(
    server: ScratchServer, world: World, stranger: str
) -> None:
    me = await world.member()
    assert (await me.store.look()).hidden == ()
    with transaction(server, world, "SELECT 1", stranger) as session:
        found = await me.store.look()
    assert found.hidden == (session,)
    assert found.user == postgres.ROLE
