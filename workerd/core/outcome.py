"""How an attempt ended: one value, from which the result on the wire is made.

    asked to stop? ── cancelled → CANCELLED · drain or lost lease → RETURNED · time over → FAILED
    else by its exit code: success → SUCCEEDED · 100 → FAILED, never retried · other → FAILED

Invariants
- A stop that we asked for explains the end, whatever the exit code: a program that catches SIGTERM
  and exits 0 has not done its work.
- What was killed for want of memory has failed, whatever its first process made of it. One that was
  refused another process, and ended well all the same, has ended well.
- The same outcome has the same digest in every process and version: the encoding is fixed here.
"""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Collection, Sequence
from datetime import timedelta
from enum import Enum, auto
from typing import Final

from schedkit.records import dataclass, replace
from workerd.core.capture import Piece
from workerd.core.ids import AssignmentKey
from workerd.core.resource_limits import Excess, ResourceLimits, out_of_memory

DONT_RETRY_CODE = 100
"""By this exit code a program says that another try is of no use."""
MAX_RESULT = 64 * 1024
"""Of what stands in a row; what is larger goes to the result store."""
MAX_ERROR = 4 * 1024
"""Characters."""
MOST_WORDS: Final = 300
"""Characters of what a program said last, in its error."""


class AttemptVerdict(Enum):
    """The four ends of an attempt. The values stand in the digest."""

    SUCCEEDED = 1
    FAILED = 2
    CANCELLED = 3
    RETURNED = 4
    """Handed back; it costs no attempt."""


class OutcomeReason(Enum):
    """Why. The values stand in the digest."""

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
    """What a handler gave back: JSON text, or bytes."""

    data: bytes
    json: bool


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    """The end of one attempt."""

    verdict: AttemptVerdict
    reason: OutcomeReason = OutcomeReason.NONE
    error: str = ""
    exit_code: int | None = None
    result: Content | None = None
    output: tuple[Piece, ...] = ()
    retry_after: timedelta | None = None
    began: bool = True
    """False: nothing of the attempt ever ran; then it may run again whatever its delivery says."""


def stopped(cause: Cause, detail: str = "", output: tuple[Piece, ...] = ()) -> AttemptOutcome:
    """The outcome of an attempt that ended because we ended it."""
    verdict, reason, error = {
        Cause.TIMEOUT: (AttemptVerdict.FAILED, OutcomeReason.TIMEOUT, "its time was over"),
        Cause.SILENCE: (
            AttemptVerdict.FAILED,
            OutcomeReason.HEARTBEAT_TIMEOUT,
            "no heartbeat came in time",
        ),
        Cause.CANCEL: (AttemptVerdict.CANCELLED, OutcomeReason.BY_USER, "cancelled"),
        Cause.DRAIN: (
            AttemptVerdict.RETURNED,
            OutcomeReason.NONE,
            "handed back: the worker shuts down",
        ),
        Cause.LEASE_LOST: (
            AttemptVerdict.RETURNED,
            OutcomeReason.WORKER_LOST,
            "killed: the lease was lost",
        ),
    }[cause]
    return AttemptOutcome(verdict, reason, f"{error}: {detail}" if detail else error, output=output)


def exited(
    code: int, output: tuple[Piece, ...], success_codes: Collection[int] = ()
) -> AttemptOutcome:
    """The outcome of a program that ended by itself; a negative `code` is minus its signal."""
    if code in (success_codes or (0,)):
        return AttemptOutcome(AttemptVerdict.SUCCEEDED, exit_code=code, output=output)
    words = last_words(output)
    told = f": {words}" if words else ""
    if code < 0:
        error = f"ended by {_signal_name(-code)}{told}"
        return AttemptOutcome(
            AttemptVerdict.FAILED, OutcomeReason.SIGNAL, error, exit_code=128 - code, output=output
        )
    reason = OutcomeReason.DONT_RETRY if code == DONT_RETRY_CODE else OutcomeReason.EXIT_CODE
    error = f"exit code {code}{told}"
    return AttemptOutcome(AttemptVerdict.FAILED, reason, error, exit_code=code, output=output)


def last_words(output: Sequence[Piece]) -> str:
    """The last line of its stderr that says anything, as one line of `MOST_WORDS` at most."""
    written = b"".join(piece.data for piece in output if piece.stderr)
    lines = written[-8 * MOST_WORDS :].decode(errors="replace").splitlines()
    last = next((line for each in reversed(lines) if (line := each.strip())), "")
    printable = "".join(sign if sign.isprintable() else " " for sign in last).strip()
    return printable if len(printable) <= MOST_WORDS else f"{printable[: MOST_WORDS - 1]}…"


def judged(outcome: AttemptOutcome, bounds: ResourceLimits, excess: Excess) -> AttemptOutcome:
    """The outcome of a program that ended by itself, in view of its bounds."""
    if excess.memory:
        error, code = out_of_memory(bounds), 128 + signal.SIGKILL
        return AttemptOutcome(
            AttemptVerdict.FAILED, OutcomeReason.SIGNAL, error, code, output=outcome.output
        )
    if excess.processes and outcome.verdict is AttemptVerdict.FAILED:
        told = f"{outcome.error}; it wanted more processes (limit {bounds.processes})"
        return replace(outcome, error=told)
    return outcome


def digest(key: AssignmentKey, outcome: AttemptOutcome) -> bytes:
    """SHA-256 over what counts of an outcome; 32 bytes. Output and times are not part of it."""
    result = outcome.result
    fields = (
        key.run.encode(),
        str(key.token).encode(),
        str(outcome.verdict.value).encode(),
        str(outcome.reason.value).encode(),
        b"" if outcome.exit_code is None else str(outcome.exit_code).encode(),
        outcome.error.encode(errors="surrogateescape"),
        b"" if result is None else (b"j" if result.json else b"r") + result.data,
    )
    told = [part for each in fields for part in (len(each).to_bytes(8, "big"), each)]
    return hashlib.sha256(b"".join(told)).digest()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
