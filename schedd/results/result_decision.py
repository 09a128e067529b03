"""Turn a worker's result into the report that is stored. Pure.

Invariant: no decision without a definition. If this member can't read the definition that decides
on a retry (a newer member wrote it), there is no report. Otherwise a run that a draining worker
gave back would fail for good.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from schedd.core.dispatch.successes import Success, instant_of
from schedd.core.ids import IncarnationId, JobId, Token
from schedd.core.jobs.definition import Delivery
from schedd.core.jobs.notifications import Notices
from schedd.core.runs.broadcast import own
from schedd.core.runs.failure_kinds import AttemptFailure
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import LiveRun, ResultDecision, RunKey
from schedd.core.runs.retry import AttemptDecision, ReportedOutcome, after_attempt, fingerprint
from schedd.runtime.definition_texts import CachedDefinition
from schedkit.outcome_digest import outcome_digest
from schedkit.records import dataclass


@dataclass(frozen=True, slots=True)
class ReceivedResult:
    """A result as received over a stream."""

    key: RunKey
    token: Token
    worker: str
    sender: IncarnationId
    digest: bytes
    outcome: ReportedOutcome
    reason: Reason | None
    error: str
    exit_code: int | None
    started_at: datetime | None
    finished_at: datetime | None
    result: bytes | None
    output: bytes | None
    stored: bool
    retry_after: timedelta | None


def single_result(success: Success, worker: str) -> ReceivedResult:
    """Return a success of a batch as its worker would report it alone."""
    return ReceivedResult(
        key=RunKey(instant_of(success.scheduled), success.run_id),
        token=success.token,
        worker=worker,
        sender=success.sender,
        digest=outcome_digest(str(success.run_id), success.token),
        outcome=ReportedOutcome.SUCCEEDED,
        reason=None,
        error="",
        exit_code=None,
        started_at=instant_of(success.started),
        finished_at=instant_of(success.finished),
        result=None,
        output=None,
        stored=False,
        retry_after=None,
    )


def report_of(
    reported: ReceivedResult,
    run: LiveRun | None,
    known: Mapping[JobId, CachedDefinition],
    now: datetime,
) -> ResultDecision | None:
    """Return the report to store; None if this member can't decide. `run`: its row."""
    if run is None or run.token != reported.token or run.state is not State.RUNNING:
        sequel = _as_reported(reported)  # the statement refuses it, or has it already
    elif (entry := known.get(run.job_id)) is None:
        if reported.outcome is not ReportedOutcome.SUCCEEDED and not run.cancelling:
            return None
        sequel = _as_reported(reported)  # no retry follows, whatever the definition says
    else:
        sequel = after_attempt(
            reported.outcome,
            AttemptFailure(reported.reason, reported.exit_code, reported.error),
            run,
            entry.definition,
            now,
            reported.retry_after,
            began=reported.started_at is not None,
            finished_at=reported.finished_at,
        )
    entry = None if run is None else known.get(run.job_id)
    said = None if run is None or entry is None else own(run, entry.definition)
    notices = said.notices if said else None
    child = run is not None and run.parent is not None
    return ResultDecision(
        key=reported.key,
        token=reported.token,
        worker=reported.worker,
        sender=reported.sender,
        digest=reported.digest,
        state=sequel.state,
        reason=sequel.reason,
        error=reported.error,
        exit_code=reported.exit_code,
        started_at=reported.started_at,
        finished_at=reported.finished_at,
        retry_at=sequel.retry_at,
        counts=sequel.counts,
        lost=sequel.lost,
        dead=sequel.dead and not child,
        fingerprint=fingerprint(sequel.reason, reported.exit_code, reported.error)
        if sequel.dead and not child
        else "",
        at_most_once=said is not None and said.delivery is Delivery.AT_MOST_ONCE,
        pause_after=said.pause_after_failures if said else 0,
        notices=notices,
        late=run is not None and notices is not None and _late(run, reported, notices),
        result=reported.result,
        output=reported.output,
        stored=reported.stored,
    )


def _late(run: LiveRun, reported: ReceivedResult, notices: Notices) -> bool:
    """Return whether its first start was late. Long waits are reported earlier, while they last."""
    if run.attempt > 1 or run.losses or reported.started_at is None:
        return False
    return notices.is_late(run.due_at, reported.started_at)


def _as_reported(reported: ReceivedResult) -> AttemptDecision:
    succeeded = reported.outcome is ReportedOutcome.SUCCEEDED
    return AttemptDecision(State.SUCCEEDED if succeeded else State.FAILED, reported.reason)
