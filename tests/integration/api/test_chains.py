"""Calls on jobs that run after others, on a real database."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask

from schedd.api.errors import FailedPreconditionError, InvalidArgumentError
from schedd.core.jobs.chains import ChainParents, Wanted, When
from schedd.core.runs.lifecycle import State
from schedproto.v1 import common_pb2, job_pb2, run_pb2
from schedproto.v1 import job_service_pb2 as wire
from schedproto.v1.run_service_pb2 import ExplainRunRequest, ListRunsRequest
from support.store import draft, report

SHELL = job_pb2.ShellAction(argv=["true"])


def job(name: str, *after: str, **changes: Any) -> job_pb2.Job:
    when: dict[str, Any] = {"after": job_pb2.After(jobs=after)} if after else {}
    if not when and "after" not in changes:
        when = {"on_demand": True}
    return job_pb2.Job(**{"name": name, "shell": SHELL, **when, **changes})


def create(made: job_pb2.Job, *, check: bool = False) -> wire.CreateJobRequest:
    return wire.CreateJobRequest(job=made, validate_only=check)


def update(changed: job_pb2.Job, *paths: str, check: bool = False) -> wire.UpdateJobRequest:
    mask = FieldMask(paths=paths)
    return wire.UpdateJobRequest(job=changed, update_mask=mask, validate_only=check)


async def test_a_job_that_runs_after_another_has_no_other_schedule(api):
    await api("CreateJob", create(job("a")))
    made = await api("CreateJob", create(job("b", "a")))
    assert list(made.after.jobs) == ["a"]
    assert not made.HasField("next_run_at")
    for changes, message in (
        ({"cron": ["0 2 * * *"]}, "got cron and after"),
        ({"max_runs": 3}, "has no effect with after"),
        ({"after": job_pb2.After()}, "is empty"),
        ({"after": job_pb2.After(jobs=["a", "a"])}, "is given twice"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            await api("CreateJob", create(job("c", "a", **changes)))
    handed = job_pb2.After(jobs=["a"], with_output=True)
    with pytest.raises(InvalidArgumentError, match=r"after\.with_output"):
        await api("CreateJob", create(job("c", after=handed, payload=common_pb2.Payload(json="1"))))


@pytest.mark.parametrize("check", [True, False])
async def test_a_cycle_is_refused_with_its_path_whether_or_not_it_was_to_be_stored(api, check):
    await api("CreateJob", create(job("a")))
    await api("CreateJob", create(job("b", "a")))
    await api("CreateJob", create(job("c", "b")))
    with pytest.raises(InvalidArgumentError, match="closes a cycle: a → b → c → a") as refused:
        await api("UpdateJob", update(job("a", "c"), "after", check=check))
    assert refused.value.reason == "CHAIN_CYCLE"
    assert [one.field for one in refused.value.violations] == ["after.jobs"]
    with pytest.raises(InvalidArgumentError, match="closes a cycle: d → d") as refused:
        await api("CreateJob", create(job("d", "d"), check=check))
    assert refused.value.reason == "CHAIN_CYCLE"
    with pytest.raises(InvalidArgumentError, match="job x, y not found") as missing:
        await api("CreateJob", create(job("d", "y", "a", "x"), check=check))
    assert missing.value.reason == "NO_SUCH_PARENT"
    with pytest.raises(InvalidArgumentError, match="job a not found"):
        await api("CreateJob", create(job("d", "a", namespace="other"), check=check))


async def test_a_patch_gives_a_schedule_for_a_chain_and_back(api):
    await api("CreateJob", create(job("a")))
    await api("CreateJob", create(job("b", cron=["0 2 * * *"], on_demand=False)))
    chained = await api("UpdateJob", update(job("b", "a"), "after.jobs"))
    assert (list(chained.cron), list(chained.after.jobs)) == ([], ["a"])
    assert not chained.HasField("next_run_at")
    failing = job_pb2.Job(name="b", after=job_pb2.After(when=job_pb2.After.WHEN_FAILURE))
    other = await api("UpdateJob", update(failing, "after.when"))
    assert (list(other.after.jobs), other.after.when) == (["a"], job_pb2.After.WHEN_FAILURE)
    with pytest.raises(FailedPreconditionError, match="has child jobs: b") as refused:
        await api("DeleteJob", wire.DeleteJobRequest(job="a"))
    assert refused.value.reason == "JOB_HAS_CHILDREN"
    alone = await api("UpdateJob", update(job_pb2.Job(name="b", cron=["0 3 * * *"]), "cron"))
    assert not alone.HasField("after")
    assert alone.HasField("next_run_at")
    assert (await api("DeleteJob", wire.DeleteJobRequest(job="a"))).deleted


async def test_a_cycle_is_explained_by_what_it_waits_for_and_why_it_was_skipped(api):
    me = api.world.members[0]
    for name in ("a", "b"):
        await api("CreateJob", create(job(name)))
    made = await api("CreateJob", create(job("c", "a", "b")))
    root = await api("TriggerJob", wire.TriggerJobRequest(job="a"))
    ask = wire.ExplainInstantRequest(job="c", at=root.scheduled_at)
    assert "No parent has ended in that cycle" in (await api("ExplainInstant", ask)).answer
    shards = sorted(me.epochs)
    [run] = await me.store.owner.live_runs(shards, [State.PENDING])
    [assigned] = await me.assigned(draft(run))
    await me.store.results.accept([report(assigned)])
    answer = (await api("ExplainInstant", ask)).answer
    assert answer == f"The cycle waits for b; a is SUCCEEDED (run {root.run_id})."
    [due] = await me.store.chains.due(shards)
    wanted = [Wanted(due, 1, ChainParents(("a", "b"), When.SUCCESS), 2)]
    assert await me.store.chains.join(me.claim(due.shard), wanted) == []
    asked = ListRunsRequest(job="c", trigger=run_pb2.Run.TRIGGER_CHAIN)
    [skipped] = (await api("ListRuns", asked)).runs
    assert skipped.job_id == made.job_id
    assert (skipped.state, skipped.reason) == (
        common_pb2.RUN_STATE_SKIPPED,
        common_pb2.REASON_AFTER,
    )
    assert skipped.excluded_by == "b had no run in this cycle"
    assert [(one.job, one.run_id) for one in skipped.parents] == [("a", root.run_id)]
    why = await api("ExplainRun", ExplainRunRequest(run_id=skipped.run_id))
    assert "b had no run in this cycle" in why.answer
    assert "b had no run in this cycle" in (await api("ExplainInstant", ask)).answer
    plain = ListRunsRequest(job="c", trigger=run_pb2.Run.TRIGGER_SCHEDULE)
    assert not (await api("ListRuns", plain)).runs
