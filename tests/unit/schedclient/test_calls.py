"""Requests and return values of each call, over a real network."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest

from schedclient import Client, DeadlineExceeded, InvalidArgument, NotFound
from schedclient.transport import methods
from schedproto.v1 import cluster_service_pb2 as cluster
from schedproto.v1 import common_pb2, job_pb2, run_pb2
from schedproto.v1 import job_service_pb2 as jobs
from schedproto.v1 import run_service_pb2 as runs
from support.scripted import SERVICES, Refusal, Scripted

PENDING = run_pb2.Run(run_id="r", state=common_pb2.RUN_STATE_PENDING)
RUNNING = run_pb2.Run(run_id="r", state=common_pb2.RUN_STATE_RUNNING, worker="w1")
DONE = run_pb2.Run(run_id="r", state=common_pb2.RUN_STATE_SUCCEEDED, exit_code=0)


def event(run: run_pb2.Run) -> runs.RunEvent:
    return runs.RunEvent(run=run)


def test_each_call_is_found_by_its_request_and_listed_ones_exist_on_the_wire():
    wire = {
        method.name: (f"/{service.full_name}/{method.name}", method)
        for service in SERVICES
        for method in service.methods
    }
    listed = f"{methods.UNSENT} {methods.RESUMED} {methods.LONG}".split()
    assert {*listed, "ApplyCalendar"} <= wire.keys()
    for name, (path, method) in wire.items():
        found = methods.method_of(method.input_type)
        assert (found.name, found.path) == (name, path)
        assert found.answer.DESCRIPTOR.full_name == method.output_type.full_name


async def test_a_job_is_made_from_keywords(client: Client, member: Scripted):
    member.say("CreateJob", lambda request: request.job)
    job = await client.jobs.create(
        "etl",
        cron="0 2 * * *",
        time_zone="Europe/Riga",
        retry={"max_attempts": 2, "backoff": timedelta(seconds=3)},
        timeout="2h",
        shell={"argv": ["/bin/etl"], "env": {"A": "b"}},
        payload={"a": [1]},
    )
    [sent] = member.received("CreateJob")
    assert sent.job.namespace == "default"
    assert sent.job.retry.backoff.seconds == 3
    assert json.loads(sent.job.payload.json) == {"a": [1]}
    assert sent.idempotency_key
    assert (job.name, job.cron, job.timeout, job.action) == (
        "etl",
        ("0 2 * * *",),
        timedelta(hours=2),
        "shell",
    )
    assert job.next_run_at is None


async def test_all_mistakes_of_a_spec_are_reported_before_anything_is_sent(
    client: Client, member: Scripted
):
    with pytest.raises(InvalidArgument) as caught:
        await client.jobs.create("etl", {"crno": "x", "timeout": 5})
    assert [one.field for one in caught.value.violations] == ["crno", "timeout"]
    assert member.requests == []


async def test_an_update_names_the_fields_it_changes(client: Client, member: Scripted):
    member.say("UpdateJob", lambda request: request.job)
    await client.jobs.update("etl", timeout="5s", paused=False, etag="e1")
    [sent] = member.received("UpdateJob")
    assert list(sent.update_mask.paths) == ["timeout", "paused"]
    assert (sent.job.name, sent.etag) == ("etl", "e1")


async def test_pause_resume_delete_and_next_send_the_name_of_the_job(
    client: Client, member: Scripted
):
    member.say("PauseJob", job_pb2.Job(name="etl", paused=True, pause_note="why"))
    member.say("ResumeJob", job_pb2.Job(name="etl"))
    member.say("DeleteJob", jobs.DeleteJobResponse(deleted=True))
    instant = jobs.ListNextInstantsResponse.Instant()
    instant.scheduled_at.FromDatetime(datetime(2026, 1, 1, tzinfo=UTC))
    instant.due_at.FromDatetime(datetime(2026, 1, 1, 0, 0, 3, tzinfo=UTC))
    member.say("ListNextInstants", jobs.ListNextInstantsResponse(instants=[instant]))
    assert (await client.jobs.pause("etl", "why")).pause_note == "why"
    assert not (await client.jobs.resume("etl")).paused
    await client.jobs.delete("etl")
    [coming] = await client.jobs.next("etl", count=1)
    assert coming.due_at - coming.scheduled_at == timedelta(seconds=3)
    assert [request.job for _, request in member.requests] == ["etl"] * 4


async def test_a_catch_up_time_without_a_zone_is_not_sent(client: Client, member: Scripted):
    """Read as local time of this host, it would start or skip the runs of some more hours."""
    with pytest.raises(InvalidArgument, match="has no time zone"):
        await client.cluster.resume(catch_up_since=datetime(2026, 1, 1))  # noqa: DTZ001 - that's it
    assert member.requests == []


async def test_lists_are_read_page_by_page_up_to_the_limit(client: Client, member: Scripted):
    def page(request):
        start = int(request.page_token or 0)
        end = start + min(request.page_size, 500)
        return runs.ListRunsResponse(
            runs=[run_pb2.Run(run_id=str(number)) for number in range(start, min(end, 1200))],
            next_page_token=str(end) if end < 1200 else "",
        )

    member.say("ListRuns", page)
    assert len([run async for run in client.runs.list()]) == 1200
    assert len(member.received("ListRuns")) == 3
    assert [run.run_id async for run in client.runs.list(limit=3, states=["failed"])] == [
        "0",
        "1",
        "2",
    ]
    last = member.received("ListRuns")[-1]
    assert (last.page_size, list(last.states)) == (3, [common_pb2.RUN_STATE_FAILED])


async def test_a_submit_uses_the_namespace_of_its_fields(client: Client, member: Scripted):
    member.say("SubmitRun", PENDING)
    await client.submit(shell={"argv": ["true"]})
    await client.submit({"namespace": "billing", "shell": {"argv": ["true"]}})
    assert [sent.namespace for sent in member.received("SubmitRun")] == ["default", "billing"]


async def test_submit_sends_work_without_a_schedule(client: Client, member: Scripted):
    member.say("SubmitRun", PENDING)
    run = await client.submit(shell={"argv": ["date"]}, name="now", delay="5s", priority="high")
    [sent] = member.received("SubmitRun")
    assert (sent.name, sent.delay.seconds, sent.spec.priority) == ("now", 5, 3)
    assert list(sent.spec.shell.argv) == ["date"]
    assert (run.run_id, run.state, run.ended) == ("r", "PENDING", False)


async def test_a_wrong_argument_is_reported_by_its_python_name(client: Client):
    calls = {
        "delay": client.submit(shell={"argv": ["date"]}, delay="5"),
        "until": client.jobs.pause("etl", until="later"),
        "after": client.jobs.next("etl", after="12:00"),
    }
    for name, call in calls.items():
        with pytest.raises(InvalidArgument, match=f"^{name}: ") as caught:
            await call
        assert [one.field for one in caught.value.violations] == [name]


async def test_a_spec_in_place_of_the_name_is_reported(client: Client):
    with pytest.raises(TypeError, match="create: the job's name comes first"):
        await client.jobs.create({"name": "etl", "on_demand": True})
    with pytest.raises(TypeError, match="update: the job's name comes first"):
        await client.jobs.update({"timeout": "5s"})


@pytest.mark.parametrize("payload", [float("nan"), float("inf"), [[]] * 2 + [{"a": 1e999}]])
async def test_a_payload_that_is_not_json_is_never_sent(client: Client, member: Scripted, payload):
    with pytest.raises(InvalidArgument, match="isn't valid JSON"):
        await client.jobs.trigger("etl", payload)
    assert member.requests == []


@pytest.mark.slow
async def test_a_payload_that_is_nested_too_deeply_is_refused(client: Client, member: Scripted):
    member.say("TriggerJob", PENDING)
    deep: list[object] = []
    for _ in range(99):
        deep = [deep]
    await client.jobs.trigger("etl", deep)
    for levels in (1, 100_000):
        for _ in range(levels):
            deep = [deep]
        with pytest.raises(InvalidArgument, match="at most 100 levels"):
            await client.jobs.trigger("etl", deep)


async def test_a_watch_ends_when_all_runs_have_ended(client: Client, member: Scripted):
    member.say("WatchRuns", [event(PENDING), event(RUNNING), event(RUNNING), event(DONE)])
    assert [run.state async for run in client.runs.watch("r")] == [
        "PENDING",
        "RUNNING",
        "SUCCEEDED",
    ]


async def test_a_broken_watch_continues_at_its_cursor(client: Client, member: Scripted):
    member.say(
        "WatchRuns",
        [event(PENDING), event(RUNNING), Refusal("UNAVAILABLE")],
        [event(RUNNING), event(DONE)],
    )
    assert [run.state async for run in client.runs.watch("r")] == [
        "PENDING",
        "RUNNING",
        "SUCCEEDED",
    ]


async def test_waiting_returns_the_ended_run(client: Client, member: Scripted):
    member.say("WatchRuns", [event(PENDING), event(DONE), asyncio.Event()])
    run = await client.runs.wait("r")
    assert (run.succeeded, run.exit_code) == (True, 0)


async def test_waiting_no_longer_than_asked_leaves_the_run_alone(client: Client, member: Scripted):
    member.say("WatchRuns", [event(RUNNING), asyncio.Event()])
    with pytest.raises(DeadlineExceeded, match="RUNNING") as caught:
        await client.runs.wait("r", timeout=0.1)
    assert caught.value.reason == "STILL_RUNNING"
    assert member.received("CancelRun") == []


async def test_logs_broken_in_the_middle_are_returned_once(client: Client, member: Scripted):
    def piece(text: bytes, offset: int) -> run_pb2.LogPiece:
        return run_pb2.LogPiece(stream=run_pb2.LogPiece.STREAM_STDOUT, data=text, offset=offset)

    member.say(
        "ReadLogs",
        [piece(b"one\n", 0), Refusal("UNAVAILABLE")],
        [piece(b"one\n", 0), piece(b"\xff\n", 4)],
    )
    assert b"".join([one.data async for one in client.runs.logs("r")]) == b"one\n\xff\n"


async def test_a_run_has_attempts_an_explanation_a_result_and_a_cancel(
    client: Client, member: Scripted
):
    member.say(
        "ListAttempts",
        runs.ListAttemptsResponse(
            attempts=[run_pb2.Attempt(attempt=1, state=common_pb2.RUN_STATE_RETRYING)]
        ),
    )
    check = runs.ExplainRunResponse.Check(question="paused?", answer="no")
    member.say("ExplainRun", runs.ExplainRunResponse(answer="no slot", checks=[check]))
    member.say("GetRunResult", run_pb2.RunResult(result=common_pb2.Payload(json='{"a":1}')))
    member.say("CancelRun", DONE)
    assert [one.state for one in await client.runs.attempts("r")] == ["RETRYING"]
    why = await client.runs.why("r")
    assert (why.answer, why.checks[0].question, why.checks[0].remedy) == (
        "no slot",
        "paused?",
        None,
    )
    assert (await client.runs.result("r")).value == {"a": 1}
    assert (await client.runs.cancel("r", "not needed")).run_id == "r"


async def test_the_cluster_and_its_lists_are_read(client: Client, member: Scripted):
    member.say("GetCluster", cluster.Cluster(leader="m1", shards=256, owned=256))
    member.say(
        "ListMembers",
        cluster.ListMembersResponse(
            members=[
                cluster.Member(
                    name="m1",
                    role=cluster.Member.ROLE_LEADER,
                    state=cluster.Member.STATE_LIVE,
                )
            ]
        ),
    )
    member.say("ListShards", cluster.ListShardsResponse(shards=[cluster.Shard(shard=1)]))
    member.say("ListWorkers", cluster.ListWorkersResponse(workers=[cluster.Worker(name="w1")]))
    entry = cluster.AuditEntry(action="result", outcome="refused", reason="STALE")
    member.say("ListAudit", cluster.ListAuditResponse(entries=[entry]))
    letter = run_pb2.DeadLetter(run=DONE, fingerprint="f")
    member.say("ListDeadLetters", runs.ListDeadLettersResponse(dead_letters=[letter]))
    assert (await client.cluster.status()).leader == "m1"
    assert [(m.role, m.state) for m in await client.cluster.members()] == [("LEADER", "LIVE")]
    assert (await client.cluster.shards())[0].owner is None
    assert [one.name async for one in client.workers.list()] == ["w1"]
    assert [one.reason async for one in client.audit.list(action="result")] == ["STALE"]
    assert [one.run.run_id async for one in client.dead_letters.list()] == ["r"]


async def test_a_value_is_frozen_and_has_one_json_form(client: Client, member: Scripted):
    member.say("GetRun", DONE)
    run = await client.runs.get("r")
    with pytest.raises(AttributeError):
        run.state = "FAILED"  # type: ignore[misc]  # what must not be
    assert run.to_json()["exitCode"] == 0
    assert run == await client.runs.get("r")


async def test_each_call_sends_the_token(member: Scripted):
    member.say("GetRun", DONE)
    async with Client(member.address, token="secret") as client:
        await client.runs.get("r")
    assert member.metadata[0]["authorization"] == "Bearer secret"


async def test_a_rejection_has_message_reason_and_remedy(client: Client, member: Scripted):
    member.say(
        "GetJob",
        Refusal(
            "NOT_FOUND",
            "no job etl",
            "NO_SUCH_JOB",
            remedy="schedctl job list",
            fields=[("job", "is unknown")],
        ),
    )
    with pytest.raises(NotFound, match="no job etl") as caught:
        await client.jobs.get("etl")
    error = caught.value
    assert (error.status, error.reason, error.remedy) == (
        "NOT_FOUND",
        "NO_SUCH_JOB",
        "schedctl job list",
    )
    assert error.violations[0].field == "job"
    assert error.endpoint == member.address


async def test_a_request_larger_than_a_message_is_the_callers_fault(client):
    with pytest.raises(InvalidArgument) as refused:
        await client.submit(shell={"argv": ["cat"]}, payload="x" * 5_000_000)
    assert refused.value.reason == "TOO_LARGE"


async def test_half_of_a_surrogate_pair_is_no_text(client):
    for wrong in (
        {"payload": "\ud800"},
        {"shell": {"argv": ["\ud800"]}},
        {"shell": {"argv": ["a"], "env": {"\ud800": "b"}}},
    ):
        with pytest.raises(InvalidArgument):
            await client.submit(**{"shell": {"argv": ["cat"]}, **wrong})


async def test_a_backfill_is_requested_read_and_canceled(client: Client, member: Scripted):
    first, last = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    made = jobs.Backfill(backfill_id="b", job="etl", state=jobs.Backfill.STATE_ACTIVE, running=1)
    getattr(made, "from").FromDatetime(first)
    made.to.FromDatetime(last)
    planned = jobs.BackfillJobResponse(backfill=made)
    planned.instants.add().FromDatetime(first)
    planned.omitted.add(run_id="r", state=common_pb2.RUN_STATE_SUCCEEDED, why="it has run")
    planned.omitted[0].scheduled_at.FromDatetime(last)
    member.say("BackfillJob", planned)
    member.say("GetBackfill", made)
    member.say("CancelBackfill", made)
    member.say("ListBackfills", jobs.ListBackfillsResponse(backfills=[made]))

    plan = await client.jobs.backfill(
        "etl", first, last, overlap="allow", max_parallel=3, priority="high", rerun="failed"
    )
    await client.jobs.backfill("etl", first, last, dry_run=True)
    got = await client.jobs.get_backfill("b")
    ended = await client.jobs.cancel_backfill("b")
    listed = [one async for one in client.jobs.backfills("etl")]

    assert (plan.instants, plan.omitted[0].state) == ((first,), "SUCCEEDED")
    assert plan.backfill == got == ended == listed[0]
    assert (got.first, got.last, got.state, got.ended) == (first, last, "ACTIVE", False)
    sent, dry = member.received("BackfillJob")
    assert getattr(sent, "from").ToDatetime(UTC) == first
    assert (sent.max_parallel, sent.priority, sent.overlap) == (3, 3, job_pb2.OVERLAP_ALLOW)
    assert sent.rerun == jobs.BackfillJobRequest.RERUN_FAILED
    assert sent.idempotency_key
    assert (dry.dry_run, dry.idempotency_key) == (True, "")
    with pytest.raises(InvalidArgument, match="rerun"):
        await client.jobs.backfill("etl", first, last, rerun="some")


async def test_runs_are_listed_by_their_trigger(client: Client, member: Scripted):
    member.say("ListRuns", runs.ListRunsResponse())
    assert [one async for one in client.runs.list(trigger="backfill", backfill="b")] == []
    [sent] = member.received("ListRuns")
    assert (sent.trigger, sent.backfill_id) == (run_pb2.Run.TRIGGER_BACKFILL, "b")
    with pytest.raises(InvalidArgument, match="trigger"):
        assert [one async for one in client.runs.list(trigger="nobody")] == []
