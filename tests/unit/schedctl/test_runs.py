"""Commands that submit, await, follow and list runs, and show their output."""

import asyncio
import json
import re
from datetime import UTC, datetime

import pytest

from schedctl import app
from schedproto.v1 import common_pb2, run_pb2
from schedproto.v1 import run_service_pb2 as runs
from support.answers import run_of
from support.scripted import Refusal


def events_of(*runs_: run_pb2.Run) -> list[runs.RunEvent]:
    return [runs.RunEvent(run=run) for run in runs_]


def piece(data: bytes, stream: int = run_pb2.LogPiece.STREAM_STDOUT) -> run_pb2.LogPiece:
    return run_pb2.LogPiece(stream=stream, data=data)


async def test_submit_and_wait_prints_the_output_of_the_job(ctl, member):
    member.say("SubmitRun", run_of(common_pb2.RUN_STATE_PENDING))
    member.say("WatchRuns", events_of(run_of(common_pb2.RUN_STATE_RUNNING), run_of(exit_code=0)))
    member.say("ReadLogs", [piece(b"hi\n"), piece(b"hm\n", run_pb2.LogPiece.STREAM_STDERR)])
    ended = await ctl("submit", "--wait", "--", "sh", "-c", "echo hi")
    assert (ended.code, ended.out) == (0, "hi\n")
    assert ended.err.startswith("hm\n✓ SUCCEEDED")
    assert len(ended.err.splitlines()) == 2
    assert list(member.received("SubmitRun")[0].spec.shell.argv) == ["sh", "-c", "echo hi"]


@pytest.mark.parametrize("words", [["submit"], ["job", "trigger", "etl"]])
async def test_followed_output_is_printed_once_as_it_arrives(ctl, member, words):
    member.say("SubmitRun", run_of(common_pb2.RUN_STATE_PENDING))
    member.say("TriggerJob", run_of(common_pb2.RUN_STATE_PENDING))
    member.say("WatchRuns", events_of(run_of(common_pb2.RUN_STATE_RUNNING), run_of(exit_code=0)))
    member.say("ReadLogs", [piece(b"hi\n"), piece(b"hm\n", run_pb2.LogPiece.STREAM_STDERR)])
    ended = await ctl(*words, "--follow", *(["--", "true"] if words == ["submit"] else []))
    assert (ended.code, ended.out) == (0, "hi\n")
    assert ended.err.startswith("hm\n✓ SUCCEEDED")
    assert [asked.follow for asked in member.received("ReadLogs")] == [True]


async def test_submit_and_wait_prints_the_result_of_a_handler(ctl, member):
    member.say("SubmitRun", run_of(common_pb2.RUN_STATE_PENDING))
    member.say("WatchRuns", events_of(run_of()))
    member.say("ReadLogs", [])
    value = common_pb2.Payload(json='{"rows":3}')
    member.say("GetRunResult", run_pb2.RunResult(run_id="r1", size=10, result=value))
    ended = await ctl("submit", "--wait", "--python", "etl:load")
    assert (ended.code, ended.data) == (0, {"rows": 3})


@pytest.mark.parametrize(("flags", "code"), [(["--wait"], 1), (["--exit-status"], 3)])
async def test_a_failed_run_exits_with_1_or_its_own_code(ctl, member, flags, code):
    failed = run_of(common_pb2.RUN_STATE_FAILED, exit_code=3)
    member.say("SubmitRun", failed)
    member.say("WatchRuns", events_of(failed))
    member.say("ReadLogs", [])
    assert (await ctl("submit", *flags, "--", "false")).code == code


async def test_submit_and_wait_as_json_prints_only_the_run(ctl, member):
    member.say("SubmitRun", run_of(common_pb2.RUN_STATE_PENDING))
    member.say("WatchRuns", events_of(run_of(exit_code=0)))
    ended = await ctl("submit", "--wait", "-o", "json", "--", "date")
    assert ended.data["state"] == "SUCCEEDED"
    assert ended.err == ""


