"""Jobs that are defined and patched by flags: their requests and their usage errors."""

import shlex
from datetime import UTC, datetime

import pytest

from schedproto.v1 import job_pb2
from support.answers import ETL


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
    sent = member.received("CreateJob")[0].job
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
    sent = member.received("CreateJob")[0].job
    assert sent.WhichOneof("action") == action
    if action == "http":
        assert dict(sent.http.headers) == {"A": "b: c"}
    if action == "plugin":
        assert (sent.plugin.executor, sent.plugin.config.json) == ("sqlite", '{"rows": 3}')
    if action == "grpc":
        assert (sent.grpc.endpoint, sent.grpc.method) in {("shop:1", ""), ("shop:1", "a.B/C")}
        assert dict(sent.grpc.metadata) in ({}, {"A": "b: c"})


async def test_limits_are_flags_and_a_patch_changes_only_named_ones(ctl, member):
    member.say("CreateJob", lambda request: request.job)
    flags = ["--limit-memory", "64MiB", "--limit-processes", "20", "--limit-files", "256"]
    ended = await ctl("job", "create", "x", "--on-demand", *flags, "--", "true")
    assert ended.code == 0, ended.err
    made = member.received("CreateJob")[0].job
    limits = made.shell.limits
    assert (limits.memory_bytes, limits.processes, limits.files) == (64 << 20, 20, 256)
    member.say("GetJob", made)
    member.say("UpdateJob", lambda request: request.job)
    ended = await ctl("job", "patch", "x", "--limit-memory", "1GiB")
    assert ended.code == 0, ended.err
    limits = member.received("UpdateJob")[-1].job.shell.limits
    assert (limits.memory_bytes, limits.processes, limits.files) == (1 << 30, 20, 256)


async def test_limits_of_a_handlers_process_are_the_same_flags(ctl, member):
    member.say("CreateJob", lambda request: request.job)
    ended = await ctl(
        "job", "create", "x", "--on-demand", "--python", "h", "--limit-memory", "1GiB"
    )
    assert ended.code == 0, ended.err
    made = member.received("CreateJob")[0].job
    assert (made.python.limits.memory_bytes, made.WhichOneof("action")) == (1 << 30, "python")


async def test_a_plugin_action_has_its_name_and_its_input(ctl, member):
    for flags, problem in (
        (["--plugin-config", "{}"], "--plugin-config needs --plugin"),
        (["--plugin", "sqlite", "--plugin-config", "{"], "--plugin-config isn't valid JSON"),
    ):
        ended = await ctl("job", "create", "x", "--on-demand", *flags)
        assert ended.code == 2
        assert problem in ended.err
    assert member.received("CreateJob") == []


@pytest.mark.parametrize(
    ("flag", "problem"),
    [
        ("--limit-memory=64MB", "the size '64MB' isn't valid"),
        ("--limit-files=0", "--limit-files 0 isn't valid"),
        ("--limit-processes=many", "--limit-processes"),
    ],
)
async def test_an_invalid_limit_is_refused_by_its_flag(ctl, member, flag, problem):
    ended = await ctl("job", "create", "x", "--on-demand", flag, "--", "true")
    assert ended.code == 2
    assert problem in ended.err
    assert member.received("CreateJob") == []


async def test_at_and_anchor_are_local_times_without_an_offset(ctl, member):
    member.say("CreateJob", lambda request: request.job)
    flags = ("--at", "2099-12-24T18:00:00", "--tz", "Europe/Berlin", "--", "true")
    assert (await ctl("job", "create", "x", *flags)).code == 0
    sent = member.received("CreateJob")[-1].job
    assert (sent.local_at, sent.time_zone) == ("2099-12-24T18:00:00", "Europe/Berlin")
    assert not sent.HasField("at")
    flags = ("--every", "14d", "--anchor", "2026-01-06T09:00:00", "--tz", "Europe/Berlin")
    assert (await ctl("job", "create", "x", *flags, "--", "true")).code == 0
    assert member.received("CreateJob")[-1].job.anchor == "2026-01-06T09:00:00"
    assert (await ctl("job", "create", "x", "--start", "2026-01-06T09:00:00", "--", "t")).code == 2


