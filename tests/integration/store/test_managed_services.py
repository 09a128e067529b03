"""Databases of managed services: without the timeline functions, with roles that own little."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import date

import pytest
from sqlalchemy import Connection

from schedctl.dev.servers import postgres
from schedd.core.checkup.facts import DatabaseFacts
from schedd.store.cluster import checkup
from schedd.store.connection import database_identity
from schedd.store.connection.database import Database
from schedd.store.connection.errors import SchemaMismatch
from schedd.store.connection.primary_selection import UNREADABLE
from schedd.store.schema import migrate, partitions, revisions
from schedkit.errors import Misconfigured
from support.managed import without_timeline
from support.postgres import ScratchServer, private_postgres


@pytest.fixture(scope="module")
def aurora() -> Iterator[ScratchServer]:
    """A server that refuses what Aurora refuses without logical replication."""
    with private_postgres() as server:
        dsn = server.create_database("aurora")
        admin = postgres.dsn(server.port, database="aurora", role=postgres.ADMIN)
        without_timeline(admin)
        migrate.upgrade(dsn)
        yield server


@pytest.fixture
def database(aurora: ScratchServer) -> Iterator[Database]:
    made = Database(postgres.dsn(aurora.port, database="aurora"), lanes=1, readers=1)
    yield made
    made.close()


def facts(connection: Connection) -> DatabaseFacts:
    return checkup.read_facts(connection)


async def test_without_the_timeline_function_a_member_connects_and_says_what_is_lost(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        probe = await database.call(database_identity.probe_server)
    assert probe.timeline == UNREADABLE
    assert probe.mark is not None
    assert probe.mark.system > 0
    assert "timeline unavailable reason='logical replication is not enabled'" in caplog.text
    assert "noticed by marks only" in caplog.text


async def test_the_doctor_names_the_guarantee_that_is_lost(database: Database) -> None:
    found = await database.call(facts)
    assert not found.timeline_given
    assert found.ends_sessions


def as_admin(server: ScratchServer, dsn: str, *statements: str) -> None:
    name = dsn.rpartition("/")[2]
    admin = postgres.dsn(server.port, database=name, role=postgres.ADMIN)
    with postgres.connect(admin) as session, session.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def role_of(server: ScratchServer, dsn: str, role: str) -> str:
    """A new role's DSN. It may connect, and nothing else."""
    timeouts = "".join(
        f"ALTER ROLE {role} SET {name} = '3s';"
        for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
    )
    made = f"DROP ROLE IF EXISTS {role}; CREATE ROLE {role} LOGIN; {timeouts}"
    as_admin(server, dsn, f"{made} ALTER ROLE {role} RESET search_path")
    return dsn.replace("//schedd@", f"//{role}@")


def statements_in(message: str) -> list[str]:
    return [line.strip() for line in message.splitlines() if line.startswith("    ")]


def refused(dsn: str) -> str:
    with pytest.raises(Misconfigured) as refusal:
        migrate.upgrade(dsn)
    return str(refusal.value)


