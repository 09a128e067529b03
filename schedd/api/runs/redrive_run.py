"""Run a single run again that failed for good, was cancelled, or missed its start deadline.

run ─▶ its job as it is now ─▶ a new run at once ─▶ job edited meanwhile? retry
"""

from dataclasses import replace
from typing import Final

from schedd.api import pools, views
from schedd.api.definitions import validation
from schedd.api.errors import CallError, FailedPreconditionError, NotFoundError
from schedd.api.jobs import stored_jobs
from schedd.api.runs import broadcasts, runs
from schedd.api.services import Caller, Services
from schedd.core.ids import redriven_run_id
from schedd.core.runs.lifecycle import LIVE, State
from schedd.core.runs.records import StoreConflict
from schedd.core.runs.redrive import again, line_of
from schedd.core.runs.run_records import RunRecord
from schedd.runtime.job_codec import JobDefinition
from schedproto.v1 import run_pb2
from schedproto.v1 import run_service_pb2 as wire

TRIES: Final = 5
"""Tries of one call while others edit the job."""


async def retry_run(
    services: Services, caller: Caller, request: wire.RetryRunRequest
) -> run_pb2.Run:
    """Run a failed or cancelled run again: create a new run of the job as it is now, for the same
    scheduled time. Idempotent: a second call returns the same run.
    """
    payload = validation.given_payload(request)
    run_id = runs.run_id_of(request.run_id)
    found = await services.store.get_run(run_id)
    if found is None:
        raise NotFoundError(
            f"run {run_id} not found", reason="NO_SUCH_RUN", remedy="see `schedctl run list`"
        )
    broadcasts.check_no_child(found)
    _check_again(found)
    after = {"runId": str(redriven_run_id(run_id))} | ({} if payload is None else {"payload": True})
    before = runs.audit_state(found)
    entry = replace(
        caller.changed("retry", f"run/{run_id}", before, after, request.request_id),
        run_id=run_id,
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
            f"is {state} and hasn't ended",
            "cancel the run first, or wait for its end",
        )
    elif state is State.SUCCEEDED:
        problem = "has SUCCEEDED, so it can't be retried"
        remedy = "to start another run of the job: `schedctl job trigger`"
    else:
        problem = f"is {state}: its scheduled time never became a run"
        remedy = "to run the scheduled time: `schedctl job backfill`"
    raise FailedPreconditionError(
        f"run {found.run.key.run_id} {problem}", reason="NOT_FAILED", remedy=remedy
    )


def _deleted(found: RunRecord) -> FailedPreconditionError:
    return FailedPreconditionError(
        f"the job of run {found.run.key.run_id} is deleted: {found.job!r}",
        reason="JOB_DELETED",
        remedy="create the job again and trigger it",
    )


def _refused(found: RunRecord, why: StoreConflict) -> CallError:
    if why.what == "line":
        return _line_full(found)
    if why.what == "pool":
        return pools.deleted(f"the pool of run {found.run.key.run_id}")
    if why.what == "payload":
        made = redriven_run_id(found.run.key.run_id)
        return FailedPreconditionError(
            f"run {found.run.key.run_id} was already run again, with another payload: run {made}",
            reason="DONE_AGAIN",
            remedy=f"see `schedctl run get {made}`; to retry that run: `schedctl run retry {made}`",
        )
    return stored_jobs.edited_meanwhile(found.job)


def _line_full(found: RunRecord) -> FailedPreconditionError:
    return FailedPreconditionError(
        f"too many runs of job {found.job!r} are waiting already",
        reason="LINE_FULL",
        remedy="wait until some runs have ended, or redrive at a rate: `schedctl dlq redrive`",
    )
