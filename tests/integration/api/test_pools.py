"""Pools by the calls, over a real database: set, read, deleted, and the jobs that name them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask

from schedd.api.errors import (
    AbortedError,
    CallError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)
from schedd.core.cluster.partition import shard_of_pool
from schedproto.v1 import job_pb2, run_service_pb2
from schedproto.v1 import job_service_pb2 as wire
from schedproto.v1 import pool_service_pb2 as pools
from support.store import draft, incarnation

SHELL = job_pb2.ShellAction(argv=["true"])
HERE = shard_of_pool("default", "p")


async def set_pool(api: Any, *, dry: bool = False, per: float = 0, **says: Any) -> pools.Pool:
    pool = pools.Pool(**{"name": "p", **says})
    if per:
        pool.rate.per.FromTimedelta(timedelta(seconds=per))
    made: pools.Pool = await api("SetPool", pools.SetPoolRequest(pool=pool, validate_only=dry))
    return made


async def create(api: Any, name: str = "j", **changes: Any) -> job_pb2.Job:
    job = job_pb2.Job(**{"name": name, "on_demand": True, "shell": SHELL, "pool": "p"} | changes)
    made: job_pb2.Job = await api("CreateJob", wire.CreateJobRequest(job=job))
    return made


async def get(api: Any) -> pools.Pool:
    found: pools.Pool = await api("GetPool", pools.GetPoolRequest(pool="p"))
    return found


async def test_a_pool_is_created_changed_and_listed(api: Any) -> None:
    made = await set_pool(api, limit=3, rate=pools.Rate(count=100), per=60)
    assert (made.limit, made.rate.count, made.rate.per.seconds, made.version) == (3, 100, 60, 1)
    assert (await set_pool(api, limit=3, rate=pools.Rate(count=100), per=60)).version == 1
    changed = await set_pool(api, limit=2, version=1)
    assert (changed.limit, changed.HasField("rate"), changed.version) == (2, False, 2)
    assert api.nudged.shards[-1] == HERE
    with pytest.raises(AbortedError, match="was changed meanwhile"):
        await set_pool(api, limit=9, version=1)
    assert (await set_pool(api, limit=9, dry=True)).version == 3
    assert (await get(api)).limit == 2
    listed = await api("ListPools", pools.ListPoolsRequest())
    assert [one.name for one in listed.pools] == ["p"]


@pytest.mark.parametrize(
    ("says", "field"),
    [
        ({"name": "P!"}, "pool.name"),
        ({"limit": -1}, "pool.limit"),
        ({"limit": 10_001}, "pool.limit"),
        ({"rate": pools.Rate(count=0), "per": 60}, "pool.rate.count"),
        ({"rate": pools.Rate(count=5), "per": 0.5}, "pool.rate.per"),
        ({"rate": pools.Rate(count=5), "per": 90_000}, "pool.rate.per"),
    ],
)
async def test_an_invalid_pool_is_refused_by_its_field(
    api: Any, says: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        await set_pool(api, **says)
    assert [each.field for each in refused.value.violations] == [field]


async def test_a_job_moves_to_the_shard_of_its_pool_and_back(api: Any) -> None:
    await set_pool(api, limit=3)
    await create(api)
    [[there]] = await api.world.sql("SELECT shard FROM timers")
    assert there == HERE
    assert (await get(api)).jobs == 1
    with pytest.raises(FailedPreconditionError, match="used by j") as refused:
        await api("DeletePool", pools.DeletePoolRequest(pool="p"))
    assert "--pool ''" in refused.value.remedy
    out = wire.UpdateJobRequest(job=job_pb2.Job(name="j"), update_mask=FieldMask(paths=["pool"]))
    assert not (await api("UpdateJob", out)).pool
    assert (await get(api)).jobs == 0
    await api("DeletePool", pools.DeletePoolRequest(pool="p"))
    with pytest.raises(NotFoundError, match="pool 'p' not found"):
        await get(api)


async def test_a_pool_that_a_submitted_run_keeps_is_waited_for_or_the_run_is_cancelled(
    api: Any,
) -> None:
    """No caller can patch such a run."""
    await set_pool(api, limit=3)
    spec = job_pb2.Job(shell=job_pb2.ShellAction(argv=["true"]), pool="p")
    run = await api("SubmitRun", run_service_pb2.SubmitRunRequest(spec=spec, name="named"))
    delete = pools.DeletePoolRequest(pool="p")
    with pytest.raises(
        FailedPreconditionError, match=f"used by submitted run {run.run_id}"
    ) as refused:
        await api("DeletePool", delete)
    assert "schedctl run cancel RUN" in refused.value.remedy
    assert "job patch" not in refused.value.remedy
    await create(api)
    with pytest.raises(
        FailedPreconditionError, match=f"used by j, submitted run {run.run_id}"
    ) as both:
        await api("DeletePool", delete)
    assert "--pool ''; wait until submitted runs have ended" in both.value.remedy


@pytest.mark.parametrize("call", ["create", "dry", "submit", "update"])
async def test_no_job_names_a_pool_that_isnt_there(api: Any, call: str) -> None:
    job = job_pb2.Job(name="j", on_demand=True, shell=SHELL, pool="p")
    await create(api, pool="", name="other")
    spec, other = job_pb2.Job(shell=SHELL, pool="p"), job_pb2.Job(name="other", pool="p")
    asked: dict[str, tuple[str, Any]] = {
        "create": ("CreateJob", wire.CreateJobRequest(job=job)),
        "dry": ("CreateJob", wire.CreateJobRequest(job=job, validate_only=True)),
        "submit": ("SubmitRun", run_service_pb2.SubmitRunRequest(spec=spec)),
        "update": (
            "UpdateJob",
            wire.UpdateJobRequest(job=other, update_mask=FieldMask(paths=["pool"])),
        ),
    }
    with pytest.raises(CallError, match="'p' not found"):
        await api(*asked[call])


async def test_a_pause_waits_for_runs_that_may_start_and_explains_the_others(
    api: Any,
) -> None:
    await set_pool(api, limit=1)
    await create(api, overlap=job_pb2.OVERLAP_ALLOW)
    for _ in range(2):
        await api("TriggerJob", wire.TriggerJobRequest(job="j"))
    me = api.world.members[0]
    first, second = await me.store.owner.live_runs([HERE], ["PENDING"])
    worker = incarnation()
    changes = {"pool": "default/p", "overlap_limit": 0, "incarnation": worker.id}
    [given] = await me.assigned(draft(first, **changes))

    paused = await api("PausePool", pools.PausePoolRequest(pool="p", note="moving"))

    assert api.lines.revoked == [given.key.run_id]
    assert (paused.paused, paused.pause_note, paused.paused_by) == (True, "moving", "tester")
    assert (paused.running, paused.waiting) == (1, 1)
    asked = run_service_pb2.ExplainRunRequest(run_id=str(second.key.run_id))
    assert await room(api, asked) == "no, pool p is paused"
    resumed = await api("ResumePool", pools.ResumePoolRequest(pool="p"))
    assert not resumed.paused
    full = "no, pool p is full: 1 of its runs are under way, and its limit is 1"
    assert await room(api, asked) == full


async def room(api: Any, asked: run_service_pb2.ExplainRunRequest) -> str:
    explained = await api("ExplainRun", asked)
    [check] = [one for one in explained.checks if one.question == "Does pool p have capacity?"]
    answer: str = check.answer
    return answer
