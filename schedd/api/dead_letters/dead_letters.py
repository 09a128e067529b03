"""List and discard dead letters. `redrive_run` runs one again, `redrives` many."""

from functools import partial
from typing import Final

from schedd.api import paging, views
from schedd.api.dead_letters.dead_letter_filter import (
    audit_state,
    check_chosen,
    choice_of,
    chosen_by,
    counted,
    more_than_expected,
)
from schedd.api.definitions import validation
from schedd.api.errors import NotFoundError, cut, wrong
from schedd.api.field_bounds import id_of
from schedd.api.jobs import stored_jobs
from schedd.api.runs.runs import key_of, run_id_of
from schedd.api.services import Caller, Services
from schedd.core.ids import RedriveId, RunId
from schedd.core.runs.records import StoreConflict
from schedd.core.runs.redrive import LetterFilter
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
        choice_of(request.namespace, request.job, request.fingerprint),
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
    found, _ = await services.dead_letters.groups(
        choice_of(request.namespace, request.job, ""), MOST_GROUPS
    )
    return wire.ListDeadLetterGroupsResponse(groups=[views.group_message(one) for one in found])


async def greatest_groups(
    services: Services, namespace: str, most: int, job: str = "", fingerprint: str = ""
) -> tuple[list[run_pb2.DeadLetterGroup], int]:
    """Return the largest groups, and the number of open letters in all groups. The caller must be
    authorized already. `job` and `fingerprint` filter if not empty.
    """
    found, waiting = await services.dead_letters.groups(
        choice_of(namespace, job, fingerprint), most
    )
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
        check_chosen(request)
    elif request.job or request.fingerprint or request.all or request.HasField("group"):
        raise wrong(
            "run_ids",
            "can't be combined with job, fingerprint, group or all: leave the run ids"
            " or the others out",
        )
    elif request.HasField("until") or request.at_most:
        field = "until" if request.HasField("until") else "at_most"
        raise wrong(field, f"{field} can't be combined with run ids: leave one of the two out")
    choice = chosen_by(request, run_ids)
    what = audit_state(choice) | {"note": request.note}
    entry = caller.audit("discard", "dead letters", request.request_id)
    done = await services.dead_letters.discard(
        choice, caller.actor, request.note, entry, partial(counted, what, "discarded")
    )
    if isinstance(done, StoreConflict):
        raise more_than_expected(choice)
    if not done:
        await check_job(services, choice)
    return wire.DiscardDeadLettersResponse(discarded=len(done))


async def check_job(services: Services, choice: LetterFilter) -> None:
    """Raise NotFoundError if the named job neither exists nor has left a dead letter."""
    if not choice.job or await services.store.get_job(choice.namespace, choice.job) is not None:
        return
    of_job = LetterFilter(choice.namespace, choice.job)
    if not await services.dead_letters.listed(of_job, None, None, 1, resolved=True):
        raise stored_jobs.unknown(choice.job)
