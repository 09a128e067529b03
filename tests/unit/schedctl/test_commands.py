"""Each command against a real server that answers as told: what is asked, what is shown."""

import asyncio
import json
import shlex
from datetime import UTC, datetime

import pytest

from schedctl import app
from schedproto.v1 import cluster_service_pb2 as cluster
from schedproto.v1 import common_pb2, job_pb2, run_pb2
from schedproto.v1 import job_service_pb2 as jobs
from schedproto.v1 import run_service_pb2 as runs
from support.scripted import Refusal


def run_of(state: int = common_pb2.RUN_STATE_SUCCEEDED, **fields: object) -> run_pb2.Run:
    run = run_pb2.Run(run_id="r1", namespace="default", state=state, attempt=1, **fields)
    run.scheduled_at.FromDatetime(datetime(2026, 1, 1, tzinfo=UTC))
    return run


def says_of(*runs_: run_pb2.Run) -> list[runs.RunEvent]:
    return [runs.RunEvent(run=run) for run in runs_]


def piece(data: bytes, stream: int = run_pb2.LogPiece.STREAM_STDOUT) -> run_pb2.LogPiece:
    return run_pb2.LogPiece(stream=stream, data=data)


ETL = job_pb2.Job(
    job_id="id1", namespace="default", name="etl", cron=["0 2 * * *"], generation=3, etag="e3"
)
ETL.shell.argv.extend(["/bin/etl"])


async def test_a_job_is_created_from_flags(ctl, member):
    member.say("CreateJob", lambda request: request.job)
    ended = await ctl(
        *shlex.split("job create etl --cron"),
        "0 2 * * *",
        *[
            "--tz",
            "Europe/Riga",
            "--priority",
            "high",
            "--retry",
            "max_attempts=2,backoff=3s,retry_on=75+5xx",
            "--timeout",
            "5m",
        ],
        *[
            "--jitter",
            "10s",
            "--overlap",
            "allow:3",
            "--label",
            "team=data",
            "--env",
            "A=b",
            "-o",
            "json",
        ],
        "--payload",
        '{"a": 1.10}',
        "--",
        "sh",
        "-c",
        "echo hi",
    )
    assert ended.code == 0, ended.err
    sent = member.heard("CreateJob")[0].job
    assert list(sent.shell.argv) == ["sh", "-c", "echo hi"]
    assert (sent.name, sent.time_zone, sent.retry.max_attempts) == ("etl", "Europe/Riga", 2)
    assert list(sent.retry.retry_on) == ["75", "5xx"]
    assert (sent.timeout.seconds, sent.jitter.seconds, sent.retry.backoff.seconds) == (300, 10, 3)
    assert (sent.overlap, sent.overlap_limit) == (job_pb2.OVERLAP_ALLOW, 3)
    assert sent.payload.json == '{"a": 1.10}'
    assert dict(sent.labels) == {"team": "data"}
    assert dict(sent.shell.env) == {"A": "b"}
    assert ended.data["priority"] == "HIGH"


@pytest.mark.parametrize(
    ("flags", "action"),
    [
        (["--http", "http://x/", "--method", "PUT", "--header", "A: b: c"], "http"),
        (["--grpc", "shop:1"], "grpc"),
        (["--grpc", "shop:1", "--method", "a.B/C", "--metadata", "A: b: c"], "grpc"),
        (["--python", "greet"], "python"),
        (["--plugin", "sqlite", "--plugin-config", '{"rows": 3}'], "plugin"),
    ],
)
async def test_other_actions_are_flags(ctl, member, flags, action):
    member.say("CreateJob", lambda request: request.job)
    ended = await ctl("job", "create", "x", "--every", "30s", *flags)
    assert ended.code == 0, ended.err
    sent = member.heard("CreateJob")[0].job
    assert sent.WhichOneof("action") == action
    if action == "http":
        assert dict(sent.http.headers) == {"A": "b: c"}
    if action == "plugin":
        assert (sent.plugin.executor, sent.plugin.config.json) == ("sqlite", '{"rows": 3}')
    if action == "grpc":
        assert (sent.grpc.endpoint, sent.grpc.method) in {("shop:1", ""), ("shop:1", "a.B/C")}
        assert dict(sent.grpc.metadata) in ({}, {"A": "b: c"})


