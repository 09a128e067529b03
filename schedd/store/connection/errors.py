"""Classify every failure of PostgreSQL and its driver: retry, this row is bad, or a bug.

    class          raised as                                         members do
    retry          Unavailable, DatabaseUnavailable,
                   TookTooLong, OutcomeUnknown                        retry with backoff
      rejected     Rejected, SchemaMismatch: cause and remedy         the same, and are not ready
    row is bad     BrokenData                                         bisect, set the row aside
    bug            Fault                                              end the process, start clean

Invariants
- Foreign errors don't leave this package: each is raised as one of schedkit's.
- Nothing that the server, its configuration or its operator decides ends a running process. Only a
  statement that is wrong in itself is a bug (`_BUGS`); an unknown code is retried.
- Only a failure before COMMIT was sent, or one by which the server says that it rolled back, may be
  retried here.
"""

from __future__ import annotations

import enum
import re
from typing import Final

import psycopg2
from sqlalchemy.exc import (
    DBAPIError,
    DisconnectionError,
    MultipleResultsFound,
    NoResultFound,
    PendingRollbackError,
    ResourceClosedError,
    SQLAlchemyError,
    StatementError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from schedkit.errors import (
    BrokenData,
    DatabaseUnavailable,
    Fault,
    OutcomeUnknown,
    Rejected,
    TookTooLong,
    Unavailable,
)


class SchemaMismatch(Rejected):
    """The database's schema is missing, older or newer than this schedd needs."""

    def __init__(self, cause: str, remedy: str = "Run `schedd migrate`.") -> None:
        super().__init__("schema_mismatch", cause.removesuffix("."), remedy)


class Unsent(Exception):
    """The driver raised `orig` in `execute`, before anything was sent: a value can't be encoded.
    Raised by the engine's `handle_error` (`database`) alone.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.orig = error


class RetryRule(enum.Enum):
    """How a failure may be handled inside the call."""

    NONE = "report to the caller"
    AT_ONCE = "rolled back, or never begun: a fresh transaction may try"
    ONCE_MORE = "rolled back after a long wait: one more try, then report to the caller"


READ_ONLY: Final = "25006"
_CONFLICTS: Final = {"40P01", "40001"}
_TOO_LONG: Final = "57014"
_NO_LOCK: Final = "55P03"
_WAITED: Final = {_NO_LOCK, _TOO_LONG}
LOCK_TIMEOUT: Final = "lock_timeout"
"""The reason of a failure by `_NO_LOCK`."""
_BROKEN: Final = ("21", "22", "23", "44", "54")
"""Classes of codes that a value of a row causes: data, constraints, limits."""

_BUGS: Final = frozenset(
    {
        "07001",  # dynamic SQL: parameters and placeholders differ in number
        "25001",  # in a transaction already
        "25P01",  # not in a transaction
        "25P02",  # the transaction has failed already
        "42601",  # syntax error
        "42P02",  # no such parameter
        "42P08",  # ambiguous parameter
        "42P18",  # indeterminate datatype
        "42803",  # grouping error
        "42P20",  # windowing error
        "42P19",  # invalid recursion
        "42702",  # ambiguous column
        "42725",  # ambiguous function
        "42P09",  # ambiguous alias
        "42701",  # duplicate column
        "42712",  # duplicate alias
        "42P05",  # duplicate prepared statement
    }
)
"""Codes of a statement that is wrong on every database."""

_OF_A_VALUE: Final = (
    psycopg2.ProgrammingError,
    psycopg2.DataError,
    psycopg2.NotSupportedError,
    psycopg2.IntegrityError,
)
"""Without a code: the driver itself rejected the statement's values, and no server answered."""

_LOST: Final = ("08", "25006", "25P0", "53", "55000", "57P", "58", "XX000")
"""The connection or the server ended, or can't serve now: a COMMIT may have taken effect."""

_LOGIN: Final = re.compile(
    r"authentication failed|no pg_hba.conf entry|no password supplied|is not permitted to log in"
    r"|role \"?[^\"]*\"? does not exist|client certificate|rejects connection"
    r"|permission denied for database|SCRAM|no such user|not allowed to (?:log|connect)"
)
_ROLE: Final = re.compile(r"(?:for )?(?:user|role)(?: name)? \"([^\"]+)\"")
_DATABASE: Final = re.compile(r"database \"([^\"]+)\"")
_TRY: Final = (" failed: ", "could not ")
"""libpq writes a line with one of these for each server that it tried."""

_LOGIN_REMEDY: Final = (
    "Make postgres.dsn and the role agree (ALTER ROLE … LOGIN PASSWORD …), and check pg_hba.conf; a"
    " reload (SIGHUP) applies a changed user or password"
)
_CONNECT_REMEDY: Final = (
    "Grant the privilege: GRANT CONNECT ON DATABASE … TO the role of postgres.dsn"
)
_SCHEMA_REMEDY: Final = (
    "Check search_path of the role and the database, finish the restore, or run `schedd migrate`"
)
_REJECTIONS: Final = {
    "3D000": ("database_missing", "PostgreSQL doesn't serve the database"),
    "42501": ("permission_denied", "PostgreSQL denies a privilege"),
    "42501 row-level security": ("permission_denied", "PostgreSQL hides rows from schedd"),
    READ_ONLY: ("read_only", "PostgreSQL is read-only"),
    "53100": ("disk_full", "PostgreSQL's disk is full"),
}
"""Code → reason, and what happened."""
_REMEDIES: Final = {
    "3D000": "Create, restore or rename the database, or change postgres.dsn",
    "42501": "`schedd migrate` prints the GRANT statements that are missing"
    " (docs/databases.md, Roles)",
    "42501 row-level security": "Disable row-level security of schedd's tables, or give the role"
    " BYPASSRLS: schedd must see every row",
    READ_ONLY: "Set default_transaction_read_only = off for server, database and role (if ALTER"
    " fails as read-only, run SET default_transaction_read_only = off before it), or point"
    " postgres.dsn at the primary",
    "53100": "Make room on PostgreSQL's disk",
}
WAITED_REMEDY: Final = (
    "Find what delays statements (pg_stat_activity: locks, disk, processor), and check"
    " statement_timeout and lock_timeout of the role and the database (docs/operations/schema.md)"
)
_LOCKED_REMEDY: Final = (
    "`schedctl cluster doctor` names the session that holds the lock, if it lasts; end its"
    " transaction, or SELECT pg_terminate_backend(PID)"
)
_STARTING: Final = re.compile(
    r"the database system is (?:starting up|not yet accepting connections|in recovery mode)"
)
_FULL: Final = re.compile(r"too many (?:connections|clients)|connection slots are reserved")
_LIMITED: Final = re.compile(r'too many connections for (role|database) "(.*)"')
_FULL_REMEDY: Final = (
    "Raise max_connections (present value: SHOW max_connections): ALTER SYSTEM SET max_connections"
    " = n, then restart PostgreSQL; or end other sessions (SELECT * FROM pg_stat_activity)"
)


_SENT: Final = " (COMMIT was sent: it may have taken effect)"


def judge(error: BaseException, *, committing: bool) -> tuple[Exception, RetryRule]:
    """Return the error to raise for this failure, and whether the transaction may be retried.
    `committing`: COMMIT had been sent, so the transaction may have taken effect.
    """
    if isinstance(error, psycopg2.Error):  # raised outside of SQLAlchemy's statements
        error = DBAPIError("", {}, error)
    if committing and isinstance(error, Unsent):  # COMMIT has no value that it could reject
        return OutcomeUnknown(f"PostgreSQL: {_line(error.orig)}{_SENT}"), RetryRule.NONE
    if not isinstance(error, DBAPIError):
        return _judge_library(error), RetryRule.NONE
    code, words = sqlstate(error), _line(error.orig) if error.orig else "no answer"
    text = f"PostgreSQL: {words}"
    if code in _CONFLICTS:
        return Unavailable(text), RetryRule.AT_ONCE
    if not code and not error.connection_invalidated and isinstance(error.orig, _OF_A_VALUE):
        return BrokenData(text), RetryRule.NONE
    rejected = _rejected(code, words, error)
    lost = error.connection_invalidated or not code or code.startswith(_LOST) or code in _WAITED
    if committing and (lost or code == "40003"):
        return OutcomeUnknown(f"{text}{_SENT}"), RetryRule.NONE
    if rejected is not None:
        return rejected, RetryRule.NONE
    if code in _BUGS:
        return Fault(text), RetryRule.NONE
    if code == _NO_LOCK:
        waited = Unavailable(
            f"PostgreSQL: a statement waited for another session's lock until lock_timeout"
            f" ({words})",
            reason=LOCK_TIMEOUT,
            remedy=_LOCKED_REMEDY,
        )
        return waited, RetryRule.ONCE_MORE
    if code == _TOO_LONG:
        return TookTooLong(text, reason="timed_out", remedy=WAITED_REMEDY), RetryRule.ONCE_MORE
    if lost:
        # each try of a full server costs it a process; callers try again after a backoff
        return _lost(words), RetryRule.NONE if _FULL.search(words) else RetryRule.AT_ONCE
    if code.startswith(_BROKEN):
        return BrokenData(text), RetryRule.NONE
    return Unavailable(f"{text} (SQLSTATE {code})"), RetryRule.NONE


def _lost(words: str) -> DatabaseUnavailable:
    if _FULL.search(words):
        message = f"PostgreSQL has no connection left: {words.rpartition('FATAL:')[2].strip()}"
        remedy = _limit_remedy(words)
        return DatabaseUnavailable(message, reason="no_connection", remedy=remedy)
    if starting := _STARTING.search(words):
        return DatabaseUnavailable(
            f"PostgreSQL is starting: {starting[0]}",
            reason="starting",
            remedy="Wait until PostgreSQL has started; its log shows the progress",
        )
    return DatabaseUnavailable(f"PostgreSQL: {words}")


def _limit_remedy(words: str) -> str:
    """Return what raises the limit of connections that PostgreSQL names."""
    if (limited := _LIMITED.search(words)) is None:
        return _FULL_REMEDY
    kind, name = limited.groups()
    table, column = ("pg_roles", "rol") if kind == "role" else ("pg_database", "dat")
    quoted, text = name.replace('"', '""'), name.replace("'", "''")
    return (
        f'Raise CONNECTION LIMIT of the {kind}, as a superuser: ALTER {kind.upper()} "{quoted}"'
        f" CONNECTION LIMIT n (-1: no limit); present limit: SELECT {column}connlimit FROM {table}"
        f" WHERE {column}name = '{text}'; or end other sessions (SELECT * FROM pg_stat_activity)"
    )


def sqlstate(error: DBAPIError) -> str:
    """Return PostgreSQL's five-character code; empty if the failure has none (no answer)."""
    original = error.orig
    return getattr(original, "pgcode", None) or getattr(original, "sqlstate", None) or ""


def _judge_library(error: BaseException) -> Exception:
    """Return the error for a failure of SQLAlchemy or the driver itself: no server answered."""
    text = f"{type(error).__name__}: {_line(error)}"
    match error:
        case Unsent() | StatementError() if (cause := getattr(error, "orig", None)) is not None:
            return _judge_unsent(cause)
        case NoResultFound() | MultipleResultsFound():
            return SchemaMismatch(
                f"A row that every database of schedd has is missing: {text}", _SCHEMA_REMEDY
            )
        case PoolTimeout():
            return DatabaseUnavailable(f"PostgreSQL: all connections of schedd are in use: {text}")
        case DisconnectionError() | ResourceClosedError() | PendingRollbackError():
            return DatabaseUnavailable(
                f"PostgreSQL: a connection was closed: {text}; schedd connects again"
            )
    return Fault(f"the database library failed: {text}")


def _judge_unsent(cause: BaseException) -> Exception:
    """Return the error for an exception that the driver raised in Python, before anything was sent.

    An error of a value sets its row aside. Any other error is the statement's or this process's.
    """
    text = f"{type(cause).__name__}: {_line(cause)}"
    if isinstance(cause, MemoryError):
        return Unavailable("no memory is left to send a statement to PostgreSQL")
    if isinstance(cause, LookupError | NameError) or "arguments" in text:
        return Fault(f"a statement and its parameters differ: {text}")
    return BrokenData(f"the PostgreSQL driver rejects a value: {text}")


def _rejected(code: str, words: str, error: DBAPIError) -> Rejected | None:
    """Return the rejection with its cause and remedy; None for every other failure."""
    if not code:
        return _rejected_by_all(error)
    if code.startswith(("28", "0L", "0P")):
        return _login(words)
    hidden = code == "42501" and "row-level security" in words
    kind = "42501 row-level security" if hidden else code
    if kind in _REJECTIONS:
        return _rejection(kind, words)
    if code.startswith(("42", "3F")) and code not in _BUGS:
        return SchemaMismatch(
            f"The database's schema isn't the one this schedd needs: {words}", _SCHEMA_REMEDY
        )
    return None


def _rejected_by_all(error: DBAPIError) -> Rejected | None:
    """Return the rejection of a connection, which has no code, only the server's text. None if one
    of the tried servers is down: it may be the primary.
    """
    lines = str(error.orig).strip().splitlines()
    tries = [line for line in lines if any(mark in line for mark in _TRY)] or lines[:1]
    found = [_rejected_connection(line) for line in tries]
    return found[0] if found and all(found) else None


def _rejected_connection(line: str) -> Rejected | None:
    _, _, words = line.rpartition("FATAL:")
    words = words.strip()
    if _DATABASE.search(line) and ("does not exist" in line or "not currently accepting" in line):
        return _rejection("3D000", words)
    return _login(words) if _LOGIN.search(line) else None


def _login(words: str) -> Rejected:
    role = _ROLE.search(words)
    named = f" of role {role[1]}" if role else ""
    remedy = _CONNECT_REMEDY if "permission denied for database" in words else _LOGIN_REMEDY
    return Rejected("login_rejected", f"PostgreSQL rejects the login{named}: {words}", remedy)


def _rejection(kind: str, words: str) -> Rejected:
    reason, what = _REJECTIONS[kind]
    return Rejected(reason, f"{what}: {words}", _REMEDIES[kind])


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


DRIVER_ERRORS: Final = (SQLAlchemyError, psycopg2.Error, Unsent)
"""All errors of the driver and SQLAlchemy, after `handle_error` has marked values as `Unsent`."""
