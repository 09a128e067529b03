"""A guarded row of a real PostgreSQL: what greater tokens have written, lower ones leave alone."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import psycopg
import psycopg2
import psycopg2.extras
import pytest
from psycopg.rows import dict_row, scalar_row

from schedclient import Misconfigured, StaleToken, TableGuard
from support.postgres import ScratchServer
from support.repository import ROOT
from support.wait import WAIT_TIMEOUT, wait_until

DRIVERS: list[Callable[[str], Any]] = [
    psycopg.connect,
    partial(psycopg.connect, row_factory=dict_row),
    partial(psycopg.connect, row_factory=scalar_row),
    psycopg2.connect,
    partial(psycopg2.connect, cursor_factory=psycopg2.extras.RealDictCursor),
]
NAMES = ["psycopg", "psycopg, dicts", "psycopg, values", "psycopg2", "psycopg2, dicts"]


@pytest.fixture(scope="module")
def shop(server: ScratchServer) -> Iterator[str]:
    """A database with the guards' table, and one to write into."""
    dsn = server.create_database()
    with psycopg.connect(dsn) as connection:
        connection.execute(TableGuard("any").schema)
        connection.execute("CREATE TABLE totals (name text PRIMARY KEY, sum int)")
    yield dsn
    server.drop_database(dsn)


@pytest.fixture
def guard(request: pytest.FixtureRequest) -> TableGuard:
    """Of a resource of the test's own."""
    return TableGuard(request.node.name)


def write(connection: Any, guard: TableGuard, total: int, token: int) -> None:
    """Act as a job does: write and check in one transaction, and commit."""
    statement = "INSERT INTO totals VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET sum = %s"
    with connection:
        with connection.cursor() as cursor:
            cursor.execute(statement, (guard.resource, total, total))
        guard.check(connection, token)


def written(dsn: str, guard: TableGuard) -> int:
    with psycopg.connect(dsn, row_factory=scalar_row) as connection:
        asked = "SELECT sum FROM totals WHERE name = %s"
        return int(connection.execute(asked, (guard.resource,)).fetchone())


def waits(server: ScratchServer, dsn: str) -> bool:
    asked = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}' AND wait_event_type = 'Lock'"
    )
    return server.execute(asked.format(dsn.rpartition("/")[2])) == [(1,)]


@pytest.mark.parametrize("connect", DRIVERS, ids=NAMES)
def test_a_stale_token_is_refused_with_its_write_and_the_same_one_passes_again(
    shop: str, guard: TableGuard, connect: Callable[[str], Any]
) -> None:
    later, earlier = 5 << 32 | 7, 5 << 32 | 6
    write(connect(shop), guard, 1, later)
    write(connect(shop), guard, 2, later)
    with pytest.raises(StaleToken, match="roll back") as refused:
        write(connect(shop), guard, 3, earlier)
    assert written(shop, guard) == 2
    copied = pickle.loads(pickle.dumps(refused.value))
    assert (copied.resource, copied.token, copied.last_seen) == (guard.resource, earlier, later)
    assert str(copied) == str(refused.value)
    write(connect(shop), guard, 4, 6 << 32 | 1)
    assert written(shop, guard) == 4
    with connect(shop) as connection:
        TableGuard(f"not {guard.resource}").check(connection, 3)


@pytest.mark.parametrize("isolation", list(psycopg.IsolationLevel)[1:], ids=lambda one: one.name)
@pytest.mark.parametrize("known", [True, False], ids=["known", "new"])
@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_check_waits_for_the_transaction_that_checked_before_and_is_judged_by_its_end(
    server: ScratchServer,
    shop: str,
    guard: TableGuard,
    isolation: psycopg.IsolationLevel,
    known: bool,
    ends: str,
) -> None:
    if known:
        write(psycopg.connect(shop), guard, 1, 1)
    with psycopg.connect(shop) as first, ThreadPoolExecutor(1) as pool:
        guard.check(first, 3)
        second = psycopg.connect(shop)
        second.isolation_level = isolation
        late = pool.submit(write, second, guard, 2, 2)
        wait_until(partial(waits, server, shop), WAIT_TIMEOUT, "the second check to wait")
        getattr(first, ends)()
        if ends == "rollback":
            late.result(WAIT_TIMEOUT)
            assert written(shop, guard) == 2
        else:
            with pytest.raises((StaleToken, psycopg.errors.SerializationFailure)):
                late.result(WAIT_TIMEOUT)