async def test_waiting_reports_once_that_each_worker_has_rejected_the_run(ctl, member):
    answer = "It waits: 2 might run it, and each has refused it: no such limits."
    back = [run_of(common_pb2.RUN_STATE_PENDING, assignments=n) for n in (1, 2, 3)]
    said = runs.ExplainRunResponse(answer="It waits: all slots are taken.")
    refused = runs.ExplainRunResponse(answer=answer, refused=True)
    for words in (["submit", "--wait", "-o", "json", "--", "date"], ["run", "wait", "r1"]):
        member.say("SubmitRun", run_of(common_pb2.RUN_STATE_PENDING))
        member.say("WatchRuns", events_of(*back, run_of(exit_code=0)))
        member.say("ExplainRun", said, refused)
        ended = await ctl(*words)
        assert ended.code == 0
        assert ended.err.count(f"run r1: {answer} Details: schedctl run why r1\n") == 1
        assert "slots" not in ended.err


def failed(attempt: int, **fields: object) -> run_pb2.Run:
    """A run whose attempt has failed, to be tried again at noon."""
    run = run_of(common_pb2.RUN_STATE_RETRYING, exit_code=7, fencing_token=attempt, **fields)
    run.attempt = run.assignments = attempt
    run.retry_at.FromDatetime(datetime(2026, 1, 1, 12, tzinfo=UTC))
    return run


@pytest.mark.parametrize("words", ["submit --wait -- false", "run wait r1", "run wait r1 -o json"])
async def test_waiting_reports_each_failed_attempt_and_the_time_of_the_next(ctl, member, words):
    first = failed(1, error="Traceback\nValueError: no")
    running = run_of(common_pb2.RUN_STATE_RUNNING)
    member.say("SubmitRun", run_of(common_pb2.RUN_STATE_PENDING))
    member.say("WatchRuns", events_of(first, failed(1), running, failed(2), run_of(exit_code=0)))
    member.say("ReadLogs", [])
    ended = await ctl(*words.split())
    assert ended.code == 0, ended.err
    noon = "2026-01-01T12:00:00.000Z"
    assert ended.err.splitlines()[:2] == [
        f"↻ RETRYING run r1 (attempt 1, exit 7): … ValueError: no; attempt 2 at {noon}",
        f"↻ RETRYING run r1 (attempt 2, exit 7); attempt 3 at {noon}",
    ]
    assert ended.err.count("RETRYING") == 2
    assert "-o" not in words or ended.data["state"] == "SUCCEEDED"


async def test_get_shows_the_losses_of_a_run_and_their_bound(ctl, member):
    member.say("GetRun", run_of(common_pb2.RUN_STATE_RETRYING, losses=3, max_losses=10))
    shown = (await ctl("run", "get", "r1")).out
    assert re.search(r"^Worker lost: +3 of 10 times$", shown, re.MULTILINE)
    member.say("GetRun", run_of())
    assert "lost" not in (await ctl("run", "get", "r1")).out.lower()


async def test_waiting_for_a_run_without_a_rejected_dispatch_asks_no_explanation(ctl, member):
    waits = run_of(common_pb2.RUN_STATE_PENDING)
    failed = run_of(common_pb2.RUN_STATE_RETRYING, assignments=1)
    member.say("WatchRuns", events_of(waits, failed, run_of(exit_code=0)))
    assert (await ctl("run", "wait", "r1")).code == 0
    assert not member.received("ExplainRun")


async def test_submit_without_waiting_prints_the_run(ctl, member):
    member.say("SubmitRun", run_of(common_pb2.RUN_STATE_PENDING))
    ended = await ctl("submit", "--name", "n", "--delay", "5s", "-o", "name", "--", "date", "-u")
    assert (ended.code, ended.out) == (0, "r1\n")
    sent = member.received("SubmitRun")[0]
    assert (sent.name, sent.delay.seconds, list(sent.spec.shell.argv)) == (
        "n",
        5,
        ["date", "-u"],
    )


async def test_waiting_too_long_exits_with_7(ctl, member):
    running = run_of(common_pb2.RUN_STATE_RUNNING)
    member.say("WatchRuns", [*events_of(running), asyncio.Event()])
    ended = await ctl("run", "wait", "r1", "--timeout", "0.2")
    assert ended.code == 7
    assert "DEADLINE_EXCEEDED" in ended.err
    assert "run why r1" in ended.err


