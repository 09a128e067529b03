"""Decide what follows an attempt: success, a retry after a backoff, or the end of the run
(docs/semantics/retries.md).

Invariants
- The time of a retry is deterministic: every member computes the same time, at any moment. A
  reported end of the attempt before the run was ready, or after the result was accepted, is
  ignored.
- A lost worker or a shutdown isn't the job's failure and costs no attempt, up to `MAX_LOSSES`. An
  attempt that never started costs nothing.
- An `at_most_once` run starts again only after a reported failure, or if it certainly never
  started.
"""

import hashlib
import math
import re
from datetime import datetime, timedelta
from enum import StrEnum

from schedd.core.ids import RunId
from schedd.core.jobs.definition import Definition, Delivery, RetryPolicy
from schedd.core.runs.deadlines import ends_by
from schedd.core.runs.failure_kinds import AttemptFailure, tries_again
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import LiveRun
from schedkit.records import dataclass

MAX_LOSSES = 10
"""Lost assignments after which a run fails: the run itself may bring its workers down."""

KILL_MARGIN = timedelta(seconds=2)
"""The time, beyond `kill_after`, in which a worker notices its lost lease and kills its runs."""

UNSTARTED_PAUSE = timedelta(seconds=1)
"""The wait before a run that a worker couldn't start is dispatched again. The host may be at its
limits.
"""

LONGEST_WAIT = timedelta(days=3653)
LONGEST_ASKED = timedelta(days=1)
"""The longest accepted `Retry-After`: the value comes from an untrusted server."""


class ReportedOutcome(StrEnum):
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    RETURNED = "RETURNED"
    """Given back: the worker ended it for its own reasons (a shutdown), or couldn't start it."""


@dataclass(frozen=True, slots=True)
class AttemptDecision:
    state: State
    reason: Reason | None
    retry_at: datetime | None = None
    counts: bool = True
    dead: bool = False
    lost: bool = False
    """Whether the attempt had started and was lost. It then counts towards `MAX_LOSSES`."""


def wait(policy: RetryPolicy, run: RunId, attempt: int) -> timedelta:
    """Return the backoff after the failed attempt `attempt` (from 1) of a run."""
    plain = min(_grown(policy, attempt - 1), LONGEST_WAIT.total_seconds())
    digest = hashlib.sha256(run + attempt.to_bytes(4, "big")).digest()
    u = int.from_bytes(digest[:8], "big") / 2**63 - 1
    return timedelta(seconds=plain * (1 + policy.jitter * u))


def _grown(policy: RetryPolicy, steps: int) -> float:
    """Return min(max, backoff × factor^steps) in seconds, without overflow."""
    first, most = policy.backoff.total_seconds(), policy.maximum.total_seconds()
    if first <= 0 or most <= first:
        return max(0.0, min(first, most))
    if steps * math.log(policy.factor) >= math.log(most / first):
        return most
    return min(most, first * policy.factor**steps)


def after_attempt(
    outcome: ReportedOutcome,
    failure: AttemptFailure,
    run: LiveRun,
    definition: Definition,
    now: datetime,
    retry_after: timedelta | None = None,
    *,
    began: bool = True,
    finished_at: datetime | None = None,
) -> AttemptDecision:
    """Return the next state after the attempt that `run.attempt` counts, as reported."""
    if outcome is ReportedOutcome.SUCCEEDED:
        return AttemptDecision(State.SUCCEEDED, None)
    if run.cancelling or outcome is ReportedOutcome.CANCELLED:
        return AttemptDecision(State.CANCELLED, Reason.BY_USER)
    if outcome is ReportedOutcome.RETURNED:
        return _after_return(run, definition, now, began=began)
    until = ends_by(run, definition)
    if until is not None and now >= until:
        return AttemptDecision(State.FAILED, Reason.RUN_TIMEOUT, dead=True)
    policy = definition.retry
    again = tries_again(policy.retry_on, policy.fail_on, failure)
    if not again or run.attempt >= policy.max_attempts:
        return AttemptDecision(State.FAILED, failure.reason, dead=True)
    pause = wait(policy, run.key.run_id, run.attempt)
    pause = max(pause, min(retry_after or pause, LONGEST_ASKED))
    if finished_at is None or not run.ready_at <= finished_at <= now:
        finished_at = now  # with a worker's wrong clock the backoff would be too long or none
    retry_at = max(now, finished_at + pause)
    if until is not None and retry_at >= until:  # `run_timeout` would end it before the retry
        return AttemptDecision(State.FAILED, failure.reason, dead=True)
    return AttemptDecision(State.RETRYING, failure.reason, retry_at=retry_at)


def after_loss(run: LiveRun, definition: Definition) -> AttemptDecision:
    """Return the next state of a run whose worker is lost."""
    if run.cancelling:
        return AttemptDecision(State.CANCELLED, Reason.BY_USER, counts=False, lost=True)
    given_up = _given_up(run, definition)
    return given_up or AttemptDecision(State.RETRYING, Reason.WORKER_LOST, counts=False, lost=True)


def _after_return(
    run: LiveRun, definition: Definition, now: datetime, *, began: bool
) -> AttemptDecision:
    back = State.PENDING if run.attempt <= 1 else State.RETRYING
    if not began:
        return AttemptDecision(back, None, retry_at=now + UNSTARTED_PAUSE, counts=False)
    given_up = _given_up(run, definition)
    return given_up or AttemptDecision(back, None, retry_at=now, counts=False, lost=True)


def _given_up(run: LiveRun, definition: Definition) -> AttemptDecision | None:
    """Return the end of a run whose started attempt was lost; None: the run may start again."""
    if definition.delivery is Delivery.AT_MOST_ONCE:
        return AttemptDecision(State.FAILED, Reason.WORKER_LOST, dead=True, lost=True)
    if run.losses + 1 >= MAX_LOSSES:
        return AttemptDecision(State.FAILED, Reason.TOO_MANY_LOSSES, dead=True, lost=True)
    return None


def reissue_after(definition: Definition) -> timedelta:
    """Return how long a run waits after its worker was lost: the worker may still be killing it."""
    if not definition.kills_on_lease_lost:
        return timedelta(0)
    return definition.kill_after + KILL_MARGIN


_VARYING = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8}-[0-9a-f-]{27}|\d+", re.IGNORECASE)


def fingerprint(reason: Reason | None, exit_code: int | None, error: str) -> str:
    """Return the fingerprint of an error. Errors that differ only in numbers and ids share it."""
    first = error.strip().splitlines()[-1] if error.strip() else ""
    kind = f"{reason or ''}|{'' if exit_code is None else exit_code}|{_VARYING.sub('#', first)}"
    return hashlib.sha256(kind.encode()).hexdigest()[:16]
