"""What follows an attempt: success, another attempt after a wait, or the end.

    wait n = min(max, backoff × factor^(n−1)) × (1 + jitter × u),  u in [−1, 1) hashed from (run, n)

Deterministic: whichever member accepts the result, and however long that takes, computes the same
instant, counted from the attempt's end. That end is a worker's word, so it is taken only where it
can be: no attempt ends before its run was ready, or after its result was accepted. A worker's death
or a shutdown is not the job's failure and costs no attempt, up to `MAX_LOSSES`. What never began (a
refusal, a worker that couldn't start it) costs nothing at all. A job `at_most_once` is begun again
only after a failure that was reported, or when it surely never began.
"""

import hashlib
import math
import re
from datetime import datetime, timedelta
from enum import StrEnum

from schedd.core.ids import RunId
from schedd.core.jobs.definition import Definition, Delivery, RetryPolicy
from schedd.core.runs.deadlines import ends_by
from schedd.core.runs.failures import AttemptFailure, tries_again
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import LiveRun
from schedkit.records import dataclass

MAX_LOSSES = 10
"""Handings out that may be lost with their workers before a run is given up as poisonous."""

KILL_MARGIN = timedelta(seconds=2)
"""The time that a worker with a lost lease needs, beyond `kill_after`, to notice it and to kill."""

UNSTARTED_PAUSE = timedelta(seconds=1)
"""Before a run that a worker couldn't start is dispatched again: the host may be at its limits."""

LONGEST_WAIT = timedelta(days=3653)
LONGEST_ASKED = timedelta(days=1)
"""What an attempt's `Retry-After` may ask for: it comes from strangers."""


class ReportedOutcome(StrEnum):
    """How a worker says an attempt ended."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    RETURNED = "RETURNED"
    """Given back: the worker ended it for reasons of its own, or could never start it."""


@dataclass(frozen=True, slots=True)
class Sequel:
    """What an attempt's end makes of its run."""

    state: State
    reason: Reason | None
    retry_at: datetime | None = None
    counts: bool = True
    dead: bool = False
    lost: bool = False
    """It had begun and was lost on the way: one more of `MAX_LOSSES`."""


def wait(policy: RetryPolicy, run: RunId, attempt: int) -> timedelta:
    """The back-off after the failed attempt `attempt` (from 1) of a run."""
    plain = min(_grown(policy, attempt - 1), LONGEST_WAIT.total_seconds())
    digest = hashlib.sha256(run.bytes + attempt.to_bytes(4, "big")).digest()
    u = int.from_bytes(digest[:8], "big") / 2**63 - 1
    return timedelta(seconds=plain * (1 + policy.jitter * u))


def _grown(policy: RetryPolicy, steps: int) -> float:
    """min(max, backoff × factor^steps), whatever power of whatever factor that is."""
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
) -> Sequel:
    """Decide from the outcome of the run's present attempt; `run.attempt` counts it already.

    `began`: False when its worker says that nothing of it ever ran. `finished_at`: when it ended,
    as its worker says.
    """
    if outcome is ReportedOutcome.SUCCEEDED:
        return Sequel(State.SUCCEEDED, None)
    if run.cancelling or outcome is ReportedOutcome.CANCELLED:
        return Sequel(State.CANCELLED, Reason.BY_USER)
    if outcome is ReportedOutcome.RETURNED:
        return _after_return(run, definition, now, began=began)
    until = ends_by(run, definition)
    if until is not None and now >= until:
        return Sequel(State.FAILED, Reason.RUN_TIMEOUT, dead=True)
    policy = definition.retry
    again = tries_again(policy.retry_on, policy.fail_on, failure)
    if not again or run.attempt >= policy.max_attempts:
        return Sequel(State.FAILED, failure.reason, dead=True)
    pause = wait(policy, run.key.run_id, run.attempt)
    pause = max(pause, min(retry_after or pause, LONGEST_ASKED))
    retry_at = max(now, _end(run, finished_at, now) + pause)
    if until is not None and retry_at >= until:  # it would wait for nothing
        return Sequel(State.FAILED, failure.reason, dead=True)
    return Sequel(State.RETRYING, failure.reason, retry_at=retry_at)


def _end(run: LiveRun, finished_at: datetime | None, now: datetime) -> datetime:
    """What the wait is counted from. By a clock that is wrong it would be too long, or none."""
    if finished_at is None or not run.ready_at <= finished_at <= now:
        return now
    return finished_at


def after_loss(run: LiveRun, definition: Definition) -> Sequel:
    """Decide what becomes of a run whose worker is gone."""
    if run.cancelling:
        return Sequel(State.CANCELLED, Reason.BY_USER, counts=False, lost=True)
    given_up = _given_up(run, definition)
    return given_up or Sequel(State.RETRYING, Reason.WORKER_LOST, counts=False, lost=True)


def _after_return(run: LiveRun, definition: Definition, now: datetime, *, began: bool) -> Sequel:
    back = State.PENDING if run.attempt <= 1 else State.RETRYING
    if not began:
        return Sequel(back, None, retry_at=now + UNSTARTED_PAUSE, counts=False)
    given_up = _given_up(run, definition)
    return given_up or Sequel(back, None, retry_at=now, counts=False, lost=True)


def _given_up(run: LiveRun, definition: Definition) -> Sequel | None:
    """The end of a run that had begun and was lost on the way, if it may not begin again."""
    if definition.delivery is Delivery.AT_MOST_ONCE:
        return Sequel(State.FAILED, Reason.WORKER_LOST, dead=True, lost=True)
    if run.losses + 1 >= MAX_LOSSES:
        return Sequel(State.FAILED, Reason.TOO_MANY_LOSSES, dead=True, lost=True)
    return None


def reissue_after(definition: Definition) -> timedelta:
    """How long a lost run waits for its next try: while its lost worker may still be killing it."""
    if not definition.kills_on_lease_lost:
        return timedelta(0)
    return definition.kill_after + KILL_MARGIN


_VARYING = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8}-[0-9a-f-]{27}|\d+", re.IGNORECASE)


def fingerprint(reason: Reason | None, exit_code: int | None, error: str) -> str:
    """Name the kind of an error, the same for errors that differ in numbers and ids alone."""
    first = error.strip().splitlines()[-1] if error.strip() else ""
    kind = f"{reason or ''}|{'' if exit_code is None else exit_code}|{_VARYING.sub('#', first)}"
    return hashlib.sha256(kind.encode()).hexdigest()[:16]
