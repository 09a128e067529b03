"""The page of a run: timeline, attempts and tokens, log, result, explanation.

GET  /runs/<id>            live until it has ended; contains the log so far, and continues with
                           REST's /runs/<id>/logs
POST /runs/<id>/cancel     and /retry
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from schedd.api.services import DEFAULT_NAMESPACE
from schedd.web.pages.forms import taking
from schedd.web.pages.page import Action, Done, Page, PageRequest, Shown
from schedd.web.pages.rows import RunLine, run_line
from schedd.web.pages.runs.log import EARLIER, LogPart, kept, so_far
from schedd.web.pages.runs.run_timeline import TimelineStep, story
from schedkit.protojson import payload_value
from schedproto.v1 import common_pb2, run_pb2, run_service_pb2

EVERY: Final = 0.5
AUDIT_READ: Final = 100

LIVE: Final = frozenset(
    {
        common_pb2.RUN_STATE_PENDING,
        common_pb2.RUN_STATE_RUNNING,
        common_pb2.RUN_STATE_RETRYING,
    }
)
AGAIN: Final = frozenset(
    {common_pb2.RUN_STATE_FAILED, common_pb2.RUN_STATE_CANCELLED, common_pb2.RUN_STATE_MISSED}
)
"""States of runs that can be run again."""


@dataclass(frozen=True, slots=True)
class RunSeen:
    """The values of the page."""

    run_id: str
    namespace: str
    place: str
    """The namespace for links; empty if both are `default` and the address names none."""
    elsewhere: bool
    """Whether its namespace isn't the page's."""
    submitted: bool
    line: RunLine
    trigger: str
    fired_by: str
    live: bool
    can_retry: bool
    progress: float | None
    progress_note: str
    error: str
    parents: tuple[tuple[str, str], ...]
    redrive_of: str
    parent: str
    children: int
    steps: tuple[TimelineStep, ...]
    attempts: tuple[run_pb2.Attempt, ...]
    answer: str
    checks: tuple[run_service_pb2.ExplainRunResponse.Check, ...]
    result: str
    log: tuple[LogPart, ...]
    earlier: str = EARLIER.text
    """The script's note for omitted output."""


async def _read(asked: PageRequest) -> Shown:
    run_id = asked.variables["run"]
    run = await asked.call(
        "RunService.GetRun", run_service_pb2.GetRunRequest(run_id=run_id), run_pb2.Run
    )
    live = run.state in LIVE
    async with asked.at_once() as all_:
        attempts = all_.call(
            "RunService.ListAttempts",
            run_service_pb2.ListAttemptsRequest(run_id=run_id),
            run_service_pb2.ListAttemptsResponse,
        )
        audit = all_.read("the audit", asked.audit(f"run/{run.run_id}", AUDIT_READ))
        why = all_.call(
            "RunService.ExplainRun",
            run_service_pb2.ExplainRunRequest(run_id=run_id),
            run_service_pb2.ExplainRunResponse,
        )
        result = None if live else all_.read("the result", _result(asked, run_id))
        log = (
            None if live or run.children else all_.read("the log", asked.read(kept, asked, run_id))
        )
    tried = attempts.result().attempts
    elsewhere = run.namespace != (asked.namespace or DEFAULT_NAMESPACE)
    seen = RunSeen(
        run_id=run.run_id,
        namespace=run.namespace,
        place=run.namespace if elsewhere else asked.namespace,
        elsewhere=elsewhere,
        submitted=not run.job_id,
        line=run_line(run),
        trigger=run_pb2.Run.Trigger.Name(run.trigger).removeprefix("TRIGGER_").lower(),
        fired_by=run.fired_by,
        live=live,
        can_retry=run.state in AGAIN,
        progress=run.progress.fraction if run.HasField("progress") else None,
        progress_note=run.progress.note,
        error=run.error,
        parents=tuple((parent.job, parent.run_id) for parent in run.parents),
        redrive_of=run.redrive_of,
        parent=run.parent_run_id,
        children=run.children,
        steps=tuple(story(run, tried, audit.result())),
        attempts=tuple(reversed(tried)),
        answer=why.result().answer,
        checks=tuple(why.result().checks),
        result=result.result() if result else "",
        log=log.result() if log else (),
    )
    return Shown(f"{run.job or 'submitted'} {run.run_id[:8]}", seen, over=not live)


async def _result(asked: PageRequest, run_id: str) -> str:
    """Return the result as text, or where it is."""
    found = await asked.call(
        "RunService.GetRunResult",
        run_service_pb2.GetRunResultRequest(run_id=run_id),
        run_pb2.RunResult,
    )
    if found.problem:
        return f"{found.size:,} bytes, not stored: {found.problem}"
    if found.stored:
        return f"{found.size:,} bytes in the result store: schedctl run result {run_id}"
    if found.result.WhichOneof("kind") is None:
        return ""
    return json.dumps(payload_value(found.result), indent=2, ensure_ascii=False)


async def _beside(asked: PageRequest, seen: object) -> Sequence[LogPart]:
    """Return the log so far, for browsers without the script."""
    if not isinstance(seen, RunSeen) or not seen.live or seen.children or not seen.line.attempt:
        return ()
    return await so_far(asked, asked.variables["run"])


@taking("reason")
async def _cancel(asked: PageRequest) -> Done:
    run_id, reason = asked.variables["run"], asked.fields.get("reason", "")
    request = run_service_pb2.CancelRunRequest(run_id=run_id, reason=reason)
    run = await asked.call("RunService.CancelRun", request, run_pb2.Run)
    ended = run.state == common_pb2.RUN_STATE_CANCELLED
    message = "Run cancelled." if ended else "Cancel requested: the worker ends the run."
    return Done(message, asked.link("runs", run_id))


@taking()
async def _retry(asked: PageRequest) -> Done:
    request = run_service_pb2.RetryRunRequest(run_id=asked.variables["run"])
    run = await asked.call("RunService.RetryRun", request, run_pb2.Run)
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
