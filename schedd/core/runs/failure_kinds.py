"""Kinds of failure, as `retry.retry_on` and `retry.fail_on` name them (docs/semantics/retries.md):
75, 64-78, SIGKILL, 5xx, UNAVAILABLE, TIMEOUT, ValueError.
"""

import re
import signal
from collections.abc import Sequence
from typing import Final

from schedd.core.runs.lifecycle import Reason
from schedkit.records import dataclass

CODED: Final = frozenset({Reason.EXIT_CODE, Reason.SIGNAL, Reason.HTTP_STATUS})
"""Reasons that a bare number matches. GRPC_STATUS isn't one: small numbers mean exit codes."""

KINDS: Final = CODED.union(
    (Reason.GRPC_STATUS, Reason.EXCEPTION, Reason.TIMEOUT, Reason.HEARTBEAT_TIMEOUT)
)
"""Reasons of failed attempts that `retry_on` and `fail_on` may name."""

_STATUS_NAMES: Final = (
    *("CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND"),
    *("ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION"),
    *("ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"),
    "UNAUTHENTICATED",
)
GRPC_STATUSES: Final = {name: number for number, name in enumerate(_STATUS_NAMES, 1)}
"""The gRPC statuses of failed calls, and their numbers."""

MOST: Final = 999
_BY_SIGNAL: Final = 128
"""A program that a signal ended has this exit code plus the signal's number, as in a shell."""

_NUMBERS: Final = re.compile(r"(\d{1,3})(?:-(\d{1,3}))?")
_STATUSES: Final = re.compile(r"([1-5])[xX]{2}")
_CLASS: Final = re.compile(r"(?=.*[a-z])[A-Z_][A-Za-z0-9_]*")


class WrongKind(ValueError):
    """A word isn't a valid kind of failure. The message says what to write instead."""


@dataclass(frozen=True, slots=True)
class AttemptFailure:
    reason: Reason | None
    code: int | None = None
    """Exit code, HTTP status or gRPC status."""
    error: str = ""


@dataclass(frozen=True, slots=True)
class FailureKind:
    """A kind of failure: a `reason`, a code in `codes` (first, last), or a Python `class_name`. A
    field that is None matches everything.
    """

    reason: Reason | None = None
    codes: tuple[int, int] | None = None
    class_name: str | None = None

    def covers(self, failure: AttemptFailure) -> bool:
        if self.class_name is not None:
            raised = failure.reason is Reason.EXCEPTION
            return raised and failure.error.partition(":")[0] == self.class_name
        if self.reason is not None and failure.reason is not self.reason:
            return False
        if self.codes is None:
            return True
        first, last = self.codes
        coded = self.reason is not None or failure.reason in CODED
        return coded and failure.code is not None and first <= failure.code <= last


def kind(text: str) -> FailureKind:
    """Parse a kind of failure. Raises WrongKind."""
    if numbers := _NUMBERS.fullmatch(text):
        first, last = int(numbers[1]), int(numbers[2] or numbers[1])
        if first > last:
            raise WrongKind(
                f"the range {text!r} of exit codes or HTTP statuses isn't valid: its end is below"
                f" its start (write {last}-{first})"
            )
        return FailureKind(codes=(first, last))
    if statuses := _STATUSES.fullmatch(text):
        first = int(statuses[1]) * 100
        return FailureKind(Reason.HTTP_STATUS, (first, first + 99))
    word = text.upper().replace("-", "_")
    if word in KINDS:
        return FailureKind(Reason(word))
    if is_grpc_status(text):
        status = GRPC_STATUSES[text.replace("-", "_")]
        return FailureKind(Reason.GRPC_STATUS, (status, status))
    if number := signal.Signals.__members__.get(text):
        return FailureKind(codes=(_BY_SIGNAL + number, _BY_SIGNAL + number))
    if _CLASS.fullmatch(text) and not text.startswith("SIG"):
        return FailureKind(class_name=text)
    hint = (
        "give an exit code or HTTP status (75, 64-78, 5xx), a gRPC status (UNAVAILABLE), a signal"
        f" (SIGKILL), {', '.join(sorted(KINDS))}, or the class of an exception"
    )
    if "." in text:
        hint = f"give only the name of the class: {text.rpartition('.')[2][:60]}"
    raise WrongKind(f"{text[:60]!r} isn't a valid kind of failure ({hint})")


def is_grpc_status(text: str) -> bool:
    """Return whether the word is a gRPC status, which is in capitals. Other words are classes."""
    return text.replace("-", "_") in GRPC_STATUSES


def tries_again(
    retry_on: Sequence[FailureKind], fail_on: Sequence[FailureKind], failure: AttemptFailure
) -> bool:
    """Return whether the retry policy allows another attempt after this failure."""
    if failure.reason is Reason.DONT_RETRY or any(one.covers(failure) for one in fail_on):
        return False
    return not retry_on or any(one.covers(failure) for one in retry_on)