async def test_a_job_whose_runs_end_each_other_is_created_with_a_warning(ctl, member):
    member.say("CreateJob", lambda request: request.job)
    flags = ("--every", "5m", "--overlap", "cancel_other", "--timeout", "10m", "--", "true")
    ended = await ctl("job", "create", "x", *flags)
    assert ended.code == 0
    assert "warning: each run cancels the previous run after 5 minutes" in ended.err
    assert "a run that takes longer than 5 minutes never finishes (timeout 10 minutes)" in ended.err


async def test_at_may_be_counted_from_now(ctl, member):
    member.say("CreateJob", lambda request: request.job)
    before = datetime.now(UTC)
    await ctl("job", "create", "x", "--at", "+3s", "--", "date")
    at = member.received("CreateJob")[0].job.at.ToDatetime(tzinfo=UTC)
    assert 3 <= (at - before).total_seconds() < 6


async def test_wrong_flags_are_reported_together_by_name_and_nothing_is_sent(ctl, member):
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
async def test_work_without_an_action_is_refused_by_the_client(ctl, member, words):
    ended = await ctl(*words)
    assert ended.code == 2
    assert "-- COMMAND" in ended.err
    assert member.requests == []


async def test_patch_sends_only_named_fields_and_shows_them_first(ctl, member):
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
    checked, stored = member.received("UpdateJob")
    assert (checked.validate_only, stored.validate_only, stored.etag) == (True, False, "e3")
    assert list(stored.update_mask.paths) == ["timeout"]
    assert ended.data["generation"] == 4


async def test_a_dry_patch_stores_nothing_and_exits_with_1(ctl, member):
    member.say("GetJob", ETL)
    member.say("UpdateJob", job_pb2.Job(name="etl", generation=4))
    ended = await ctl("job", "patch", "etl", "--cron", "0 3 * * *", "--dry-run")
    assert ended.code == 1
    assert [one.validate_only for one in member.received("UpdateJob")] == [True]


async def test_a_patched_back_off_keeps_the_other_retry_settings(ctl, member):
    before = job_pb2.Job(name="etl", retry=job_pb2.RetryPolicy(max_attempts=7))
    member.say("GetJob", before)
    member.say("UpdateJob", lambda request: request.job)
    await ctl("job", "patch", "etl", "--backoff", "5s")
    sent = member.received("UpdateJob")[-1].job
    assert (sent.retry.max_attempts, sent.retry.backoff.seconds) == (7, 5)


@pytest.mark.parametrize(
    ("flags", "call"),
    [
        (["--method", "shop.Shop/Open"], ("shop:1", "shop.Shop/Open", {"a": "b"})),
        (["--grpc", "shop:2"], ("shop:2", "shop.Shop/Price", {"a": "b"})),
        (["--metadata", "a: c"], ("shop:1", "shop.Shop/Price", {"a": "c"})),
    ],
)
async def test_a_patched_call_keeps_unnamed_fields(ctl, member, flags, call):
    before = job_pb2.GrpcAction(endpoint="shop:1", method="shop.Shop/Price", metadata={"a": "b"})
    member.say("GetJob", job_pb2.Job(name="open", grpc=before))
    member.say("UpdateJob", lambda request: request.job)
    ended = await ctl("job", "patch", "open", *flags)
    assert ended.code == 0, ended.err
    sent = member.received("UpdateJob")[-1].job.grpc
    assert (sent.endpoint, sent.method, dict(sent.metadata)) == call


HOOK = "https://ops.example.com/hook?a=b,c"


async def test_notifications_are_written_as_flags(ctl, member):
    member.say("CreateJob", lambda request: request.job)
    ended = await ctl(
        *("job", "create", "x", "--on-demand", "--on-failure", f"webhook={HOOK}"),
        *("--on-failure", "threshold=3", "--on-failure", "min_interval=1h"),
        *("--on-late", "email=a@b.example", "--on-late", "email=c@d.example"),
        *("--on-late", "command=/opt/page 'the ops'", "--", "true"),
    )
    assert ended.code == 0, ended.err
    sent = member.received("CreateJob")[-1].job
    notified = sent.on_failure
    assert (notified.webhook, notified.threshold, notified.min_interval.seconds) == (HOOK, 3, 3600)
    assert list(sent.on_late.email) == ["a@b.example", "c@d.example"]
    assert list(sent.on_late.command) == ["/opt/page", "the ops"]
    wrong = await ctl("job", "create", "x", "--on-demand", "--on-late", "webhok=x", "--", "true")
    assert (wrong.code, "did you mean" in wrong.err) == (2, True), wrong.err


