"""Calls on dead letters: list, get and discard them, and redrive many at a rate. `retry_run` runs
a single one again.

    namespace, job, fingerprint │ group │ run_ids │ all, until ─▶ LetterFilter ─┬▶ discarded
                new runs, created by the owner ⇄ stopped ◀── queued for redrive ◀┘
"""

import math
from datetime import datetime
from functools import partial
from typing import Final, TypeAlias

from google.protobuf.timestamp_pb2 import Timestamp

from schedd.api import paging, views
from schedd.api.definitions import validation
from schedd.api.errors import (
    AbortedError,
    FailedPreconditionError,
    FieldViolation,
    NotFoundError,
    cut,
    not_found,
    refuse,
    wrong,
)
from schedd.api.jobs import stored_jobs
from schedd.api.jobs.stored_jobs import namespace_of
from schedd.api.request_bounds import id_of
from schedd.api.runs.runs import key_of, run_id_of
from schedd.api.services import Caller, Services, compact
from schedd.core.cluster.partition import shard_of
from schedd.core.ids import JobId, RedriveId, RunId, new_id
from schedd.core.runs.records import StoreConflict
from schedd.core.runs.redrive import (
    LEAST_RATE,
    MOST_RATE,
    USUAL_RATE,
    LetterFilter,
    RedriveGroup,
    RedriveRecord,
    RedriveRequest,
)
from schedd.runtime import job_codec
from schedproto.v1 import run_pb2
from schedproto.v1 import run_service_pb2 as wire

MOST_GROUPS: Final = 1_000
MOST_NAMED: Final = 1_000
"""Runs that one call may name."""


async def list_dead_letters(
    services: Services, _caller: Caller, request: wire.ListDeadLettersRequest
) -> wire.ListDeadLettersResponse:
    """Return a page of dead letters, newest first."""
    paged = paging.Paged("dead letters", request, paging.time_and(RunId))
    rows = await services.dead_letters.listed(
        LetterFilter(namespace_of(request.namespace), request.job, request.fingerprint),
        RedriveId(id_of("redrive_id", request.redrive_id)) if request.redrive_id else None,
        paged.after,
        paged.read_rows,
        resolved=request.resolved,
    )
    page, token = paged.cut(rows, lambda row: key_of(row.run))
    return wire.ListDeadLettersResponse(
        dead_letters=[views.dead_letter_message(row) for row in page], next_page_token=token
    )


async def get_dead_letter(
    services: Services, _caller: Caller, request: wire.GetDeadLetterRequest
) -> run_pb2.DeadLetter:
    """Return a dead letter, also a resolved one."""
    found = await services.dead_letters.get(run_id_of(request.run_id))
    if found is None:
        raise NotFoundError(
            f"dead letter of run {cut(request.run_id)} not found: the run didn't fail for good",
            reason="NO_SUCH_DEAD_LETTER",
            remedy="see `schedctl dlq list`, or `schedctl run get` for the run",
        )
    return views.dead_letter_message(found)


async def list_dead_letter_groups(
    services: Services, _caller: Caller, request: wire.ListDeadLetterGroupsRequest
) -> wire.ListDeadLetterGroupsResponse:
    """Return the open dead letters by job and fingerprint, the largest groups first."""
    found, _ = await greatest_groups(services, request.namespace, MOST_GROUPS, request.job)
    return wire.ListDeadLetterGroupsResponse(groups=found)


async def greatest_groups(
    services: Services, namespace: str, most: int, job: str = "", fingerprint: str = ""
) -> tuple[list[run_pb2.DeadLetterGroup], int]:
    """Return the largest groups, and the number of open letters in all groups. The caller must be
    authorized already. `job` and `fingerprint` filter if not empty.
    """
    choice = LetterFilter(namespace_of(namespace), job, fingerprint)
    found, waiting = await services.dead_letters.groups(choice, most)
    return [views.group_message(one) for one in found], waiting


