"""The schema: made once, checked at start, and the same as the tables that calls are built from."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from psycopg2.extensions import connection
from sqlalchemy import Connection, create_engine

from schedd.core.runs.records import Idempotency
from schedd.store.connection.database import url_of
from schedd.store.connection.errors import SchemaMismatch
from schedd.store.schema import migrate, partitions, revisions
from schedd.store.schema.tables import metadata
from support.databases import copied
from support.postgres import MIGRATED, ScratchServer
from support.store import World, firing, job_record, ok
from support.wait import wait_until_async

WAITS = """
SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()
"""


@pytest.fixture
def dsn(server: ScratchServer, superuser: connection) -> Iterator[str]:
    """Of a database with all partitions."""
    with copied(server, superuser, MIGRATED) as dsn:
        yield dsn


async def test_the_tables_of_the_builders_are_those_of_the_migrations(world: World) -> None:
    await world.member(take=False)

    def differences(connection: Connection) -> list[object]:
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "include_object": seen}
        )
        return compare_metadata(context, metadata)

    def seen(_item: object, _name: str, kind: str, reflected: bool, built: object) -> bool:
        unused = kind == "table" and reflected and built is None
        return kind not in {"index", "foreign_key_constraint"} and not unused

    assert await world.store.database.call(differences) == []


async def test_migrating_again_changes_nothing(world: World, dsn: str) -> None:
    await world.member(take=False)
    await world.job()

    assert migrate.upgrade(dsn) == revisions.head()
    assert await world.sql("SELECT count(*) FROM jobs") == [(1,)]


async def test_an_empty_database_is_refused_at_start(server: ScratchServer) -> None:
    async with World.at(server.create_database()) as world:
        with pytest.raises(SchemaMismatch, match="schedd migrate"):
            await world.member()


async def test_a_schema_that_is_too_old_is_refused_with_a_remedy(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = await world.member(take=False)
    head = revisions.head()
    with monkeypatch.context() as newer_schedd:
        newer_schedd.setattr(revisions, "head", lambda: "0999")
        with pytest.raises(
            SchemaMismatch, match=rf"too old: it has revision {head}.*Run `schedd migrate"
        ):
            await me.store.check()
    await world.sql("DELETE FROM alembic_version")
    with pytest.raises(SchemaMismatch, match="Run `schedd migrate`"):
        await me.store.check()


@pytest.mark.parametrize("revision", ["0001", "0027"])
async def test_a_schema_from_before_the_first_release_is_rejected_with_a_remedy(
    world: World, dsn: str, revision: str
) -> None:
    me = await world.member(take=False)
    await world.sql(f"UPDATE alembic_version SET version_num = '{revision}'")

    with pytest.raises(SchemaMismatch, match=rf"revision {revision}.*Create a new database"):
        await me.store.check()
    with pytest.raises(SchemaMismatch, match=r"Create a new database.*upgrade\.md"):
        migrate.upgrade(dsn)
    assert await world.sql("SELECT version_num FROM alembic_version") == [(revision,)]


@pytest.mark.parametrize(
    "says",
    [
        "UPDATE schema_compatibility SET compatible_from = '9999'",
        "DELETE FROM schema_compatibility",
        "DROP TABLE schema_compatibility",
    ],
)
async def test_a_newer_schema_that_does_not_admit_this_schedd_is_refused(
    world: World, dsn: str, says: str
) -> None:
    me = await world.member(take=False)
    await me.store.check()
    await world.sql("UPDATE alembic_version SET version_num = '9999'")
    await world.sql(says)

    with pytest.raises(SchemaMismatch, match=r"too new.*Upgrade schedd"):
        await me.store.check()
    with pytest.raises(SchemaMismatch, match="too new"):
        migrate.upgrade(dsn)


async def test_a_newer_schema_that_admits_this_schedd_is_worked_on_and_left_as_it_is(
    world: World, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    me, since = await world.member(take=False), revisions.head()
    await world.sql("UPDATE alembic_version SET version_num = '9999'")
    await world.sql(f"UPDATE schema_compatibility SET compatible_from = '{since}'")

    with caplog.at_level(logging.INFO):
        await me.store.check()
    assert f"newer than this schedd revision=9999 known={revisions.head()}" in caplog.text
    assert migrate.upgrade(dsn) == "9999"
    assert await world.sql("SELECT compatible_from FROM schema_compatibility") == [(since,)]
    facts = await me.store.look()
    assert (facts.schema, facts.schema_admits) == ("9999", True)


async def test_migrating_records_the_newest_step(world: World, dsn: str) -> None:
    await world.member(take=False)
    await world.sql("UPDATE schema_compatibility SET compatible_from = '0001'")

    migrate.upgrade(dsn)

    assert await world.sql("SELECT compatible_from FROM schema_compatibility") == [
        (migrate.compatible_from(),)
    ]


async def test_timeouts_that_the_role_lacks_are_warned_of(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """P7.2: a pooler in between loses whatever a session sets for itself."""
    me = await world.member(take=False)
    await me.store.check()
    assert not caplog.records

    def without(connection: Connection) -> list[str]:
        connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
        return revisions.check_timeouts(connection)

    with caplog.at_level(logging.WARNING):
        assert await me.store.database.call(without) == ["lock_timeout"]
    assert "ALTER ROLE" in caplog.text
    caplog.clear()
    name = world.dsn.rpartition("/")[2]
    await world.sql(f'ALTER ROLE CURRENT_USER IN DATABASE "{name}" SET statement_timeout = 0')
    await (await world.member(take=False)).store.check()
    assert "statement_timeout" in caplog.text, "P7.2: it is looked at when a member starts"


async def test_the_coming_days_have_partitions_of_their_own(world: World) -> None:
    """P7.1: a run is stored in that of its instant."""
    me = await world.member(horizon=timedelta(days=90))
    today = datetime.now(UTC)
    job = await world.job(due=today)

    await me.fire(firing(job))

    [(table,)] = await world.sql("SELECT tableoid::regclass::text FROM runs")
    assert table == partitions.name_of(today.date())
    assert await me.store.ensure_partitions() <= 1, "one if midnight has passed since"
    assert await me.store.ensure_partitions() == 0
    assert await me.store.ensure_partitions(partitions.DAYS_AHEAD + 2) == 2


async def test_a_day_that_is_in_the_default_partition_stays_there(world: World) -> None:
    """P7.1: a run beyond the days made so far is stored too, and no partition is made over it."""
    me = await world.member(horizon=timedelta(days=90))
    await me.store.ensure_partitions()  # midnight may have passed since the schema was made
    far = datetime.now(UTC) + timedelta(days=partitions.DAYS_AHEAD + 2)
    await me.fire(firing(await world.job(due=far)))

    assert await me.store.ensure_partitions(partitions.DAYS_AHEAD + 3) == 2
    assert await world.sql("SELECT tableoid::regclass::text FROM runs") == [("runs_default",)]


async def test_every_partition_leaves_room_for_hot_updates(world: World) -> None:
    await world.member(take=False)
    await world.store.ensure_partitions(partitions.DAYS_AHEAD + 1)

    options = await world.sql(
        "SELECT DISTINCT c.reloptions FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
        " WHERE i.inhparent = 'runs'::regclass"
    )

    assert options == [(["fillfactor=33"],)]


async def test_no_index_of_runs_names_what_a_completion_changes(world: World) -> None:
    await world.member(take=False)
    fixed = {"scheduled_at", "run_id", "job_id", "parent"}

    named = await world.sql(
        "SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid"
        " AND a.attnum = ANY (i.indkey) WHERE i.indrelid = 'runs'::regclass"
    )
    partial = await world.sql(
        "SELECT pg_get_expr(indpred, indrelid) FROM pg_index"
        " WHERE indrelid = 'runs'::regclass AND indpred IS NOT NULL"
    )

    assert {name for (name,) in named} <= fixed
    assert partial == [("(parent IS NOT NULL)",)]


async def test_two_migrations_at_once_are_one(server: ScratchServer) -> None:
    dsn = server.create_database()

    heads = await asyncio.gather(*(asyncio.to_thread(migrate.upgrade, dsn) for _ in range(3)))

    assert set(heads) == {revisions.head()}


async def test_a_migration_that_waits_for_a_table_blocks_no_caller(world: World, dsn: str) -> None:
    await world.member(take=False)
    last = partitions.name_of(datetime.now(UTC).date() + timedelta(partitions.DAYS_AHEAD))
    await world.sql(f"DROP TABLE {last}")
    engine = create_engine(url_of(dsn))
    with engine.begin() as reader:
        reader.exec_driver_sql("SELECT count(*) FROM runs")
        migrating = asyncio.create_task(asyncio.to_thread(migrate.upgrade, dsn), name="migrate")
        await wait_until_async(lambda: world.sql(WAITS), 10, "the migration to wait for the reader")

        began = time.monotonic()
        await world.sql("SELECT count(*) FROM runs")

        assert time.monotonic() - began < 2.0
        assert not migrating.done()
    assert await migrating == revisions.head()
    assert await world.sql(f"SELECT count(*) FROM {last}") == [(0,)]
    engine.dispose()


async def test_housekeeping_deletes_expired_idempotency_keys(world: World) -> None:
    me = await world.member(take=False)
    for name in ("old", "young"):
        key = Idempotency("default", name, "CreateJob", b"digest")
        await me.store.users.create_job(job_record(), key, ok("create"))
    await world.sql(
        "UPDATE idempotency_keys SET created_at = created_at - interval '25 h' WHERE key = 'old'"
    )

    await me.store.keep_house()

    assert await world.sql("SELECT key FROM idempotency_keys") == [("young",)]
