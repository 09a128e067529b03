"""The timeline of a run: due, assigned under a token, started, ended, rejected.

    run ──────┐
    attempts ─┼─ steps by time ──▶ the timeline
    audit ────┘

Pure. Invariant: a step without a time is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from schedd.core.runs.lifecycle import State
from schedd.web import formatting
from schedd.web.formatting import LOOKS, StateStyle
from schedd.web.pages.cluster.audit_text import in_words
from schedd.web.pages.rows import look_of, moment, reason
from schedkit.sources import actor_with_token
from schedproto.v1 import cluster_service_pb2 as cluster_pb
from schedproto.v1 import common_pb2, run_pb2

WAITS = LOOKS[State.PENDING.value]
RUNS = LOOKS[State.RUNNING.value]
AGAIN = LOOKS[State.RETRYING.value]

_ENDED = frozenset(
    {
        common_pb2.RUN_STATE_SUCCEEDED,
        common_pb2.RUN_STATE_FAILED,
        common_pb2.RUN_STATE_CANCELLED,
        common_pb2.RUN_STATE_SKIPPED,
        common_pb2.RUN_STATE_MISSED,
        common_pb2.RUN_STATE_COALESCED,
    }
)


@dataclass(frozen=True, slots=True)
class TimelineStep:
    """One step. `since`: the time from the previous step; None for the first."""

    at: datetime
    look: StateStyle
    what: str
    token: int = 0
    detail: str = ""
    since: timedelta | None = None
    refused: bool = False


def story(
    run: run_pb2.Run,
    attempts: Iterable[run_pb2.Attempt],
    audit: Iterable[cluster_pb.AuditEntry],
) -> Iterator[TimelineStep]:
    """Yield the steps, oldest first."""
    steps = [*_of_run(run), *_of_audit(audit)]
    steps += [step for attempt in attempts for step in _of_attempt(attempt)]
    before: datetime | None = None
    for step in sorted(steps, key=lambda step: step.at):
        since = step.at - before if before is not None else None
        yield TimelineStep(
            step.at, step.look, step.what, step.token, step.detail, since, step.refused
        )
        before = step.at


def _of_run(run: run_pb2.Run) -> Iterator[TimelineStep]:
    due = moment(run, "due_at")
    if due is not None:
        by = f"fired by {run.fired_by}" if run.fired_by else ""
        yield TimelineStep(due, WAITS, "due", detail=by)
    retry = moment(run, "retry_at")
    if retry is not None and run.state == common_pb2.RUN_STATE_RETRYING:
        yield TimelineStep(retry, AGAIN, "retry")
    ended = moment(run, "finished_at")
    if ended is not None and run.state in _ENDED and not run.fencing_token:
        look = look_of(run.state)
        why = reason(run.reason, run.exit_code)
        yield TimelineStep(
            ended, look, look.word, detail=" · ".join(filter(None, (why, run.excluded_by)))
        )


def _of_attempt(attempt: run_pb2.Attempt) -> Iterator[TimelineStep]:
    number, token = attempt.attempt, attempt.fencing_token
    assigned = moment(attempt, "assigned_at")
    started = moment(attempt, "started_at")
    ended = moment(attempt, "finished_at")
    if assigned is not None:
        what = f"attempt {number} assigned to {attempt.worker or 'a worker'}"
        yield TimelineStep(assigned, WAITS, what, token)
    if started is not None:
        yield TimelineStep(started, RUNS, f"attempt {number} started", token)
    if ended is not None and attempt.state != common_pb2.RUN_STATE_RUNNING:
        look = look_of(attempt.state)
        why = reason(attempt.reason, attempt.exit_code)
        took = f"took {formatting.span(ended - started)}" if started is not None else ""
        detail = " · ".join(filter(None, (why, took, attempt.error)))
        yield TimelineStep(ended, look, f"attempt {number} {look.word}", token, detail)


def _of_audit(entries: Iterable[cluster_pb.AuditEntry]) -> Iterator[TimelineStep]:
    """Yield requests of users, and results rejected as stale."""
    for entry in entries:
        at = moment(entry, "at")
        if at is None:
            continue
        refused = entry.outcome == "refused"
        look = LOOKS[State.CANCELLED.value] if refused else WAITS
        by = f"by {actor_with_token(entry.actor, entry.source)}"
        why = f"{entry.outcome}: {entry.reason.lower()}" if entry.reason else entry.outcome
        what = f"{entry.action} {entry.outcome}" if refused else f"{entry.action} requested"
        said = "" if entry.action == "submit" else in_words(entry.after)  # the page shows it
        detail = " · ".join(filter(None, (by, why if refused else "", said)))
        yield TimelineStep(at, look, what, entry.fencing_token, detail, refused=refused)
