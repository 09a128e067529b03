"""Calls on runs: read, cancel, logs, and why; `submitting` makes those without a job, `watching`
tells of their changes.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from schedd.api import paging, views
from schedd.api.definitions import validation
from schedd.api.errors import FailedPrecondition, NotFound, wrong
from schedd.api.field_bounds import id_of
from schedd.api.jobs import backfills
from schedd.api.jobs.stored_jobs import namespace_of
from schedd.api.runs import broadcasts, logs, returned_values
from schedd.api.runs.cursors import LogPosition, refused
from schedd.api.runs.why import explain
from schedd.api.services import Caller, Services, compact
from schedd.core.events import EndedUnreported
from schedd.core.ids import NO_TOKEN, JobId, RunId, Token
from schedd.core.runs.lifecycle import LIVE, Reason, State
from schedd.core.runs.run_filter import RunFilter
from schedd.core.runs.run_records import RunRecord
from schedd.runtime import job_codec
from schedproto.v1 import run_pb2, run_service_pb2


async def get_run(
    services: Services, caller: Caller, request: run_service_pb2.GetRunRequest
) -> run_pb2.Run:
    """One run."""
    del caller
    record = await _find(services, request.run_id)
    return views.run_message(record, services.advances.of(record.run))


async def list_runs(
    services: Services, caller: Caller, request: run_service_pb2.ListRunsRequest
) -> run_service_pb2.ListRunsResponse:
    """A page of runs, newest first: shorter than was asked for, or empty, where so many had to be
    looked at that it goes on in the next one.
    """
    del caller
    size = paging.size(request.page_size)
    listing = paging.listing("runs", request)
    after = paging.read_token(listing, request.page_token)
    rows, end = await services.store.list_runs(
        namespace_of(request.namespace),
        (after[0], RunId(after[1])) if after else None,
        size + 1,
        _wanted(request),
    )
    page = rows[:size]
    if rows[size:]:
        end = page[-1].run.key.scheduled_at, page[-1].run.key.run_id
    return run_service_pb2.ListRunsResponse(
        runs=[views.run_message(row, services.advances.of(row.run)) for row in page],
        next_page_token=paging.token(listing, *end) if end else "",
    )


def _wanted(request: run_service_pb2.ListRunsRequest) -> RunFilter:
    """What is asked for. Raises InvalidArgument."""
    try:
        states = tuple(views.state_of(state) for state in request.states)
    except ValueError as unread:
        raise wrong("states", str(unread)) from unread
    parent = request.parent_run_id
    return RunFilter(
        request.job,
        states,
        request.worker,
        _instant(request, "scheduled_after"),
        _instant(request, "scheduled_before"),
        views.trigger_of(request.trigger),
        backfills.of_run(request.backfill_id),
        run_id_of(parent, "parent_run_id") if parent else None,
    )


async def newest_states(
    services: Services, job_ids: Sequence[str], count: int
) -> dict[str, list[State]]:
    """How the newest runs of each of these jobs stand, newest first: for lists of jobs that the
    caller may see, in one statement.
    """
    found = await services.store.newest_states([JobId(UUID(one)) for one in job_ids], count)
    return {str(job_id): states for job_id, states in found.items()}


async def cancel_run(
    services: Services, caller: Caller, request: run_service_pb2.CancelRunRequest
) -> run_pb2.Run:
    """End a run: at once while it waits, by its worker while it runs. Twice is fine. A broadcast
    that has begun ends with its children, which its shard's owner cancels.
    """
    validation.check_note(request.reason, "reason")
    record = await _find(services, request.run_id)
    run_id = record.run.key.run_id
    entry = caller.audit("cancel", f"run/{run_id}", request.request_id)
    entry = replace(entry, run_id=run_id)
    noted = _Cancelled(request.reason)
    cancelled = await services.store.cancel_run(run_id, entry, noted)
    if cancelled is None:
        raise unknown(request.run_id)
    if cancelled.run.state not in LIVE and cancelled.run.state is not State.CANCELLED:
        raise FailedPrecondition(
            f"the run has ended already, as {cancelled.run.state}",
            reason="RUN_ENDED",
            remedy="there is nothing left to cancel",
        )
    if cancelled.run.state is State.RUNNING:
        services.lines.cancel(cancelled.run)
    elif cancelled is noted.now:  # as this call left it, and not as it found it
        services.emit(EndedUnreported(State.CANCELLED, Reason.BY_USER, 1))
    services.nudges.runs_changed([cancelled.run.hint])
    services.nudges.runs_ready([cancelled.run.shard])
    return views.run_message(cancelled)


def stood(record: RunRecord) -> dict[str, object]:
    """Whose run it is and how it stands, as the audit has it."""
    return {"namespace": record.namespace, "job": record.job, "state": record.state.value}


class _Cancelled:
    """What the audit has of it. `now`: the run as the transaction has left it that was begun last
    and found something to change.
    """

    def __init__(self, why: str) -> None:
        self._why = why
        self.now: RunRecord | None = None

    def __call__(self, was: RunRecord, now: RunRecord) -> tuple[str, str]:
        """Before and after."""
        self.now = now
        after: dict[str, object] = {"state": now.state.value}
        if now.run.cancelling and now.run.state in LIVE:
            after["cancelling"] = True
        return compact(stood(was)), compact(after | ({"reason": self._why} if self._why else {}))


async def list_attempts(
    services: Services, caller: Caller, request: run_service_pb2.ListAttemptsRequest
) -> run_service_pb2.ListAttemptsResponse:
    """Every handing out of a run, oldest first."""
    del caller
    record = await _find(services, request.run_id)
    rows = await services.store.attempts(record.run.key.run_id)
    return run_service_pb2.ListAttemptsResponse(
        attempts=[views.attempt_message(row) for row in rows]
    )


async def get_run_result(
    services: Services, caller: Caller, request: run_service_pb2.GetRunResultRequest
) -> run_pb2.RunResult:
    """What the handler returned."""
    del caller
    record = await _find(services, request.run_id)
    stored = await services.store.result(record.run.key.run_id)
    return returned_values.told(request.run_id, stored)


async def read_result(
    services: Services, caller: Caller, request: run_service_pb2.ReadResultRequest
) -> AsyncGenerator[run_pb2.ResultPiece, None]:
    """What the handler returned, of whatever size."""
    del caller
    record = await _find(services, request.run_id)
    stored = await services.store.result(record.run.key.run_id)
    async for piece in returned_values.content(services, record, stored):
        yield piece


async def read_logs(
    services: Services, caller: Caller, request: run_service_pb2.ReadLogsRequest
) -> AsyncGenerator[run_pb2.LogPiece, None]:
    """What an attempt has written; followed, what its run writes until it has ended."""
    del caller
    record = await _find(services, request.run_id)
    if record.run.children is not None:
        raise await broadcasts.no_log(services, record)
    run_id, token = record.run.key.run_id, Token(request.fencing_token)
    await _check_attempt(services, record, token)
    after = LogPosition.read(request.resume_after)
    if NO_TOKEN not in (token, after.token) and token != after.token:
        raise refused(request.resume_after, f"is of another attempt than {token}")
    if request.follow:
        async for piece in logs.followed(services, run_id, token, after):
            yield piece
        return
    asked, reach = token or after.token or None, logs.Reached(NO_TOKEN, after)
    async for piece in logs.kept(services, record.namespace, run_id, asked, reach):
        yield piece


async def explain_run(
    services: Services, caller: Caller, request: run_service_pb2.ExplainRunRequest
) -> run_service_pb2.ExplainRunResponse:
    """Why it waits, or why it ended so."""
    del caller
    return await explain(services, await _find(services, request.run_id))


async def _check_attempt(services: Services, record: RunRecord, token: Token) -> None:
    """Raise NotFound unless the run has an attempt with this token, or none is asked for."""
    if token in (NO_TOKEN, record.run.token):
        return
    run_id = record.run.key.run_id
    tokens = [attempt.token for attempt in await services.store.attempts(run_id)]
    if token not in tokens:
        raise NotFound(
            f"run {run_id} has no attempt with the token {token}",
            reason="NO_SUCH_ATTEMPT",
            remedy=f"see `schedctl run attempts {run_id}`",
        )


def run_id_of(text: str, field: str = "run_id") -> RunId:
    """The id that a request names. Raises InvalidArgument."""
    return RunId(id_of(field, text))


async def _find(services: Services, text: str) -> RunRecord:
    run_id = run_id_of(text)
    record = await services.store.get_run(run_id)
    if record is None:
        raise unknown(text)
    return record


def _instant(request: run_service_pb2.ListRunsRequest, field: str) -> datetime | None:
    stamped = getattr(request, field)
    return job_codec.instant(stamped) if stamped.seconds or stamped.nanos else None


def unknown(text: str) -> NotFound:
    """The refusal of a run that there isn't."""
    return NotFound(
        f"there is no run {text}", reason="NO_SUCH_RUN", remedy="see `schedctl run list`"
    )