def test_a_revoked_timeline_function_is_as_one_that_isnt_there(server: ScratchServer) -> None:
    dsn = server.create_database()
    as_admin(server, dsn, "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
    as_admin(server, dsn, "REVOKE EXECUTE ON FUNCTION pg_walfile_name(pg_lsn) FROM PUBLIC")
    assert migrate.upgrade(dsn) == revisions.head()
    server.drop_database(dsn)


def test_a_role_without_create_on_the_schema_gets_the_grant_and_continues(
    server: ScratchServer,
) -> None:
    owned = server.create_database()
    dsn = role_of(server, owned, "tenant1")
    as_admin(server, owned, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    message = refused(dsn)
    assert "role tenant1 can't create tables in schema public of database" in message
    assert statements_in(message) == ["GRANT USAGE, CREATE ON SCHEMA public TO tenant1;"]
    as_admin(server, owned, *statements_in(message))
    assert migrate.upgrade(dsn) == revisions.head()
    server.drop_database(owned)


def test_a_search_path_without_a_schema_gets_the_schema_and_continues(
    server: ScratchServer,
) -> None:
    owned = server.create_database()
    dsn = role_of(server, owned, "tenant2")
    as_admin(server, owned, "ALTER ROLE tenant2 SET search_path = nowhere")
    message = refused(dsn)
    assert "no schema of the search path (nowhere) exists" in message
    as_admin(server, owned, *statements_in(message))
    assert migrate.upgrade(dsn) == revisions.head()
    server.drop_database(owned)


def test_a_schema_without_usage_gets_the_grant_and_continues(server: ScratchServer) -> None:
    owned = server.create_database()
    dsn = role_of(server, owned, "tenant3")
    as_admin(server, owned, "CREATE SCHEMA app", "ALTER ROLE tenant3 SET search_path = app")
    message = refused(dsn)
    assert "role tenant3 lacks USAGE on schema app" in message
    as_admin(server, owned, *statements_in(message))
    assert migrate.upgrade(dsn) == revisions.head()
    server.drop_database(owned)


async def test_a_privilege_that_was_revoked_is_named_by_migrate_and_doctor_and_given_again(
    server: ScratchServer,
) -> None:
    dsn = server.create_database()
    migrate.upgrade(dsn)
    as_admin(
        server,
        dsn,
        "REVOKE INSERT ON runs FROM schedd",
        "REVOKE UPDATE, DELETE ON jobs, timers FROM schedd",
    )
    database = Database(dsn, lanes=1, readers=1)
    try:
        message = (await database.call(facts)).lacks
        assert refused(dsn) == message
        assert "role schedd lacks INSERT on runs; UPDATE, DELETE on jobs, timers." in message
        assert statements_in(message) == [
            "GRANT INSERT ON TABLE runs TO schedd;",
            "GRANT UPDATE, DELETE ON TABLE jobs, timers TO schedd;",
        ]
        as_admin(server, dsn, *statements_in(message))
        assert (await database.call(facts)).lacks == ""
        assert migrate.upgrade(dsn) == revisions.head()
    finally:
        database.close()
    server.drop_database(dsn)


async def test_a_daemons_role_of_its_own_works_by_the_grants_that_migrate_prints(
    server: ScratchServer,
) -> None:
    """The role owns nothing; partitions that it makes are the owner's."""
    owned = server.create_database()
    migrate.upgrade(owned)
    dsn = role_of(server, owned, "daemon1")
    as_admin(server, owned, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    assert "isn't a member of role schedd" in refused(dsn)
    printed = migrate.daemon_grants(owned).splitlines()[1:]
    as_admin(server, owned, *(each.lstrip("- ").replace("DAEMON", "daemon1") for each in printed))
    database = Database(dsn, lanes=1, readers=1)
    day = date(2031, 5, 1)
    try:
        await database.call(revisions.check_schema)
        assert await database.call(partitions.make_day, day)
        found = await database.call(facts)
        assert (found.lacks, found.settings["statement_timeout"]) == ("", "3s")
    finally:
        database.close()
    [[owner]] = server.execute(
        f"SELECT tableowner FROM pg_tables WHERE tablename = '{partitions.name_of(day)}'", owned
    )
    assert owner == "schedd"
    server.drop_database(owned)


def test_a_daemon_on_an_empty_search_path_names_the_grant_beside_migrate(
    server: ScratchServer,
) -> None:
    owned = server.create_database()
    dsn = role_of(server, owned, "tenant4")
    as_admin(server, owned, "ALTER ROLE tenant4 SET search_path = nowhere")
    with postgres.connect(dsn) as session, session.cursor() as cursor:
        cursor.execute("SELECT current_schema()")
    engine = migrate._engine(dsn)
    with engine.connect() as connection, pytest.raises(SchemaMismatch, match="CREATE SCHEMA"):
        revisions.check_schema(connection)
    engine.dispose()
    server.drop_database(owned)
