"""Impossible requests are refused by the path of the field, before any other code reads them."""

from datetime import UTC, datetime, timedelta

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from schedd.api import calls
from schedd.api.definitions import validation
from schedd.api.definitions.actions import is_url
from schedd.api.errors import InvalidArgumentError
from schedd.api.jobs import jobs
from schedd.api.request_bounds import REQUEST, check_wellformed
from schedd.runtime import job_codec
from schedproto.v1 import job_pb2, job_service_pb2, run_service_pb2
from support.definitions import requested
from support.messages import messages, unknown_rows
from support.runs import NOW

HUGE = 1 << 62
BERLIN = "Europe/Berlin"


def job(**changes: object) -> job_pb2.Job:
    values = {"name": "j", "on_demand": True, "shell": job_pb2.ShellAction(argv=["true"])}
    return job_pb2.Job(**{**values, **changes})


def problems(message: Message) -> dict[str, str]:
    with pytest.raises(InvalidArgumentError) as refused:
        check_wellformed(message)
    return {each.field: each.problem for each in refused.value.violations}


@pytest.mark.parametrize("seconds", [HUGE, -HUGE, 400_000_000])
@pytest.mark.parametrize("field", ["timeout", "kill_after", "jitter", "every", "phase"])
def test_a_duration_of_more_than_ten_years_is_refused(field, seconds):
    request = job_service_pb2.CreateJobRequest(job=job(**{field: Duration(seconds=seconds)}))
    assert "out of range: must be from -3,653 days to 3,653 days" in problems(request)[field]


def test_durations_are_checked_at_any_depth():
    long = Duration(seconds=HUGE)
    wrong = job(
        retry=job_pb2.RetryPolicy(backoff=long, max=long), catch_up=job_pb2.CatchUp(window=long)
    )
    found = problems(job_service_pb2.UpdateJobRequest(job=wrong))
    assert set(found) == {"retry.backoff", "retry.max", "catch_up.window"}
    assert set(problems(job_service_pb2.TriggerJobRequest(delay=long))) == {"delay"}
    assert set(problems(run_service_pb2.SubmitRunRequest(delay=long))) == {"delay"}


@pytest.mark.parametrize(
    "stamp", [Timestamp(seconds=HUGE), Timestamp(seconds=-HUGE), Timestamp(nanos=-1)]
)
def test_an_impossible_instant_is_refused(stamp):
    assert set(problems(job(at=stamp))) == {"at"}
    assert set(problems(run_service_pb2.ListRunsRequest(scheduled_before=stamp))) == {
        "scheduled_before"
    }


@pytest.mark.parametrize("seconds", [-1, 253_402_300_799, 7_258_118_400])
def test_every_time_of_a_request_has_the_same_window_and_the_same_words(seconds):
    wrong = Timestamp(seconds=seconds)
    problem_text = "must be from 1970-01-01 up to 2200-01-01"
    found = problems(job(at=wrong, start=wrong, end=wrong, paused_until=wrong))
    assert set(found) == {"at", "start", "end", "paused_until"}
    assert all(problem_text in problem for problem in found.values())
    for request in (
        job_service_pb2.PauseJobRequest(until=wrong),
        run_service_pb2.DiscardDeadLettersRequest(until=wrong),
    ):
        assert problem_text in problems(request)["until"]
    check_wellformed(job(end=Timestamp(seconds=7_258_118_399)))


def test_every_field_of_every_call_has_bounds():
    inputs = [method.input_type for method in calls.methods()]
    assert [*unknown_rows(REQUEST.table, messages(*inputs))] == []


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("max_runs", job(max_runs=-1)),
        ("slots", job(slots=1_001)),
        ("retry.factor", job(retry=job_pb2.RetryPolicy(factor=0.5))),
        ("retry.jitter", job(retry=job_pb2.RetryPolicy(jitter=float("nan")))),
        ("namespace", job_service_pb2.GetJobRequest(namespace="n" * 1_001)),
        ("labels", job(labels={str(n): "" for n in range(1_001)})),
        ("run_ids", run_service_pb2.WatchRunsRequest(run_ids=["x"] * 20_001)),
        ("at_most", run_service_pb2.DiscardDeadLettersRequest(at_most=-1)),
        ("rate", run_service_pb2.RedriveDeadLettersRequest(rate=float("inf"))),
    ],
)
def test_a_value_out_of_its_bounds_is_named(field, request_):
    assert set(problems(request_)) == {field}


