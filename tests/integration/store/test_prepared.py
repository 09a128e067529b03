"""Statements of single calls are prepared where the session is PostgreSQL's own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection

from schedd.store.connection.database import TRIES, Database
from schedd.store.connection.prepared import MOST_PREPARED, MOST_ROWS, PreparedStatement
from schedkit.errors import BrokenData
from support.pgbouncer import pgbouncer
from support.postgres import private_postgres
from support.wait import WAIT_TIMEOUT

SUM = PreparedStatement("SELECT n + %(more)s::int FROM unnest(%(numbers)s::int[]) n ORDER BY n")


@pytest.fixture
def database(dsn: str) -> Iterator[Database]:
    made = Database(dsn)
    yield made
    made.close()


def sums(database: Database, count: int = 1) -> list[int]:
    def body(connection: Connection) -> list[int]:
        values: dict[str, object] = {"numbers": [*range(count)], "more": 10}
        return [found for (found,) in SUM.execute(connection, values, count)]

    return database.transact(body)


def prepared(database: Database) -> int:
    query = "SELECT count(*) FROM pg_prepared_statements"
    return int(database.transact(lambda c: c.exec_driver_sql(query).scalar_one()))


def in_session(database: Database, statement: str) -> None:
    database.transact(lambda c: c.exec_driver_sql(statement))


def test_a_statement_is_prepared_once_in_a_session(database: Database) -> None:
    for _ in range(10):
        assert sums(database, 3) == [10, 11, 12]
    assert prepared(database) == 1


def test_a_large_batch_is_planned_for_its_size(database: Database) -> None:
    assert len(sums(database, MOST_ROWS + 1)) == MOST_ROWS + 1
    assert prepared(database) == 0


def test_a_session_prepares_a_limited_number_of_statements(database: Database) -> None:
    def body(connection: Connection) -> list[int]:
        others = [
            PreparedStatement(f"SELECT {n} + %(more)s::int") for n in range(2 * MOST_PREPARED)
        ]
        return [found for one in others for (found,) in one.execute(connection, {"more": 0}, 1)]

    assert sums(database) == [10]
    assert database.transact(body) == [*range(2 * MOST_PREPARED)]
    assert 0 < prepared(database) <= MOST_PREPARED
    assert sums(database) == [10]


def test_a_session_that_lost_its_statements_runs_them_all_the_same(database: Database) -> None:
    assert sums(database) == [10]
    in_session(database, "DEALLOCATE ALL")
    for _ in range(3):
        assert sums(database) == [10]


async def test_calls_succeed_after_all_sessions_of_a_member_lost_their_statements(
    dsn: str,
) -> None:
    """Each call tries again in its own session, not in another one that lost them, too."""
    threads = 2 * TRIES
    database = Database(dsn, lanes=1, readers=threads)
    together = threading.Barrier(threads)

    def add(connection: Connection) -> list[tuple[int]]:
        return SUM.execute(connection, {"numbers": [0], "more": 10}, 1)

    def lose(connection: Connection) -> None:
        add(connection)
        connection.exec_driver_sql("DEALLOCATE ALL")
        together.wait(WAIT_TIMEOUT)

    try:
        await asyncio.gather(*(database.call(lose) for _ in range(threads)))
        for _ in range(2 * threads):
            assert await database.call(add) == [(10,)]
    finally:
        database.close()


def test_a_name_that_is_taken_in_the_session_ends_preparing_there(database: Database) -> None:
    in_session(database, SUM._prepare)
    for _ in range(3):
        assert sums(database) == [10]


def test_a_value_that_the_database_rejects_is_rejected_as_in_a_plain_statement(
    database: Database,
) -> None:
    def body(connection: Connection) -> None:
        SUM.execute(connection, {"numbers": [2**31 - 1], "more": 1}, 1)

    for _ in range(2):
        with pytest.raises(BrokenData, match="integer out of range"):
            database.transact(body)
    assert sums(database) == [10]


def test_nothing_is_prepared_behind_a_pooler(tmp_path: Path) -> None:
    with private_postgres(copied=True) as server:
        server.create_database("pooled")
        with pgbouncer(server, tmp_path, "pooled") as dsn:
            database = Database(dsn)
            try:
                assert sums(database) == [10]
                assert sums(database) == [10]
                assert prepared(database) == 0
            finally:
                database.close()