async def test_limits_are_flags_and_a_patch_changes_what_it_names(ctl, member):
    member.say("CreateJob", lambda request: request.job)
    flags = ["--limit-memory", "64MiB", "--limit-processes", "20", "--limit-files", "256"]
    ended = await ctl("job", "create", "x", "--on-demand", *flags, "--", "true")
    assert ended.code == 0, ended.err
    made = member.heard("CreateJob")[0].job
    limits = made.shell.limits
    assert (limits.memory_bytes, limits.processes, limits.files) == (64 << 20, 20, 256)
    member.say("GetJob", made)
    member.say("UpdateJob", lambda request: request.job)
    ended = await ctl("job", "patch", "x", "--limit-memory", "1GiB")
    assert ended.code == 0, ended.err
    limits = member.heard("UpdateJob")[-1].job.shell.limits
    assert (limits.memory_bytes, limits.processes, limits.files) == (1 << 30, 20, 256)


async def test_limits_of_a_handlers_process_are_the_same_flags(ctl, member):
    member.say("CreateJob", lambda request: request.job)
    ended = await ctl(
        "job", "create", "x", "--on-demand", "--python", "h", "--limit-memory", "1GiB"
    )
    assert ended.code == 0, ended.err
    made = member.heard("CreateJob")[0].job
    assert (made.python.limits.memory_bytes, made.WhichOneof("action")) == (1 << 30, "python")


async def test_what_an_executor_of_others_is_to_do_goes_with_its_name(ctl, member):
    for flags, told in (
        (["--plugin-config", "{}"], "--plugin-config goes with --plugin"),
        (["--plugin", "sqlite", "--plugin-config", "{"], "--plugin-config is no JSON"),
    ):
        ended = await ctl("job", "create", "x", "--on-demand", *flags)
        assert ended.code == 2
        assert told in ended.err
    assert member.heard("CreateJob") == []


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("--limit-memory=64MB", "'64MB' is no size"),
        ("--limit-files=0", "--limit-files: 0 is no limit"),
        ("--limit-processes=many", "--limit-processes"),
    ],
)
async def test_a_limit_that_is_none_is_refused_by_its_flag(ctl, member, flag, told):
    ended = await ctl("job", "create", "x", "--on-demand", flag, "--", "true")
    assert ended.code == 2
    assert told in ended.err
    assert member.heard("CreateJob") == []


async def test_at_may_be_counted_from_now(ctl, member):
    member.say("CreateJob", lambda request: request.job)
    before = datetime.now(UTC)
    await ctl("job", "create", "x", "--at", "+3s", "--", "date")
    at = member.heard("CreateJob")[0].job.at.ToDatetime(tzinfo=UTC)
    assert 3 <= (at - before).total_seconds() < 6


async def test_wrong_flags_are_told_at_once_by_their_names_and_nothing_is_sent(ctl, member):
    ended = await ctl(
        *[
            "job",
            "create",
            "x",
            "--every",
            "30",
            "--priority",
            "hihg",
            "--retry",
            "max_attempt=3",
            "--",
            "date",
        ]
    )
    assert ended.code == 2
    lines = ended.err.splitlines()
    assert len(lines) == 3
    assert "--priority" in lines[0]
    assert 'did you mean "high"' in lines[0]
    assert "--every" in lines[1]
    assert 'did you mean "max_attempts"' in lines[1]
    assert member.requests == []


@pytest.mark.parametrize("words", [["submit"], ["job", "create", "x", "--every", "5s"]])
async def test_work_without_anything_to_do_is_refused_here(ctl, member, words):
    ended = await ctl(*words)
    assert ended.code == 2
    assert "-- COMMAND" in ended.err
    assert member.requests == []


async def test_jobs_are_listed_in_every_form(ctl, member):
    member.say("ListJobs", jobs.ListJobsResponse(jobs=[ETL]))
    table = await ctl("job", "list")
    assert table.lines[0].split()[:3] == ["NAME", "SCHEDULE", "ACTION"]
    assert "0 2 * * *" in table.lines[1]
    assert "id1" not in table.out
    assert "id1" in (await ctl("job", "list", "-o", "wide")).out
    assert [one["name"] for one in (await ctl("job", "list", "-o", "json")).data] == ["etl"]
    assert json.loads((await ctl("-o", "jsonl", "job", "list")).lines[0])["jobId"] == "id1"
    assert (await ctl("job", "list", "-o", "name")).out == "etl\n"
    assert "job_id: id1" in (await ctl("job", "list", "-o", "yaml")).out
    assert len((await ctl("job", "list", "--no-headers")).lines) == 1


