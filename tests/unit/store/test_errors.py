"""The meaning of a failure, by its code and by whether COMMIT had been sent."""

from __future__ import annotations

import psycopg2
import pytest
from psycopg2 import errorcodes, errors, extensions
from sqlalchemy import exc
from sqlalchemy.exc import DBAPIError, OperationalError, StatementError

from schedd.store.connection.errors import RetryRule, SchemaMismatch, Unsent, judge
from schedkit.errors import (
    BrokenData,
    DatabaseUnavailable,
    Fault,
    OutcomeUnknown,
    Rejected,
    TookTooLong,
    Unavailable,
)


class DriverError(Exception):
    """A driver's error, as far as it is looked at."""

    def __init__(self, code: str | None, words: str = "something") -> None:
        super().__init__(words)
        self.pgcode = code


def failed(code: str | None, words: str = "something", *, lost: bool = False) -> DBAPIError:
    return OperationalError("SELECT 1", {}, DriverError(code, words), connection_invalidated=lost)


@pytest.mark.parametrize("committing", [False, True])
@pytest.mark.parametrize("code", ["40P01", "40001"])
def test_a_rolled_back_transaction_is_retried_even_at_commit(code: str, committing: bool) -> None:
    """P1.6: by its own word nothing stands."""
    error, remedy = judge(failed(code), committing=committing)
    assert (type(error), remedy) == (Unavailable, RetryRule.AT_ONCE)


@pytest.mark.parametrize("code", ["08006", "57P01", "25P03", "53300", None])
def test_a_lost_server_is_tried_again_before_commit_and_unknown_after(code: str | None) -> None:
    before, remedy = judge(failed(code, lost=True), committing=False)
    after, none = judge(failed(code, lost=True), committing=True)

    assert (type(before), remedy) == (DatabaseUnavailable, RetryRule.AT_ONCE)
    assert (type(after), none) == (OutcomeUnknown, RetryRule.NONE)


@pytest.mark.parametrize("code", ["55P03", "57014"])
def test_a_long_wait_is_tried_once_more(code: str) -> None:
    """P1.6: and at COMMIT it isn't: there it may stand."""
    assert judge(failed(code), committing=False)[1] is RetryRule.ONCE_MORE
    assert isinstance(judge(failed(code), committing=True)[0], OutcomeUnknown)


def test_a_statement_timeout_is_distinguished_from_an_unavailable_server() -> None:
    assert type(judge(failed("57014"), committing=False)[0]) is TookTooLong
    assert type(judge(failed("55P03"), committing=False)[0]) is Unavailable


@pytest.mark.parametrize("code", ["22003", "22P02", "23514", "54000"])
def test_a_value_that_is_refused_is_broken_data(code: str) -> None:
    error, remedy = judge(failed(code), committing=False)
    assert (type(error), remedy) == (BrokenData, RetryRule.NONE)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("42P01", SchemaMismatch),
        ("3F000", SchemaMismatch),
        ("42501", Rejected),
        ("28P01", Rejected),
        ("3D000", Rejected),
        ("25006", Rejected),
        ("53100", Rejected),
        ("42601", Fault),
    ],
)
def test_each_sqlstate_raises_its_kind_of_error(code: str, kind: type[Exception]) -> None:
    assert type(judge(failed(code), committing=False)[0]) is kind


@pytest.mark.parametrize(
    ("words", "reason", "cause"),
    [
        ('database "x" does not exist', "database_missing", "doesn't serve the database"),
        (
            'database "x" is not currently accepting connections',
            "database_missing",
            "doesn't serve the database",
        ),
        (
            'password authentication failed for user "schedd"',
            "login_rejected",
            "PostgreSQL rejects the login of role schedd",
        ),
        (
            'no pg_hba.conf entry for host "::1", user "schedd", database "x", no encryption',
            "login_rejected",
            "PostgreSQL rejects the login of role schedd",
        ),
        ('role "schedd" does not exist', "login_rejected", "the login of role schedd"),
        ('role "schedd" is not permitted to log in', "login_rejected", "of role schedd"),
        (
            'permission denied for database "x"\nDETAIL:  User does not have CONNECT privilege.',
            "login_rejected",
            "PostgreSQL rejects the login",
        ),
    ],
)
def test_a_rejected_connection_has_its_cause_and_a_remedy(
    words: str, reason: str, cause: str
) -> None:
    error, remedy = judge(failed(None, f"FATAL:  {words}"), committing=False)
    assert remedy is RetryRule.NONE
    assert isinstance(error, Rejected)
    assert (error.reason, cause in error.cause) == (reason, True)
    assert error.remedy in str(error)