async def test_a_patch_changes_named_notification_fields_and_an_empty_one_clears_them(ctl, member):
    member.say("GetJob", job_pb2.Job(name="x", on_failure=job_pb2.Notification(webhook=HOOK)))
    member.say("UpdateJob", lambda request: request.job)
    ended = await ctl("job", "patch", "x", "--on-failure", "threshold=3")
    assert ended.code == 0, ended.err
    sent = member.received("UpdateJob")[-1].job.on_failure
    assert (sent.webhook, sent.threshold) == (HOOK, 3)
    ended = await ctl("job", "patch", "x", "--on-failure", "")
    assert ended.code == 0, ended.err
    request = member.received("UpdateJob")[-1]
    assert list(request.update_mask.paths) == ["on_failure"]
    assert not request.job.HasField("on_failure")


async def test_two_actions_beside_each_other_are_refused(ctl, member):
    ended = await ctl("job", "create", "x", "--on-demand", "--grpc", "shop:1", "--http", "http://x")
    assert ended.code == 2
    assert "give one of them" in ended.err
    assert member.received("CreateJob") == []


async def test_a_patch_changes_only_named_nested_fields_and_zero_is_a_duration(ctl, member):
    catch_up = job_pb2.CatchUp(policy=job_pb2.CatchUp.POLICY_ALL)
    catch_up.window.seconds = 7200
    dst = job_pb2.DstPolicy(gap=job_pb2.DstPolicy.GAP_SKIP)
    member.say("GetJob", job_pb2.Job(name="etl", cron=["@daily"], catch_up=catch_up, dst=dst))
    member.say("UpdateJob", lambda request: request.job)
    flags = ["--catch-up-window", "0s", "--dst-overlap", "both", "--pause-after-failures", "3"]
    ended = await ctl("job", "patch", "etl", *flags)
    assert ended.code == 0, ended.err
    sent = member.received("UpdateJob")[-1]
    assert set(sent.update_mask.paths) == {"catch_up", "dst", "pause_after_failures"}
    job = sent.job
    assert job.catch_up.policy == job_pb2.CatchUp.POLICY_ALL
    assert job.catch_up.HasField("window")
    assert (job.catch_up.window.seconds, job.pause_after_failures) == (0, 3)
    assert job.dst == job_pb2.DstPolicy(
        gap=job_pb2.DstPolicy.GAP_SKIP, overlap=job_pb2.DstPolicy.REPEATED_BOTH
    )


async def test_flags_name_the_parents_of_a_job_and_a_patch_keeps_unnamed_fields(ctl, member):
    member.say("CreateJob", lambda request: request.job)
    flags = ["--after", "a, b", "--when", "any", "--with-output"]
    ended = await ctl("job", "create", "etl", *flags, "--", "true")
    assert ended.code == 0, ended.err
    made = member.received("CreateJob")[-1].job.after
    after = job_pb2.After(jobs=["a", "b"], when=job_pb2.After.WHEN_ANY, with_output=True)
    assert made == after
    assert "after a, b (any)" in ended.out
    member.say("GetJob", job_pb2.Job(name="etl", after=after))
    member.say("UpdateJob", lambda request: request.job)
    ended = await ctl("job", "patch", "etl", "--when", "failure", "--without-output")
    assert ended.code == 0, ended.err
    sent = member.received("UpdateJob")[-1]
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


async def test_a_command_without_its_dashes_gets_the_hint(ctl, member):
    ended = await ctl("job", "create", "x", "--every", "5s", "ls", "-l")
    assert ended.code == 2
    assert "put -- before the command" in ended.err
