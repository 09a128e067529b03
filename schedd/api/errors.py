"""The errors of user calls. Only `rpc/` and `web/` turn their codes into statuses.

`Unavailable` (schedkit.errors) passes through; `dependency_error` converts it.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from schedkit.errors import BrokenData, DatabaseUnavailable, OutcomeUnknown, Rejected, Unavailable
from schedkit.records import dataclass

LONGEST_VALUE: Final = 140
"""Characters of a value that a message repeats. A valid name has at most 128."""


@dataclass(frozen=True, slots=True)
class FieldViolation:
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
        violations: Sequence[FieldViolation] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.remedy = remedy
        self.violations = tuple(violations)


class InvalidArgumentError(CallError):
    code = "INVALID_ARGUMENT"


def refuse(
    violations: Sequence[FieldViolation],
    reason: str,
    remedy: str = "correct the field and call again; nothing was stored",
) -> None:
    """Raise InvalidArgumentError if there are violations. Its message has the first of them."""
    if violations:
        first, more = violations[0], len(violations) - 1
        raise InvalidArgumentError(
            f"{first.field}: {first.problem}" + (f" (and {more} more)" if more else ""),
            reason=reason,
            remedy=remedy,
            violations=violations,
        )


def too_many(field: str, count: int, what: str, most: int) -> Iterator[FieldViolation]:
    """Return the violation of a field with more than `most` of these; none: it has fewer."""
    if count > most:
        yield FieldViolation(field, f"has {count:,} {what}; at most {most:,} are allowed")


def wrong(
    field: str,
    problem: str,
    remedy: str = "correct the field and call again; nothing was stored",
    *,
    reason: str = "INVALID_FIELD",
) -> InvalidArgumentError:
    """Return the error for one invalid field."""
    return InvalidArgumentError(
        f"{field}: {problem}",
        reason=reason,
        remedy=remedy,
        violations=[FieldViolation(field, problem)],
    )


class UnauthenticatedError(CallError):
    code = "UNAUTHENTICATED"


class PermissionDeniedError(CallError):
    code = "PERMISSION_DENIED"


class NotFoundError(CallError):
    code = "NOT_FOUND"


class AlreadyExistsError(CallError):
    code = "ALREADY_EXISTS"


class AbortedError(CallError):
    code = "ABORTED"


class MemberUnavailableError(CallError):
    """This member can't answer. Nothing was changed."""

    code = "UNAVAILABLE"


class FailedPreconditionError(CallError):
    code = "FAILED_PRECONDITION"


class LimitReachedError(CallError):
    code = "RESOURCE_EXHAUSTED"


class OutcomeUnknownError(CallError):
    """The change may have been made."""

    code = "DEADLINE_EXCEEDED"


def cut(text: str) -> str:
    """Return a caller's value, truncated to a length that fits a message."""
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


def not_found(what: str, name: str, listed: str) -> NotFoundError:
    """Return the error for an object that doesn't exist. `what`: its kind; `name`: its name in
    quotes, or its id; `listed`: the command of schedctl that lists such objects.
    """
    return NotFoundError(
        f"{what} {name} not found" if name not in ("", "''") else f"the {what}'s name is missing",
        reason=f"NO_SUCH_{what.rpartition(' ')[2].upper()}",
        remedy=f"see `schedctl {listed}`",
    )


def unanswered() -> OutcomeUnknownError:
    """Return the error for a write that was sent and not answered."""
    return OutcomeUnknownError(
        "the outcome of the change is unknown: PostgreSQL or etcd didn't answer; the change"
        " may have been made",
        reason="OUTCOME_UNKNOWN",
        remedy="check the state before you call again; with an idempotency key, just call again",
    )


def dependency_error(error: Unavailable, *, change: bool = False) -> CallError:
    """Return the error of a call for a failed dependency. `change`: the call isn't a read."""
    if isinstance(error, OutcomeUnknown):
        return unanswered()
    if isinstance(error, BrokenData):
        return InvalidArgumentError(
            f"PostgreSQL rejected a value of the request: {error}",
            reason="VALUE_REJECTED",
            remedy="change that value; nothing was stored",
        )
    if isinstance(error, Rejected):
        return MemberUnavailableError(
            error.cause, reason="DEPENDENCY_REJECTED", remedy=error.remedy
        )
    if isinstance(error, DatabaseUnavailable):
        why = error if error.remedy else "PostgreSQL is unavailable: it doesn't answer this member"
        return MemberUnavailableError(
            f"{why}; nothing was changed" if change else str(why),
            reason="DATABASE_UNAVAILABLE",
            remedy=error.remedy
            or "start PostgreSQL, or correct what `schedctl cluster doctor` names, then retry",
        )
    return MemberUnavailableError(
        str(error) if error.remedy else "PostgreSQL or etcd is unavailable",
        reason="UNAVAILABLE",
        remedy=error.remedy or "call again; `schedctl cluster doctor` shows the cause",
    )
