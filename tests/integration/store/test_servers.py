"""A DSN of two hosts, of which one was replaced by the other, or is a standby of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Connection

from schedctl.dev.servers import postgres
from schedd.core.ids import Timeline
from schedd.store.connection.database import Database
from schedd.store.connection.primary_selection import LOOK
from schedd.store.schema import migrate
from schedkit.errors import Unavailable
from support.postgres import ScratchServer, private_postgres, promote, restart

PROMOTED = Timeline(2)


@pytest.fixture(scope="module")
def replaced() -> Iterator[ScratchServer]:
    """On the first timeline, and alive."""
    with private_postgres() as server:
        server.create_database("failover")
        yield server


@pytest.fixture(scope="module")
def promoted() -> Iterator[ScratchServer]:
    """The one that was promoted in its place."""
    with private_postgres() as server:
        server.create_database("failover")
        promote(server)
        yield server


@contextmanager
def database_on(*servers: ScratchServer) -> Iterator[Database]:
    """Members' way to these servers, the first one first."""
    hosts = "&".join(f"host=127.0.0.1:{server.port}" for server in servers)
    dsn = f"postgresql://schedd@/failover?{hosts}&target_session_attrs=read-write"
    database = Database(dsn, lanes=1, readers=2)
    try:
        yield database
    finally:
        database.close()


def _dsn(server: ScratchServer) -> str:
    return f"postgresql://schedd@127.0.0.1:{server.port}/failover"


async def timeline_of(database: Database) -> Timeline:
    def ask(connection: Connection) -> Timeline:
        return Timeline(connection.exec_driver_sql(LOOK).scalar_one())

    return await database.call(ask)


async def test_a_server_that_was_replaced_gets_no_connection_where_another_is_named(
    replaced: ScratchServer, promoted: ScratchServer
) -> None:
    """P2.6: it takes writes, and is first in the DSN; libpq would stay with it for ever."""
    with database_on(replaced, promoted) as database:
        database.expect(Timeline(1))  # the other was no primary when this was looked at
        assert await timeline_of(database) == 1
        database.expect(PROMOTED)
        for _ in range(3):
            assert await timeline_of(database) == PROMOTED


async def test_a_process_that_just_started_connects_to_the_promoted_server(
    replaced: ScratchServer, promoted: ScratchServer
) -> None:
    """P2.6: a call that is acknowledged on the replaced is lost; a step there changes nothing."""
    with database_on(replaced, promoted) as database:
        assert await timeline_of(database) == PROMOTED
    hosts = "&".join(f"host=127.0.0.1:{server.port}" for server in (replaced, promoted))
    migrate.upgrade(f"postgresql://schedd@/failover?{hosts}&target_session_attrs=read-write")
    tables = "SELECT count(*) > 0 FROM pg_tables WHERE tablename = 'shards'"
    made = [server.execute(tables, _dsn(server)) for server in (replaced, promoted)]
    assert made == [[(False,)], [(True,)]]


async def test_a_process_that_knows_the_timeline_never_queries_the_replaced_server(
    replaced: ScratchServer, promoted: ScratchServer
) -> None:
    with database_on(replaced, promoted) as database:
        database.expect(PROMOTED)
        assert await timeline_of(database) == PROMOTED


async def test_a_dsn_with_only_the_replaced_server_is_unavailable(
    replaced: ScratchServer,
) -> None:
    with database_on(replaced) as database:
        database.expect(PROMOTED)
        with pytest.raises(Unavailable, match=r"timeline 1, and 2 was seen: it was replaced"):
            await timeline_of(database)


async def test_a_call_in_progress_ends_when_its_server_is_replaced(
    replaced: ScratchServer, promoted: ScratchServer
) -> None:
    """Its COMMITs may wait for a standby that is none any more, and threads with them."""
    under_way = asyncio.Event()
    loop = asyncio.get_running_loop()

    def body(connection: Connection) -> None:
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        loop.call_soon_threadsafe(under_way.set)
        connection.exec_driver_sql("SELECT pg_sleep(60)")

    with database_on(replaced, promoted) as database:
        database.expect(Timeline(1))
        call = asyncio.create_task(database.call(body), name="under way")
        await under_way.wait()
        database.expect(PROMOTED)
        began = time.monotonic()
        with pytest.raises(Unavailable):
            await call
        assert time.monotonic() - began < 5


async def test_a_standby_gets_no_connection(promoted: ScratchServer) -> None:
    """Not even where the DSN doesn't say that a primary is wanted."""
    with private_postgres() as standby:
        standby.create_database("failover")
        postgres.stop(standby.process, standby.folder / "data")
        (standby.folder / "data" / "standby.signal").touch()
        restart(standby)
        hosts = f"host=127.0.0.1:{standby.port}&host=127.0.0.1:{promoted.port}"
        database = Database(f"postgresql://schedd@/failover?{hosts}", lanes=1, readers=1)
        try:
            assert await timeline_of(database) == PROMOTED
        finally:
            database.close()
