"""Calls on runs: get, list, cancel, logs, results, explain, retry. See also `submit`, `watch`."""

import hashlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from schedd.api import paging, views
from schedd.api.definitions import validation
from schedd.api.errors import (
    CallError,
    FailedPreconditionError,
    MemberUnavailableError,
    NotFoundError,
    cut,
    not_found,
    wrong,
)
from schedd.api.jobs import stored_jobs
from schedd.api.jobs.stored_jobs import namespace_of
from schedd.api.request_bounds import id_of
from schedd.api.runs import logs
from schedd.api.runs.logs import LogPosition, bad_cursor, damaged
from schedd.api.runs.why import explain
from schedd.api.services import Caller, Services, compact
from schedd.core.events import EndedUnreported
from schedd.core.ids import NO_TOKEN, BackfillId, Id, JobId, RunId, Token, redriven_run_id
from schedd.core.runs.lifecycle import LIVE, Reason, State
from schedd.core.runs.records import StoreConflict
from schedd.core.runs.redrive import again, line_of
from schedd.core.runs.run_records import RunFilter, RunRecord
from schedd.runtime import job_codec
from schedd.runtime.job_codec import JobDefinition
from schedkit.errors import Unavailable
from schedkit.objects import Damaged, NoSuchObject, result_key
from schedproto.v1 import run_pb2
from schedproto.v1 import run_service_pb2 as wire

PART: Final = 256 * 1024
"""Bytes of a piece of a result, at most. Results up to 64 KiB are in the run's row, larger ones in
the result store.
"""
TRIES: Final = 5
"""Tries of one retry while others edit the job."""


async def get_run(services: Services, _caller: Caller, request: wire.GetRunRequest) -> run_pb2.Run:
    record = await _find(services, request.run_id)
    return views.run_message(record, services.advances.progress_of(record.run))


async def list_runs(
    services: Services, _caller: Caller, request: wire.ListRunsRequest
) -> wire.ListRunsResponse:
    """Return a page of runs, newest first. If the filter needs too many rows, the page is shorter
    than requested, or empty, and has a token to continue.
    """
    paged = paging.Paged("runs", request, paging.time_and(RunId))
    rows, end = await services.store.list_runs(
        namespace_of(request.namespace), paged.after, paged.read_rows, _wanted(request)
    )
    page, token = paged.cut(rows, key_of)
    if end and not token:
        token = paging.token(paged.listing, *end)
    return wire.ListRunsResponse(
        runs=[views.run_message(row, services.advances.progress_of(row.run)) for row in page],
        next_page_token=token,
    )


def key_of(record: RunRecord) -> tuple[datetime, RunId]:
    return record.run.key.scheduled_at, record.run.key.run_id


def _wanted(request: wire.ListRunsRequest) -> RunFilter:
    """Return the filter of a request. Raises InvalidArgument."""
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
        BackfillId(id_of("backfill_id", request.backfill_id)) if request.backfill_id else None,
        run_id_of(parent, "parent_run_id") if parent else None,
    )


async def newest_states(
    services: Services, job_ids: Sequence[str], count: int
) -> dict[str, list[State]]:
    """Return the states of each job's newest runs, for a caller who is authorized already."""
    found = await services.store.newest_states([JobId(Id.parse(one)) for one in job_ids], count)
    return {str(job_id): states for job_id, states in found.items()}


async def cancel_run(
    services: Services, caller: Caller, request: wire.CancelRunRequest
) -> run_pb2.Run:
    """Cancel a run: at once while it waits, by its worker while it runs. Idempotent. A started
    broadcast ends with its children, which the owner cancels.
    """
    validation.check_note(request.reason, "reason")
    record = await _find(services, request.run_id)
    run_id = record.run.key.run_id
    entry = caller.audit("cancel", f"run/{run_id}", request.request_id, run_id=run_id)
    last: RunRecord | None = None  # as the last transaction that changed it left it

    def noted(was: RunRecord, now: RunRecord) -> tuple[str, str]:
        nonlocal last
        last = now
        after: dict[str, object] = {"state": now.state.value}
        if now.run.cancelling and now.run.state in LIVE:
            after["cancelling"] = True
        if request.reason:
            after["reason"] = request.reason
        return compact(audit_state(was)), compact(after)

    cancelled = await services.store.cancel_run(run_id, entry, noted)
    if cancelled is None:
        raise unknown(request.run_id)
    if cancelled.run.state not in LIVE and cancelled.run.state is not State.CANCELLED:
        raise FailedPreconditionError(
            f"run {run_id} can't be cancelled: it has already ended as {cancelled.run.state}",
            reason="RUN_ENDED",
            remedy="there is nothing left to cancel",
        )
    if cancelled.run.state is State.RUNNING:
        services.lines.cancel(cancelled.run)
    elif cancelled is last:  # this call cancelled it
        services.emit(EndedUnreported(State.CANCELLED, Reason.BY_USER, 1))
    services.wake_ups.runs_changed([cancelled.run.hint])
    services.wake_ups.runs_ready([cancelled.run.shard])
    return views.run_message(cancelled)


