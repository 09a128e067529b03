"""Redrives: run many dead letters again, at a rate.

selection ─▶ queued for redrive ─▶ new runs, created by the owner ⇄ stopped
"""

import math
from functools import partial

from schedd.api import paging, views
from schedd.api.dead_letters.dead_letter_filter import (
    audit_state,
    check_chosen,
    chosen_by,
    counted,
    more_than_expected,
)
from schedd.api.dead_letters.dead_letters import check_job
from schedd.api.definitions import validation
from schedd.api.errors import FailedPreconditionError, cut, not_found, wrong
from schedd.api.field_bounds import id_of
from schedd.api.jobs import stored_jobs
from schedd.api.services import Caller, Services, compact
from schedd.core.cluster.partition import shard_of
from schedd.core.ids import JobId, RedriveId, new_id
from schedd.core.runs.records import StoreConflict
from schedd.core.runs.redrive import (
    LEAST_RATE,
    MOST_RATE,
    USUAL_RATE,
    LetterFilter,
    RedriveRecord,
    RedriveRequest,
)
from schedproto.v1 import run_pb2
from schedproto.v1 import run_service_pb2 as wire


async def redrive_dead_letters(
    services: Services, caller: Caller, request: wire.RedriveDeadLettersRequest
) -> wire.RedriveDeadLettersResponse:
    validation.check_note(request.note, "note")
    payload = validation.given_payload(request)
    rate = request.rate or USUAL_RATE
    if not math.isfinite(rate) or not LEAST_RATE <= rate <= MOST_RATE:
        raise wrong(
            "rate",
            f"{rate:g}/s is out of range: give {LEAST_RATE}/s to {MOST_RATE:,.0f}/s",
        )
    check_chosen(request)
    choice = chosen_by(request)
    if request.dry_run:
        planned = await services.dead_letters.planned(choice)
        if not planned:
            await check_job(services, choice)
        return wire.RedriveDeadLettersResponse(total=planned)
    redrive_id = RedriveId(new_id())
    redrive = RedriveRequest(
        redrive_id, shard_of(JobId(redrive_id)), choice, rate, payload, caller.actor
    )
    given = {"rate": rate, "payload": payload is not None, "note": request.note}
    what = audit_state(choice) | given
    entry = caller.audit("redrive", f"redrive/{redrive_id}", request.request_id)
    made = await services.dead_letters.create(
        redrive,
        stored_jobs.idempotency(
            choice.namespace, request.idempotency_key, "RedriveDeadLetters", request
        ),
        entry,
        partial(counted, what, "total"),
    )
    if isinstance(made, StoreConflict) and made.what == "letters":
        raise more_than_expected(choice)
    if isinstance(made, StoreConflict):
        raise stored_jobs.taken(made, name="redrive", key=request.idempotency_key)
    if made is None:
        await check_job(services, choice)
        raise FailedPreconditionError(
            f"no dead letter{_describe_selection(choice)} can be redriven",
            reason="NO_DEAD_LETTERS",
            remedy="see `schedctl dlq groups`, and `schedctl dlq redrives` for current redrives",
        )
    return wire.RedriveDeadLettersResponse(total=made.total, redrive=views.redrive_message(made))


async def get_redrive(
    services: Services, _caller: Caller, request: wire.GetRedriveRequest
) -> run_pb2.Redrive:
    """Return a redrive with the states of its runs."""
    redrive_id = _redrive_id(request.redrive_id)
    return _redrive_message(request.redrive_id, await services.dead_letters.redrive(redrive_id))


async def list_redrives(
    services: Services, _caller: Caller, request: wire.ListRedrivesRequest
) -> wire.ListRedrivesResponse:
    """Return a page of redrives, newest first."""
    paged = paging.Paged("redrives", request, paging.time_and(RedriveId))
    namespace = stored_jobs.namespace_of(request.namespace)
    rows = await services.dead_letters.redrives(namespace, paged.after, paged.read_rows)
    page, token = paged.cut(rows, lambda row: (row.created_at, row.redrive_id))
    return wire.ListRedrivesResponse(
        redrives=[views.redrive_message(row) for row in page], next_page_token=token
    )


async def stop_redrive(
    services: Services, caller: Caller, request: wire.StopRedriveRequest
) -> run_pb2.Redrive:
    """Stop a redrive: it creates no more runs, and existing ones continue. Idempotent."""
    return await _switched(services, caller, request, "stop", on=False)


async def resume_redrive(
    services: Services, caller: Caller, request: wire.ResumeRedriveRequest
) -> run_pb2.Redrive:
    """Resume a stopped redrive. Idempotent."""
    return await _switched(services, caller, request, "resume", on=True)


async def _switched(
    services: Services,
    caller: Caller,
    request: wire.StopRedriveRequest | wire.ResumeRedriveRequest,
    action: str,
    *,
    on: bool,
) -> run_pb2.Redrive:
    redrive_id = _redrive_id(request.redrive_id)
    entry = caller.audit(action, f"redrive/{redrive_id}", request.request_id)
    done = await services.dead_letters.switch(
        redrive_id, caller.actor, entry, _stopped_state, on=on
    )
    if done is not None and done.finished_at is not None:
        raise FailedPreconditionError(
            f"redrive {redrive_id} can't be stopped or resumed: all its runs are created already",
            reason="REDRIVE_DONE",
            remedy="to end runs of the redrive: `schedctl run cancel RUN`",
        )
    return _redrive_message(request.redrive_id, done)


def _describe_selection(choice: LetterFilter) -> str:
    one = choice.group or choice
    whose = "submitted runs" if choice.group and choice.group.submitted else "job"
    named = f" {cut(one.job)!r}" if one.job else ""
    of = f" of {whose}{named}" if named or choice.group else ""
    kind = f" with the fingerprint {cut(one.fingerprint)!r}" if one.fingerprint else ""
    until = f" that failed for good by {choice.until.isoformat()}" if choice.until else ""
    return of + kind + until


def _redrive_message(text: str, found: RedriveRecord | None) -> run_pb2.Redrive:
    if found is None:
        raise not_found("redrive", cut(text), "dlq redrives")
    return views.redrive_message(found)


def _stopped_state(redrive: RedriveRecord) -> str:
    """Return whether the redrive is stopped, for the audit log."""
    by = {} if redrive.open else {"by": redrive.stopped_by}
    return compact({"namespace": redrive.namespace, "stopped": not redrive.open} | by)


def _redrive_id(text: str) -> RedriveId:
    return RedriveId(id_of("redrive_id", text))
