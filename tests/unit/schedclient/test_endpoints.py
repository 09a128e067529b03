"""Several endpoints: stopped ones are skipped, and only safe calls are retried."""

import asyncio
import socket
import time

import grpc.aio
import pytest

from schedclient import (
    Client,
    ClusterUnavailable,
    DeadlineExceeded,
    InternalError,
    InvalidArgument,
    Misconfigured,
    NotFound,
)
from schedproto.v1 import common_pb2, job_pb2, run_pb2
from schedproto.v1 import job_service_pb2 as jobs
from schedproto.v1 import run_service_pb2 as runs
from support.scripted import Refusal, Scripted

RUN = run_pb2.Run(run_id="r", state=common_pb2.RUN_STATE_SUCCEEDED)
DELETED = jobs.DeleteJobResponse(deleted=True)
AWAY = Refusal("UNAVAILABLE", "the database is away", "DATABASE_AWAY")
BROKEN = Refusal("UNAVAILABLE", "Socket closed", bare=True)
UNKNOWN = Refusal("DEADLINE_EXCEEDED", "the change was asked for", "OUTCOME_UNKNOWN", "look first")


async def hang(_request: object) -> object:
    await asyncio.Event().wait()
    return RUN


def free_address() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


async def test_stopped_endpoints_are_skipped(member: Scripted):
    member.say("GetRun", RUN)
    dead = [free_address() for _ in range(3)]
    async with Client([*dead, member.address], timeout=10) as client:
        for _ in range(3):
            assert (await client.runs.get("r")).run_id == "r"


@pytest.mark.slow
async def test_a_silent_endpoint_is_skipped(member: Scripted):
    member.say("GetRun", RUN)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        async with Client([address, member.address], timeout=10) as client:
            assert (await client.runs.get("r")).run_id == "r"


async def test_a_member_that_stops_between_two_calls_causes_no_failure(
    member: Scripted, other: Scripted
):
    for one in (member, other):
        one.say("GetRun", RUN)
    async with Client([member.address, other.address], timeout=10) as client:
        await client.runs.get("r")
        asked, spare = (member, other) if member.requests else (other, member)
        await asked.stop()
        assert (await client.runs.get("r")).run_id == "r"
        assert spare.received("GetRun")


async def test_a_member_that_hangs_costs_one_try_timeout_and_no_more(
    member: Scripted, other: Scripted, monkeypatch: pytest.MonkeyPatch
):
    from dataclasses import replace

    from schedclient.transport import methods

    method = replace(methods.method_of(runs.GetRunRequest.DESCRIPTOR), try_timeout=0.2)
    monkeypatch.setattr(methods, "method_of", lambda _: method)
    member.say("GetRun", hang)
    other.say("GetRun", RUN)
    async with Client([member.address, other.address], timeout=10) as client:
        for _ in range(2):
            assert (await client.runs.get("r")).run_id == "r"
    assert len(member.received("GetRun")) <= 1


async def test_unavailable_is_retried_within_the_deadline(client: Client, member: Scripted):
    member.say("GetRun", Refusal("UNAVAILABLE"), Refusal("UNAVAILABLE"), RUN)
    assert (await client.runs.get("r")).run_id == "r"
    assert len(member.received("GetRun")) == 3


async def test_permanent_unavailable_is_raised_at_the_deadline(member: Scripted):
    member.say("GetRun", AWAY)
    async with Client(member.address, timeout=0.5) as client:
        began = time.monotonic()
        with pytest.raises(ClusterUnavailable, match="database is away") as caught:
            await client.runs.get("r")
        assert caught.value.reason == "DATABASE_AWAY"
        assert time.monotonic() - began < 5


@pytest.mark.slow
@pytest.mark.parametrize(
    "reason", ["DATABASE_UNAVAILABLE", "DATABASE_SILENT", "DEPENDENCY_REJECTED"]
)
async def test_a_call_ends_within_3_s_when_members_cant_reach_postgresql(
    member: Scripted, reason: str
):
    member.say("GetRun", Refusal("UNAVAILABLE", "PostgreSQL is unavailable", reason))
    async with Client(member.address) as client:
        began = time.monotonic()
        with pytest.raises(ClusterUnavailable, match="PostgreSQL is unavailable") as caught:
            await client.runs.get("r")
        assert caught.value.reason == reason
        assert time.monotonic() - began < 3


@pytest.mark.parametrize("status", ["INVALID_ARGUMENT", "NOT_FOUND", "INTERNAL", "ABORTED"])
async def test_a_definite_error_is_not_retried(client: Client, member: Scripted, status: str):
    member.say("GetRun", Refusal(status), RUN)
    with pytest.raises((InvalidArgument, NotFound, InternalError, Exception)) as caught:
        await client.runs.get("r")
    assert caught.value.status == status
    assert len(member.received("GetRun")) == 1


