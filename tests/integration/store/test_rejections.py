"""When PostgreSQL or its driver rejects what a running member asks: retried, or one row fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection

from schedctl.dev.servers import postgres
from schedd.core.ids import RunId, new_id
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import AuditRecord, Verdict
from schedd.store import audit
from schedd.store.cluster import cluster_pauses, membership
from schedd.store.connection import session
from schedd.store.connection.database import Database
from schedd.store.connection.database_identity import probe_server
from schedd.store.connection.errors import SchemaMismatch
from schedd.store.schema import migrate
from schedkit.errors import BrokenData, Misconfigured, Rejected, Unavailable
from support.postgres import ScratchServer, private_postgres
from support.store import World, draft, firing, job_record, ok, report
from support.wait import WAIT_TIMEOUT, wait_until

REFUSED_VALUES = ["lone \udcff", "NUL \0", object(), 10**5000, {"a": 1}, [object()]]


@pytest.fixture(scope="module")
def private() -> Iterator[ScratchServer]:
    with private_postgres(copied=True) as server:
        yield server


def end_sessions(server: ScratchServer, database: str) -> None:
    server.execute(
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'"
    )


@pytest.mark.parametrize("value", REFUSED_VALUES, ids=lambda value: type(value).__name__)
async def test_a_value_that_the_driver_cant_send_fails_alone(world: World, value: Any) -> None:
    me = await world.member()

    def body(connection: Connection) -> object:
        return connection.exec_driver_sql("SELECT %s", (value,)).scalar_one()

    with pytest.raises(BrokenData):
        await me.store.database.call(body)
    assert await world.sql("SELECT 1") == [(1,)]


async def test_a_bug_in_the_code_of_a_transaction_is_not_treated_as_a_bad_row(world: World) -> None:
    me = await world.member()

    def body(_: Connection) -> None:
        raise TypeError("a bug")

    with pytest.raises(TypeError, match="a bug"):
        await me.store.database.call(body)


async def test_only_the_result_of_a_batch_that_cant_be_sent_is_cut(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = await world.member()
    jobs = [await world.job(name=f"job-{n}") for n in range(3)]
    runs = (await me.fire(*(firing(job) for job in jobs))).runs
    assigned = await me.assigned(*(draft(run) for run in runs))
    monkeypatch.setattr("schedd.store.statements.arrays.clean", lambda text: text)
    reports = [report(each, error="fine") for each in assigned]
    reports[1] = report(assigned[1], error="lone \udcff")

    assert await me.store.results.accept(reports) == [Verdict.ACCEPTED] * 3

    rows = [await world.run_row(each.key.run_id) for each in assigned]
    assert all(State(row["state"]) is State.SUCCEEDED for row in rows)


@pytest.mark.parametrize(
    "scope", ['ALTER DATABASE "{name}"', 'ALTER ROLE schedd IN DATABASE "{name}"']
)
async def test_no_setting_of_database_role_or_environment_reaches_a_session(
    world: World, server: ScratchServer, monkeypatch: pytest.MonkeyPatch, scope: str
) -> None:
    name = world.dsn.rpartition("/")[2]
    for setting in (
        "client_encoding = 'LATIN1'",
        "IntervalStyle = 'iso_8601'",
        "DateStyle = 'German, DMY'",
        "timezone = 'America/St_Johns'",
        "standard_conforming_strings = off",
        "bytea_output = 'escape'",
        "row_security = on",
        "default_transaction_isolation = 'serializable'",
        "extra_float_digits = -5",
    ):
        server.execute(f"{scope.format(name=name)} SET {setting}")
    monkeypatch.setenv("PGCLIENTENCODING", "SQL_ASCII")
    monkeypatch.setenv("PGOPTIONS", "-c default_transaction_read_only=on -c IntervalStyle=iso_8601")
    monkeypatch.setenv("PGTZ", "Asia/Kathmandu")
    monkeypatch.setenv("PGDATESTYLE", "SQL, MDY")
    me = await world.member()
    [run] = (await me.fire(firing(await world.job()))).runs
    [assigned] = await me.assigned(draft(run))

    assert await me.store.results.accept([report(assigned, error="café €")]) == [Verdict.ACCEPTED]
    for setting, value in session.SETTINGS.items():
        assert await world.sql(f"SHOW {setting}") == [(value,)]
    assert await world.sql("SELECT %s::text, interval '90 s', now() - now()", "café €") != []
    await me.store.statistics.read_database_stats()


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_migrate_rejects_a_new_database_of_another_encoding(
    server: ScratchServer, encoding: str
) -> None:
    name = f"encoded_{encoding.lower()}"
    server.execute(
        f"CREATE DATABASE {name} OWNER schedd ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0"
    )
    dsn = server.admin_dsn.rpartition("/")[0] + f"/{name}"
    try:
        with pytest.raises(Misconfigured, match=f"encoding is {encoding}.*ENCODING 'UTF8'"):
            migrate.upgrade(dsn)
    finally:
        server.drop_database(dsn)


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_each_session_on_a_database_of_another_encoding_speaks_utf8(
    server: ScratchServer, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"spoken_{encoding.lower()}"
    server.execute(
        f"CREATE DATABASE {name} OWNER schedd ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0"
    )
    dsn = server.admin_dsn.rpartition("/")[0] + f"/{name}"
    monkeypatch.setenv("PGCLIENTENCODING", encoding)
    store = Database(dsn, lanes=1)

    def echo(text: str) -> tuple[object, ...]:
        statement = "SELECT current_setting('client_encoding'), %s::text"
        return store.transact(lambda c: tuple(c.exec_driver_sql(statement, (text,)).one()))

    try:
        assert echo("café") == ("UTF8", "café")
        if encoding == "LATIN1":  # the server can't convert the letter: this row alone fails
            with pytest.raises(BrokenData):
                echo("€")
        assert echo("café") == ("UTF8", "café")
    finally:
        store.close()
        server.drop_database(dsn)


BREAKS = {
    "privileges revoked": (
        ["REVOKE ALL ON ALL TABLES IN SCHEMA public FROM schedd"],
        ["GRANT ALL ON ALL TABLES IN SCHEMA public TO schedd"],
        "permission_denied",
    ),
    "rows hidden by row-level security": (
        [
            "ALTER TABLE jobs ENABLE ROW LEVEL SECURITY",
            "ALTER TABLE jobs FORCE ROW LEVEL SECURITY",
        ],
        [
            "ALTER TABLE jobs NO FORCE ROW LEVEL SECURITY",
            "ALTER TABLE jobs DISABLE ROW LEVEL SECURITY",
        ],
        "permission_denied",
    ),
    "a table renamed": (
        ["ALTER TABLE jobs RENAME TO jobs_away"],
        ["ALTER TABLE jobs_away RENAME TO jobs"],
        "schema_mismatch",
    ),
    "a column renamed": (
        ["ALTER TABLE jobs RENAME COLUMN name TO name_away"],
        ["ALTER TABLE jobs RENAME COLUMN name_away TO name"],
        "schema_mismatch",
    ),
    "read-only by configuration": (
        ['ALTER DATABASE "{name}" SET default_transaction_read_only = on'],
        ['ALTER DATABASE "{name}" RESET default_transaction_read_only'],
        "read_only",
    ),
    "the database closed to connections": (
        ['ALTER DATABASE "{name}" ALLOW_CONNECTIONS off'],
        ['ALTER DATABASE "{name}" ALLOW_CONNECTIONS on'],
        "database_missing",
    ),
    "the role may not log in": (
        ["ALTER ROLE schedd NOLOGIN"],
        ["ALTER ROLE schedd LOGIN"],
        "login_rejected",
    ),
}


@pytest.mark.parametrize("change", BREAKS)
async def test_a_rejection_is_retried_and_has_a_remedy(private: ScratchServer, change: str) -> None:
    breaks, fixes, reason = BREAKS[change]
    dsn = private.create_migrated()
    name = dsn.rpartition("/")[2]
    here = private.admin_dsn.rpartition("/")[0]
    async with World.at(dsn) as world:
        me = await world.member()

        async def write() -> None:
            await me.store.users.create_job(job_record(), None, ok("create"))
            await me.store.owner.timers([])

        for statement in breaks:
            at = f"{here}/{name}" if "TABLE" in statement else None
            private.execute(statement.format(name=name), at)
        end_sessions(private, name)
        with pytest.raises(Rejected) as rejected:
            await write()
        for statement in fixes:
            at = f"{here}/{name}" if "TABLE" in statement else None
            private.execute(statement.format(name=name), at)
        end_sessions(private, name)
        await write()

    assert rejected.value.reason == reason
    assert rejected.value.remedy


async def test_sessions_that_began_read_only_are_replaced_after_the_setting_is_off(
    private: ScratchServer,
) -> None:
    """Nothing ends the sessions: all of them keep the read-only default that they began with."""
    dsn = private.create_database()
    private.execute("CREATE TABLE written (x int)", dsn)
    switch = f'ALTER DATABASE "{dsn.rpartition("/")[2]}" SET default_transaction_read_only = '
    private.execute(f"{switch}on")
    store = Database(dsn, lanes=2, readers=2)

    def insert(connection: Connection) -> None:
        connection.exec_driver_sql("INSERT INTO written SELECT 1")

    async def rest() -> None:
        await store.call(lambda c: c.exec_driver_sql("SELECT pg_sleep(0.2)").scalar())

    try:
        await asyncio.gather(*(rest() for _ in range(2)))
        with pytest.raises(Rejected) as rejected:
            await store.on_lane([0], insert)
        await asyncio.gather(*(rest() for _ in range(2)))
        private.execute(f"{switch}off")
        with suppress(Rejected):  # the first statement meets the old default
            await store.call(insert)
        for shard in (0, 1):
            await store.on_lane([shard], insert)
        await asyncio.gather(*(store.call(insert) for _ in range(2)))
    finally:
        store.close()
    assert rejected.value.reason == "read_only"
    assert "SET default_transaction_read_only = off before" in rejected.value.remedy


REJECTED_COMMIT = """
CREATE TABLE refused (x int);
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE 'rejected at COMMIT'; END $$;
CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON refused DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION refuse();
"""


async def test_a_connection_whose_commit_failed_isnt_used_again(private: ScratchServer) -> None:
    """A COMMIT that times out as it arrives leaves the transaction open, as failed, and psycopg2
    takes it for ended: every later statement would fail.
    """
    dsn = private.create_migrated()
    private.execute(REJECTED_COMMIT, dsn)
    used: list[int] = []

    def insert(connection: Connection) -> None:
        used.append(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())
        connection.exec_driver_sql("INSERT INTO refused SELECT 1")

    store = Database(dsn, lanes=1)
    try:
        with pytest.raises(Unavailable, match="rejected at COMMIT"):
            await store.on_lane([0], insert)
        [last] = await store.on_lane(
            [0], lambda c: c.exec_driver_sql("SELECT pg_backend_pid()").scalars().all()
        )
    finally:
        store.close()
    assert last not in used


@pytest.mark.parametrize("rule", ["host all schedd all reject", "hostnossl all other all trust"])
def test_a_wrong_edit_of_pg_hba_conf_is_a_rejected_login_until_it_is_reverted(
    private: ScratchServer, rule: str
) -> None:
    """Either a rule rejects the role, or no rule has the role."""
    dsn = private.create_migrated()
    file = private.folder / "data" / "pg_hba.conf"
    right = file.read_text()
    store = Database(dsn, lanes=1)

    def reload(text: str) -> None:
        file.write_text(text)
        private.execute("SELECT pg_reload_conf()")

    def jobs() -> object:
        return store.transact(lambda c: c.exec_driver_sql("SELECT count(*) FROM jobs").scalar())

    def rejected() -> Rejected | None:
        store.reconnect()  # the server reads its rules at some time after the reload
        try:
            jobs()
        except Rejected as error:
            return error
        except Unavailable:
            pass
        return None

    try:
        assert jobs() == 0
        reload(f"host all {postgres.ADMIN} all trust\n{rule}\n")
        found = wait_until(rejected, WAIT_TIMEOUT, "the rejection")
        reload(right)
        wait_until(lambda: rejected() is None, WAIT_TIMEOUT, "the end of the rejection")
        assert jobs() == 0
    finally:
        file.write_text(right)
        store.close()
    assert found is not None
    assert found.reason == "login_rejected"
    assert "pg_hba.conf" in found.cause
    assert "check pg_hba.conf" in found.remedy


async def test_a_database_that_is_dropped_and_restored_from_a_dump_is_used_again(
    private: ScratchServer,
) -> None:
    """The copy is as a dump that was taken just before."""
    dsn = private.create_migrated()
    name = dsn.rpartition("/")[2]
    async with World.at(dsn) as world:
        me = await world.member()
        await world.job(name="before")

        async def names() -> list[tuple[object, ...]]:
            return await world.sql("SELECT name FROM jobs")

        end_sessions(private, name)
        private.create_database(f"{name}_dump", template=name)
        private.drop_database(dsn)
        with pytest.raises(Rejected, match="doesn't serve the database"):
            await names()
        private.create_database(name)
        with pytest.raises(SchemaMismatch, match="finish the restore"):
            await names()
        private.drop_database(dsn)
        private.create_database(name, template=f"{name}_dump")
        assert await names() == [("before",)]
        assert len((await me.fire(firing(await world.job()))).runs) == 1


async def test_a_dropped_schema_is_a_mismatch_that_can_be_retried(private: ScratchServer) -> None:
    dsn = private.create_migrated()
    store = Database(dsn, lanes=1)
    try:
        await store.call(lambda c: c.exec_driver_sql("DROP SCHEMA public CASCADE"))
        await store.call(lambda c: c.exec_driver_sql("CREATE SCHEMA public"))
        with pytest.raises(SchemaMismatch, match=r"restore|migrate"):
            await store.call(lambda c: c.exec_driver_sql("SELECT 1 FROM jobs").all())
    finally:
        store.close()


@pytest.mark.parametrize(
    "read", [cluster_pauses.read_pauses, membership.cluster_id, membership.read_term, probe_server]
)
async def test_a_table_that_a_restore_hasnt_filled_yet_is_a_mismatch_and_not_the_end(
    world: World, read: Callable[[Connection], object]
) -> None:
    me = await world.member()

    def read_empty(connection: Connection) -> None:
        for table in ("cluster", "term"):
            connection.exec_driver_sql(f"DELETE FROM {table}")
        read(connection)

    with pytest.raises(SchemaMismatch) as mismatch:
        await me.store.database.call(read_empty)
    assert "finish the restore" in mismatch.value.remedy


@pytest.mark.parametrize("write", [audit.write_all, audit.write_once])
async def test_an_audit_entry_is_rejected_until_a_restore_has_created_the_primary_key(
    world: World, write: Callable[[Connection, Sequence[AuditRecord]], None]
) -> None:
    """Else it takes a number of a restored row, and `pg_restore` fails."""
    me = await world.member()
    entry = AuditRecord("worker/w1", "result", "run/1", "rejected", "STALE", run_id=RunId(new_id()))

    def entries(connection: Connection) -> int:
        return len(audit.list_audit(connection, "result", None, None, None, 10))

    def write_without_key(connection: Connection) -> None:
        connection.exec_driver_sql("ALTER TABLE audit DROP CONSTRAINT audit_pkey")
        write(connection, [entry])

    with pytest.raises(SchemaMismatch) as mismatch:
        await me.store.database.call(write_without_key)
    assert "finish the restore" in mismatch.value.remedy
    await me.store.database.call(write, [entry, replace(entry, reason="UNKNOWN")])
    assert await me.store.database.call(entries) == 2
