"""The page of a run: timeline, attempts and tokens, log, result, explanation.

GET  /runs/<id>            live until it has ended; contains the log so far, and continues with
                           REST's /runs/<id>/logs
POST /runs/<id>/cancel     and /retry
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from schedd.api.services import DEFAULT_NAMESPACE
from schedd.core.runs.lifecycle import State
from schedd.web import formatting
from schedd.web.formatting import LOOKS, StateStyle, look_of, moment, reason
from schedd.web.pages.cluster.cluster import in_words
from schedd.web.pages.page import Action, Done, Page, PageRequest, Shown, taking
from schedd.web.pages.runs.log import EARLIER, LogPart, read_newest_parts, so_far
from schedkit.protojson import payload_value
from schedkit.records import dataclass, replace
from schedkit.sources import actor_with_token
from schedproto.v1 import cluster_service_pb2 as cluster_pb
from schedproto.v1 import common_pb2, run_pb2, run_service_pb2

# The timeline of a run: due, assigned under a token, started, ended, rejected.
#
#     run ──────┐
#     attempts ─┼─ steps by time ──▶ the timeline
#     audit ────┘
#
# Pure. Invariant: a step without a time is left out.

WAITS = LOOKS[State.PENDING.value]
RUNS = LOOKS[State.RUNNING.value]
RETRY_STYLE = LOOKS[State.RETRYING.value]

LIVE: Final = frozenset(
    {common_pb2.RUN_STATE_PENDING, common_pb2.RUN_STATE_RUNNING, common_pb2.RUN_STATE_RETRYING}
)


@dataclass(frozen=True, slots=True)
class TimelineStep:
    """Step of the timeline. `since`: the time from the previous step; None for the first."""

    at: datetime
    look: StateStyle
    what: str
    token: int = 0
    detail: str = ""
    since: timedelta | None = None
    refused: bool = False


def story(
    run: run_pb2.Run, attempts: Iterable[run_pb2.Attempt], audit: Iterable[cluster_pb.AuditEntry]
) -> Iterator[TimelineStep]:
    """Yield the steps, oldest first."""
    steps = [*_of_run(run), *_of_audit(audit)]
    steps += [step for attempt in attempts for step in _of_attempt(attempt)]
    before: datetime | None = None
    for step in sorted(steps, key=lambda step: step.at):
        since = step.at - before if before is not None else None
        yield replace(step, since=since)
        before = step.at


def _of_run(run: run_pb2.Run) -> Iterator[TimelineStep]:
    due = moment(run, "due_at")
    if due is not None:
        by = f"fired by {run.fired_by}" if run.fired_by else ""
        yield TimelineStep(due, WAITS, "due", detail=by)
    retry = moment(run, "retry_at")
    if retry is not None and run.state == common_pb2.RUN_STATE_RETRYING:
        yield TimelineStep(retry, RETRY_STYLE, "retry")
    ended = moment(run, "finished_at")
    if ended is not None and run.state not in LIVE and not run.fencing_token:
        look = look_of(run.state)
        why = reason(run)
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
        why = reason(attempt)
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


EVERY: Final = 0.5
AUDIT_READ: Final = 100

AGAIN: Final = frozenset(
    {common_pb2.RUN_STATE_FAILED, common_pb2.RUN_STATE_CANCELLED, common_pb2.RUN_STATE_MISSED}
)
"""States of runs that can be run again."""


async def _read(asked: PageRequest) -> Shown:
    run_id = asked.variables["run"]
    run = await asked.call(run_service_pb2.GetRunRequest(run_id=run_id), run_pb2.Run)
    live = run.state in LIVE
    async with asked.at_once() as all_:
        attempts = all_.call(
            run_service_pb2.ListAttemptsRequest(run_id=run_id), run_service_pb2.ListAttemptsResponse
        )
        audit = all_.read("the audit", asked.audit(f"run/{run.run_id}", AUDIT_READ))
        why = all_.call(
            run_service_pb2.ExplainRunRequest(run_id=run_id), run_service_pb2.ExplainRunResponse
        )
        result = None if live else all_.read("the result", _result(asked, run_id))
        log = (
            None
            if live or run.children
            else all_.read("the log", asked.read(read_newest_parts, asked, run_id))
        )
    tried = attempts.result().attempts
    elsewhere = run.namespace != (asked.namespace or DEFAULT_NAMESPACE)
    seen = {
        "run": run,
        "place": run.namespace if elsewhere else asked.namespace,  # of links
        "elsewhere": elsewhere,
        "trigger": run_pb2.Run.Trigger.Name(run.trigger).removeprefix("TRIGGER_").lower(),
        "live": live,
        "can_retry": run.state in AGAIN,
        "steps": tuple(story(run, tried, audit.result())),
        "answer": why.result().answer,
        "checks": tuple(why.result().checks),
        "result": result.result() if result else "",
        "log": log.result() if log else (),
        "earlier": EARLIER.text,  # the script's note for omitted output
    }
    return Shown(f"{run.job or 'submitted'} {run.run_id[:8]}", seen, over=not live)


async def _result(asked: PageRequest, run_id: str) -> str:
    found = await asked.call(run_service_pb2.GetRunResultRequest(run_id=run_id), run_pb2.RunResult)
    if found.problem:
        return f"{found.size:,} bytes, not stored: {found.problem}"
    if found.stored:
        return f"{found.size:,} bytes in the result store: schedctl run result {run_id}"
    if found.result.WhichOneof("kind") is None:
        return ""
    return json.dumps(payload_value(found.result), indent=2, ensure_ascii=False)


async def _beside(asked: PageRequest, seen: Any) -> Sequence[LogPart]:
    """Return the log so far, for browsers without the script."""
    if not seen or not seen["live"] or seen["run"].children or not seen["run"].attempt:
        return ()
    return await so_far(asked, asked.variables["run"])


@taking("reason")
async def _cancel(asked: PageRequest) -> Done:
    run_id, reason = asked.variables["run"], asked.fields.get("reason", "")
    request = run_service_pb2.CancelRunRequest(run_id=run_id, reason=reason)
    run = await asked.call(request, run_pb2.Run)
    ended = run.state == common_pb2.RUN_STATE_CANCELLED
    message = "Run cancelled." if ended else "Cancel requested: the worker ends the run."
    return Done(message, asked.link("runs", run_id))


@taking()
async def _retry(asked: PageRequest) -> Done:
    request = run_service_pb2.RetryRunRequest(run_id=asked.variables["run"])
    run = await asked.call(request, run_pb2.Run)
    message = f"New run of {request.run_id}."
    return Done(message, asked.link("runs", run.run_id))


PAGE: Final = Page(
    "/runs/{run}",
    "Runs",
    "run",
    _read,
    frame="run.html",
    every=EVERY,
    beside=_beside,
    actions=(Action("/runs/{run}/cancel", _cancel), Action("/runs/{run}/retry", _retry)),
)
