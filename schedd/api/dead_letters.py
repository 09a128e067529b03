"""Dead letters: what failed for good, told of, done again, or discarded.

list, groups, get          read
retry                      one run ─→ a new run, at once
redrive                    many letters ─→ promised ─→ their runs, so many a second
discard                    nobody waits for them any more
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final
from uuid import uuid4

from schedd.api import broadcasts, paging, pools, runs, stored_jobs, validation, views
from schedd.api.bounds import id_of
from schedd.api.definitions import stored_definition
from schedd.api.errors import (
    CallError,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Violation,
    cut,
    refuse,
)
from schedd.api.services import Caller, Services, compact
from schedd.core.ids import JobId, RedriveId, RunId, redriven_run_id
from schedd.core.lifecycle import LIVE, State
from schedd.core.partition import shard_of
from schedd.core.records import Conflict
from schedd.core.redrive import (
    LEAST_RATE,
    MOST_RATE,
    USUAL_RATE,
    Choice,
    Group,
    RedriveRecord,
    Wish,
    again,
    line_of,
)
from schedd.core.run_records import RunRecord
from schedproto.v1 import run_pb2
from schedproto.v1 import run_service_pb2 as wire

TRIES: Final = 5
"""Of a retry whose job is edited again and again meanwhile."""
MOST_GROUPS: Final = 1_000
MOST_NAMED: Final = 1_000
"""Runs that one call may name."""


async def list_dead_letters(
    services: Services, caller: Caller, request: wire.ListDeadLettersRequest
) -> wire.ListDeadLettersResponse:
    """A page of the runs that failed for good, newest first."""
    del caller
    size = paging.size(request.page_size)
    listing = paging.listing("dead letters", request)
    after = paging.read_token(listing, request.page_token)
    rows = await services.dead_letters.listed(
        _choice(request.namespace, request.job, request.fingerprint),
        _redrive_id(request.redrive_id) if request.redrive_id else None,
        (after[0], RunId(after[1])) if after else None,
        size + 1,
        settled=request.settled,
    )
    page = rows[:size]
    last = page[-1].run.run.key if rows[size:] else None
    return wire.ListDeadLettersResponse(
        dead_letters=[views.dead_letter_message(row) for row in page],
        next_page_token=paging.token(listing, last.scheduled_at, last.run_id) if last else "",
    )


async def get_dead_letter(
    services: Services, caller: Caller, request: wire.GetDeadLetterRequest
) -> run_pb2.DeadLetter:
    """One, settled or not."""
    del caller
    found = await services.dead_letters.get(_run_id(request.run_id))
    if found is None:
        raise NotFound(
            f"no dead letter of run {cut(request.run_id)}: it didn't fail for good",
            reason="NO_SUCH_DEAD_LETTER",
            remedy="see `schedctl dlq list`, or `schedctl run get` for the run",
        )
    return views.dead_letter_message(found)


async def list_dead_letter_groups(
    services: Services, caller: Caller, request: wire.ListDeadLetterGroupsRequest
) -> wire.ListDeadLetterGroupsResponse:
    """Those that wait, by job and kind of error; the greatest first."""
    del caller
    found, _ = await services.dead_letters.groups(
        _choice(request.namespace, request.job, ""), MOST_GROUPS
    )
    return wire.ListDeadLetterGroupsResponse(groups=[views.group_message(one) for one in found])


async def greatest_groups(
    services: Services, namespace: str, most: int, job: str = "", fingerprint: str = ""
) -> tuple[list[run_pb2.DeadLetterGroup], int]:
    """The greatest, and how many letters wait in whichever; for who may see them. `job` and
    `fingerprint` choose, where they aren't empty.
    """
    found, waiting = await services.dead_letters.groups(_choice(namespace, job, fingerprint), most)
    return [views.group_message(one) for one in found], waiting


async def discard_dead_letters(
    services: Services, caller: Caller, request: wire.DiscardDeadLettersRequest
) -> wire.DiscardDeadLettersResponse:
    """They wait for nobody any more; their runs stay. Those that a redrive is to do stay, too."""
    validation.check_note(request.note, "note")
    if len(request.run_ids) > MOST_NAMED:
        raise _wrong("run_ids", f"has {len(request.run_ids):,}, at most {MOST_NAMED:,} are allowed")
    run_ids = tuple(_run_id(one, "run_ids") for one in request.run_ids)
    if not run_ids:
        _check_chosen(request)
    elif request.job or request.fingerprint or request.all or request.HasField("group"):
        raise _wrong("run_ids", "goes with neither job, fingerprint, group nor all")
    choice = _choice(request.namespace, request.job, request.fingerprint, run_ids, _group(request))
    what = _told(choice) | {"note": request.note}
    entry = caller.audit("discard", "dead letters", request.request_id)
    done = await services.dead_letters.discard(
        choice, caller.actor, request.note, entry, partial(_counted, what, "discarded")
    )
    return wire.DiscardDeadLettersResponse(discarded=len(done))


async def retry_run(
    services: Services, caller: Caller, request: wire.RetryRunRequest
) -> run_pb2.Run:
    """Do a run again that failed for good, was cancelled, or waited past its deadline: a new run,
    by the job as it is now, for the same nominal instant. Twice gives the same run.
    """
    payload = _payload(request)
    run_id = _run_id(request.run_id)
    found = await services.store.get_run(run_id)
    if found is None:
        raise NotFound(
            f"there is no run {run_id}", reason="NO_SUCH_RUN", remedy="see `schedctl run list`"
        )
    broadcasts.check_no_child(found)
    _check_again(found)
    told = {"runId": str(redriven_run_id(run_id))} | ({} if payload is None else {"payload": True})
    entry = replace(
        caller.changed("retry", f"run/{run_id}", runs.stood(found), told, request.request_id),
        run_id=run_id,
    )
    made: RunRecord | Conflict | None = None
    for _ in range(TRIES):
        stored = await services.store.definition(found.run.job_id)
        if stored is None or stored.deleted:
            raise _deleted(found)
        line = line_of(stored_definition(stored))
        made = await services.dead_letters.once_more(run_id, payload, line, caller.actor, entry)
        if not isinstance(made, Conflict) or made.what != "etag":
            break
    if made is None:
        raise _deleted(found)
    if isinstance(made, Conflict):
        raise _refused(found, made)
    services.nudges.runs_made([made.run])
    return views.run_message(made)


async def redrive_dead_letters(
    services: Services, caller: Caller, request: wire.RedriveDeadLettersRequest
) -> wire.RedriveDeadLettersResponse:
    """Do many again, so many a second, as people see it go on."""
    validation.check_note(request.note, "note")
    payload = _payload(request)
    rate = request.rate or USUAL_RATE
    if not math.isfinite(rate) or not LEAST_RATE <= rate <= MOST_RATE:
        raise _wrong("rate", f"is {rate:g} a second: from {LEAST_RATE} to {MOST_RATE:,.0f}")
    _check_chosen(request)
    choice = _choice(request.namespace, request.job, request.fingerprint, group=_group(request))
    if request.dry_run:
        planned = await services.dead_letters.planned(choice)
        if not planned:
            await _check_job(services, choice)
        return wire.RedriveDeadLettersResponse(total=planned)
    redrive_id = RedriveId(uuid4())
    wish = Wish(redrive_id, shard_of(JobId(redrive_id)), choice, rate, payload, caller.actor)
    what = _told(choice) | {"rate": rate, "payload": payload is not None, "note": request.note}
    entry = caller.audit("redrive", f"redrive/{redrive_id}", request.request_id)
    made = await services.dead_letters.create(
        wish,
        stored_jobs.idempotency(
            choice.namespace, request.idempotency_key, "RedriveDeadLetters", request
        ),
        entry,
        partial(_counted, what, "total"),
    )
    if isinstance(made, Conflict):
        raise stored_jobs.taken(made, name="redrive", key=request.idempotency_key)
    if made is None:
        await _check_job(services, choice)
        raise FailedPrecondition(
            f"no dead letter{_of(choice)} is free to be done again",
            reason="NO_DEAD_LETTERS",
            remedy="see `schedctl dlq groups`, and `schedctl dlq redrives` for what is under way",
        )
    return wire.RedriveDeadLettersResponse(total=made.total, redrive=views.redrive_message(made))


async def get_redrive(
    services: Services, caller: Caller, request: wire.GetRedriveRequest
) -> run_pb2.Redrive:
    """One, with how its runs stand."""
    del caller
    redrive_id = _redrive_id(request.redrive_id)
    return _answer(request.redrive_id, await services.dead_letters.redrive(redrive_id))


async def list_redrives(
    services: Services, caller: Caller, request: wire.ListRedrivesRequest
) -> wire.ListRedrivesResponse:
    """A page of redrives, newest first."""
    del caller
    size = paging.size(request.page_size)
    listing = paging.listing("redrives", request)
    after = paging.read_token(listing, request.page_token)
    rows = await services.dead_letters.redrives(
        stored_jobs.namespace_of(request.namespace),
        (after[0], RedriveId(after[1])) if after else None,
        size + 1,
    )
    page = rows[:size]
    last = page[-1] if rows[size:] else None
    return wire.ListRedrivesResponse(
        redrives=[views.redrive_message(row) for row in page],
        next_page_token=paging.token(listing, last.created_at, last.redrive_id) if last else "",
    )


async def stop_redrive(
    services: Services, caller: Caller, request: wire.StopRedriveRequest
) -> run_pb2.Redrive:
    """Make no more runs of it; those that there are go on. Twice is fine."""
    return await _switched(services, caller, request, "stop", on=False)


async def resume_redrive(
    services: Services, caller: Caller, request: wire.ResumeRedriveRequest
) -> run_pb2.Redrive:
    """Go on with what is left of it. Twice is fine."""
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
    done = await services.dead_letters.switch(redrive_id, caller.actor, entry, _stands, on=on)
    if done is not None and done.finished_at is not None:
        raise FailedPrecondition(
            "the redrive has made all its runs already",
            reason="REDRIVE_DONE",
            remedy="`schedctl run cancel` ends runs that are under way",
        )
    return _answer(request.redrive_id, done)


# -- what is asked for --


def _choice(
    namespace: str,
    job: str,
    fingerprint: str,
    run_ids: tuple[RunId, ...] = (),
    group: Group | None = None,
) -> Choice:
    return Choice(stored_jobs.namespace_of(namespace), job, fingerprint, run_ids, group)


def _group(
    request: wire.DiscardDeadLettersRequest | wire.RedriveDeadLettersRequest,
) -> Group | None:
    if not request.HasField("group"):
        return None
    return Group(request.group.job, request.group.fingerprint, request.group.submitted)


async def _check_job(services: Services, choice: Choice) -> None:
    """Raise NotFound where the job that is named neither is there nor has left a letter."""
    if not choice.job or await services.store.get_job(choice.namespace, choice.job) is not None:
        return
    of_job = Choice(choice.namespace, choice.job)
    if not await services.dead_letters.listed(of_job, None, None, 1, settled=True):
        raise stored_jobs.unknown(choice.job)


def _of(choice: Choice) -> str:
    """In words, after what is chosen."""
    one = choice.group or choice
    whose = "submitted runs" if choice.group and choice.group.submitted else "job"
    named = f" {cut(one.job)!r}" if one.job else ""
    of = f" of {whose}{named}" if named or choice.group else ""
    return of + (f" with the fingerprint {cut(one.fingerprint)!r}" if one.fingerprint else "")


def _check_chosen(
    request: wire.DiscardDeadLettersRequest | wire.RedriveDeadLettersRequest,
) -> None:
    """Nobody means all of them by saying nothing."""
    filtered = request.job or request.fingerprint
    if request.HasField("group"):
        if filtered or request.all:
            raise _wrong("group", "goes with neither job, fingerprint nor all")
    elif not filtered and not request.all:
        raise _wrong("all", "is missing: name a job, a fingerprint, or say that all are meant")
    elif filtered and request.all:
        raise _wrong("all", "goes with neither job nor fingerprint")


def _payload(request: wire.RetryRunRequest | wire.RedriveDeadLettersRequest) -> bytes | None:
    if not request.HasField("payload"):
        return None
    refuse([*validation.payload_violations(request.payload)], "INVALID_FIELD")
    return request.payload.SerializeToString()


def _check_again(found: RunRecord) -> None:
    state = found.run.state
    if again(state, found.reason):
        return
    if state in LIVE:
        problem, remedy = f"is {state}: it hasn't ended", "cancel it first, or wait for its end"
    elif state is State.SUCCEEDED:
        problem, remedy = "has SUCCEEDED", "`schedctl job trigger` starts another run"
    else:
        problem, remedy = f"is {state}: it never ran", "`schedctl job backfill` runs such instants"
    raise FailedPrecondition(
        f"run {found.run.key.run_id} {problem}", reason="NOT_FAILED", remedy=remedy
    )


def _deleted(found: RunRecord) -> FailedPrecondition:
    return FailedPrecondition(
        f"the job of run {found.run.key.run_id} is deleted: {found.job!r}",
        reason="JOB_DELETED",
        remedy="create it anew and trigger it",
    )


def _refused(found: RunRecord, why: Conflict) -> CallError:
    if why.what == "line":
        return _crowded(found)
    if why.what == "pool":
        return pools.deleted(f"the pool of run {found.run.key.run_id}")
    if why.what == "payload":
        made = redriven_run_id(found.run.key.run_id)
        return FailedPrecondition(
            f"run {found.run.key.run_id} was done again already, with another payload: run {made}",
            reason="DONE_AGAIN",
            remedy=f"look at it, `schedctl run get {made}`; to do that one again, name it",
        )
    return stored_jobs.edited_meanwhile(found.job)


def _crowded(found: RunRecord) -> FailedPrecondition:
    return FailedPrecondition(
        f"too many runs of {found.job!r} wait in line already",
        reason="LINE_FULL",
        remedy="wait until some have ended, or redrive them at a rate: `schedctl dlq redrive`",
    )


def _answer(text: str, found: RedriveRecord | None) -> run_pb2.Redrive:
    if found is None:
        raise NotFound(
            f"there is no redrive {cut(text)}",
            reason="NO_SUCH_REDRIVE",
            remedy="see `schedctl dlq redrives`",
        )
    return views.redrive_message(found)


def _told(choice: Choice) -> dict[str, object]:
    """What was chosen, as the audit has it."""
    said: dict[str, object] = {
        "job": choice.job,
        "fingerprint": choice.fingerprint,
        "runs": [str(one) for one in choice.run_ids],
    }
    if (group := choice.group) is not None:
        chosen = {"job": group.job, "fingerprint": group.fingerprint}
        said = {"group": chosen | {"submitted": group.submitted}}
    elif not any(said.values()):
        said = {"all": True}
    return {"namespace": choice.namespace, **said}


def _counted(what: Mapping[str, object], name: str, count: int) -> str:
    """What was done with how many, as the audit has it."""
    return compact({key: value for key, value in what.items() if value} | {name: count})


def _stands(redrive: RedriveRecord) -> str:
    """Whether it is stopped, as the audit has it."""
    by = {} if redrive.open else {"by": redrive.stopped_by}
    return compact({"namespace": redrive.namespace, "stopped": not redrive.open} | by)


def _run_id(text: str, field: str = "run_id") -> RunId:
    return RunId(id_of(field, text))


def _redrive_id(text: str) -> RedriveId:
    return RedriveId(id_of("redrive_id", text))


def _wrong(field: str, problem: str) -> InvalidArgument:
    return InvalidArgument(
        f"{field}: {problem}",
        reason="INVALID_FIELD",
        remedy="mend the field and call again; nothing was stored",
        violations=[Violation(field, problem)],
    )
