"""Commands that show and change jobs."""

import asyncio
from datetime import UTC, datetime

import pytest

from schedproto.v1 import common_pb2, job_pb2
from schedproto.v1 import job_service_pb2 as jobs
from schedproto.v1 import run_service_pb2 as runs
from support.answers import ETL, run_of
from support.scripted import Refusal


async def test_describe_shows_definition_next_and_latest(ctl, member):
    member.say("GetJob", ETL)
    instant = jobs.ListNextInstantsResponse.Instant()
    instant.scheduled_at.FromDatetime(datetime(2026, 1, 2, tzinfo=UTC))
    instant.due_at.FromDatetime(datetime(2026, 1, 2, tzinfo=UTC))
    member.say("ListNextInstants", jobs.ListNextInstantsResponse(instants=[instant]))
    member.say("ListRuns", runs.ListRunsResponse(runs=[run_of(job="etl")]))
    ended = await ctl("job", "describe", "etl")
    assert ended.code == 0, ended.err
    assert "/bin/etl" in ended.out
    assert "2026-01-02T00:00:00.000Z" in ended.out
    assert "SUCCEEDED" in ended.out


async def test_a_job_without_a_next_instant_is_done(ctl, member):
    fired = job_pb2.Job(name="fired")
    fired.at.FromSeconds(1)
    coming = job_pb2.Job(name="coming", cron=["@daily"])
    coming.next_run_at.FromSeconds(1)
    asked = job_pb2.Job(name="asked", on_demand=True)
    paused = job_pb2.Job(name="paused", cron=["@daily"], paused=True)
    member.say("ListJobs", jobs.ListJobsResponse(jobs=[fired, coming, asked, paused]))
    lines = (await ctl("job", "list", "--no-headers")).lines
    states = [next(w for w in line.split() if w in {"done", "active", "PAUSED"}) for line in lines]
    assert states == ["done", "active", "active", "PAUSED"]


async def test_job_commands_pause_resume_delete_and_trigger_a_job(ctl, member):
    member.say("PauseJob", ETL)
    member.say("ResumeJob", ETL)
    member.say("DeleteJob", jobs.DeleteJobResponse(deleted=True))
    member.say("TriggerJob", run_of(common_pb2.RUN_STATE_PENDING))
    member.say("ListNextInstants", jobs.ListNextInstantsResponse())
    assert (await ctl("job", "pause", "etl", "--note", "why")).err == "paused etl\n"
    assert (await ctl("job", "resume", "etl", "-o", "json")).data["name"] == "etl"
    assert (await ctl("job", "trigger", "etl", "-o", "name", "--delay", "5s")).out == "r1\n"
    member.say("GetJob", ETL)
    assert (await ctl("job", "next", "etl", "--count", "3", "-o", "json")).data == []
    member.say("GetJob", job_pb2.Job(name="etl", paused=True, pause_note="disk is full"))
    ended = await ctl("job", "next", "etl")
    assert ended.err == (
        "etl is paused: disk is full; none of these times runs while it is paused\n"
        "etl has no scheduled time in the future\n"
    )
    explained = jobs.ExplainInstantResponse(answer="It ran.", run=run_of())
    member.say("ExplainInstant", explained)
    ended = await ctl("job", "explain", "etl", "--at", "2026-01-05T12:00:00Z")
    assert ended.lines[0] == "It ran."
    assert ended.lines[2].startswith("r1 ")
    assert member.received("ExplainInstant")[0].at.seconds == 1767614400
    member.say("ExplainInstant", jobs.ExplainInstantResponse(answer="No."))
    ended = await ctl("job", "explain", "etl", "--at", "2026-01-05T12:00:00Z", "-o", "json")
    assert ended.data == {"answer": "No.", "run": None, "backfilled": []}
    assert (await ctl("job", "delete", "etl", "--note", "not read")).err == "deleted etl\n"
    assert [one.note for one in member.received("DeleteJob")] == ["not read"]
    assert member.received("PauseJob")[0].note == "why"
    assert member.received("TriggerJob")[0].delay.seconds == 5
    assert member.received("TriggerJob")[0].idempotency_key


async def test_a_resume_of_a_job_that_is_not_paused_says_so(ctl, member):
    paused = job_pb2.Job()
    paused.CopyFrom(ETL)
    paused.paused = True
    member.say("ResumeJob", ETL)
    for before, said in (
        (paused, "resumed etl\n"),
        (ETL, "etl wasn't paused; nothing changed\n"),
    ):
        member.say("GetJob", before)
        ended = await ctl("job", "resume", "etl")
        assert (ended.code, ended.err) == (0, said)


async def test_a_wrong_instant_error_names_both_forms(ctl, member):
    said = (await ctl("job", "pause", "etl", "--until", "bogus")).err
    assert "RFC 3339" in said
    assert "or from now, such as +3s" in said


@pytest.mark.slow
async def test_a_trigger_without_an_answer_shows_the_errors_of_the_members(ctl, member):
    async def hang(_request):
        await asyncio.Event().wait()

    away = Refusal("UNAVAILABLE", "the cluster can't reach its database", "DATABASE_AWAY")
    member.say("TriggerJob", away, hang)
    ended = await ctl("job", "trigger", "etl", "--timeout", "1s")
    assert ended.code == 7
    what, why, remedy = ended.err.splitlines()
    assert what == (
        f"error: the call to {member.address} timed out; the last try was rejected by"
        f" {member.address}: the cluster can't reach its database (DATABASE_AWAY)"
    )
    assert why == "  why: DEADLINE_EXCEEDED, NO_ANSWER"
    assert "check whether the change was made" in remedy


async def test_a_misspelt_job_gets_a_suggestion(ctl, member):
    member.say("GetJob", Refusal("NOT_FOUND", 'there is no job "elt"', "NO_SUCH_JOB"))
    member.say("ListJobs", jobs.ListJobsResponse(jobs=[ETL]))
    ended = await ctl("job", "get", "elt")
    assert ended.code == 3
    assert ended.err.splitlines() == [
        'error: there is no job "elt"',
        "  why: NOT_FOUND, NO_SUCH_JOB",
        '  try: did you mean "etl"?',
    ]
