"""Backfills: run a job for the scheduled times of a past range.

check ─→ scheduled times of the range ─→ dry run: answer only
                                     └─→ stored with the chosen times; the owner creates the runs
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from schedd.api import paging, views
from schedd.api.budgeted_calls import compute
from schedd.api.errors import (
    FailedPreconditionError,
    FieldViolation,
    InvalidArgumentError,
    not_found,
    refuse,
    wrong,
)
from schedd.api.jobs import stored_jobs
from schedd.api.request_bounds import id_of
from schedd.api.services import Caller, Services, compact
from schedd.core.events import EndedUnreported
from schedd.core.ids import BackfillId, new_id
from schedd.core.jobs.definition import Priority
from schedd.core.runs import reasons
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import LiveRun
from schedd.core.timers.backfill import (
    MOST_INSTANTS,
    MOST_PARALLEL,
    TOGETHER,
    BackfillRecord,
    BackfillRequest,
    Rerun,
)
from schedd.runtime import job_codec
from schedd.runtime.job_codec import JobDefinition
from schedproto.v1 import job_service_pb2 as wire

_TICK: Final = timedelta(microseconds=1)
_COUNTED: Final = timedelta(days=36_500)
"""The longest range whose times are counted for the error."""


async def backfill_job(
    services: Services, caller: Caller, request: wire.BackfillJobRequest
) -> wire.BackfillJobResponse:
    """Start a backfill of a past range; also while the job is paused."""
    now = services.clock.now()
    record = await stored_jobs.find(services, request.namespace, request.job)
    stored = record.definition
    definition = JobDefinition.read(stored)
    violations = [
        FieldViolation(field, "is missing: give the first and the last time of the range")
        for field in ("from", "to")
        if not request.HasField(field)
    ]
    refuse(violations, "INVALID_FIELD")
    first, last = job_codec.instant(getattr(request, "from")), job_codec.instant(request.to)
    if last < first:
        violations.append(FieldViolation("to", "is before from; both are inclusive"))
    if last > now:
        problem = f"is in the future: a backfill ends by now, {reasons.time_text(now)}"
        violations.append(FieldViolation("to", problem))
    refuse(violations, "INVALID_FIELD")
    rerun = request.Rerun.Name(request.rerun).removeprefix("RERUN_")
    wanted = request.max_parallel
    policy = job_codec.overlap_of(request.overlap) or definition.parsed.overlap
    if not 0 <= wanted <= MOST_PARALLEL:
        raise wrong("max_parallel", f"must be from 1 to {MOST_PARALLEL:,}, not {wanted}")
    if wanted > 1 and policy not in TOGETHER:
        problem = (
            f"is {wanted} with overlap: {policy.lower()}, which would drop all but one of the"
            " parallel runs. Set overlap: allow or buffer_all, or leave max_parallel out"
        )
        raise wrong("max_parallel", problem)
    backfill = BackfillRequest(
        BackfillId(new_id()),
        first,
        last,
        await _instants(caller, definition, first, last),
        Rerun(rerun if request.rerun else "NONE"),
        job_codec.overlap_of(request.overlap),
        request.max_parallel or 1,
        Priority(request.priority or Priority.LOW),
        caller.actor,
    )
    if request.dry_run:
        return views.planned_message(await services.backfills.plan(stored.job_id, backfill))
    object_ = f"job/{stored.namespace}/{stored.name}"
    what = {
        "backfill": str(backfill.backfill_id),
        "from": reasons.time_text(first),
        "to": reasons.time_text(last),
    }
    key = request.idempotency_key
    written = await services.backfills.create(
        stored.job_id,
        stored.generation,
        backfill,
        stored_jobs.idempotency(stored.namespace, key, "BackfillJob", request),
        caller.changed("backfill", object_, {}, what, request.request_id),
    )
    made = stored_jobs.stored(written, name=stored.name, asked=request.job, key=key)
    services.wake_ups.runs_ready([record.shard])
    answer = views.planned_message(made.plan)
    answer.backfill.CopyFrom(views.backfill_message(made.record))
    return answer


async def get_backfill(
    services: Services, _caller: Caller, request: wire.GetBackfillRequest
) -> wire.Backfill:
    """Return a backfill with the states of its runs."""
    found = await services.backfills.get(BackfillId(id_of("backfill_id", request.backfill_id)))
    if found is None:
        raise not_found("backfill", request.backfill_id, "job backfills")
    return views.backfill_message(found)


async def list_backfills(
    services: Services, _caller: Caller, request: wire.ListBackfillsRequest
) -> wire.ListBackfillsResponse:
    """Return a page of backfills, newest first."""
    paged = paging.Paged("backfills", request, paging.time_and(BackfillId))
    job_id = None
    if request.job:
        found = await stored_jobs.find(services, request.namespace, request.job)
        job_id = found.definition.job_id
    namespace = stored_jobs.namespace_of(request.namespace)
    rows = await services.backfills.newest(namespace, job_id, paged.after, paged.read_rows)
    page, token = paged.cut(rows, lambda row: (row.created_at, row.backfill_id))
    return wire.ListBackfillsResponse(
        backfills=[views.backfill_message(row) for row in page], next_page_token=token
    )


async def cancel_backfill(
    services: Services, caller: Caller, request: wire.CancelBackfillRequest
) -> wire.Backfill:
    """Cancel a backfill: create no more runs, and cancel the existing ones. Idempotent."""
    backfill_id = BackfillId(id_of("backfill_id", request.backfill_id))
    done = await services.backfills.cancel(
        backfill_id,
        caller.actor,
        caller.audit("cancel", f"backfill/{backfill_id}", request.request_id),
        _cancelled,
    )
    if done is None:
        raise not_found("backfill", request.backfill_id, "job backfills")
    record, changed = done
    if record.cancelled_at is None:
        raise FailedPreconditionError(
            f"backfill {backfill_id} can't be cancelled: all its runs have already ended",
            reason="BACKFILL_DONE",
            remedy="there is nothing left to cancel",
        )
    for run in changed:
        if run.state is State.RUNNING:
            services.lines.cancel(run)
    ended = sum(run.state is State.CANCELLED for run in changed)
    if ended:
        services.emit(EndedUnreported(State.CANCELLED, Reason.BY_USER, ended))
    services.wake_ups.runs_changed([run.hint for run in changed])
    services.wake_ups.runs_ready([record.shard])
    return views.backfill_message(record)


def _cancelled(was: BackfillRecord, changed: Sequence[LiveRun]) -> tuple[str, str]:
    running = sum(run.state is State.RUNNING for run in changed)
    before = {
        "namespace": was.namespace,
        "job": was.job,
        "created": was.made,
        "notCreated": was.total - was.made if was.open else 0,
    }
    after = {"cancelled": len(changed) - running, "cancelling": running}
    return compact(before), compact(after)


async def _instants(
    caller: Caller, definition: JobDefinition, first: datetime, last: datetime
) -> tuple[datetime, ...]:
    """Return the scheduled times of the range. Raises InvalidArgumentError for none or too many."""
    schedule = await stored_jobs.schedule_of(caller, definition)
    most = MOST_INSTANTS + 1
    walk = partial(schedule.instants_between, first - _TICK, last, most)
    found = [one.nominal for one in await compute(caller, walk)]
    if len(found) == most:
        end = last if last - first < _COUNTED else first + _COUNTED
        count = await compute(caller, partial(schedule.count, first - _TICK, end))
        many = f"{max(count, len(found)):,}" + (" or more" if end < last else "")
        raise InvalidArgumentError(
            f"the range of the backfill has {many} scheduled times; at most {MOST_INSTANTS:,} are"
            " allowed",
            reason="TOO_MANY_INSTANTS",
            remedy="split the range; nothing was stored",
            violations=[FieldViolation("from", f"has {many} scheduled times until `to`")],
        )
    if not found:
        since, until = reasons.time_text(first), reasons.time_text(last)
        raise InvalidArgumentError(
            f"job {definition.row.name!r} has no scheduled time from {since} to {until}",
            reason="NO_INSTANTS",
            remedy=f"see `schedctl job next {definition.row.name} --after {since}`",
            violations=[FieldViolation("from", "has no scheduled time until `to`")],
        )
    return tuple(found)
