"""Many jobs and submits by one client, over a real network."""

from __future__ import annotations

from typing import Any

import pytest

from schedclient import Client, InvalidArgument, Job, Run
from schedclient.calls.batches import BYTES, MOST
from schedproto.v1 import common_pb2, job_pb2, run_pb2
from schedproto.v1 import job_service_pb2 as jobs
from schedproto.v1 import run_service_pb2 as runs
from support.scripted import Refusal, Scripted

Many = runs.BatchSubmitRunsRequest
Results = runs.BatchSubmitRunsResponse
AWAY = common_pb2.CallError(code="UNAVAILABLE", reason="UNAVAILABLE")


def argv(request: runs.SubmitRunRequest) -> str:
    return request.spec.shell.argv[0]


def work(count: int) -> list[Any]:
    return [{"shell": {"argv": [str(number)]}} for number in range(count)]


def run(request: runs.SubmitRunRequest) -> run_pb2.Run:
    return run_pb2.Run(run_id=argv(request))


def accept(request: Many) -> Results:
    return Results(results=[Results.Result(run=run(one)) for one in request.requests])


async def test_a_thousand_requests_take_a_few_calls_and_keep_their_order(
    client: Client, member: Scripted
):
    member.say("BatchSubmitRuns", accept)
    answers = await client.submit_many(work(1_200), name="n", delay="5s")
    assert [one.run_id for one in answers if isinstance(one, Run)] == [str(n) for n in range(1_200)]
    sizes = [len(request.requests) for request in member.received("BatchSubmitRuns")]
    assert sorted(sizes) == [200, MOST, MOST]
    sent = [one for request in member.received("BatchSubmitRuns") for one in request.requests]
    assert len({one.idempotency_key for one in sent}) == 1_200
    assert {(one.name, one.delay.seconds) for one in sent} == {("n", 5)}


async def test_no_call_holds_more_bytes_than_a_message_may(client: Client, member: Scripted):
    member.say("BatchSubmitRuns", accept)
    large = [{"shell": {"argv": [str(n)]}, "payload": "x" * (BYTES // 3)} for n in range(7)]
    answers = await client.submit_many(large)
    assert [one.run_id for one in answers if isinstance(one, Run)] == [str(n) for n in range(7)]
    assert max(request.ByteSize() for request in member.received("BatchSubmitRuns")) <= BYTES + 100


async def test_a_rejection_in_a_batch_hides_no_other_rejection(client: Client, member: Scripted):
    def answer(request: Many) -> Results:
        found = accept(request)
        violation = common_pb2.CallError.Violation(field="pool", problem="there is none")
        found.results[3].error.CopyFrom(
            common_pb2.CallError(
                code="INVALID_ARGUMENT",
                message="pool: there is none",
                reason="NO_SUCH_POOL",
                remedy="make it first",
                violations=[violation],
            )
        )
        return found

    member.say("BatchSubmitRuns", answer)
    answers = await client.submit_many([*work(5), {"shell": {"argv": "date"}}, *work(1)])
    refused, unread = answers[3], answers[5]
    assert [isinstance(one, Run) for one in answers] == [True] * 3 + [False, True, False, True]
    assert isinstance(refused, InvalidArgument)
    assert (refused.reason, refused.remedy) == ("NO_SUCH_POOL", "make it first")
    assert [(one.field, one.problem) for one in refused.violations] == [("pool", "there is none")]
    assert isinstance(unread, InvalidArgument)


async def test_jobs_are_named_by_their_specs(client: Client, member: Scripted):
    def answer(request: jobs.BatchCreateJobsRequest) -> jobs.BatchCreateJobsResponse:
        made = [jobs.BatchCreateJobsResponse.Result(job=one.job) for one in request.requests]
        return jobs.BatchCreateJobsResponse(results=made)

    member.say("BatchCreateJobs", answer)
    one, other = await client.jobs.create_many(
        [
            {"name": "a", "cron": "0 2 * * *", "shell": {"argv": ["date"]}},
            job_pb2.Job(name="b", namespace="elsewhere", on_demand=True),
        ]
    )
    assert isinstance(one, Job)
    assert isinstance(other, Job)
    assert (one.name, one.namespace, other.name) == ("a", "default", "b")
    [request] = member.received("BatchCreateJobs")
    assert all(one.idempotency_key for one in request.requests)
    assert request.requests[1].job.namespace == "elsewhere"


async def test_requests_that_met_an_unavailable_database_are_retried_with_their_keys(
    client: Client, member: Scripted
):
    def partly(request: Many) -> Results:
        found = accept(request)
        found.results[1].error.CopyFrom(AWAY)
        return found

    member.say("BatchSubmitRuns", partly, accept)
    answers = await client.submit_many(work(3))
    assert [one.run_id for one in answers if isinstance(one, Run)] == ["0", "1", "2"]
    first, second = member.received("BatchSubmitRuns")
    assert list(second.requests) == [first.requests[1]]


async def test_a_database_unavailable_until_the_deadline_is_reported(
    client: Client, member: Scripted
):
    member.say("BatchSubmitRuns", Results(results=[Results.Result(error=AWAY)]))
    [answer] = await client.submit_many(work(1), deadline=0.3)
    assert getattr(answer, "status", "") == "UNAVAILABLE"
    assert len(member.received("BatchSubmitRuns")) > 1


async def test_a_failed_call_is_the_answer_of_all_its_requests(client: Client, member: Scripted):
    member.say("BatchSubmitRuns", Refusal("PERMISSION_DENIED"))
    answers = await client.submit_many(work(3))
    assert [getattr(one, "status", "") for one in answers] == ["PERMISSION_DENIED"] * 3


async def test_a_batch_of_too_many_parts_is_halved(client: Client, member: Scripted):
    def answer(request: Many) -> Results | Refusal:
        if len(request.requests) > 2:
            return Refusal("RESOURCE_EXHAUSTED", reason="TOO_MANY_PARTS")
        return accept(request)

    member.say("BatchSubmitRuns", answer)
    answers = await client.submit_many(work(7))
    assert [one.run_id for one in answers if isinstance(one, Run)] == [str(n) for n in range(7)]


@pytest.mark.parametrize("count", [0, 1])
async def test_batches_of_none_and_one_work(client: Client, member: Scripted, count: int):
    member.say("BatchSubmitRuns", accept)
    assert len(await client.submit_many(work(count))) == count
    assert len(member.received("BatchSubmitRuns")) == count