async def test_run_wait_prints_the_outcome(ctl, member):
    member.say("WatchRuns", events_of(run_of(common_pb2.RUN_STATE_FAILED, exit_code=2)))
    ended = await ctl("run", "wait", "r1")
    assert (ended.code, ended.out) == (1, "")
    assert "✗ FAILED" in ended.err


async def test_run_watch_prints_each_change(ctl, member):
    member.say("WatchRuns", events_of(run_of(common_pb2.RUN_STATE_RUNNING), run_of()))
    ended = await ctl("run", "watch", "r1", "-o", "jsonl")
    assert [json.loads(line)["state"] for line in ended.lines] == ["RUNNING", "SUCCEEDED"]
    assert (await ctl("run", "watch")).code == 2
    assert (await ctl("run", "watch", "r1", "--job", "etl")).code == 2


async def test_all_runs_of_a_job_are_watched_and_events_carry_their_cursor(ctl, member):
    events = [runs.RunEvent(cursor="1-2", run=run_of()), runs.RunEvent(cursor="1-3")]
    events.append(runs.RunEvent(cursor="1-3", gap=runs.RunEvent.Gap(why="too old")))
    member.say("WatchRuns", [*events, Refusal("PERMISSION_DENIED")])
    member.say("GetRun", run_of())
    ended = await ctl("run", "watch", "--job", "etl", "-o", "jsonl")
    assert [json.loads(line)["runId"] for line in ended.lines] == ["r1"]

    ended = await ctl("events", "--after", "1-1", "-o", "jsonl")
    assert [(json.loads(line)["cursor"], json.loads(line)["gap"]) for line in ended.lines] == [
        ("1-2", None),
        ("1-3", {"why": "too old", "scheduledBefore": None}),
    ]
    ended = await ctl("events", "--job", "etl")
    assert "SUCCEEDED" in ended.lines[0]
    assert ended.lines[1] == "… too old"
    asked = [(one.job, one.resume_after) for one in member.received("WatchRuns")]
    assert asked == [("etl", ""), ("", "1-1"), ("etl", "")]
    assert (await ctl("events", "--job", "")).code == 2


async def test_runs_are_filtered_by_the_cluster(ctl, member):
    member.say("ListRuns", runs.ListRunsResponse(runs=[run_of(fencing_token=1 << 60)]))
    ended = await ctl(
        *[
            "run",
            "list",
            "--job",
            "etl",
            "--state",
            "failed,running",
            "--worker",
            "w1",
            "-o",
            "json",
        ],
        "--after",
        "2026-01-01T00:00:00Z",
    )
    assert ended.data[0]["fencingToken"] == str(1 << 60)
    sent = member.received("ListRuns")[0]
    assert list(sent.states) == [5, 2]
    assert (sent.job, sent.worker, sent.scheduled_after.seconds) == ("etl", "w1", 1767225600)


async def test_an_unknown_state_gets_a_suggestion(ctl, member):
    ended = await ctl("run", "list", "--state", "fialed")
    assert ended.code == 2
    assert 'did you mean "failed"' in ended.err