def test_a_client_stopped_in_a_transaction_is_ended_by_the_server_and_commits_nothing(
    shop: str, guard: TableGuard
) -> None:
    """The page's advice: `idle_in_transaction_session_timeout`."""
    sleeper = psycopg.connect(shop, options="-c idle_in_transaction_session_timeout=300")
    sleeper.execute("INSERT INTO totals VALUES (%s, 1)", (f"not {guard.resource}",))
    guard.check(sleeper, 1)
    write(psycopg.connect(shop), guard, 2, 2)
    with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
        sleeper.commit()
    with psycopg.connect(shop) as connection:
        rows = connection.execute(
            "SELECT * FROM totals WHERE name LIKE %s", (f"%{guard.resource}",)
        )
        assert rows.fetchall() == [(guard.resource, 2)]


@pytest.mark.parametrize("connect", [psycopg.connect, psycopg2.connect])
def test_a_check_in_autocommit_mode_is_an_error(
    shop: str, guard: TableGuard, connect: Callable[[str], Any]
) -> None:
    connection = connect(shop)
    connection.autocommit = True
    with pytest.raises(Misconfigured, match="begin a transaction"):
        guard.check(connection, 1)
    if connect is psycopg.connect:
        with connection.transaction():
            guard.check(connection, 1)


@pytest.mark.parametrize("connect", [psycopg.connect, psycopg2.connect])
def test_a_missing_table_is_reported_with_the_statement_that_creates_it(
    shop: str, connect: Callable[[str], Any]
) -> None:
    guard = TableGuard("x", table="public." + connect.__module__.replace(".", "_"))
    connection = connect(shop)
    with pytest.raises(Misconfigured, match=re.escape(guard.schema)):
        guard.check(connection, 1)
    connection.rollback()
    with connection, connection.cursor() as cursor:
        cursor.execute(guard.schema)
        guard.check(connection, 1)


@pytest.mark.parametrize("token", [0, -1, 2**63, True, "7", 7.0])
def test_an_invalid_token_is_refused_before_any_query(guard: TableGuard, token: Any) -> None:
    with pytest.raises(Misconfigured, match=re.escape(repr(token))):
        guard.check(None, token)  # type: ignore[arg-type]


def test_a_shell_jobs_token_is_that_of_its_environment(
    shop: str, guard: TableGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(shop) as connection:
        monkeypatch.setenv("SCHEDD_FENCING_TOKEN", "41")
        guard.check(connection)
        with pytest.raises(StaleToken):
            guard.check(connection, 40)
        for text in ("4e9", "", "-1", "9" * 40):
            monkeypatch.setenv("SCHEDD_FENCING_TOKEN", text)
            with pytest.raises(Misconfigured, match=f"'{text}' isn't a valid fencing token"):
                guard.check(connection)
        monkeypatch.delenv("SCHEDD_FENCING_TOKEN")
        with pytest.raises(Misconfigured, match="SCHEDD_FENCING_TOKEN isn't set"):
            guard.check(connection)


@pytest.mark.parametrize(
    "wrong", [{"resource": ""}, {"resource": "a\0"}, {"resource": "x", "table": "a; DROP TABLE b"}]
)
def test_impossible_table_names_are_rejected(wrong: dict[str, str]) -> None:
    with pytest.raises(Misconfigured, match="isn't a valid name"):
        TableGuard(**wrong)


def test_the_plain_sql_of_the_page_alone_refuses_a_stale_token(
    shop: str, guard: TableGuard
) -> None:
    page = (ROOT / "docs" / "fencing.md").read_text(encoding="utf-8")
    table, statement, function = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    assert table.strip().rstrip(";") == guard.schema
    check = "SELECT schedd_fence_check(%s, %s)"
    with psycopg.connect(shop) as connection:
        connection.execute(function)
        connection.execute(check, (guard.resource, 8))
        guard.check(connection, 8)
        row = connection.execute(re.sub(r"\$\d", "%s", statement), (guard.resource, 7)).fetchone()
        assert row == (8,), "another than one's own: refused"
        message = f'stale fencing token 7 for "{guard.resource}": 8 was seen'
        with pytest.raises(psycopg.errors.RaiseException, match=re.escape(message)):
            connection.execute(check, (guard.resource, 7))