async def test_a_retried_creation_has_the_same_idempotency_key(client: Client, member: Scripted):
    member.say("SubmitRun", Refusal("UNAVAILABLE"), RUN)
    member.say("TriggerJob", Refusal("UNAVAILABLE"), RUN)
    member.say("CreateJob", Refusal("UNAVAILABLE"), job_pb2.Job(name="etl"))
    await client.submit(shell={"argv": ["date"]})
    await client.jobs.trigger("etl")
    await client.jobs.create("etl", on_demand=True, shell={"argv": ["date"]})
    for call in ("SubmitRun", "TriggerJob", "CreateJob"):
        first, second = member.received(call)
        assert first.idempotency_key == second.idempotency_key != ""


async def test_a_key_of_the_callers_own_is_kept(client: Client, member: Scripted):
    member.say("SubmitRun", RUN)
    await client.submit(shell={"argv": ["date"]}, idempotency_key="mine")
    assert member.received("SubmitRun")[0].idempotency_key == "mine"


async def test_a_deletion_that_may_have_happened_is_not_sent_again(
    client: Client, member: Scripted
):
    member.say("DeleteJob", Refusal("UNAVAILABLE"), DELETED)
    with pytest.raises(ClusterUnavailable):
        await client.jobs.delete("etl")
    assert len(member.received("DeleteJob")) == 1


async def test_a_rejected_rebalance_is_not_retried(client: Client, member: Scripted):
    """Each rejected try is a line of the audit, also for a transfer of leadership."""
    for call in ("RebalanceCluster", "TransferLeader"):
        member.say(call, Refusal("UNAVAILABLE", reason="NOT_TRUSTED"))
    for asked in (
        client.cluster.rebalance(),
        client.cluster.rebalance(dry_run=True),
        client.cluster.transfer_leader("m2"),
    ):
        with pytest.raises(ClusterUnavailable) as refused:
            await asked
        assert refused.value.reason == "NOT_TRUSTED"
    assert len(member.received("RebalanceCluster")) == 2
    assert len(member.received("TransferLeader")) == 1


async def test_a_deletion_that_was_never_sent_is_sent_to_another_member(member: Scripted):
    member.say("DeleteJob", DELETED)
    async with Client([free_address(), free_address(), member.address], timeout=10) as client:
        await client.jobs.delete("etl")
    assert [sent.job for sent in member.received("DeleteJob")] == ["etl"]


async def test_no_answer_in_time_raises_deadline_exceeded(client: Client, member: Scripted):
    member.say("GetRun", hang)
    with pytest.raises(DeadlineExceeded) as error:
        await client.runs.get("r", deadline=0.2)
    assert error.value.remedy.startswith("call again"), "it was a read"
    assert "changed" not in error.value.remedy
    assert isinstance(error.value.__cause__, grpc.aio.AioRpcError), "its cause"


@pytest.mark.slow
async def test_a_timeout_names_the_member_and_the_last_rejection(member: Scripted):
    member.say("TriggerJob", AWAY, hang)
    async with Client(member.address, timeout=1) as client:
        with pytest.raises(DeadlineExceeded) as error:
            await client.jobs.trigger("etl")
    assert str(error.value) == error.value.what
    assert error.value.what == (
        f"the call to {member.address} timed out; the last try was rejected by {member.address}:"
        " the database is away (DATABASE_AWAY)"
    )
    assert error.value.reason == "NO_ANSWER"
    assert not error.value.remedy, "whether it was done isn't known"


async def test_a_change_with_unknown_outcome_is_not_reported_as_rejected(member: Scripted):
    member.say("TriggerJob", UNKNOWN, AWAY)
    async with Client(member.address, timeout=1) as client:
        with pytest.raises(DeadlineExceeded, match=r"asked for; .*database is away") as error:
            await client.jobs.trigger("etl")
    assert (error.value.reason, error.value.remedy) == ("OUTCOME_UNKNOWN", "look first")


@pytest.mark.slow
async def test_an_unknown_outcome_is_still_reported_after_a_silent_retry(member: Scripted):
    member.say("TriggerJob", UNKNOWN, AWAY, hang)
    async with Client(member.address, timeout=1) as client:
        with pytest.raises(DeadlineExceeded, match=r"asked for; .*database is away") as error:
            await client.jobs.trigger("etl")
    assert error.value.reason == "OUTCOME_UNKNOWN"