def audit_state(record: RunRecord) -> dict[str, object]:
    """Return the job and state of a run, for the audit log."""
    return {"namespace": record.namespace, "job": record.job, "state": record.state.value}


async def list_attempts(
    services: Services, _caller: Caller, request: wire.ListAttemptsRequest
) -> wire.ListAttemptsResponse:
    """Return all attempts of a run, oldest first."""
    record = await _find(services, request.run_id)
    rows = await services.store.attempts(record.run.key.run_id)
    return wire.ListAttemptsResponse(attempts=[views.attempt_message(row) for row in rows])


async def get_run_result(
    services: Services, _caller: Caller, request: wire.GetRunResultRequest
) -> run_pb2.RunResult:
    """Return the result, or its size and place."""
    record = await _find(services, request.run_id)
    stored = await services.store.result(record.run.key.run_id)
    result = run_pb2.RunResult(run_id=request.run_id)
    if stored is None:
        return result
    found = run_pb2.StoredResult.FromString(stored)
    if found.HasField("object"):
        kept = found.object
        result.size, result.sha256 = kept.size, kept.sha256.hex()
        result.stored, result.problem = not kept.problem, kept.problem
        result.json = kept.json
        return result
    content = _content(found)
    result.result.MergeFromString(stored)
    result.size, result.sha256 = len(content), hashlib.sha256(content).hexdigest()
    result.json = found.WhichOneof("kind") == "json"
    return result


async def read_result(
    services: Services, _caller: Caller, request: wire.ReadResultRequest
) -> AsyncGenerator[run_pb2.ResultPiece, None]:
    """Return the result of a run in pieces, at any size; none if nothing was returned."""
    record = await _find(services, request.run_id)
    stored = await services.store.result(record.run.key.run_id)
    found = run_pb2.StoredResult.FromString(stored or b"")
    if not found.HasField("object"):
        data = _content(found)
        for at in range(0, len(data), PART):
            yield run_pb2.ResultPiece(offset=at, data=data[at : at + PART])
        return
    kept, run_id = found.object, str(record.run.key.run_id)
    if kept.problem:
        raise _lost(f"the result of run {run_id} isn't kept: {kept.problem}")
    at, key = 0, result_key(record.namespace, run_id, kept.fencing_token)
    try:
        async for part in services.objects.parts(key, kept.size, kept.sha256):
            yield run_pb2.ResultPiece(offset=at, data=part)
            at += len(part)
    except NoSuchObject as error:
        raise _lost(f"result of run {run_id} not found in the result store") from error
    except Unavailable as error:
        raise MemberUnavailableError(
            f"the result store is unavailable: {error}",
            reason="STORE_AWAY",
            remedy="call again; `schedctl cluster doctor` shows the cause",
        ) from error
    except Damaged as error:
        raise damaged(key) from error


async def read_logs(
    services: Services, _caller: Caller, request: wire.ReadLogsRequest
) -> AsyncGenerator[run_pb2.LogPiece, None]:
    """Return the log of an attempt; with `follow`, of the run until it has ended."""
    record = await _find(services, request.run_id)
    if record.run.children is not None:
        raise await logs.no_log(services, record)
    run_id, token = record.run.key.run_id, Token(request.fencing_token)
    if token not in (NO_TOKEN, record.run.token):
        tokens = [attempt.token for attempt in await services.store.attempts(run_id)]
        if token not in tokens:
            raise NotFoundError(
                f"attempt with fencing token {token} of run {run_id} not found",
                reason="NO_SUCH_ATTEMPT",
                remedy=f"see `schedctl run attempts {run_id}`",
            )
    after = LogPosition.read(request.resume_after)
    if NO_TOKEN not in (token, after.token) and token != after.token:
        raise bad_cursor(
            f"the cursor {cut(request.resume_after)!r} belongs to another attempt than the"
            f" requested one, which has the fencing token {token}"
        )
    if request.follow:
        async for piece in logs.followed(services, run_id, token, after):
            yield piece
        return
    asked, reach = token or after.token or None, logs.Reached(NO_TOKEN, after)
    async for piece in logs.kept(services, record.namespace, run_id, asked, reach):
        yield piece


async def explain_run(
    services: Services, _caller: Caller, request: wire.ExplainRunRequest
) -> wire.ExplainRunResponse:
    """Explain why a run waits, or why it ended in its state."""
    return await explain(services, await _find(services, request.run_id))


