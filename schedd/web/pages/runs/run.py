"""A run: what happened to it and when, under which tokens, what it wrote and returned, and why.

GET  /runs/<id>            live until it has ended; its log so far is in the page, and goes on by
                           REST's own /runs/<id>/logs
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
"""States of which a run can be done again."""


@dataclass(frozen=True, slots=True)
class RunSeen:
    """All that the page shows of a run."""

    run_id: str
    namespace: str
    place: str
    """The namespace as its links have it: empty where the page's own is `default`, unsaid, too."""
    elsewhere: bool
    """It is of another namespace than the page's."""
    submitted: bool
    line: RunLine
    trigger: str
    fired_by: str
    lives: bool
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
    """What the script says where it drops what it has shown, or couldn't show."""


async def _read(asked: PageRequest) -> Shown:
    run_id = asked.variables["run"]
    run = await asked.call(
        "RunService.GetRun", run_service_pb2.GetRunRequest(run_id=run_id), run_pb2.Run
    )
    lives = run.state in LIVE
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
        result = None if lives else all_.read("the result", _result(asked, run_id))
        log = (
            None if lives or run.children else all_.read("the log", asked.read(kept, asked, run_id))
        )
    told = attempts.result().attempts
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
        lives=lives,
        can_retry=run.state in AGAIN,
        progress=run.progress.fraction if run.HasField("progress") else None,
        progress_note=run.progress.note,
        error=run.error,
        parents=tuple((parent.job, parent.run_id) for parent in run.parents),
        redrive_of=run.redrive_of,
        parent=run.parent_run_id,
        children=run.children,
        steps=tuple(story(run, told, audit.result())),
        attempts=tuple(reversed(told)),
        answer=why.result().answer,
        checks=tuple(why.result().checks),
        result=result.result() if result else "",
        log=log.result() if log else (),
    )
    return Shown(f"{run.job or 'submitted'} {run.run_id[:8]}", seen, over=not lives)


async def _result(asked: PageRequest, run_id: str) -> str:
    """What it returned, in words or as it is."""
    told = await asked.call(
        "RunService.GetRunResult",
        run_service_pb2.GetRunResultRequest(run_id=run_id),
        run_pb2.RunResult,
    )
    if told.problem:
        return f"{told.size:,} bytes, which aren't kept: {told.problem}"
    if told.stored:
        return f"{told.size:,} bytes, in the result store: schedctl run result {run_id}"
    if told.result.WhichOneof("kind") is None:
        return ""
    return json.dumps(payload_value(told.result), indent=2, ensure_ascii=False)


async def _beside(asked: PageRequest, seen: object) -> Sequence[LogPart]:
    """What it has written so far, for who reads it without a script."""
    if not isinstance(seen, RunSeen) or not seen.lives or seen.children or not seen.line.attempt:
        return ()
    return await so_far(asked, asked.variables["run"])


@taking("reason")
async def _cancel(asked: PageRequest) -> Done:
    run_id, reason = asked.variables["run"], asked.fields.get("reason", "")
    request = run_service_pb2.CancelRunRequest(run_id=run_id, reason=reason)
    run = await asked.call("RunService.CancelRun", request, run_pb2.Run)
    ended = run.state == common_pb2.RUN_STATE_CANCELLED
    told = "It was cancelled." if ended else "Its worker was told to end it."
    return Done(told, asked.link("runs", run_id))


@taking()
async def _retry(asked: PageRequest) -> Done:
    request = run_service_pb2.RetryRunRequest(run_id=asked.variables["run"])
    run = await asked.call("RunService.RetryRun", request, run_pb2.Run)
    told = f"This run does run {request.run_id} again."
    return Done(told, asked.link("runs", run.run_id))


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