async def test_all_views_of_a_run_are_printed(ctl, member):
    member.say("GetRun", run_of(worker="w1"))
    member.say(
        "ListAttempts",
        runs.ListAttemptsResponse(attempts=[run_pb2.Attempt(attempt=1, fencing_token=5)]),
    )
    check = runs.ExplainRunResponse.Check(question="paused?", answer="yes", remedy="resume it")
    member.say("ExplainRun", runs.ExplainRunResponse(answer="it is paused", checks=[check]))
    member.say("GetRunResult", run_pb2.RunResult(result=common_pb2.Payload(json='{"a":1}')))
    member.say("CancelRun", run_of(common_pb2.RUN_STATE_CANCELLED))
    member.say("ReadLogs", [piece(b"\xff\x00\n")])
    assert "w1" in (await ctl("run", "get", "r1")).out
    assert (await ctl("run", "get", "r1", "-o", "json")).data["worker"] == "w1"
    assert (await ctl("run", "attempts", "r1", "-o", "json")).data[0]["fencingToken"] == "5"
    why = await ctl("run", "why", "r1")
    assert "it is paused" in why.out
    assert "resume it" in why.out
    assert (await ctl("run", "why", "r1", "-o", "json")).data["answer"] == "it is paused"
    assert (await ctl("run", "result", "r1")).data == {"a": 1}
    assert (await ctl("run", "result", "r1", "-o", "json")).data["result"] == {"a": 1}
    member.say("GetRunResult", run_pb2.RunResult())
    member.say("GetRun", run_of(common_pb2.RUN_STATE_FAILED))
    none = await ctl("run", "result", "r1")
    assert (none.code, none.out, "no result: " in none.err) == (1, "", True)
    member.say("GetRun", run_of(common_pb2.RUN_STATE_SUCCEEDED))
    assert (await ctl("run", "result", "r1")).code == 0
    assert (await ctl("run", "cancel", "r1")).err == "cancelled r1\n"


async def test_logs_are_printed_byte_for_byte(member, capfdbinary, monkeypatch):
    monkeypatch.setenv("SCHEDCTL_ENDPOINTS", member.address)
    member.say("ReadLogs", [piece(b"\xff\x00\n")])
    await asyncio.to_thread(app.run, ["run", "logs", "r1"])
    assert capfdbinary.readouterr().out == b"\xff\x00\n"


async def test_each_line_of_a_log_may_have_its_time(ctl, member):
    early, late = piece(b"one\ntw"), piece(b"o\n\nthree")
    early.at.FromDatetime(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    late.at.FromDatetime(datetime(2026, 1, 2, 3, 4, 6, tzinfo=UTC))
    late.offset = len(early.data)
    member.say("ReadLogs", [early, late])
    done = await ctl("run", "logs", "r1", "--timestamps")
    assert done.out == (
        "2026-01-02T03:04:05.000Z one\n2026-01-02T03:04:05.000Z two\n"
        "2026-01-02T03:04:06.000Z \n2026-01-02T03:04:06.000Z three"
    )


async def test_an_attempt_begins_on_a_new_line_of_the_log(ctl, member):
    first, second, third = piece(b"tail"), piece(b"first\n"), piece(b"last")
    for token, each in enumerate((first, second, third), 1):
        each.fencing_token = token
        each.at.FromDatetime(datetime(2026, 1, 2, 3, 4, token, tzinfo=UTC))
    member.say("ReadLogs", [first, second, third])
    assert (await ctl("run", "logs", "-f", "r1")).out == "tail\nfirst\nlast"
    assert (await ctl("run", "logs", "-f", "r1", "--timestamps")).out == (
        "2026-01-02T03:04:01.000Z tail\n2026-01-02T03:04:02.000Z first\n"
        "2026-01-02T03:04:03.000Z last"
    )


@pytest.mark.parametrize("token", ["-1", "9" * 20])
async def test_an_impossible_token_is_a_usage_error(ctl, member, token):
    ended = await ctl("run", "logs", "r1", f"--token={token}")
    assert (ended.code, ended.out) == (2, "")
    assert "fencing_token" in ended.err
    assert not member.received("ReadLogs")


@pytest.mark.slow
async def test_waiting_reports_after_a_while_why_the_run_waits(ctl, member, monkeypatch):
    monkeypatch.setattr("schedctl.run_follower.EXPLAIN_AFTER", 0.05)
    asked = asyncio.Event()

    def explain(_request):
        asyncio.get_running_loop().call_later(1, asked.set)  # after the answer
        return runs.ExplainRunResponse(answer="It waits: no worker has the label gpu.")

    pending = run_of(common_pb2.RUN_STATE_PENDING)
    member.say("SubmitRun", pending)
    member.say("GetRun", pending)
    member.say("ExplainRun", explain)
    member.say("WatchRuns", [*events_of(pending), asked, *events_of(run_of(exit_code=0))])
    ended = await ctl("submit", "--wait", "-o", "json", "--", "date")
    assert (
        ended.err.count("It waits: no worker has the label gpu. Details: schedctl run why r1") == 1
    )