async def test_the_later_of_two_output_flags_holds(ctl, member):
    member.say("ListJobs", jobs.ListJobsResponse(jobs=[ETL]))
    assert (await ctl("-o", "json", "job", "list", "-o", "name")).out == "etl\n"


async def test_tables_end_at_fifty_and_programs_get_all(ctl, member):
    def page(request):
        count = min(request.page_size, 120)
        return jobs.ListJobsResponse(jobs=[job_pb2.Job(name=f"j{n}") for n in range(count)])

    member.say("ListJobs", page)
    assert len((await ctl("job", "list", "--no-headers")).lines) == 50
    assert len((await ctl("job", "list", "-o", "json")).data) == 120
    assert len((await ctl("job", "list", "-o", "jsonl", "--limit", "7")).lines) == 7


async def test_an_empty_list_is_an_empty_array(ctl, member):
    member.say("ListRuns", runs.ListRunsResponse())
    assert (await ctl("run", "list", "-o", "json")).data == []


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


async def test_patch_sends_only_what_is_named_and_shows_it_first(ctl, member):
    member.say("GetJob", ETL)

    def answer(request):
        job = job_pb2.Job()
        job.CopyFrom(ETL)
        job.timeout.seconds = 300
        job.generation = 4
        return job

    member.say("UpdateJob", answer)
    ended = await ctl("job", "patch", "etl", "--timeout", "5m", "-o", "json")
    assert ended.code == 0, ended.err
    assert "timeout: none → 300s" in ended.err
    checked, stored = member.heard("UpdateJob")
    assert (checked.validate_only, stored.validate_only, stored.etag) == (True, False, "e3")
    assert list(stored.update_mask.paths) == ["timeout"]
    assert ended.data["generation"] == 4


async def test_a_dry_patch_stores_nothing_and_says_so_with_1(ctl, member):
    member.say("GetJob", ETL)
    member.say("UpdateJob", job_pb2.Job(name="etl", generation=4))
    ended = await ctl("job", "patch", "etl", "--cron", "0 3 * * *", "--dry-run")
    assert ended.code == 1
    assert [one.validate_only for one in member.heard("UpdateJob")] == [True]


async def test_a_patched_back_off_keeps_the_other_retry_settings(ctl, member):
    before = job_pb2.Job(name="etl", retry=job_pb2.RetryPolicy(max_attempts=7))
    member.say("GetJob", before)
    member.say("UpdateJob", lambda request: request.job)
    await ctl("job", "patch", "etl", "--backoff", "5s")
    sent = member.heard("UpdateJob")[-1].job
    assert (sent.retry.max_attempts, sent.retry.backoff.seconds) == (7, 5)


@pytest.mark.parametrize(
    ("flags", "call"),
    [
        (["--method", "shop.Shop/Open"], ("shop:1", "shop.Shop/Open", {"a": "b"})),
        (["--grpc", "shop:2"], ("shop:2", "shop.Shop/Price", {"a": "b"})),
        (["--metadata", "a: c"], ("shop:1", "shop.Shop/Price", {"a": "c"})),
    ],
)
async def test_a_patched_call_keeps_what_isnt_named(ctl, member, flags, call):
    before = job_pb2.GrpcAction(endpoint="shop:1", method="shop.Shop/Price", metadata={"a": "b"})
    member.say("GetJob", job_pb2.Job(name="open", grpc=before))
    member.say("UpdateJob", lambda request: request.job)
    ended = await ctl("job", "patch", "open", *flags)
    assert ended.code == 0, ended.err
    sent = member.heard("UpdateJob")[-1].job.grpc
    assert (sent.endpoint, sent.method, dict(sent.metadata)) == call


HOOK = "https://ops.example.com/hook?a=b,c"