@pytest.mark.parametrize("field", ["overlap", "priority", "delivery", "on_lease_lost", "placement"])
def test_a_number_that_names_no_value_is_refused(field):
    assert "77 isn't a value of" in problems(job(**{field: 77}))[field]


def test_numbers_without_a_name_are_found_in_lists_and_at_any_depth():
    assert set(problems(run_service_pb2.ListRunsRequest(states=[1, 99]))) == {"states"}
    assert set(problems(job(shell=job_pb2.ShellAction(argv=["a"], stdin=9)))) == {"shell.stdin"}


def test_an_idempotency_key_fits_into_its_index():
    assert set(problems(job_service_pb2.TriggerJobRequest(idempotency_key="k" * 256))) == {
        "idempotency_key"
    }
    check_wellformed(job_service_pb2.TriggerJobRequest(idempotency_key="k" * 255))


async def test_every_call_checks_its_request_first():
    wrong = job_service_pb2.ListNextInstantsRequest(after=Timestamp(seconds=HUGE))
    with pytest.raises(InvalidArgumentError):
        await calls.UNARY["schedd.v1.JobService.ListNextInstants"](None, None, wrong)  # type: ignore[arg-type]  # none is looked at


def violations(wrong: job_pb2.Job) -> dict[str, str]:
    with pytest.raises(InvalidArgumentError) as refused:
        validation.check(requested(wrong), NOW)
    return {each.field: each.problem for each in refused.value.violations}


@pytest.mark.parametrize(
    "name", ["0123456789abcdef0123456789abcdef", "01234567-89ab-cdef-0123-456789abcdef"]
)
def test_a_name_that_would_be_read_as_an_id_is_refused(name):
    assert "must not look like an id" in violations(job(name=name))["name"]


def test_a_wrong_zone_is_refused_whatever_the_schedule():
    every = job(on_demand=False, every=Duration(seconds=60), time_zone="Europe/Rigga")
    assert "Europe/Riga" in violations(every)["time_zone"]


@pytest.mark.parametrize("when", [{"cron": ["0 9 * * *"]}, {"local_at": "2099-12-24T18:00:00"}])
def test_an_offset_as_a_zone_is_refused_with_the_zone_that_has_it(when):
    problem = violations(job(on_demand=False, time_zone="GMT+2", **when))["time_zone"]
    assert "Etc/GMT+2 means UTC−2; for UTC+2 write Etc/GMT-2, or a city" in problem


def test_a_zone_beside_every_is_refused_where_it_has_no_effect():
    every = job(on_demand=False, every=Duration(seconds=60), time_zone="Europe/Riga")
    assert "no effect with every" in violations(every)["time_zone"]
    every.exclude.cron.append("* 9 * * *")
    validation.check(requested(every), NOW)
    every.ClearField("exclude")
    every.anchor = "2026-01-06T09:00:00"
    validation.check(requested(every), NOW)
    every.phase.seconds = 3
    assert "combined with a phase" in violations(every)["anchor"]


@pytest.mark.parametrize(
    ("fields", "field", "problem"),
    [
        ({"local_at": "2099-12-24T18:00:00"}, "at", "time_zone is missing"),
        (
            {"local_at": "2099-03-29T02:30:00", "time_zone": "Europe/Berlin"},
            "at",
            " or 2099-03-29T03",
        ),
        (
            {"local_at": "2099-10-25T02:30", "time_zone": "Europe/Berlin"},
            "at",
            "+02:00 or 2099-10-",
        ),
        ({"local_at": "soon", "time_zone": "Europe/Berlin"}, "at", "isn't a local time"),
        ({"local_at": "2001-01-01T00:00", "time_zone": "UTC"}, "at", "more than 60 s in the past"),
        ({"anchor": "2026-01-06T09:00", "cron": ["0 9 * * *"]}, "anchor", "requires every"),
    ],
)
def test_a_local_time_that_isnt_one_instant_is_refused(fields, field, problem):
    assert problem in violations(job(on_demand=False, **fields))[field]


