"""Explain broadcasts: a parent run that no worker runs, with a child run for each worker."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from schedd.api.errors import FailedPreconditionError
from schedd.api.services import Services
from schedd.core.dispatch.placement import Need, able
from schedd.core.dispatch.worker_refusals import refusal_of
from schedd.core.ids import IncarnationId
from schedd.core.runs.lifecycle import State
from schedd.core.runs.records import WorkerView
from schedd.core.runs.run_records import RunFilter, RunRecord
from schedproto.v1 import run_service_pb2 as wire

Check = wire.ExplainRunResponse.Check

REFUSED: Final = "Does a worker accept the run?"
CHANGE: Final = "change the job, or start a worker that can run it; the run is offered again later"

NAMED: Final = 20
"""Children that an answer lists."""


async def no_log(services: Services, record: RunRecord) -> FailedPreconditionError:
    """Return the error for the log of a broadcast, which names the children that have one."""
    children = await children_of(services, record, NAMED)
    more = (record.run.children or 0) - len(children)
    names = "; ".join(
        f"{each.run.key.run_id} ({each.run.target}, {each.run.state})" for each in children
    )
    return FailedPreconditionError(
        f"the run is a broadcast and has no log of its own; its child runs have logs: {names}"
        + (f"; and {more} more" if more > 0 else ""),
        reason="IS_BROADCAST",
        remedy=f"list the child runs: `schedctl run list --parent {record.run.key.run_id}`; then"
        " see the log of a child run: `schedctl run logs RUN`",
    )


def check_no_child(record: RunRecord) -> None:
    """Raise FailedPreconditionError for a child, which can't be run again without its parent."""
    parent = record.run.parent
    if parent is not None:
        raise FailedPreconditionError(
            f"run {record.run.key.run_id} can't be retried alone: it is a child of a"
            f" broadcast, for worker {record.run.target} only",
            reason="IS_CHILD",
            remedy="when the broadcast has ended, run the broadcast again on the workers that"
            f" failed: schedctl run retry {parent}",
        )


async def children_of(services: Services, record: RunRecord, most: int) -> list[RunRecord]:
    """Return at most `most` children, newest first."""
    wanted = RunFilter(str(record.run.job_id), parent=record.run.key.run_id)
    children, _ = await services.store.list_runs(record.namespace, None, most, wanted)
    return children


async def explained(services: Services, record: RunRecord) -> wire.ExplainRunResponse:
    """Explain a started broadcast by the states of its children."""
    children = await children_of(services, record, record.run.children or 0)
    states = Counter(each.run.state for each in children)
    counted = ", ".join(f"{states[state]} {state}" for state in State if states[state])
    what = "is being cancelled" if record.run.cancelling else "is in progress"
    answer = f"The run {what}: a broadcast to {len(children)} workers; children: {counted}."
    left = [each for each in children if each.finished_at is None]
    checks = [
        Check(
            question=f"On {each.run.target}?",
            answer=str(each.run.state),
            remedy=f"schedctl run why {each.run.key.run_id}",
        )
        for each in left[:NAMED]
    ]
    return wire.ExplainRunResponse(answer=answer, checks=checks)


def waits_for(
    need: Need, workers: Sequence[WorkerView], said: Mapping[IncarnationId, str]
) -> list[Check]:
    """Check a waiting child: whether its worker is running, can run it, has rejected it (`said`:
    reasons), and has a free slot.
    """
    name = need.worker
    question = f"Is worker {name} available? The run is for this worker only"
    mine = [one for one in workers if one.incarnation.worker == name]
    fit = [one for one in mine if able(one.incarnation, need)]
    if not mine:
        answer = f"no, worker {name} isn't connected"
    elif not fit:
        answer = f"no, worker {name} is connected, but can't run it any more"
    elif all(one.draining for one in fit):
        answer = f"no, worker {name} is draining"
    elif all(one.heartbeats_missing for one in fit):
        answer = f"no member receives heartbeats of worker {name}"
    elif all(one.refusal_reason for one in fit):
        answer = f"worker {name} accepts no runs: {fit[0].refusal_reason}"
        remedy = refusal_of(fit[0].refusal_reason).remedy_for(fit[0].incarnation.worker)
        return [Check(question=question, answer=answer, remedy=remedy)]
    elif why := next((said[one.incarnation.id] for one in fit if one.incarnation.id in said), ""):
        answer = f"worker {name} has rejected it: {why}"
        return [Check(question=REFUSED, answer=answer, remedy=CHANGE)]
    else:
        checks = [Check(question=question, answer="yes")]
        if not any(one.free >= need.slots for one in fit):
            answer = f"no, all slots of {name} are in use"
            remedy = holders({one.incarnation.worker for one in fit})
            checks.append(Check(question="Is a slot free?", answer=answer, remedy=remedy))
        return checks
    return [Check(question=question, answer=answer, remedy="schedctl worker list")]


def holders(workers: Collection[str]) -> str:
    """Return the command that lists the runs in the slots of these workers."""
    of = f" --worker {next(iter(workers))}" if len(workers) == 1 else ""
    return f"schedctl run list --state RUNNING{of}"
