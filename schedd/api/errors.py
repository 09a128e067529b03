"""How a call is refused. The faces (`rpc/`, `web/`) turn these into statuses; nobody else may.

    CallError
    ├── the caller's fault
    │   ├── InvalidArgument      a field is wrong: INVALID_ARGUMENT, 400
    │   ├── Unbuilt              a field or call that isn't built yet: UNIMPLEMENTED, 501
    │   ├── NotFound             NOT_FOUND, 404
    │   ├── AlreadyExists        ALREADY_EXISTS, 409
    │   ├── Aborted              the etag is old: ABORTED, 409
    │   ├── FailedPrecondition   not in this state: FAILED_PRECONDITION, 409
    │   └── TooMany              more than one may have: RESOURCE_EXHAUSTED, 429
    └── the world's
        ├── OutOfTouch           this member can't know it, nothing was done: UNAVAILABLE, 503
        └── OutcomeUnclear       it may have happened: DEADLINE_EXCEEDED, 504

`Unavailable` (schedkit.errors) passes through and becomes UNAVAILABLE, 503; `OutcomeUnknown` among
it what `unanswered` says.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from schedkit.errors import BrokenData, DatabaseUnavailable, OutcomeUnknown, Rejected, Unavailable

LONGEST_TOLD: Final = 140
"""Characters of a name that a message repeats; a right one has 128 at most."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One field that is wrong: its path as in the request, and what is wrong with it."""

    field: str
    problem: str


class CallError(Exception):
    """A call that was refused: what, why (`reason`, an UPPER_CASE word), and what to do."""

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
    """A field is wrong."""

    code = "INVALID_ARGUMENT"


class Unbuilt(CallError):
    """A field or call that isn't built yet."""

    code = "UNIMPLEMENTED"

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} isn't built yet",
            reason="NOT_BUILT",
            remedy=f"leave {what} out; nothing was stored",
            violations=(Violation(what, "isn't built yet"),),
        )


def refuse(
    violations: Sequence[Violation],
    reason: str,
    remedy: str = "mend the field and send it again; nothing was stored",
) -> None:
    """Raise InvalidArgument that tells the first, how many more there are, and holds all."""
    if violations:
        first, more = violations[0], len(violations) - 1
        raise InvalidArgument(
            f"{first.field}: {first.problem}" + (f" (and {more} more)" if more else ""),
            reason=reason,
            remedy=remedy,
            violations=violations,
        )


def wrong(field: str, problem: str) -> InvalidArgument:
    """The refusal of one field of a call that stores nothing unless all of it is right."""
    return InvalidArgument(
        f"{field}: {problem}",
        reason="INVALID_FIELD",
        remedy="mend the field and call again; nothing was stored",
        violations=[Violation(field, problem)],
    )


class Unauthenticated(CallError):
    """It isn't known who calls."""

    code = "UNAUTHENTICATED"


class PermissionDenied(CallError):
    """It is known who calls, and they may not."""

    code = "PERMISSION_DENIED"


class NotFound(CallError):
    """There is no such thing."""

    code = "NOT_FOUND"


class AlreadyExists(CallError):
    """The name or key is taken."""

    code = "ALREADY_EXISTS"


class Aborted(CallError):
    """Somebody else changed it meanwhile."""

    code = "ABORTED"


class OutOfTouch(CallError):
    """This member can't know what the call asks or changes. Nothing was done; another may know."""

    code = "UNAVAILABLE"


class FailedPrecondition(CallError):
    """It isn't in a state that allows this."""

    code = "FAILED_PRECONDITION"


class LimitReached(CallError):
    """The caller has as much as one may have."""

    code = "RESOURCE_EXHAUSTED"


class OutcomeUnclear(CallError):
    """It may have happened; ask again."""

    code = "DEADLINE_EXCEEDED"


def cut(text: str) -> str:
    """What a caller sent, at a length that fits a message: names are seldom longer."""
    return text if len(text) <= LONGEST_TOLD else f"{text[: LONGEST_TOLD - 1]}…"


def unanswered() -> OutcomeUnclear:
    """What a caller is told of a write that went out and had no answer."""
    return OutcomeUnclear(
        "the change was asked for, and no answer came: it may have been made",
        reason="OUTCOME_UNKNOWN",
        remedy="look before you call again; with an idempotency key, call again",
    )


def of_world(away: Unavailable) -> CallError:
    """What a caller is told of a world that was away."""
    if isinstance(away, OutcomeUnknown):
        return unanswered()
    if isinstance(away, BrokenData):
        return InvalidArgument(
            f"the database rejects a value of the request: {away}",
            reason="VALUE_REJECTED",
            remedy="change the value that it names; nothing was stored",
        )
    if isinstance(away, Rejected):
        return OutOfTouch(away.cause, reason="DEPENDENCY_REJECTED", remedy=away.remedy)
    if isinstance(away, DatabaseUnavailable):
        return OutOfTouch(
            "PostgreSQL is unavailable: this member can't reach it; nothing was changed",
            reason="DATABASE_UNAVAILABLE",
            remedy="start PostgreSQL, then call again; `schedctl cluster doctor` shows the cause",
        )
    return OutOfTouch(
        "the cluster can't reach its database or etcd just now",
        reason="UNAVAILABLE",
        remedy="call again; `schedctl cluster doctor` says which of them",
    )