def test_a_local_at_is_stored_as_its_instant():
    wanted = job(on_demand=False, local_at="2099-12-24T18:00:00", time_zone="Europe/Berlin")
    validation.check(requested(wanted), NOW)
    spec = job_codec.spec_of(wanted)
    assert spec.at.ToDatetime(tzinfo=UTC) == datetime(2099, 12, 24, 17, tzinfo=UTC)
    assert not spec.local_at
    old = job_pb2.Job(cron=["0 9 * * *"], time_zone="Asia/Tokyo")
    edit = job_service_pb2.UpdateJobRequest(job=job_pb2.Job(local_at="2099-12-24T18:00:00"))
    edit.update_mask.paths.append("at")  # as forms say it
    edited = job_codec.with_instant(jobs.masked(old, edit))
    assert edited.at.ToDatetime(tzinfo=UTC) == datetime(2099, 12, 24, 9, tzinfo=UTC)
    assert not edited.cron


def test_definitions_that_earlier_members_would_misread_need_a_later_level():
    anchored = job_pb2.Job(time_zone="UTC", anchor="2026-01-06T09:00")
    anchored.every.seconds = 86400
    assert job_codec.spec_of(anchored).definition_version == 8
    assert job_codec.spec_of(job_pb2.Job(cron=["0 9 L-3 * *"])).definition_version == 8
    assert job_codec.spec_of(job_pb2.Job(cron=["0 9 L * *"])).definition_version == 1


def test_a_job_that_would_not_fit_into_a_frame_is_refused():
    script = job_pb2.ShellAction(script="#" * validation.MAX_JOB)
    assert "at most" in violations(job(shell=script))["shell"]


@pytest.mark.parametrize("pattern", ["(", "a{2000}", "(a{1000}){1000}", "(?=a)", "x" * 1001])
def test_a_pattern_that_cannot_be_compiled_is_a_violation(pattern):
    http = job_pb2.HttpAction(url="http://example.org", success_pattern=pattern)
    assert set(violations(job(http=http))) == {"http.success_pattern"}


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1",
        "http://h:99999/",
        "http://h:x/",
        "http://:80/",
        "http://127.0.0.1\\@example.com/",
        "http://exa mple.com/",
        "http://127.0.0.1%00.example.com/",
        "http://a..example.com/",
        "http://xn--/",
        f"http://{'a' * 64}.com/",
    ],
)
def test_an_invalid_url_is_a_violation(url):
    assert set(violations(job(http=job_pb2.HttpAction(url=url)))) == {"http.url"}


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:8080",
        "HTTP://localhost:8080",
        "Https://example.com/",
        "https://user:word@a_b.example.com./x y?q",
        "http://b\u00fccher.example/",
        "http://[::1]:80/",
        "http://[fe80::1%25lo]/",
        "http://xn--bcher-kva.example/",
    ],
)
def test_a_valid_url_is_not_a_violation(url):
    assert is_url(url)


@pytest.mark.parametrize(
    "headers",
    [
        {"X": "a\r\nY: b"},
        {"X Y": "a"},
        {"": "a"},
        {"content-length": "5"},
        {"Transfer-Encoding": "chunked"},
        {"schedd-run-id": "fake"},
        {"Accept": "a", "accept": "b"},
    ],
)
def test_an_invalid_header_is_a_violation(headers):
    http = job_pb2.HttpAction(url="http://example.org", headers=headers)
    assert set(violations(job(http=http))) == {"http.headers"}


@pytest.mark.parametrize("endpoint", ["", "shop", "http://shop:1", "grpcs://shop", "shop:0"])
def test_an_invalid_endpoint_is_a_violation(endpoint):
    assert set(violations(job(grpc=job_pb2.GrpcAction(endpoint=endpoint)))) == {"grpc.endpoint"}


def test_an_invalid_grpc_method_is_a_violation():
    grpc = job_pb2.GrpcAction(endpoint="shop:1", method="shop.Shop.Price")
    assert "package.Service/Method" in violations(job(grpc=grpc))["grpc.method"]