async def discard_dead_letters(
    services: Services, caller: Caller, request: wire.DiscardDeadLettersRequest
) -> wire.DiscardDeadLettersResponse:
    """Discard dead letters; their runs are kept. Letters queued for redrive aren't discarded."""
    validation.check_note(request.note, "note")
    if len(request.run_ids) > MOST_NAMED:
        raise wrong(
            "run_ids",
            f"the list has {len(request.run_ids):,} ids: give at most {MOST_NAMED:,} in one call",
        )
    run_ids = tuple(run_id_of(one, "run_ids") for one in request.run_ids)
    if not run_ids:
        _check_chosen(request)
    elif request.job or request.fingerprint or request.all or request.HasField("group"):
        raise wrong(
            "run_ids",
            "can't be combined with job, fingerprint, group or all: leave the run ids"
            " or the others out",
        )
    elif request.HasField("until") or request.at_most:
        field = "until" if request.HasField("until") else "at_most"
        raise wrong(field, f"{field} can't be combined with run ids: leave one of the two out")
    choice = _chosen_by(request, run_ids)
    what = _audit_state(choice) | {"note": request.note}
    entry = caller.audit("discard", "dead letters", request.request_id)
    done = await services.dead_letters.discard(
        choice, caller.actor, request.note, entry, partial(_counted, what, "discarded")
    )
    if isinstance(done, StoreConflict):
        raise _more_than_expected(choice)
    if not done:
        await _check_job(services, choice)
    return wire.DiscardDeadLettersResponse(discarded=len(done))


async def redrive_dead_letters(
    services: Services, caller: Caller, request: wire.RedriveDeadLettersRequest
) -> wire.RedriveDeadLettersResponse:
    validation.check_note(request.note, "note")
    payload = validation.given_payload(request)
    rate = request.rate or USUAL_RATE
    if not math.isfinite(rate) or not LEAST_RATE <= rate <= MOST_RATE:
        problem = f"{rate:g}/s is out of range: give {LEAST_RATE}/s to {MOST_RATE:,.0f}/s"
        raise wrong("rate", problem)
    _check_chosen(request)
    choice = _chosen_by(request)
    if request.dry_run:
        planned = await services.dead_letters.planned(choice)
        if not planned:
            await _check_job(services, choice)
        return wire.RedriveDeadLettersResponse(total=planned)
    redrive_id = RedriveId(new_id())
    given = {"rate": rate, "payload": payload is not None, "note": request.note}
    made = await services.dead_letters.create(
        RedriveRequest(
            redrive_id, shard_of(JobId(redrive_id)), choice, rate, payload, caller.actor
        ),
        stored_jobs.idempotency(
            choice.namespace, request.idempotency_key, "RedriveDeadLetters", request
        ),
        caller.audit("redrive", f"redrive/{redrive_id}", request.request_id),
        partial(_counted, _audit_state(choice) | given, "total"),
    )
    if isinstance(made, StoreConflict) and made.what == "letters":
        raise _more_than_expected(choice)
    if isinstance(made, StoreConflict):
        raise stored_jobs.taken(made, name="redrive", key=request.idempotency_key)
    if made is None:
        await _check_job(services, choice)
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
    redrive_id = RedriveId(id_of("redrive_id", request.redrive_id))
    return _redrive_message(request.redrive_id, await services.dead_letters.redrive(redrive_id))


async def list_redrives(
    services: Services, _caller: Caller, request: wire.ListRedrivesRequest
) -> wire.ListRedrivesResponse:
    """Return a page of redrives, newest first."""
    paged = paging.Paged("redrives", request, paging.time_and(RedriveId))
    namespace = namespace_of(request.namespace)
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
    redrive_id = RedriveId(id_of("redrive_id", request.redrive_id))
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


def _redrive_message(text: str, found: RedriveRecord | None) -> run_pb2.Redrive:
    if found is None:
        raise not_found("redrive", cut(text), "dlq redrives")
    return views.redrive_message(found)


def _stopped_state(redrive: RedriveRecord) -> str:
    by = {} if redrive.open else {"by": redrive.stopped_by}
    return compact({"namespace": redrive.namespace, "stopped": not redrive.open} | by)


# The selection of dead letters by a call.

Choosing: TypeAlias = wire.DiscardDeadLettersRequest | wire.RedriveDeadLettersRequest


