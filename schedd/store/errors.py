"""What a failure of PostgreSQL means: try again, away, unknown, broken data, or a bug of ours.

Invariants
- Foreign errors don't leave this package: whatever comes out is one of schedkit's, or `BrokenData`
  between our own modules.
- Only a failure before COMMIT was sent, or one by which the server says that it rolled back, may
  be tried again here.
"""

from __future__ import annotations

import enum

from sqlalchemy.exc import DBAPIError

from schedkit.errors import (
    Fault,
    Misconfigured,
    OutcomeUnknown,
    ScheddError,
    TookTooLong,
    Unavailable,
)


class SchemaMismatch(Misconfigured):
    """The database's schema is older or newer than this schedd. The message says what to do."""


class BrokenData(Exception):
    """The database refuses a value of the batch (classes 22, 23 and 54): find the row, set it
    aside. Between our own modules only.
    """


class Remedy(enum.Enum):
    """What may still be done about a failure inside the call."""

    NONE = "tell the caller"
    AT_ONCE = "rolled back, or never begun: a fresh transaction may try"
    ONCE_MORE = "rolled back after a long wait: one more try, then tell the caller"


_CONFLICTS = {"40P01", "40001"}
_TOO_LONG = "57014"
_WAITED = {"55P03", _TOO_LONG}
_BROKEN = ("22", "23", "54")
_REFUSED_AT_THE_DOOR = ("does not exist", "authentication failed", "no pg_hba.conf entry")
"""A connection that is refused carries no code, only the server's words."""

_A_TRY = (" failed: ", "could not ")
"""What libpq says of each server that it tried, a line each; others only explain."""

_AWAY = (
    "08",  # connection
    "25006",  # read-only: a standby
    "25P0",  # idle in transaction for too long; transaction too long
    "53",  # out of connections, memory, disk
    "55000",  # still in recovery
    "57P",  # shutting down, starting up
    "58",  # the system under it
    "XX000",  # an internal error of the server
)


def judge(error: DBAPIError, *, committing: bool) -> tuple[Exception, Remedy]:
    """What to raise for this failure, and whether the transaction may be tried again.

    `committing`: COMMIT had been sent, so that the transaction may stand.
    """
    code = sqlstate(error)
    told = f"PostgreSQL: {_first_line(error)}"
    if code in _CONFLICTS:
        return Unavailable(told), Remedy.AT_ONCE
    if not code and _refused_by_all(error):
        return Misconfigured(told), Remedy.NONE
    lost = error.connection_invalidated or not code or code.startswith(_AWAY) or code in _WAITED
    if committing and lost:
        return OutcomeUnknown(f"{told} (COMMIT was sent: it may stand)"), Remedy.NONE
    if code in _WAITED:
        kind = TookTooLong if code == _TOO_LONG else Unavailable
        return kind(told), Remedy.ONCE_MORE
    if lost:
        return Unavailable(told), Remedy.AT_ONCE
    if code.startswith(_BROKEN):
        return BrokenData(told), Remedy.NONE
    return _other(code, told), Remedy.NONE


def sqlstate(error: DBAPIError) -> str:
    """The five characters of PostgreSQL; empty when the failure has none (no answer came)."""
    original = error.orig
    return getattr(original, "pgcode", None) or getattr(original, "sqlstate", None) or ""


def _other(code: str, told: str) -> ScheddError:
    if code in {"42P01", "42703", "3F000"}:
        return SchemaMismatch(f"{told}\nThe schema isn't this schedd's. Run `schedd migrate`.")
    if code.startswith("28") or code in {"3D000", "42501"}:
        return Misconfigured(told)
    return Fault(told)


def _refused_by_all(error: DBAPIError) -> bool:
    """Whether each server that was tried refused us: one that is away may be what counts."""
    lines = str(error.orig).strip().splitlines()
    tries = [line for line in lines if any(words in line for words in _A_TRY)] or lines[:1]
    return bool(tries) and all(
        any(words in line for words in _REFUSED_AT_THE_DOOR) for line in tries
    )


def _first_line(error: DBAPIError) -> str:
    lines = str(error.orig).strip().splitlines() if error.orig is not None else []
    return lines[0] if lines else type(error.orig).__name__