@pytest.mark.parametrize(
    "metadata",
    [
        {"x": "a\r\nb"},
        {"x": "é"},
        {"x y": "a"},
        {"": "a"},
        {":path": "/"},
        {"token-bin": "AA=="},
        {"Content-Type": "text/plain"},
        {"grpc-timeout": "1S"},
        {"Schedd-Run-Id": "fake"},
        {"te": "trailers"},
        {"Accept": "a", "accept": "b"},
    ],
)
def test_invalid_metadata_is_a_violation(metadata):
    grpc = job_pb2.GrpcAction(endpoint="shop:1", metadata=metadata)
    assert set(violations(job(grpc=grpc))) == {"grpc.metadata"}


def test_a_grpc_job_may_have_credentials():
    grpc = job_pb2.GrpcAction(
        endpoint="grpcs://shop.example:443",
        method="shop.v1.Shop/Price",
        metadata={"Authorization": "Bearer token", "traceparent": "00-0-0-00"},
    )
    validation.check(requested(job(grpc=grpc)), NOW)


def test_a_job_that_signs_has_no_signature_of_its_own_and_names_a_file():
    http = job_pb2.HttpAction(url="http://example.org", headers={"Webhook-Id": "mine"})
    validation.check(requested(job(http=http)), NOW)
    http.signing_key = "hook.key"
    assert set(violations(job(http=http))) == {"http.headers", "http.signing_key"}


@pytest.mark.parametrize("code", [-1, 256])
def test_an_impossible_exit_code_is_a_violation(code):
    shell = job_pb2.ShellAction(argv=["true"], success_codes=[0, 255, code])
    assert set(violations(job(shell=shell))) == {"shell.success_codes"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("umask", 0o1000),
        ("user", "0"),
        ("user", "../root"),
        ("user", "a" * 40),
        ("env_from", ["db.env"]),
        ("env_from", ["/etc/db"] * 21),
    ],
)
def test_an_invalid_user_umask_or_file_is_a_violation(field, value):
    shell = job_pb2.ShellAction(argv=["true"], **{field: value})
    assert set(violations(job(shell=shell))) == {f"shell.{field}"}


@pytest.mark.parametrize(("field", "value"), [("memory_bytes", 64), ("files", 3)])
def test_a_limit_that_leaves_no_program_anything_is_a_violation(field, value):
    limits = job_pb2.ShellAction.Limits(**{field: value})
    shell = job_pb2.ShellAction(argv=["true"], limits=limits)
    assert set(violations(job(shell=shell))) == {f"shell.limits.{field}"}


@pytest.mark.parametrize("name", ["", "A=B", "A B", "A\n", "\x1b"])
def test_an_invalid_variable_name_is_a_violation(name):
    shell = job_pb2.ShellAction(argv=["true"], env={name: "x"})
    assert set(violations(job(shell=shell))) == {"shell.env"}


def test_a_variable_reserved_for_facts_of_the_run_is_a_violation():
    """Such headers and metadata are violations too: the worker would overwrite them silently."""
    for name in ("SCHEDD_JOB", "SCHEDD_WHATEVER"):
        shell = job_pb2.ShellAction(argv=["true"], env={name: "x"})
        assert violations(job(shell=shell))["shell.env"] == (
            f"'{name}' is reserved: schedd sets all SCHEDD_… variables"
        )
    for name in ("SCHEDD", "MY_SCHEDD_JOB", "SCHEDCTL_ENDPOINTS"):
        validation.check(
            requested(job(shell=job_pb2.ShellAction(argv=["true"], env={name: "x"}))), NOW
        )


@pytest.mark.parametrize("cwd", ["work", "./work", "~/work"])
def test_a_relative_folder_is_a_violation(cwd):
    assert set(violations(job(shell=job_pb2.ShellAction(argv=["true"], cwd=cwd)))) == {"shell.cwd"}


@pytest.mark.parametrize("key", ["BAD KEY", "", "-a", "a\n", "a" * 129])
def test_an_invalid_label_key_is_a_violation(key):
    assert set(violations(job(labels={key: "x"}))) == {"labels"}