def run_id_of(text: str, field: str = "run_id") -> RunId:
    """Parse a run id. Raises InvalidArgument."""
    return RunId(id_of(field, text))


async def _find(services: Services, text: str) -> RunRecord:
    run_id = run_id_of(text)
    record = await services.store.get_run(run_id)
    if record is None:
        raise unknown(text)
    return record


def _instant(request: wire.ListRunsRequest, field: str) -> datetime | None:
    stamped = getattr(request, field)
    return job_codec.instant(stamped) if stamped.seconds or stamped.nanos else None


def unknown(text: str) -> NotFoundError:
    """Return the error for a run that doesn't exist."""
    return not_found("run", text, "run list")


def _content(found: run_pb2.StoredResult) -> bytes:
    return found.json.encode() or found.raw


def _lost(what: str) -> NotFoundError:
    return NotFoundError(
        what,
        reason="NOT_KEPT",
        remedy="members and workers must have the same results.url; `schedctl run result -o json`"
        " shows the result's size and SHA-256",
    )


# Run a single run again that failed for good, was cancelled, or missed its start deadline.
#
# run ─▶ its job as it is now ─▶ a new run at once ─▶ job edited meanwhile? retry


async def retry_run(
    services: Services, caller: Caller, request: wire.RetryRunRequest
) -> run_pb2.Run:
    """Run a failed or cancelled run again: create a new run of the job as it is now, for the same
    scheduled time. Idempotent: a second call returns the same run.
    """
    payload = validation.given_payload(request)
    run_id = run_id_of(request.run_id)
    found = await services.store.get_run(run_id)
    if found is None:
        raise unknown(str(run_id))
    if (parent := found.run.parent) is not None:
        raise FailedPreconditionError(
            f"run {found.run.key.run_id} can't be retried alone: it is a child of a"
            f" broadcast, for worker {found.run.target} only",
            reason="IS_CHILD",
            remedy="when the broadcast has ended, run the broadcast again on the workers that"
            f" failed: schedctl run retry {parent}",
        )
    _check_again(found)
    after = {"runId": str(redriven_run_id(run_id))} | ({} if payload is None else {"payload": True})
    before = audit_state(found)
    entry = replace(
        caller.changed("retry", f"run/{run_id}", before, after, request.request_id), run_id=run_id
    )
    made: RunRecord | StoreConflict | None = None
    for _ in range(TRIES):
        stored = await services.store.definition(found.run.job_id)
        if stored is None or stored.deleted:
            raise _deleted(found)
        line = line_of(JobDefinition.read(stored).parsed)
        made = await services.dead_letters.once_more(run_id, payload, line, caller.actor, entry)
        if not isinstance(made, StoreConflict) or made.what != "etag":
            break
    if made is None:
        raise _deleted(found)
    if isinstance(made, StoreConflict):
        raise _refused(found, made)
    services.wake_ups.runs_created([made.run])
    return views.run_message(made)


def _check_again(found: RunRecord) -> None:
    state = found.run.state
    if again(state, found.reason):
        return
    if state in LIVE:
        problem, remedy = (
            f"it is {state} and hasn't ended",
            "cancel the run first, or wait for its end",
        )
    elif state is State.SUCCEEDED:
        problem = "it has SUCCEEDED"
        remedy = "to start another run of the job: `schedctl job trigger`"
    else:
        problem = f"it is {state}, so no run was created for its scheduled time"
        remedy = "to run the scheduled time: `schedctl job backfill`"
    raise FailedPreconditionError(
        f"run {found.run.key.run_id} can't be retried: {problem}",
        reason="NOT_FAILED",
        remedy=remedy,
    )


def _deleted(found: RunRecord) -> FailedPreconditionError:
    return FailedPreconditionError(
        f"run {found.run.key.run_id} can't be retried: its job {found.job!r} was deleted",
        reason="JOB_DELETED",
        remedy="create the job again and trigger it",
    )


def _refused(found: RunRecord, why: StoreConflict) -> CallError:
    if why.what == "line":
        return FailedPreconditionError(
            f"run {found.run.key.run_id} can't be retried now: too many runs of job {found.job!r}"
            " are waiting already",
            reason="LINE_FULL",
            remedy="wait until some runs have ended, or redrive at a rate: `schedctl dlq redrive`",
        )
    if why.what == "pool":
        return stored_jobs.deleted_pool(f"the pool of run {found.run.key.run_id}")
    if why.what == "payload":
        made = redriven_run_id(found.run.key.run_id)
        return FailedPreconditionError(
            f"run {found.run.key.run_id} was already retried with another payload, as run {made}",
            reason="DONE_AGAIN",
            remedy=f"see `schedctl run get {made}`; to retry that run: `schedctl run retry {made}`",
        )
    return stored_jobs.edited_meanwhile(found.job)