async def test_who_is_told_is_written_as_flags(ctl, member):
    member.say("CreateJob", lambda request: request.job)
    ended = await ctl(
        *("job", "create", "x", "--on-demand", "--on-failure", f"webhook={HOOK}"),
        *("--on-failure", "threshold=3", "--on-failure", "silence=1h"),
        *("--on-late", "email=a@b.example", "--on-late", "email=c@d.example"),
        *("--on-late", "command=/opt/page 'the ops'", "--", "true"),
    )
    assert ended.code == 0, ended.err
    sent = member.heard("CreateJob")[-1].job
    told = sent.on_failure
    assert (told.webhook, told.threshold, told.silence.seconds) == (HOOK, 3, 3600)
    assert list(sent.on_late.email) == ["a@b.example", "c@d.example"]
    assert list(sent.on_late.command) == ["/opt/page", "the ops"]
    wrong = await ctl("job", "create", "x", "--on-demand", "--on-late", "webhok=x", "--", "true")
    assert (wrong.code, "did you mean" in wrong.err) == (2, True), wrong.err


async def test_a_patch_changes_what_it_names_of_who_is_told_and_an_empty_one_clears_it(ctl, member):
    member.say("GetJob", job_pb2.Job(name="x", on_failure=job_pb2.Notification(webhook=HOOK)))
    member.say("UpdateJob", lambda request: request.job)
    ended = await ctl("job", "patch", "x", "--on-failure", "threshold=3")
    assert ended.code == 0, ended.err
    sent = member.heard("UpdateJob")[-1].job.on_failure
    assert (sent.webhook, sent.threshold) == (HOOK, 3)
    ended = await ctl("job", "patch", "x", "--on-failure", "")
    assert ended.code == 0, ended.err
    request = member.heard("UpdateJob")[-1]
    assert list(request.update_mask.paths) == ["on_failure"]
    assert not request.job.HasField("on_failure")


async def test_two_actions_beside_each_other_are_refused(ctl, member):
    ended = await ctl("job", "create", "x", "--on-demand", "--grpc", "shop:1", "--http", "http://x")
    assert ended.code == 2
    assert "give one of them" in ended.err
    assert member.heard("CreateJob") == []


async def test_of_what_holds_others_a_patch_changes_what_it_names_and_zero_is_a_length(ctl, member):
    catch_up = job_pb2.CatchUp(policy=job_pb2.CatchUp.POLICY_ALL)
    catch_up.window.seconds = 7200
    dst = job_pb2.DstPolicy(gap=job_pb2.DstPolicy.GAP_SKIP)
    member.say("GetJob", job_pb2.Job(name="etl", cron=["@daily"], catch_up=catch_up, dst=dst))
    member.say("UpdateJob", lambda request: request.job)
    flags = ["--catch-up-window", "0s", "--dst-overlap", "both", "--pause-after-failures", "3"]
    ended = await ctl("job", "patch", "etl", *flags)
    assert ended.code == 0, ended.err
    sent = member.heard("UpdateJob")[-1]
    assert set(sent.update_mask.paths) == {"catch_up", "dst", "pause_after_failures"}
    job = sent.job
    assert job.catch_up.policy == job_pb2.CatchUp.POLICY_ALL
    assert job.catch_up.HasField("window")
    assert (job.catch_up.window.seconds, job.pause_after_failures) == (0, 3)
    assert job.dst == job_pb2.DstPolicy(
        gap=job_pb2.DstPolicy.GAP_SKIP, overlap=job_pb2.DstPolicy.REPEATED_BOTH
    )


async def test_flags_say_after_whom_a_job_runs_and_a_patch_keeps_what_it_does_not_name(ctl, member):
    member.say("CreateJob", lambda request: request.job)
    flags = ["--after", "a, b", "--when", "any", "--with-output"]
    ended = await ctl("job", "create", "etl", *flags, "--", "true")
    assert ended.code == 0, ended.err
    made = member.heard("CreateJob")[-1].job.after
    after = job_pb2.After(jobs=["a", "b"], when=job_pb2.After.WHEN_ANY, with_output=True)
    assert made == after
    assert "after a, b (any)" in ended.out
    member.say("GetJob", job_pb2.Job(name="etl", after=after))
    member.say("UpdateJob", lambda request: request.job)
    ended = await ctl("job", "patch", "etl", "--when", "failure", "--without-output")
    assert ended.code == 0, ended.err
    sent = member.heard("UpdateJob")[-1]
    assert set(sent.update_mask.paths) == {"after.when", "after.with_output"}
    assert sent.job.after.when == job_pb2.After.WHEN_FAILURE
    assert not sent.job.after.with_output