def test_labels_may_be_named_by_a_domain():
    validation.check(requested(job(labels={"example.com/Team_1": "any text, really"})), NOW)


@pytest.mark.parametrize("expression", ["0 9 * * *\n", "0 9\n* * *", "0 9 * *\x0b*"])
def test_an_expression_has_one_line(expression):
    wrong = job(on_demand=False, cron=["@daily", expression])
    assert "has an unprintable character" in violations(wrong)["cron"]


def test_an_expression_may_have_tabs():
    validation.check(requested(job(on_demand=False, cron=["0\t9 * * *"])), NOW)


def at(seconds: int) -> Timestamp:
    """Return a time so many seconds from now."""
    return Timestamp(seconds=int(NOW.timestamp()) + seconds)


@pytest.mark.parametrize(
    ("bounds", "field"),
    [
        ({"at": at(60), "start": at(61)}, "start"),
        ({"at": at(60), "end": at(59)}, "end"),
        ({"cron": ["@daily"], "end": at(1)}, "end"),
        ({"every": Duration(seconds=3600), "start": at(100), "end": at(101)}, "end"),
        ({"cron": ["@daily"], "start": at(9), "end": at(8)}, "end"),
    ],
)
def test_a_job_that_could_never_fire_is_refused_for_one_reason(bounds, field):
    with pytest.raises(InvalidArgumentError) as refused:
        validation.check(requested(job(on_demand=False, **bounds)), NOW)
    assert [each.field for each in refused.value.violations] == [field]


def test_an_instant_at_its_own_bounds_fires():
    validation.check(requested(job(on_demand=False, at=at(60), start=at(60), end=at(60))), NOW)


@pytest.mark.parametrize(
    "given",
    [
        {"start": at(1)},
        {"end": at(1)},
        {"jitter": Duration(seconds=1)},
        {"catch_up": job_pb2.CatchUp(window=Duration(seconds=1))},
    ],
)
def test_settings_of_instants_are_refused_on_demand(given):
    [(field, problem)] = violations(job(**given)).items()
    assert [field] == list(given)
    assert "has no effect with on_demand" in problem


def test_a_negative_jitter_is_reported_once_in_seconds():
    wrong = job(on_demand=False, cron=["@daily"], jitter=Duration(seconds=-1))
    with pytest.raises(
        InvalidArgumentError,
        match=r"^jitter: the jitter -1s is negative \(give a positive duration, for example 30s\)$",
    ):
        validation.check(requested(wrong), NOW)


def test_a_job_has_few_expressions():
    many = job_pb2.Job(name="j", cron=["@daily"] * 101, shell=job_pb2.ShellAction(argv=["true"]))
    assert violations(many) == {"cron": "has 101 expressions; at most 100 are allowed"}


def test_the_longest_allowed_durations_can_be_computed():
    longest = Duration(seconds=int(timedelta(days=3653).total_seconds()))
    fine = job(
        on_demand=False,
        at=Timestamp(seconds=7_000_000_000),
        jitter=longest,
        timeout=longest,
        catch_up=job_pb2.CatchUp(window=longest),
    )
    check_wellformed(fine)
    validation.check(requested(fine), NOW)


@pytest.mark.parametrize("method", ["GE T", "GET\r\nX: y", "É", "G" * 21])
def test_an_invalid_http_method_is_refused(method):
    http = job_pb2.HttpAction(url="http://x/", method=method)
    wrong = job_pb2.Job(name="j", on_demand=True, http=http)
    assert "HTTP method" in violations(wrong)["http.method"]


@pytest.mark.parametrize(
    ("field", "shell"),
    [
        ("argv", job_pb2.ShellAction(argv=["a", "b\0"])),
        ("env", job_pb2.ShellAction(argv=["a"], env={"A": "b\0"})),
        ("cwd", job_pb2.ShellAction(argv=["a"], cwd="/\0")),
    ],
)
def test_a_nul_is_refused_in_every_text(field, shell):
    request = job_service_pb2.CreateJobRequest(job=job(shell=shell))
    assert problems(request) == {f"shell.{field}": "holds a NUL character"}
