"""The probe learns whether PostgreSQL takes writes, and writes little itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Connection

from schedd.store.connection import write_probe
from schedd.store.connection.database import Database
from support.postgres import ScratchServer, private_postgres

TIMES = 50


@pytest.fixture(scope="module")
def private() -> Iterator[ScratchServer]:
    with private_postgres(copied=True) as server:
        yield server


@pytest.fixture
def database(private: ScratchServer) -> Iterator[Database]:
    dsn = private.create_migrated()
    name = dsn.rpartition("/")[2]
    private.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = on')
    private.execute("CHECKPOINT")
    made = Database(dsn, lanes=1)
    yield made
    made.close()


def scalar(database: Database, statement: str, *values: object) -> object:
    def body(connection: Connection) -> object:
        return connection.exec_driver_sql(statement, values).scalar_one()

    return database.transact(body)


def test_a_probe_needs_a_new_page_and_writes_few_bytes_of_wal(database: Database) -> None:
    """7 KB of WAL in each probe were 200 MB a day and member."""
    before = scalar(database, "SELECT pg_current_wal_insert_lsn()::text")
    for _ in range(TIMES):
        database.transact(write_probe.write)
    written = scalar(
        database, "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), %s::pg_lsn)", before
    )
    assert int(str(written)) / TIMES < 300, written
    assert scalar(database, "SELECT pg_relation_size('write_probes')") == TIMES * 8192


def test_the_commit_of_a_probe_is_flushed_to_the_wal(database: Database) -> None:
    def body(connection: Connection) -> str:
        write_probe.write(connection)
        return str(
            connection.exec_driver_sql("SELECT pg_current_wal_insert_lsn()::text").scalar_one()
        )

    during = database.transact(body)
    assert scalar(database, "SELECT pg_current_wal_flush_lsn() > %s::pg_lsn", during)


def test_a_publication_of_all_tables_doesnt_reject_the_probe(
    private: ScratchServer, database: Database
) -> None:
    name = scalar(database, "SELECT current_database()")
    dsn = private.admin_dsn.rpartition("/")[0] + f"/{name}"
    private.execute("CREATE PUBLICATION every FOR ALL TABLES", dsn)
    database.transact(write_probe.write)