@pytest.mark.parametrize(
    ("code", "words", "reason", "remedy"),
    [
        (
            None,
            'FATAL:  too many connections for role "schedd"',
            "no_connection",
            'ALTER ROLE "schedd" CONNECTION LIMIT n',
        ),
        (
            None,
            'FATAL:  too many connections for database "shop"',
            "no_connection",
            'ALTER DATABASE "shop" CONNECTION LIMIT n',
        ),
        (None, "FATAL:  sorry, too many clients already", "no_connection", "max_connections"),
        ("53300", "remaining connection slots are reserved", "no_connection", "end other sessions"),
        (None, "FATAL:  the database system is starting up", "starting", "Wait until"),
        ("57P03", "the database system is in recovery mode", "starting", "Wait until"),
        ("57014", "canceling statement due to statement timeout", "timed_out", "statement_timeout"),
        (
            "55P03",
            "canceling statement due to lock timeout",
            "lock_timeout",
            "pg_terminate_backend",
        ),
    ],
)
def test_an_outage_that_a_setting_causes_has_a_reason_and_a_remedy(
    code: str | None, words: str, reason: str, remedy: str
) -> None:
    error, rule = judge(failed(code, words), committing=False)
    assert isinstance(error, Unavailable)
    assert (error.reason, remedy in error.remedy) == (reason, True)
    assert (rule is RetryRule.NONE) == (reason == "no_connection"), "each try starts a process"
    assert words.removeprefix("FATAL:  ") in str(error)
    assert "FATAL" not in str(error)


CODES = sorted(
    code
    for name, code in vars(errorcodes).items()
    if name.isupper() and isinstance(code, str) and len(code) == 5
)
BUGS = {"07001", "25001", "25P01", "25P02"}
"""Bugs by their codes outside of class 42."""
CLASSES = {"21", "22", "23", "44", "54"}
"""Classes by which a row is bad."""


@pytest.mark.parametrize("committing", [False, True])
def test_every_code_of_postgresql_is_retried_or_a_bad_row_or_a_bug(committing: bool) -> None:
    assert len({code[:2] for code in CODES}) > 40
    for code in CODES:
        error, _ = judge(failed(code), committing=committing)
        if code[:2] in CLASSES:
            assert isinstance(error, BrokenData), code
        elif isinstance(error, Fault):
            assert code in BUGS or code[:2] == "42", code
        else:
            assert isinstance(error, Unavailable), code
            assert not isinstance(error, BrokenData), code


@pytest.mark.parametrize("code", ["99999", "ZZ000", "0A000", "P0001", "XX001", "F0000", "HV000"])
def test_an_unknown_code_is_retried(code: str) -> None:
    assert type(judge(failed(code), committing=False)[0]) is Unavailable


@pytest.mark.parametrize("code", ["42P01", "42703", "42883", "42704", "42804", "42P10", "42809"])
def test_a_schema_that_changed_under_a_member_is_retried(code: str) -> None:
    error, _ = judge(failed(code), committing=False)
    assert isinstance(error, SchemaMismatch)
    assert isinstance(error, Unavailable)


DRIVER = [
    (psycopg2.OperationalError("server closed the connection unexpectedly"), DatabaseUnavailable),
    (psycopg2.InterfaceError("connection already closed"), DatabaseUnavailable),
    (psycopg2.DatabaseError("error with status PGRES_TUPLES_OK"), DatabaseUnavailable),
    (psycopg2.InternalError("no COPY in progress"), DatabaseUnavailable),
    (psycopg2.Error("unknown"), DatabaseUnavailable),
    (psycopg2.ProgrammingError("can't adapt type 'object'"), BrokenData),
    (psycopg2.DataError("value out of range"), BrokenData),
    (psycopg2.NotSupportedError("no"), BrokenData),
    (psycopg2.IntegrityError("no"), BrokenData),
    (extensions.QueryCanceledError("canceled"), DatabaseUnavailable),
    (extensions.TransactionRollbackError("rolled back"), DatabaseUnavailable),
]


@pytest.mark.parametrize(("raised", "kind"), DRIVER)
def test_every_exception_of_the_driver_is_classified(
    raised: psycopg2.Error, kind: type[Exception]
) -> None:
    wrapped = DBAPIError.instance("SELECT 1", {}, raised, psycopg2.Error)
    for error in (raised, wrapped):
        assert type(judge(error, committing=False)[0]) is kind, error


