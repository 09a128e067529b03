"""The errors of user calls. Only `rpc/` and `web/` turn them into statuses.

    CallError
    ├── caused by the caller
    │   ├── InvalidArgument      a field is invalid: INVALID_ARGUMENT, 400
    │   ├── Unauthenticated      no valid credentials: UNAUTHENTICATED, 401
    │   ├── PermissionDenied     the caller's roles don't allow it: PERMISSION_DENIED, 403
    │   ├── NotFound             NOT_FOUND, 404
    │   ├── AlreadyExists        ALREADY_EXISTS, 409
    │   ├── Aborted              a concurrent change: ABORTED, 409
    │   ├── FailedPrecondition   not allowed in this state: FAILED_PRECONDITION, 409
    │   └── LimitReached         over a limit: RESOURCE_EXHAUSTED, 429
    └── caused by a dependency
        ├── OutOfTouch           this member can't answer, nothing changed: UNAVAILABLE, 503
        └── OutcomeUnclear       the change may have been made: DEADLINE_EXCEEDED, 504

`Unavailable` (schedkit.errors) passes through; `dependency_error` converts it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from schedkit.errors import BrokenData, DatabaseUnavailable, OutcomeUnknown, Rejected, Unavailable

LONGEST_VALUE: Final = 140
"""Characters of a value that a message repeats. A valid name has at most 128."""


@dataclass(frozen=True, slots=True)
class Violation:
    """An invalid field: its path in the request, and the problem."""

    field: str
    problem: str


class CallError(Exception):
    """A rejected call: the message, the reason code (`reason`), and what to do (`remedy`)."""

    code = "UNKNOWN"

    def __init__(
        self,
        message: str,
        *,
        reason: str,
        remedy: str = "",
        violations: Sequence[Violation] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.remedy = remedy
        self.violations = tuple(violations)


class InvalidArgument(CallError):
    """A field is invalid."""

    code = "INVALID_ARGUMENT"


def refuse(
    violations: Sequence[Violation],
    reason: str,
    remedy: str = "correct the field and call again; nothing was stored",
) -> None:
    """Raise InvalidArgument if there are violations. The message has the first one and a count of
    the others.
    """
    if violations:
        first, more = violations[0], len(violations) - 1
        raise InvalidArgument(
            f"{first.field}: {first.problem}" + (f" (and {more} more)" if more else ""),
            reason=reason,
            remedy=remedy,
            violations=violations,
        )


def wrong(field: str, problem: str) -> InvalidArgument:
    """Return the error for one invalid field."""
    return InvalidArgument(
        f"{field}: {problem}",
        reason="INVALID_FIELD",
        remedy="correct the field and call again; nothing was stored",
        violations=[Violation(field, problem)],
    )


class Unauthenticated(CallError):
    """The caller has no valid credentials."""

    code = "UNAUTHENTICATED"


class PermissionDenied(CallError):
    """The caller's roles don't allow the call."""

    code = "PERMISSION_DENIED"


class NotFound(CallError):
    """Not found."""

    code = "NOT_FOUND"


class AlreadyExists(CallError):
    """The name or key already exists."""

    code = "ALREADY_EXISTS"


class Aborted(CallError):
    """Another caller changed the object meanwhile."""

    code = "ABORTED"


class OutOfTouch(CallError):
    """This member can't answer. Nothing was changed; another member may be able to answer."""

    code = "UNAVAILABLE"


class FailedPrecondition(CallError):
    """The object's state doesn't allow the call."""

    code = "FAILED_PRECONDITION"


class LimitReached(CallError):
    """The call exceeds a limit."""

    code = "RESOURCE_EXHAUSTED"


class OutcomeUnclear(CallError):
    """The change may have been made; its outcome is unknown."""

    code = "DEADLINE_EXCEEDED"


def cut(text: str) -> str:
    """Return a caller's value, truncated to a length that fits a message."""
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


def unanswered() -> OutcomeUnclear:
    """Return the error for a write that was sent and not answered."""
    return OutcomeUnclear(
        "the outcome is unknown: the change was sent, but not answered; it may have been made",
        reason="OUTCOME_UNKNOWN",
        remedy="check the state before you call again; with an idempotency key, just call again",
    )


def dependency_error(error: Unavailable) -> CallError:
    """Return the error of a call for a failed dependency."""
    if isinstance(error, OutcomeUnknown):
        return unanswered()
    if isinstance(error, BrokenData):
        return InvalidArgument(
            f"PostgreSQL rejected a value of the request: {error}",
            reason="VALUE_REJECTED",
            remedy="change that value; nothing was stored",
        )
    if isinstance(error, Rejected):
        return OutOfTouch(error.cause, reason="DEPENDENCY_REJECTED", remedy=error.remedy)
    if isinstance(error, DatabaseUnavailable):
        return OutOfTouch(
            "PostgreSQL is unavailable: this member can't reach it; nothing was changed",
            reason="DATABASE_UNAVAILABLE",
            remedy="start PostgreSQL, then call again; `schedctl cluster doctor` shows the cause",
        )
    return OutOfTouch(
        "PostgreSQL or etcd is unavailable",
        reason="UNAVAILABLE",
        remedy="call again; `schedctl cluster doctor` shows the cause",
    )