async def test_a_change_is_shown_field_by_field(ctl, member):
    before = job_pb2.Job(name="etl", retry=job_pb2.RetryPolicy(max_attempts=7), labels={"a": "b"})
    member.say("GetJob", before)
    member.say("UpdateJob", lambda request: request.job)
    ended = await ctl("job", "patch", "etl", "--backoff", "5s", "--dry-run")
    assert "  retry.backoff: none → 5s" in ended.err.splitlines()
    assert not any("max_attempts" in line for line in ended.err.splitlines())


async def test_a_job_without_an_instant_to_come_is_done(ctl, member):
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


async def test_a_table_that_was_cut_says_so_and_how_to_get_the_rest(ctl, member):
    def page(count):
        return lambda request: runs.ListRunsResponse(
            runs=[run_of() for _ in range(min(count, request.page_size))]
        )

    member.say("ListRuns", page(51))
    ended = await ctl("run", "list", "--no-headers")
    assert len(ended.lines) == 50
    assert ended.err == "these are the first 50: --limit N shows more, -o json all\n"
    asked = await ctl("run", "list", "--no-headers", "--limit", "7")
    assert (len(asked.lines), asked.err) == (7, "")
    whole = await ctl("run", "list", "-o", "jsonl")
    assert (len(whole.lines), whole.err) == (51, "")
    member.say("ListRuns", page(50))
    just = await ctl("run", "list", "--no-headers")
    assert (len(just.lines), just.err) == (50, "")


async def test_a_command_without_its_dashes_gets_the_hint(ctl, member):
    ended = await ctl("job", "create", "x", "--every", "5s", "ls", "-l")
    assert ended.code == 2
    assert "put -- before the command" in ended.err


async def test_pause_resume_delete_next_trigger(ctl, member):
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
    told = await ctl("job", "next", "etl")
    assert told.err == (
        "etl is paused: disk is full; nothing of this runs while it is\n"
        "etl has no instant to come\n"
    )
    explained = jobs.ExplainInstantResponse(answer="It ran.", run=run_of())
    member.say("ExplainInstant", explained)
    ended = await ctl("job", "explain", "etl", "--at", "2026-01-05T12:00:00Z")
    assert ended.lines[0] == "It ran."
    assert ended.lines[2].startswith("r1 ")
    assert member.heard("ExplainInstant")[0].at.seconds == 1767614400
    member.say("ExplainInstant", jobs.ExplainInstantResponse(answer="No."))
    ended = await ctl("job", "explain", "etl", "--at", "2026-01-05T12:00:00Z", "-o", "json")
    assert ended.data == {"answer": "No.", "run": None, "backfilled": []}
    assert (await ctl("job", "delete", "etl")).err == "deleted etl\n"
    assert member.heard("PauseJob")[0].note == "why"
    assert member.heard("TriggerJob")[0].delay.seconds == 5
    assert member.heard("TriggerJob")[0].idempotency_key


async def test_submit_and_wait_prints_what_the_job_wrote(ctl, member):
    member.say("SubmitRun", run_of(common_pb2.RUN_STATE_PENDING))
    member.say("WatchRuns", says_of(run_of(common_pb2.RUN_STATE_RUNNING), run_of(exit_code=0)))
    member.say("ReadLogs", [piece(b"hi\n"), piece(b"hm\n", run_pb2.LogPiece.STREAM_STDERR)])
    ended = await ctl("submit", "--wait", "--", "sh", "-c", "echo hi")
    assert (ended.code, ended.out) == (0, "hi\n")
    assert ended.err.startswith("hm\n✓ SUCCEEDED")
    assert len(ended.err.splitlines()) == 2
    assert list(member.heard("SubmitRun")[0].spec.shell.argv) == ["sh", "-c", "echo hi"]


