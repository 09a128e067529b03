"""Calls that say something of overlap, and what they answer of runs that wait or had to go."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from schedd.core.jobs.definition import Overlap
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import LiveRun, OverlapCandidates
from schedproto.v1 import common_pb2, job_pb2, run_service_pb2
from schedproto.v1 import job_service_pb2 as wire
from support.store import draft, report

SHELL = job_pb2.ShellAction(argv=["true"])


async def create_job(api, overlap: str) -> None:
    policy = job_pb2.Overlap.Value(f"OVERLAP_{overlap}")
    job = job_pb2.Job(name="j", shell=SHELL, on_demand=True, overlap=policy)
    stored = await api("CreateJob", wire.CreateJobRequest(job=job))
    assert stored.overlap == policy


async def triggered(api, **how) -> LiveRun:
    """The run of a trigger, as its owner sees it."""
    run = await api("TriggerJob", wire.TriggerJobRequest(job="j", **how))
    me = api.world.members[0]
    live = await me.store.owner.live_runs([*me.epochs], [State.PENDING])
    return next(one for one in live if str(one.key.run_id) == run.run_id)


async def why(api, run: LiveRun) -> run_service_pb2.ExplainRunResponse:
    return await api("ExplainRun", run_service_pb2.ExplainRunRequest(run_id=str(run.key.run_id)))


@pytest.mark.parametrize("overlap", sorted(Overlap))
async def test_each_overlap_policy_is_stored_and_a_trigger_may_set_another(api, overlap):
    await create_job(api, overlap)

    assert (await triggered(api)).overlap is None
    for said in Overlap:
        number = job_pb2.Overlap.Value(f"OVERLAP_{said}")
        assert (await triggered(api, overlap=number)).overlap is said


async def test_a_buffered_run_names_the_run_that_blocks_it(api):
    await create_job(api, "BUFFER_ONE")
    first, second, third = [await triggered(api) for _ in range(3)]
    me = api.world.members[0]
    [running] = await me.assigned(draft(first, overlap=Overlap.BUFFER_ONE))
    crowd = OverlapCandidates(first.job_id, first.shard, 1, Overlap.BUFFER_ONE, datetime.now(UTC))
    await me.store.owner.part(me.claim(first.shard), [crowd])

    waits = await why(api, second)
    question = "Do other runs of its job block it (overlap: buffer_one)?"
    (check,) = [one for one in waits.checks if one.question == question]
    assert check.answer.startswith(f"yes, run {first.key.run_id} of its job is RUNNING")
    assert "buffer_one (1) or buffer_all (1,000)" in (await why(api, third)).answer

    await me.store.results.accept([report(running)])
    (check,) = [one for one in (await why(api, second)).checks if one.question == question]
    assert check.answer == "no"


async def test_a_run_names_the_pre_dispatched_run_that_blocks_it(api):
    await create_job(api, "BUFFER_ONE")
    first, second = [await triggered(api) for _ in range(2)]
    await api.world.members[0].assigned(draft(first, overlap=Overlap.BUFFER_ONE))
    later = "UPDATE runs SET ready_at = now() + interval '1 min' WHERE run_id = %s RETURNING 1"
    await api.world.sql(later, first.key.run_id)
    answers = [check.answer for check in (await why(api, second)).checks]
    answer = f"yes, run {first.key.run_id} of its job is PRE_DISPATCHED"
    assert any(one.startswith(answer) for one in answers)


async def test_a_replaced_run_is_explained_while_it_ends_and_afterwards(api):
    await create_job(api, "TERMINATE_OTHER")
    me = api.world.members[0]
    first = await triggered(api)
    [running] = await me.assigned(draft(first, overlap=Overlap.TERMINATE_OTHER))
    second = await triggered(api)
    crowd = OverlapCandidates(
        first.job_id, first.shard, 1, Overlap.TERMINATE_OTHER, datetime.now(UTC)
    )
    await me.store.owner.part(me.claim(first.shard), [crowd])

    answer = (await why(api, first)).answer
    assert "its worker will kill it, because a newer run of its job replaces it" in answer
    waits = [check.answer for check in (await why(api, second)).checks]
    answer = f"yes, run {first.key.run_id} of its job is being cancelled"
    assert any(one.startswith(answer) for one in waits)
    await me.store.results.accept([report(running)])
    run = await api("GetRun", run_service_pb2.GetRunRequest(run_id=str(first.key.run_id)))
    assert (run.state, run.reason) == (
        common_pb2.RUN_STATE_CANCELLED,
        common_pb2.REASON_BY_OVERLAP,
    )
    assert "replaced it" in (await why(api, first)).answer