def _check_chosen(request: Choosing) -> None:
    """Raise InvalidArgument unless the selection is explicit and unambiguous."""
    if request.at_most < 0:
        raise wrong(
            "at_most",
            "must not be negative: give the highest number of dead letters to change, or leave"
            " at_most out",
        )
    filtered = request.job or request.fingerprint
    if request.HasField("group"):
        if filtered or request.all:
            raise wrong("group", "can't be combined with job, fingerprint or all: give one of them")
    elif not filtered and not request.all:
        raise wrong(
            "all", "no dead letters are selected: give a job, a fingerprint, a group, or all: true"
        )
    elif filtered and request.all:
        raise wrong("all", "can't be combined with job or fingerprint: give one of them")


def _chosen_by(request: Choosing, run_ids: tuple[RunId, ...] = ()) -> LetterFilter:
    """Return the filter of a call. Raises InvalidArgument for an incomplete group."""
    return LetterFilter(
        namespace_of(request.namespace),
        request.job,
        request.fingerprint,
        run_ids,
        _group_of(request.group) if request.HasField("group") else None,
        _until(request.until) if request.HasField("until") else None,
        request.at_most or None,
    )


def _until(stamp: Timestamp) -> datetime:
    """Return the end of the range, inclusive. JSON and tables show milliseconds only, so a time
    with whole milliseconds includes all of its last one. Else the newest letter would be left out.
    """
    at = job_codec.instant(stamp)
    return at if at.microsecond % 1000 else at.replace(microsecond=at.microsecond + 999)


def _group_of(group: wire.ChosenGroup) -> RedriveGroup:
    missing: list[FieldViolation] = []
    if not group.fingerprint:
        problem = "is missing: give the fingerprint of the group"
        missing.append(FieldViolation("group.fingerprint", problem))
    if not group.job and not group.submitted:
        problem = (
            "is missing: give a job's name, or submitted: true for submitted runs without a name"
        )
        missing.append(FieldViolation("group.job", problem))
    remedy = "give the group as ListDeadLetterGroups returns it; nothing was changed"
    refuse(missing, "INVALID_FIELD", remedy)
    return RedriveGroup(group.job, group.fingerprint, group.submitted)


async def _check_job(services: Services, choice: LetterFilter) -> None:
    """Raise NotFoundError if the named job neither exists nor has left a dead letter."""
    if not choice.job or await services.store.get_job(choice.namespace, choice.job) is not None:
        return
    of_job = LetterFilter(choice.namespace, choice.job)
    if not await services.dead_letters.listed(of_job, None, None, 1, resolved=True):
        raise stored_jobs.unknown(choice.job)


def _more_than_expected(choice: LetterFilter) -> AbortedError:
    return AbortedError(
        f"the selection now has more than {choice.at_most:,} dead letters",
        reason="MORE_THAN_EXPECTED",
        remedy="list the dead letters again, then call again; nothing was changed",
    )


def _describe_selection(choice: LetterFilter) -> str:
    one = choice.group or choice
    whose = "submitted runs" if choice.group and choice.group.submitted else "job"
    named = f" {cut(one.job)!r}" if one.job else ""
    of = f" of {whose}{named}" if named or choice.group else ""
    kind = f" with the fingerprint {cut(one.fingerprint)!r}" if one.fingerprint else ""
    until = f" that failed for good by {choice.until.isoformat()}" if choice.until else ""
    return of + kind + until


def _audit_state(choice: LetterFilter) -> dict[str, object]:
    selection: dict[str, object] = {
        "job": choice.job,
        "fingerprint": choice.fingerprint,
        "runs": [str(one) for one in choice.run_ids],
    }
    if (group := choice.group) is not None:
        chosen = {"job": group.job, "fingerprint": group.fingerprint}
        selection = {"group": chosen | {"submitted": group.submitted}}
    elif not any(selection.values()):
        selection = {"all": True}
    until = {"until": choice.until.isoformat()} if choice.until else {}
    return {"namespace": choice.namespace, **selection, **until}


def _counted(what: dict[str, object], name: str, count: int) -> str:
    return compact({key: value for key, value in what.items() if value} | {name: count})