@pytest.mark.parametrize("words", [["submit"], ["job", "trigger", "etl"]])
async def test_what_is_followed_is_printed_once_as_it_comes(ctl, member, words):
    member.say("SubmitRun", run_of(common_pb2.RUN_STATE_PENDING))
    member.say("TriggerJob", run_of(common_pb2.RUN_STATE_PENDING))
    member.say("WatchRuns", says_of(run_of(common_pb2.RUN_STATE_RUNNING), run_of(exit_code=0)))
    member.say("ReadLogs", [piece(b"hi\n"), piece(b"hm\n", run_pb2.LogPiece.STREAM_STDERR)])
    ended = await ctl(*words, "--follow", *(["--", "true"] if words == ["submit"] else []))
    assert (ended.code, ended.out) == (0, "hi\n")
    assert ended.err.startswith("hm\n✓ SUCCEEDED")
    assert [asked.follow for asked in member.heard("ReadLogs")] == [True]


async def test_submit_and_wait_prints_what_a_handler_returned(ctl, member):
    member.say("SubmitRun", run_of(common_pb2.RUN_STATE_PENDING))
    member.say("WatchRuns", says_of(run_of()))
    member.say("ReadLogs", [])
    value = common_pb2.Payload(json='{"rows":3}')
    member.say("GetRunResult", run_pb2.RunResult(run_id="r1", size=10, result=value))
    ended = await ctl("submit", "--wait", "--python", "etl:load")
    assert (ended.code, ended.data) == (0, {"rows": 3})


@pytest.mark.parametrize(("flags", "code"), [(["--wait"], 1), (["--exit-status"], 3)])
async def test_a_failed_run_is_1_or_its_own_code(ctl, member, flags, code):
    failed = run_of(common_pb2.RUN_STATE_FAILED, exit_code=3)
    member.say("SubmitRun", failed)
    member.say("WatchRuns", says_of(failed))
    member.say("ReadLogs", [])
    assert (await ctl("submit", *flags, "--", "false")).code == code


async def test_submit_and_wait_as_json_is_the_run_alone(ctl, member):
    member.say("SubmitRun", run_of(common_pb2.RUN_STATE_PENDING))
    member.say("WatchRuns", says_of(run_of(exit_code=0)))
    ended = await ctl("submit", "--wait", "-o", "json", "--", "date")
    assert ended.data["state"] == "SUCCEEDED"
    assert ended.err == ""


async def test_who_waits_is_told_once_that_each_worker_has_refused(ctl, member):
    answer = "It waits: 2 might run it, and each has refused it: no such limits."
    back = [run_of(common_pb2.RUN_STATE_PENDING, assignments=n) for n in (1, 2, 3)]
    said = runs.ExplainRunResponse(answer="It waits: all slots are taken.")
    refused = runs.ExplainRunResponse(answer=answer, refused=True)
    for words in (["submit", "--wait", "-o", "json", "--", "date"], ["run", "wait", "r1"]):
        member.say("SubmitRun", run_of(common_pb2.RUN_STATE_PENDING))
        member.say("WatchRuns", says_of(*back, run_of(exit_code=0)))
        member.say("ExplainRun", said, refused)
        ended = await ctl(*words)
        assert ended.code == 0
        assert ended.err.count(f"run r1: {answer} schedctl run why r1\n") == 1
        assert "slots" not in ended.err


async def test_who_waits_for_what_was_never_handed_out_in_vain_asks_nothing(ctl, member):
    waits = run_of(common_pb2.RUN_STATE_PENDING)
    failed = run_of(common_pb2.RUN_STATE_RETRYING, assignments=1)
    member.say("WatchRuns", says_of(waits, failed, run_of(exit_code=0)))
    assert (await ctl("run", "wait", "r1")).code == 0
    assert not member.heard("ExplainRun")


async def test_submit_without_waiting_prints_the_run(ctl, member):
    member.say("SubmitRun", run_of(common_pb2.RUN_STATE_PENDING))
    ended = await ctl("submit", "--name", "n", "--delay", "5s", "-o", "name", "--", "date", "-u")
    assert (ended.code, ended.out) == (0, "r1\n")
    sent = member.heard("SubmitRun")[0]
    assert (sent.name, sent.delay.seconds, list(sent.spec.shell.argv)) == (
        "n",
        5,
        ["date", "-u"],
    )