@pytest.mark.slow
async def test_a_change_with_unknown_outcome_is_not_reported_as_never_sent(member: Scripted):
    asked_again = asyncio.Event()

    async def hang_once(request: object) -> object:
        asked_again.set()
        return await hang(request)

    member.say("TriggerJob", UNKNOWN, hang_once)
    async with Client(member.address, timeout=1) as client:
        calling = asyncio.create_task(client.jobs.trigger("etl"))
        await asked_again.wait()
        await member.stop()
        with pytest.raises(DeadlineExceeded, match=r"asked for; .*no member answered"):
            await calling


@pytest.mark.slow
@pytest.mark.parametrize("then", [(), (AWAY,), (AWAY, hang)])
async def test_a_change_with_a_broken_connection_is_not_reported_as_rejected(
    member: Scripted, then: tuple[object, ...]
):
    member.say("TriggerJob", BROKEN, *then)
    async with Client(member.address, timeout=1) as client:
        with pytest.raises(DeadlineExceeded, match=r"no answer from .*: Socket closed") as error:
            await client.jobs.trigger("etl")
    assert error.value.reason == "CONNECTION_BROKEN"
    assert "check whether the change was made" in error.value.remedy
    assert ("database is away" in error.value.what) == bool(then)


async def test_a_deletion_with_a_broken_connection_has_an_unknown_outcome(
    client: Client, member: Scripted
):
    member.say("DeleteJob", BROKEN, DELETED)
    with pytest.raises(DeadlineExceeded, match="Socket closed"):
        await client.jobs.delete("etl")
    assert len(member.received("DeleteJob")) == 1


async def test_a_dry_run_without_an_answer_is_reported_as_a_read(client: Client, member: Scripted):
    member.say("RebalanceCluster", hang)
    with pytest.raises(DeadlineExceeded) as error:
        await client.cluster.rebalance(dry_run=True, deadline=0.2)
    assert error.value.remedy.startswith("call again")


async def test_a_read_with_a_permanently_broken_connection_is_reported_as_rejected(
    member: Scripted,
):
    member.say("GetRun", BROKEN)
    async with Client(member.address, timeout=0.5) as client:
        with pytest.raises(ClusterUnavailable, match=r"no answer from .*: Socket closed"):
            await client.runs.get("r")


async def test_a_read_that_is_rejected_at_last_is_reported_as_rejected(member: Scripted):
    member.say("GetRun", UNKNOWN, AWAY)
    async with Client(member.address, timeout=0.5) as client:
        with pytest.raises(ClusterUnavailable, match=r"^the database is away$"):
            await client.runs.get("r")


async def test_an_unreachable_cluster_is_reported_with_all_endpoints():
    async with Client([free_address(), free_address()], timeout=0.5) as client:
        with pytest.raises(ClusterUnavailable, match="no member answered") as caught:
            await client.cluster.status()
    assert caught.value.reason == "NO_ENDPOINT"


async def test_a_watch_moves_to_another_member(member: Scripted, other: Scripted):
    running = run_pb2.Run(run_id="r", state=common_pb2.RUN_STATE_RUNNING)

    def script(one: Scripted) -> None:
        def answer(_request: object) -> list[object]:
            done = bool(member.received("WatchRuns")) and bool(other.received("WatchRuns"))
            end = runs.RunEvent(run=RUN) if done else Refusal("UNAVAILABLE", "going away")
            return [runs.RunEvent(run=running), end]

        one.say("WatchRuns", answer)

    script(member)
    script(other)
    async with Client([member.address, other.address], timeout=5) as client:
        states = [run.state async for run in client.runs.watch("r")]
    assert states == ["RUNNING", "SUCCEEDED"]


async def test_a_refusal_without_details_still_has_its_class(client: Client, member: Scripted):
    member.say("GetRun", Refusal("NOT_FOUND", "gone", bare=True))
    with pytest.raises(NotFound, match="gone") as caught:
        await client.runs.get("r")
    assert caught.value.reason == ""


@pytest.mark.parametrize("endpoints", ["", ",", "host", "http://host:1", [], ["a:1", "b"]])
def test_invalid_endpoints_are_refused_at_once(endpoints: object):
    with pytest.raises(Misconfigured):
        Client(endpoints)


def test_a_token_never_leaves_the_host_in_the_clear():
    with pytest.raises(Misconfigured, match="can be reached from other hosts"):
        Client("example.com:7420", token="secret")


@pytest.mark.parametrize("address", ["u:s3cr3t@h:1", "u:s3cr3t,x@h:1", "u:x,s3cr3t,y@h:1"])
def test_no_endpoint_is_repeated_where_one_has_a_user(address: str) -> None:
    """A comma in a password makes several of one."""
    with pytest.raises(Misconfigured) as refused:
        Client(f"127.0.0.1:1,{address}")
    assert str(refused.value) == "no address takes a user or password: one has an @ in it"
