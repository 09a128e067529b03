"""A connection sends BEGIN with the first statement of a transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg2
import pytest
from psycopg2.extensions import TRANSACTION_STATUS_IDLE, TRANSACTION_STATUS_INTRANS

from schedd.store.connection.transaction import DriverConnection

SENT = "SELECT current_query()"


@pytest.fixture
def session(dsn: str) -> Iterator[DriverConnection]:
    with closing(psycopg2.connect(dsn, connection_factory=DriverConnection)) as made:
        yield made


def rows(session: DriverConnection, query: str, *values: object) -> list[tuple[object, ...]]:
    with session.cursor() as cursor:
        cursor.execute(query, values or None)
        return cursor.fetchall() if cursor.description else []


def test_begin_is_sent_in_the_message_of_the_first_statement_only(
    session: DriverConnection,
) -> None:
    assert rows(session, SENT) == [(f"BEGIN;{SENT}",)]
    assert rows(session, SENT) == [(SENT,)]
    session.commit()
    assert rows(session, SENT) == [(f"BEGIN;{SENT}",)]


def test_all_statements_until_commit_are_one_transaction(session: DriverConnection) -> None:
    first, second = rows(session, "SELECT txid_current()"), rows(session, "SELECT txid_current()")
    session.commit()
    assert first == second != rows(session, "SELECT txid_current()")


def test_a_rollback_undoes_all_statements(session: DriverConnection) -> None:
    rows(session, "CREATE TABLE undone ()")
    rows(session, "SELECT 1")
    session.rollback()
    assert rows(session, "SELECT to_regclass('undone')") == [(None,)]


def test_a_first_statement_that_fails_leaves_its_transaction_failed(
    session: DriverConnection,
) -> None:
    with pytest.raises(psycopg2.errors.DivisionByZero):
        rows(session, "SELECT 1 / 0")
    with pytest.raises(psycopg2.errors.InFailedSqlTransaction):
        rows(session, "SELECT 1")
    session.rollback()
    assert rows(session, "SELECT 1") == [(1,)]


def test_a_commit_after_a_statement_that_failed_is_not_confirmed(
    session: DriverConnection,
) -> None:
    """P1.4: PostgreSQL rolls back, and reports no error."""
    rows(session, "CREATE TABLE undone ()")
    with pytest.raises(psycopg2.errors.DivisionByZero):
        rows(session, "SELECT 1 / 0")
    with pytest.raises(psycopg2.InterfaceError, match="answered COMMIT: ROLLBACK"):
        session.commit()
    assert rows(session, "SELECT to_regclass('undone')") == [(None,)]


@pytest.mark.parametrize(
    ("query", "values"), [("SELECT %s", (object(),)), ("SELECT %s", ("\udc80",)), ("SELEC 1", ())]
)
def test_after_a_first_statement_that_begins_nothing_the_next_one_begins(
    session: DriverConnection, query: str, values: tuple[object, ...]
) -> None:
    with pytest.raises((psycopg2.Error, UnicodeEncodeError, TypeError)):
        rows(session, query, *values)
    assert session.get_transaction_status() == TRANSACTION_STATUS_IDLE
    rows(session, "CREATE TABLE undone ()")
    assert session.get_transaction_status() == TRANSACTION_STATUS_INTRANS
    session.rollback()
    assert rows(session, "SELECT to_regclass('undone')") == [(None,)]


@pytest.mark.parametrize("end", [DriverConnection.commit, DriverConnection.rollback])
@pytest.mark.parametrize("begun", [True, False])
def test_on_a_closed_connection_no_transaction_ends(
    session: DriverConnection, end: Callable[[DriverConnection], None], begun: bool
) -> None:
    end(session)
    if begun:
        rows(session, SENT)
    session.close()
    with pytest.raises(psycopg2.InterfaceError, match="closed"):
        end(session)


def test_in_autocommit_a_statement_begins_no_transaction(session: DriverConnection) -> None:
    session.autocommit = True
    assert rows(session, SENT) == [(SENT,)]
    assert session.get_transaction_status() == TRANSACTION_STATUS_IDLE


def test_what_would_run_outside_of_a_transaction_is_refused(session: DriverConnection) -> None:
    with session.cursor() as cursor, pytest.raises(psycopg2.InterfaceError):
        cursor.executemany("SELECT %s", [(1,)])