async def test_waiting_too_long_is_7(ctl, member):
    running = run_of(common_pb2.RUN_STATE_RUNNING)
    member.say("WatchRuns", [*says_of(running), asyncio.Event()])
    ended = await ctl("run", "wait", "r1", "--timeout", "0.2")
    assert ended.code == 7
    assert "DEADLINE_EXCEEDED" in ended.err
    assert "run why r1" in ended.err


async def test_run_wait_tells_the_outcome(ctl, member):
    member.say("WatchRuns", says_of(run_of(common_pb2.RUN_STATE_FAILED, exit_code=2)))
    ended = await ctl("run", "wait", "r1")
    assert (ended.code, ended.out) == (1, "")
    assert "✗ FAILED" in ended.err


async def test_run_watch_tells_each_change(ctl, member):
    member.say("WatchRuns", says_of(run_of(common_pb2.RUN_STATE_RUNNING), run_of()))
    ended = await ctl("run", "watch", "r1", "-o", "jsonl")
    assert [json.loads(line)["state"] for line in ended.lines] == ["RUNNING", "SUCCEEDED"]
    assert (await ctl("run", "watch")).code == 2
    assert (await ctl("run", "watch", "r1", "--job", "etl")).code == 2


async def test_all_runs_of_a_job_are_watched_and_events_carry_their_cursor(ctl, member):
    told = [runs.RunEvent(cursor="1-2", run=run_of()), runs.RunEvent(cursor="1-3")]
    told.append(runs.RunEvent(cursor="1-3", gap=runs.RunEvent.Gap(why="too old")))
    member.say("WatchRuns", [*told, Refusal("PERMISSION_DENIED")])
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
    asked = [(one.job, one.resume_after) for one in member.heard("WatchRuns")]
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
    sent = member.heard("ListRuns")[0]
    assert list(sent.states) == [5, 2]
    assert (sent.job, sent.worker, sent.scheduled_after.seconds) == ("etl", "w1", 1767225600)


async def test_an_unknown_state_names_the_near_one(ctl, member):
    ended = await ctl("run", "list", "--state", "fialed")
    assert ended.code == 2
    assert 'did you mean "failed"' in ended.err


async def test_a_run_and_all_about_it(ctl, member):
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
    assert (none.code, none.out, "it returned nothing: " in none.err) == (1, "", True)
    member.say("GetRun", run_of(common_pb2.RUN_STATE_SUCCEEDED))
    assert (await ctl("run", "result", "r1")).code == 0
    assert (await ctl("run", "cancel", "r1")).err == "cancelled r1\n"


async def test_logs_are_passed_on_byte_for_byte(member, capfdbinary, monkeypatch):
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


async def test_an_attempt_begins_a_line_whatever_the_one_before_ended_with(ctl, member):
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
async def test_a_token_that_can_be_none_is_a_usage_error(ctl, member, token):
    ended = await ctl("run", "logs", "r1", f"--token={token}")
    assert (ended.code, ended.out) == (2, "")
    assert "fencing_token" in ended.err
    assert not member.heard("ReadLogs")


async def test_the_version_is_told_by_a_flag_too(ctl, member):
    assert (await ctl("--version")).out == (await ctl("version")).out


async def test_the_cluster_its_workers_audit_and_dead_letters(ctl, member):
    member.say("GetCluster", cluster.Cluster(leader="m1", shards=256, owned=255))
    leader = cluster.Member(name="m1", role=cluster.Member.ROLE_LEADER)
    member.say("ListMembers", cluster.ListMembersResponse(members=[leader]))
    member.say("ListShards", cluster.ListShardsResponse(shards=[cluster.Shard(shard=7)]))
    worker = cluster.Worker(name="w1", slots=16, labels={"disk": "ssd"})
    member.say("ListWorkers", cluster.ListWorkersResponse(workers=[worker]))
    member.say("GetWorker", worker)
    entry = cluster.AuditEntry(action="result", outcome="refused", reason="STALE")
    member.say("ListAudit", cluster.ListAuditResponse(entries=[entry]))
    letter = run_pb2.DeadLetter(run=run_of(common_pb2.RUN_STATE_FAILED), fingerprint="f1")
    member.say("ListDeadLetters", runs.ListDeadLettersResponse(dead_letters=[letter]))
    assert "255 of 256" in (await ctl("cluster", "status")).out
    assert (await ctl("cluster", "status", "-o", "json")).data["leader"] == "m1"
    assert (await ctl("cluster", "members", "-o", "json")).data[0]["role"] == "LEADER"
    assert (await ctl("cluster", "shards", "-o", "name")).out == "7\n"
    assert "disk=ssd" in (await ctl("worker", "list")).out
    member.say("GetCluster", cluster.Cluster(troubles=["what it says of members may be old"]))
    for listing in ("cluster members", "cluster shards", "worker list"):
        assert "trouble: what it says of members may be old" in (await ctl(*listing.split())).err
    assert "disk=ssd" in (await ctl("worker", "describe", "w1")).out
    audit = await ctl("audit", "list", "--action", "result", "--run", "r1", "-o", "json")
    assert (audit.data[0]["outcome"], audit.data[0]["reason"]) == ("refused", "STALE")
    assert member.heard("ListAudit")[0].run_id == "r1"
    assert "f1" in (await ctl("dlq", "list")).out