def test_every_class_of_the_drivers_errors_is_in_the_table() -> None:
    known = {type(raised) for raised, _ in DRIVER}
    of_codes = {each for each in vars(errors).values() if isinstance(each, type)}
    found = [psycopg2.Error]
    for each in found:
        found += each.__subclasses__()
    assert {each for each in found if each not in of_codes} <= known


VALUES = [
    UnicodeEncodeError("latin-1", "é€", 1, 2, "ordinal not in range"),
    UnicodeDecodeError("utf-8", b"\xe9", 0, 1, "invalid"),
    ValueError("A string literal cannot contain NUL (0x00) characters."),
    TypeError("can't be compared"),
    OverflowError("int too big to convert"),
    RecursionError("maximum recursion depth exceeded"),
]
NOT_OF_A_VALUE = [
    (KeyError("missing"), Fault),
    (IndexError("tuple index out of range"), Fault),
    (TypeError("not all arguments converted during string formatting"), Fault),
    (MemoryError(), Unavailable),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_that_the_driver_cant_send_is_a_bad_row(value: Exception) -> None:
    for raised in (Unsent(value), StatementError("(x)", "SELECT 1", {}, value)):
        error, remedy = judge(raised, committing=False)
        assert (type(error), remedy) == (BrokenData, RetryRule.NONE)
        assert type(value).__name__ in str(error)


@pytest.mark.parametrize("raised", [*VALUES, MemoryError()], ids=lambda each: type(each).__name__)
def test_an_error_of_the_driver_at_commit_leaves_the_outcome_unknown(raised: Exception) -> None:
    """P1.3: COMMIT has no value. The driver may have failed at its answer."""
    error, remedy = judge(Unsent(raised), committing=True)
    assert (type(error), remedy) == (OutcomeUnknown, RetryRule.NONE)


@pytest.mark.parametrize(("raised", "kind"), NOT_OF_A_VALUE)
def test_an_error_without_a_bad_value_is_no_bad_row(
    raised: Exception, kind: type[Exception]
) -> None:
    """Results that their row can't take lose what the worker wrote: never for one of these."""
    assert type(judge(Unsent(raised), committing=False)[0]) is kind


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (exc.TimeoutError("QueuePool limit of size 10 overflow 0 reached"), DatabaseUnavailable),
        (exc.DisconnectionError("gone"), DatabaseUnavailable),
        (exc.InvalidatePoolError("gone"), DatabaseUnavailable),
        (exc.InvalidRequestError("bug"), Fault),
        (exc.NoSuchColumnError("bug"), Fault),
        (exc.PendingRollbackError("invalid transaction"), DatabaseUnavailable),
        (exc.ResourceClosedError("This Connection is closed"), DatabaseUnavailable),
        (exc.NoResultFound("No row was found"), SchemaMismatch),
        (exc.MultipleResultsFound("Multiple rows"), SchemaMismatch),
        (exc.ArgumentError("bug"), Fault),
        (exc.CompileError("bug"), Fault),
    ],
)
def test_every_exception_of_sqlalchemy_is_classified(
    raised: Exception, kind: type[Exception]
) -> None:
    assert type(judge(raised, committing=False)[0]) is kind


REFUSED = 'connection to server at "a", port 5432 failed: FATAL:  database "x" does not exist'
AWAY = 'connection to server at "b", port 5432 failed: Connection refused\n\tIs it running there?'
LOST = 'could not translate host name "b" to address: Name or service not known'


@pytest.mark.parametrize("other", [AWAY, LOST])
def test_an_unavailable_server_of_two_may_be_the_primary(other: str) -> None:
    """Else a member would end for good in the second in which its primary restarts."""
    for words in (f"{REFUSED}\n{other}", f"{other}\n{REFUSED}"):
        error, remedy = judge(failed(None, words), committing=False)
        assert (type(error), remedy) == (DatabaseUnavailable, RetryRule.AT_ONCE)
    twice = f'{REFUSED}\n{REFUSED}\npassword retrieved from file "x"'
    assert type(judge(failed(None, twice), committing=False)[0]) is Rejected


def test_only_the_first_line_is_reported() -> None:
    error, _ = judge(failed("40001", "could not serialize\nDETAIL: rows"), committing=False)
    assert str(error) == "PostgreSQL: could not serialize"
