"""Pools in the SDK: what is sent, what is read, what is sent again."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from google.protobuf.duration_pb2 import Duration

from schedclient import Client, ClusterUnavailable, Conflict, InvalidArgument
from schedproto.v1 import job_pb2, run_pb2
from schedproto.v1 import pool_service_pb2 as pools
from support.scripted import Refusal, Scripted

MINUTE = Duration(seconds=60)
REPORTS = pools.Pool(
    name="reports", namespace="default", limit=3, rate=pools.Rate(count=100, per=MINUTE), version=7
)


def as_given(request: pools.SetPoolRequest) -> pools.Pool:
    return request.pool


async def test_a_pool_is_set_with_a_limit_and_a_rate(client: Client, member: Scripted):
    member.say("SetPool", as_given)

    pool = await client.pools.set("reports", limit=3, rate="100/m", version=7)
    await client.pools.set("loose", validate_only=True)

    assert (pool.name, pool.limit, pool.rate, pool.version) == ("reports", 3, "100/m", 7)
    first, second = member.received("SetPool")
    assert first.pool == REPORTS
    assert (second.pool.limit, second.pool.HasField("rate"), second.pool.version) == (0, False, 0)
    assert (first.validate_only, second.validate_only) == (False, True)


async def test_an_invalid_rate_is_never_sent(client: Client, member: Scripted):
    with pytest.raises(InvalidArgument) as caught:
        await client.pools.set("reports", limit=1 << 31, rate="100")
    assert [one.field for one in caught.value.violations] == ["limit", "rate"]
    assert member.requests == []


async def test_a_versioned_change_without_an_answer_is_not_retried(
    client: Client, member: Scripted
):
    member.say("SetPool", Refusal("UNAVAILABLE"), REPORTS)
    with pytest.raises(ClusterUnavailable):
        await client.pools.set("reports", limit=3, version=7)
    assert len(member.received("SetPool")) == 1
    member.say("SetPool", Refusal("ABORTED", "it is version 8", "VERSION_MISMATCH"))
    with pytest.raises(Conflict):
        await client.pools.set("reports", limit=3, version=7)


async def test_a_pool_is_read_with_what_runs_and_waits(client: Client, member: Scripted):
    busy = pools.Pool()
    busy.CopyFrom(REPORTS)
    busy.MergeFrom(pools.Pool(paused=True, pause_note="why", jobs=2, running=3, waiting=9))
    busy.recent = 40
    busy.updated_at.FromDatetime(datetime(2026, 11, 23, tzinfo=UTC))
    member.say("GetPool", busy)
    member.say("ListPools", pools.ListPoolsResponse(pools=[busy, pools.Pool(name="s")]))

    pool = await client.pools.in_namespace("n").get("reports")
    other = [one async for one in client.pools.list()][1]

    assert (pool.running, pool.waiting, pool.recent, pool.jobs) == (3, 9, 40, 2)
    assert (pool.paused, pool.pause_note, pool.paused_by) == (True, "why", None)
    assert pool.updated_at == datetime(2026, 11, 23, tzinfo=UTC)
    assert (other.limit, other.rate, other.updated_at) == (0, None, None)
    assert member.received("GetPool") == [pools.GetPoolRequest(namespace="n", pool="reports")]


async def test_a_pause_is_sent_again_when_its_answer_is_lost(client: Client, member: Scripted):
    member.say("PausePool", Refusal("UNAVAILABLE"), pools.Pool(name="reports", paused=True))
    member.say("ResumePool", REPORTS)
    member.say("DeletePool", pools.DeletePoolResponse(deleted=True))

    assert (await client.pools.pause("reports", note="why")).paused
    assert not (await client.pools.resume("reports")).paused
    await client.pools.delete("reports")

    asked = pools.PausePoolRequest(namespace="default", pool="reports", note="why")
    assert member.received("PausePool") == [asked, asked]
    assert member.received("DeletePool")[0].pool == "reports"


async def test_jobs_and_one_time_work_name_their_pool(client: Client, member: Scripted):
    member.say("CreateJob", lambda request: request.job)
    member.say("UpdateJob", lambda request: request.job)
    member.say("SubmitRun", run_pb2.Run(run_id="r"))

    job = await client.jobs.create("etl", every="30s", python={"handler": "h"}, pool="reports")
    moved = await client.jobs.update("etl", pool=None)
    await client.submit(python={"handler": "h"}, pool="reports")

    assert (job.pool, moved.pool) == ("reports", None)
    assert list(member.received("UpdateJob")[0].update_mask.paths) == ["pool"]
    assert member.received("SubmitRun")[0].spec == job_pb2.Job(
        python=job_pb2.PythonAction(handler="h"), pool="reports"
    )
