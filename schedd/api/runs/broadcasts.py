"""What people are told of broadcasts: a run that no worker has, with a child for each of some."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from schedd.api.errors import FailedPrecondition
from schedd.api.services import Services
from schedd.core.checkup.workers import MAKE_ROOM
from schedd.core.dispatch.placement import Need, able
from schedd.core.ids import IncarnationId
from schedd.core.runs.lifecycle import State
from schedd.core.runs.records import WorkerView
from schedd.core.runs.run_filter import RunFilter
from schedd.core.runs.run_records import RunRecord
from schedproto.v1 import run_service_pb2

Check = run_service_pb2.ExplainRunResponse.Check

REFUSED: Final = "Does a worker take it?"
CHANGE: Final = "change the job, or have a worker that can; they are asked again and again"

NAMED: Final = 20
"""Children that an answer names."""


async def no_log(services: Services, record: RunRecord) -> FailedPrecondition:
    """Why it has no log, and who has."""
    children = await children_of(services, record, NAMED)
    more = (record.run.children or 0) - len(children)
    told = "; ".join(f"{each.run.key.run_id} ({_told(each)})" for each in children)
    return FailedPrecondition(
        f"the run is a broadcast and wrote nothing itself; its children did: {told}"
        + (f"; and {more} more" if more > 0 else ""),
        reason="IS_BROADCAST",
        remedy=f"see `schedctl run list --parent {record.run.key.run_id}`,"
        " and `schedctl run logs` of one of them",
    )


def check_no_child(record: RunRecord) -> None:
    """Raise FailedPrecondition: a child isn't done again by itself."""
    parent = record.run.parent
    if parent is not None:
        raise FailedPrecondition(
            f"run {record.run.key.run_id} is a child of a broadcast, for worker"
            f" {record.run.target} alone",
            reason="IS_CHILD",
            remedy=f"`schedctl run retry {parent}` does it again on all workers where it didn't"
            " succeed, once it has ended",
        )


async def children_of(services: Services, record: RunRecord, most: int) -> list[RunRecord]:
    """Some of them: newest first, as all runs are listed."""
    wanted = RunFilter(str(record.run.job_id), parent=record.run.key.run_id)
    children, _ = await services.store.list_runs(record.namespace, None, most, wanted)
    return children


async def explained(services: Services, record: RunRecord) -> run_service_pb2.ExplainRunResponse:
    """Of one that has begun: how its children stand."""
    children = await children_of(services, record, record.run.children or 0)
    states = Counter(each.run.state for each in children)
    counted = ", ".join(f"{states[state]} {state}" for state in State if states[state])
    what = "is being cancelled" if record.run.cancelling else "runs"
    answer = f"It {what}: a broadcast to {len(children)} workers, of its children {counted}."
    left = [each for each in children if each.finished_at is None]
    checks = [
        Check(
            question=f"On {each.run.target}?",
            answer=str(each.run.state),
            remedy=f"schedctl run why {each.run.key.run_id}",
        )
        for each in left[:NAMED]
    ]
    return run_service_pb2.ExplainRunResponse(answer=answer, checks=checks)


def waits_for(
    need: Need, workers: Sequence[WorkerView], said: Mapping[IncarnationId, str]
) -> list[Check]:
    """Of a child that waits: whether its worker is there, could do it, has refused it (`said`: why)
    and has a slot.
    """
    name = need.worker
    question = f"Is worker {name} there, which alone it is for?"
    mine = [one for one in workers if one.incarnation.worker == name]
    fit = [one for one in mine if able(one.incarnation, need)]
    if not mine:
        answer = f"no, worker {name} isn't attached, and it goes to no other"
    elif not fit:
        answer = f"no, worker {name} is there, but can't do it any more"
    elif all(one.draining for one in fit):
        answer = f"no, worker {name} is draining, and it goes to no other"
    elif all(one.unheard for one in fit):
        answer = f"no member hears worker {name}, and it goes to no other"
    elif all(one.refuses for one in fit):
        answer = f"worker {name} takes no work, and it goes to no other: {fit[0].refuses}"
        return [Check(question=question, answer=answer, remedy=MAKE_ROOM)]
    elif why := next((said[one.incarnation.id] for one in fit if one.incarnation.id in said), ""):
        answer = f"worker {name} has refused it: {why}"
        return [Check(question=REFUSED, answer=answer, remedy=CHANGE)]
    else:
        checks = [Check(question=question, answer="yes")]
        if not any(one.free >= need.slots for one in fit):
            answer = f"no, all slots of {name} are taken"
            remedy = "schedctl worker list"
            checks.append(Check(question="Has it a slot?", answer=answer, remedy=remedy))
        return checks
    return [Check(question=question, answer=answer, remedy="schedctl worker list")]


def _told(child: RunRecord) -> str:
    return f"{child.run.target}, {child.run.state}"