async def test_a_resume_of_a_job_that_is_not_paused_says_so(ctl, member):
    paused = job_pb2.Job()
    paused.CopyFrom(ETL)
    paused.paused = True
    member.say("ResumeJob", ETL)
    for before, said in (
        (paused, "resumed etl\n"),
        (ETL, "etl wasn't paused: there was nothing to resume\n"),
    ):
        member.say("GetJob", before)
        ended = await ctl("job", "resume", "etl")
        assert (ended.code, ended.err) == (0, said)


async def test_a_wrong_instant_to_come_is_told_both_forms(ctl, member):
    said = (await ctl("job", "pause", "etl", "--until", "bogus")).err
    assert "RFC 3339" in said
    assert "or from now, such as +3s" in said


async def test_a_misspelt_job_gets_the_near_name(ctl, member):
    member.say("GetJob", Refusal("NOT_FOUND", 'there is no job "elt"', "NO_SUCH_JOB"))
    member.say("ListJobs", jobs.ListJobsResponse(jobs=[ETL]))
    ended = await ctl("job", "get", "elt")
    assert ended.code == 3
    assert ended.err.splitlines() == [
        'error: there is no job "elt"',
        "  why: NOT_FOUND, NO_SUCH_JOB",
        '  try: did you mean "etl"?',
    ]


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("INVALID_ARGUMENT", 2),
        ("OUT_OF_RANGE", 2),
        ("UNIMPLEMENTED", 2),
        ("NOT_FOUND", 3),
        ("UNAUTHENTICATED", 4),
        ("PERMISSION_DENIED", 4),
        ("ALREADY_EXISTS", 5),
        ("ABORTED", 5),
        ("FAILED_PRECONDITION", 5),
        ("UNAVAILABLE", 6),
        ("RESOURCE_EXHAUSTED", 6),
        ("DEADLINE_EXCEEDED", 7),
        ("INTERNAL", 70),
        ("UNKNOWN", 70),
    ],
)
async def test_every_status_has_its_exit_code_and_three_lines(ctl, member, status, code):
    member.say("GetRun", Refusal(status, "no", remedy="do this", fields=[("f", "is wrong")]))
    ended = await ctl("run", "get", "r1", "--timeout", "1")
    assert ended.code == code
    assert ended.err.splitlines() == [
        "error: no",
        f"  why: {status}, SCRIPTED; f: is wrong",
        "  try: do this",
    ]


async def test_nobody_there_is_6(ctl, member):
    await member.stop()
    ended = await ctl("--timeout", "0.5", "cluster", "status")
    assert ended.code == 6
    assert len(ended.err.splitlines()) == 3


async def test_colours_only_where_asked_with_a_symbol_beside(ctl, member):
    member.say("ListRuns", runs.ListRunsResponse(runs=[run_of()]))
    plain = await ctl("run", "list")
    assert "\x1b" not in plain.out
    coloured = await ctl("run", "list", "--color", "always")
    assert "\x1b" in coloured.out
    assert "✓ SUCCEEDED" in coloured.out


async def test_times_are_shown_as_asked(ctl, member):
    member.say("ListRuns", runs.ListRunsResponse(runs=[run_of()]))
    assert "2026-01-01T00:00:00.000Z" in (await ctl("run", "list")).out
    assert " ago" in (await ctl("run", "list", "--time-format", "relative")).out
