"""The outcome of an attempt: one value, from which the result on the wire is made.

    asked to stop? ── canceled → CANCELLED · drain or lost lease → RETURNED · timeout → FAILED
    else by its exit code: success → SUCCEEDED · 100 → FAILED, never retried · other → FAILED

Invariants
- A stop by this worker decides the outcome, whatever the exit code is: a program that catches
  SIGTERM and exits 0 has not done its work.
- An attempt with a process that was killed because of its memory limit has failed. An attempt that
  reached its process limit and still succeeded has succeeded.
- The same outcome has the same digest in every process and version (`schedkit.outcome_digest`).
"""

import signal
from collections.abc import Collection, Sequence
from datetime import timedelta
from enum import Enum, auto
from typing import Any, Final

from schedkit.outcome_digest import outcome_digest
from schedkit.records import dataclass, replace
from workerd.core.capture import Piece
from workerd.core.ids import AssignmentKey
from workerd.core.resource_limits import LimitExceeded, ResourceLimits, out_of_memory

DONT_RETRY_CODE = 100
"""The exit code by which a program requests no retry."""
MAX_RESULT = 64 * 1024
"""Bytes that are stored in a row; larger results go to the result store."""
MAX_ERROR = 4 * 1024
"""Characters."""
MOST_WORDS: Final = 300
"""Characters of the last line of stderr, in an error."""


class AttemptVerdict(Enum):
    """The four outcomes of an attempt. The values are part of the digest."""

    SUCCEEDED = 1
    FAILED = 2
    CANCELLED = 3
    RETURNED = 4
    """Returned to its member; it costs no attempt."""


class OutcomeReason(Enum):
    """The reason of an outcome. The values are part of the digest."""

    NONE = 0
    EXIT_CODE = 20
    SIGNAL = 21
    HTTP_STATUS = 22
    GRPC_STATUS = 23
    EXCEPTION = 24
    TIMEOUT = 25
    HEARTBEAT_TIMEOUT = 26
    WORKER_LOST = 28
    DONT_RETRY = 30
    BY_USER = 40


class Cause(Enum):
    """Why this worker stops an attempt."""

    TIMEOUT = auto()
    SILENCE = auto()
    CANCEL = auto()
    DRAIN = auto()
    LEASE_LOST = auto()


@dataclass(frozen=True, slots=True)
class Content:
    """A returned value: JSON text, or bytes."""

    data: bytes
    json: bool


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    verdict: AttemptVerdict
    reason: OutcomeReason = OutcomeReason.NONE
    error: str = ""
    exit_code: int | None = None
    result: Content | None = None
    output: tuple[Piece, ...] = ()
    retry_after: timedelta | None = None
    began: bool = True
    """False: the attempt never began, so the run may run again even if it is `at_most_once`."""


SUCCESS: Final = AttemptOutcome(AttemptVerdict.SUCCEEDED)
"""The outcome of a plain success: no returned value, no output. Its results are sent in batches."""


def failed(error: str, reason: OutcomeReason, **more: Any) -> AttemptOutcome:
    return AttemptOutcome(AttemptVerdict.FAILED, reason, error[:MAX_ERROR], **more)


def given_back(why: str, *, began: bool = False) -> AttemptOutcome:
    """Return the outcome of an attempt that this worker, not the job, is the reason to give back.
    `began`: part of it has run.
    """
    error = f"not started on this worker: {why}"
    return AttemptOutcome(AttemptVerdict.RETURNED, error=error, began=began)


_STOPPED: Final = {
    Cause.TIMEOUT: (AttemptVerdict.FAILED, OutcomeReason.TIMEOUT, "timed out after {limited}"),
    Cause.SILENCE: (
        AttemptVerdict.FAILED,
        OutcomeReason.HEARTBEAT_TIMEOUT,
        "the job sent no heartbeat for {limited}",
    ),
    Cause.CANCEL: (AttemptVerdict.CANCELLED, OutcomeReason.BY_USER, "canceled"),
    Cause.DRAIN: (
        AttemptVerdict.RETURNED,
        OutcomeReason.NONE,
        "the run was returned to run elsewhere: the worker is shutting down",
    ),
    Cause.LEASE_LOST: (
        AttemptVerdict.RETURNED,
        OutcomeReason.WORKER_LOST,
        "the attempt was killed: the worker lost its lease",
    ),
}


def stopped(
    cause: Cause, detail: str = "", output: tuple[Piece, ...] = (), *, limited: str = ""
) -> AttemptOutcome:
    """Return the outcome of an attempt that this worker ended. `limited`: the time that expired."""
    verdict, reason, text = _STOPPED[cause]
    error = text.format(limited=limited)
    return AttemptOutcome(verdict, reason, f"{error}: {detail}" if detail else error, output=output)


def exited(
    code: int, output: tuple[Piece, ...], success_codes: Collection[int] = ()
) -> AttemptOutcome:
    """Return the outcome of a program that wasn't stopped. `code` < 0: minus its signal."""
    if code in (success_codes or (0,)):
        return AttemptOutcome(AttemptVerdict.SUCCEEDED, exit_code=code, output=output)
    words = last_words(output)
    last = f": {words}" if words else ""
    if code < 0:
        error = f"ended by {_signal_name(-code)}{last}"
        return failed(error, OutcomeReason.SIGNAL, exit_code=128 - code, output=output)
    reason = OutcomeReason.DONT_RETRY if code == DONT_RETRY_CODE else OutcomeReason.EXIT_CODE
    error = f"exit code {code}{last}"
    return failed(error, reason, exit_code=code, output=output)


def last_words(output: Sequence[Piece]) -> str:
    """Return the last nonempty line of stderr, at most `MOST_WORDS` characters."""
    written = b"".join(piece.data for piece in output if piece.stderr)
    lines = written[-8 * MOST_WORDS :].decode(errors="replace").splitlines()
    last = next((line for each in reversed(lines) if (line := each.strip())), "")
    printable = "".join(sign if sign.isprintable() else " " for sign in last).strip()
    return printable if len(printable) <= MOST_WORDS else f"{printable[: MOST_WORDS - 1]}…"


def judged(
    outcome: AttemptOutcome, bounds: ResourceLimits, excess: LimitExceeded
) -> AttemptOutcome:
    if excess.memory:
        error, code = out_of_memory(bounds), 128 + signal.SIGKILL
        return failed(error, OutcomeReason.SIGNAL, exit_code=code, output=outcome.output)
    if excess.processes and outcome.verdict is AttemptVerdict.FAILED:
        error = f"{outcome.error}; process limit reached (limit {bounds.processes})"
        return replace(outcome, error=error)
    return outcome


def digest(key: AssignmentKey, outcome: AttemptOutcome) -> bytes:
    """Return the SHA-256 of an outcome, 32 bytes. Output and times are not part of it."""
    result = outcome.result
    return outcome_digest(
        key.run,
        key.token,
        outcome.verdict.value,
        reason=outcome.reason.value,
        exit_code=outcome.exit_code,
        error=outcome.error.encode(errors="surrogateescape"),
        result=b"" if result is None else (b"j" if result.json else b"r") + result.data,
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
