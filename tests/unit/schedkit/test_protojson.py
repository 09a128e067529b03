"""The JSON form of messages, in both directions: one form for all interfaces."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from schedkit.protojson import FormErrors, PlainScalar, from_json, named_fields, standard, to_json
from schedproto.v1 import cluster_service_pb2, common_pb2, job_pb2, job_service_pb2, run_pb2
from schedproto.v1.pool_service_pb2 import Pool, Rate

Job = job_pb2.Job


def problems(obj: object, message_class: type = Job, **kwargs: bool) -> dict[str, str]:
    with pytest.raises(FormErrors) as caught:
        from_json(obj, message_class, **kwargs)
    return {one.where: f"{one.message}|{one.suggestion}" for one in caught.value.problems}


def test_a_run_has_every_key_without_regard_to_known_values():
    blank = to_json(run_pb2.Run())
    assert " ".join(list(blank)[:18]) == (
        "runId namespace job state reason priority scheduledAt dueAt startedAt finishedAt "
        "attempt assignments fencingToken worker exitCode latenessMs count scheduledUntil"
    )
    assert {key for key, value in blank.items() if value is not None} == {
        "attempt",
        "assignments",
        "count",
        "generation",
        "children",
        "parents",
        "losses",
        "maxLosses",
    }


def test_a_run_shows_its_values_in_readable_form():
    run = run_pb2.Run(
        state=common_pb2.RUN_STATE_SUCCEEDED,
        reason=common_pb2.REASON_TIMEOUT,
        priority=common_pb2.PRIORITY_HIGH,
        fencing_token=(1 << 62) + 1,
        exit_code=0,
        trigger=run_pb2.Run.TRIGGER_MANUAL,
    )
    run.scheduled_at.FromDatetime(datetime(2026, 1, 1, 0, 0, 0, 1999, tzinfo=UTC))
    said = to_json(run)
    assert said["state"] == "SUCCEEDED"
    assert said["reason"] == "TIMEOUT"
    assert said["priority"] == "HIGH"
    assert said["fencingToken"] == "4611686018427387905"
    assert said["exitCode"] == 0
    assert said["latenessMs"] is None
    assert said["trigger"] == "MANUAL"
    assert said["scheduledAt"] == "2026-01-01T00:00:00.001Z"


def test_nested_enums_lose_their_own_prefix():
    member = cluster_service_pb2.Member(
        role=cluster_service_pb2.Member.ROLE_LEADER, state=cluster_service_pb2.Member.STATE_LIVE
    )
    said = to_json(member)
    assert (said["role"], said["state"]) == ("LEADER", "LIVE")


def test_a_value_newer_than_this_code_stays_a_number():
    run = run_pb2.Run()
    run.MergeFromString(b"\x20\x63")
    assert to_json(run)["state"] == 99


def test_durations_are_seconds():
    job = from_json({"every": "1h30m", "jitter": "250ms", "timeout": "0.5s"}, Job)
    said = to_json(job)
    assert (said["every"], said["jitter"], said["timeout"]) == ("5400s", "0.25s", "0.5s")


def test_snake_case_is_the_form_of_manifests():
    said = to_json(Job(time_zone="Europe/Riga"), snake=True)
    assert said["time_zone"] == "Europe/Riga"
    assert "timeZone" not in said


@pytest.mark.parametrize(
    "value", [None, True, 0, 1.5, "text", [], {}, {"a": [1, {"b": None}]}, 12345678901234567890]
)
def test_a_json_payload_is_shown_as_the_value_itself(value):
    if value is None:
        job = Job(payload=common_pb2.Payload(json="null"))
    else:
        job = from_json({"payload": value}, Job)
    assert json.loads(job.payload.json) == value
    assert to_json(job)["payload"] == value


def test_raw_bytes_of_a_payload_are_marked():
    job = from_json({"payload": {"$base64": "/wA="}}, Job)
    assert job.payload.raw == b"\xff\x00"
    assert to_json(job)["payload"] == {"$base64": "/wA="}
    assert from_json({"payload": b"\xff\x00"}, Job) == job


def test_an_invalid_json_payload_is_shown_as_bytes():
    assert to_json(Job(payload=common_pb2.Payload(json="NaN")))["payload"] == {"$base64": "TmFO"}
    half = to_json(Job(payload=common_pb2.Payload(json=r'"\ud800"')))
    json.dumps(half, ensure_ascii=False).encode()  # stored data must not break lists


def test_a_whole_job_survives_a_round_trip():
    job = from_json(
        {
            "name": "etl",
            "labels": {"team": "data"},
            "cron": ["H 2 * * *", "@daily"],
            "timeZone": "Europe/Berlin",
            "start": "2026-01-31T09:00:00+01:00",
            "overlap": {"allow": 3},
            "dst": {"gap": "skip", "overlap": "both"},
            "catchUp": {"policy": "all", "window": "2h"},
            "priority": "high",
            "require": {"disk": "ssd", "region": ["eu", "us"]},
            "retry": {"max_attempts": 4, "backoff": "30s", "factor": 1.5},
            "onLeaseLost": "kill",
            "shell": {"argv": ["/bin/x"], "env": {"A": "b"}, "successCodes": [0, 3]},
            "payload": {"a": 1},
            "paused": True,
        },
        Job,
    )
    assert job.overlap == job_pb2.OVERLAP_ALLOW
    assert job.overlap_limit == 3
    assert [(m.key, list(m.any_of)) for m in job.require] == [
        ("disk", ["ssd"]),
        ("region", ["eu", "us"]),
    ]
    assert job.retry.HasField("factor")
    assert not job.retry.HasField("jitter")
    assert from_json(to_json(job), Job) == job
    assert from_json(to_json(job, snake=True), Job) == job
    assert from_json(json.loads(json.dumps(to_json(job))), Job) == job


def test_one_expression_may_be_written_without_a_list():
    assert list(from_json({"cron": "* * * * *"}, Job).cron) == ["* * * * *"]


def test_programs_may_pass_datetimes_and_timedeltas():
    at = datetime(2026, 1, 1, tzinfo=UTC)
    job = from_json({"at": at, "timeout": timedelta(seconds=1.5)}, Job)
    assert job.at.ToDatetime(tzinfo=UTC) == at
    assert to_json(job)["timeout"] == "1.5s"


@pytest.mark.parametrize("word", ["high", "HIGH", "High", "PRIORITY_HIGH", "priority-high"])
def test_an_enum_is_read_in_any_case_with_or_without_its_prefix(word):
    assert from_json({"priority": word}, Job).priority == common_pb2.PRIORITY_HIGH


def test_all_problems_are_reported_at_once_with_path_and_suggestion():
    reported = problems(
        {
            "crno": "x",
            "priority": "hihg",
            "timeout": 90,
            "every": "90",
            "at": "2026-01-01",
            "slots": "2",
            "onDemand": "yes",
            "labels": {"a": 1},
            "retry": {"maxAttempt": 4, "max_attempts": 1.5},
            "shell": {"argv": "ls", "successCodes": [0, "x"]},
            "exclude": [],
        }
    )
    assert reported["crno"] == 'unknown field|did you mean "cron"?'
    assert reported["priority"].startswith(
        'the value "hihg" isn\'t valid: use one of low, medium, high; did you mean "high"?'
    )
    assert "unit" in reported["timeout"]
    assert "needs a unit" in reported["every"]
    assert "RFC 3339" in reported["at"]
    assert reported["slots"].startswith("the value must be a whole number")
    assert reported["onDemand"].startswith("the value must be true or false")
    assert "quotes" in reported["labels.a"]
    assert reported["retry.maxAttempt"] == 'unknown field|did you mean "maxAttempts"?'
    assert reported["retry.max_attempts"].startswith("the value must be a whole number")
    assert reported["shell.argv"].startswith("the value must be a list")
    assert reported["shell.successCodes[1]"].startswith("the value must be a whole number")
    assert reported["exclude"].startswith("the value must be an object")


def test_suggestions_use_the_spelling_of_the_writer():
    assert problems({"time_zon": "UTC"})["time_zon"].endswith('"time_zone"?')
    assert problems({"timeZon": "UTC"})["timeZon"].endswith('"timeZone"?')
    assert problems({"timezone": "UTC"}, strings=True)["timezone"].endswith('"time_zone"?')


def test_snake_case_can_be_rejected():
    assert "time_zone" in problems({"time_zone": "UTC"}, snake=False)


def test_a_field_given_twice_or_beside_an_alternative_is_a_problem():
    assert "twice" in problems({"timeZone": "UTC", "time_zone": "UTC"})["time_zone"]
    rivals = problems({"shell": {"argv": ["x"]}, "http": {"url": "http://x"}})
    assert rivals["http"].startswith("the key can't be combined with shell")


def test_numbers_must_fit_their_field():
    assert "from" in problems({"slots": 1 << 40})["slots"]
    assert "from" in problems({"shell": {"umask": -1}})["shell.umask"]


def test_a_manifest_may_have_octal_numbers_as_permissions_are_written():
    read = from_json({"shell": {"umask": "0o027"}}, Job, strings=True)
    assert read.shell.umask == 0o027
    assert "whole number" in problems({"shell": {"umask": "0o027"}})["shell.umask"], "JSON"
    with pytest.raises(FormErrors, match="whole number"):
        from_json({"shell": {"umask": "0o80"}}, Job, strings=True)


def test_null_means_absent():
    assert from_json({"timeout": None, "shell": None, "name": "x"}, Job) == Job(name="x")


def test_an_empty_action_is_still_chosen():
    assert from_json({"shell": {}}, Job).WhichOneof("action") == "shell"


@pytest.mark.parametrize("long", ["9999999d", "315576000001s", timedelta(days=4_000_000)])
def test_a_duration_beyond_the_wire_format_is_a_problem(long):
    assert "too long" in problems({"timeout": long})["timeout"]


@pytest.mark.parametrize("instant", ["2026-02-30T00:00:00Z", "0001-01-01T00:00:00+14:00", 5, "now"])
def test_a_time_that_doesnt_exist_is_a_problem(instant):
    assert "isn't a valid time" in problems({"at": instant})["at"]


def messages(descriptor, depth=0):
    """Build any message of this type, as people may send it."""
    fields = {}
    for field in descriptor.fields:
        if depth > 2 and field.message_type is not None:
            continue
        one = single(field, depth)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            value = field.message_type.fields_by_name["value"]
            one = st.dictionaries(TEXT, single(value, depth), max_size=2)
        elif field.is_repeated:
            one = st.lists(one, max_size=2)
        fields[field.name] = one
    groups = [[field.name for field in group.fields] for group in descriptor.oneofs]
    rivals = [group for group in groups if len(group) > 1]

    @st.composite
    def built(draw):
        chosen = {draw(st.sampled_from(group)) for group in rivals}
        shut = {name for group in rivals for name in group} - chosen
        message = message_factory.GetMessageClass(descriptor)()
        for name in draw(st.lists(st.sampled_from(sorted(fields)), unique=True, max_size=8)):
            if name in shut:
                continue
            value, target = draw(fields[name]), getattr(message, name)
            if isinstance(value, dict):
                target.update(value)
            elif isinstance(value, list):
                target.extend(value)
            elif isinstance(value, Message):
                target.SetInParent()
                target.CopyFrom(value)
            else:
                setattr(message, name, value)
        return message

    return built()


TEXT = st.text(min_size=1, max_size=5)
TYPES = {
    FieldDescriptor.TYPE_STRING: TEXT,
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=5),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_DOUBLE: st.floats(allow_nan=False, allow_infinity=False),
    FieldDescriptor.TYPE_INT32: st.integers(-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.TYPE_INT64: st.integers(0, (1 << 63) - 1),
    FieldDescriptor.TYPE_UINT32: st.integers(0, (1 << 32) - 1),
    FieldDescriptor.TYPE_UINT64: st.integers(0, (1 << 64) - 1),
}
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


def payload(value):
    if isinstance(value, bytes):
        return common_pb2.Payload(raw=value)
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return common_pb2.Payload(json=text)


SPECIAL = {
    "google.protobuf.Timestamp": st.integers(0, 4 * 10**12).map(
        lambda ms: Timestamp(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)
    ),
    "google.protobuf.Duration": st.integers(0, 10**15).map(
        lambda ns: Duration(seconds=ns // 10**9, nanos=ns % 10**9)
    ),
    "schedd.v1.Payload": (st.binary(max_size=5) | JSON.filter(lambda v: v is not None)).map(
        payload
    ),
    "schedd.v1.Rate": st.builds(
        lambda count, ms: Rate(
            count=count, per=Duration(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)
        ),
        st.integers(1, 10_000),
        st.integers(1, 86_400_000),
    ),
    "schedd.v1.LabelMatch": st.builds(
        lambda key, values: common_pb2.LabelMatch(key=key, any_of=values),
        st.uuids().map(str),
        st.lists(TEXT, min_size=1, max_size=2),
    ),
}


def single(field, depth):
    if field.enum_type is not None:
        return st.sampled_from([one.number for one in field.enum_type.values if one.number])
    if field.message_type is None:
        return TYPES[field.type]
    if field.message_type.full_name in SPECIAL:
        return SPECIAL[field.message_type.full_name]
    return messages(field.message_type, depth + 1)


@pytest.mark.slow
@pytest.mark.parametrize("snake", [False, True])
@given(data=st.data())
def test_every_message_survives_a_round_trip(snake, data):
    message_class = data.draw(st.sampled_from([Job, run_pb2.Run, cluster_service_pb2.Worker, Pool]))
    message = data.draw(messages(message_class.DESCRIPTOR))
    shown = json.loads(json.dumps(to_json(message, snake=snake)))
    assert from_json(shown, message_class) == message
    assert len(shown) == len(message_class.DESCRIPTOR.fields)


def test_a_rate_is_a_text_with_a_whole_count():
    pool = from_json({"name": "p", "rate": "100/m"}, Pool)
    assert pool.rate == Rate(count=100, per=Duration(seconds=60))
    assert to_json(pool)["rate"] == "100/m"
    assert to_json(Pool())["rate"] is None
    assert "such as 100/s" in problems({"rate": 100}, Pool)["rate"]
    assert "instead of 2.5/s, write 5/2s" in problems({"rate": "2.5/m"}, Pool)["rate"]
    assert "must be from 1 to" in problems({"rate": "5000000000/m"}, Pool)["rate"]


def test_an_invalid_rate_is_shown():
    backwards = Pool(rate=Rate(count=1, per=Duration(seconds=-5)))
    assert to_json(backwards)["rate"] == "1/-5s"


def test_a_root_that_is_no_object_is_a_problem():
    assert list(problems([1])) == [""]


def test_a_token_is_read_from_its_decimal_string():
    token = str((1 << 62) + 1)
    assert from_json({"fencingToken": token}, run_pb2.Run).fencing_token == int(token)


def test_strings_become_the_types_of_the_model():
    job = from_json(
        {"slots": "2", "on_demand": "true", "retry": {"factor": "1.5", "max_attempts": "3"}},
        Job,
        strings=True,
    )
    assert (job.slots, job.on_demand, job.retry.factor) == (2, True, 1.5)


@pytest.mark.parametrize("word", ["yes", "on", "True", "1"])
def test_strings_that_only_look_like_true_are_refused(word):
    assert "true or false" in problems({"on_demand": word}, strings=True)["on_demand"]


@pytest.mark.parametrize("word", ["010", "1_000", "0x1f", "1.0", "+1", ""])
def test_strings_that_only_look_like_numbers_are_refused(word):
    assert "whole number" in problems({"slots": word}, strings=True)["slots"]


def test_a_payload_without_types_takes_json_literals_where_they_are_plain():
    job = from_json(
        {
            "payload": {
                "a": PlainScalar("5"),
                "b": "5",
                "c": [
                    PlainScalar("true"),
                    PlainScalar("yes"),
                    PlainScalar("~"),
                    PlainScalar("010"),
                ],
            }
        },
        Job,
        strings=True,
    )
    assert json.loads(job.payload.json) == {"a": 5, "b": "5", "c": [True, "yes", None, "010"]}


@pytest.mark.parametrize("word", [".nan", ".NaN", ".inf", "-.Inf", "NaN", "Infinity"])
def test_a_payload_without_types_rejects_numbers_that_json_lacks(word):
    reported = problems({"payload": {"a": PlainScalar(word)}}, strings=True)
    assert "JSON" in reported["payload"]
    quoted = from_json({"payload": {"a": word}}, Job, strings=True)
    assert json.loads(quoted.payload.json) == {"a": word}


def test_a_mask_names_the_fields_that_were_written():
    named = named_fields({"timeZone": "UTC", "timeout": None, "overlap": "skip", "what": 1}, Job)
    assert named == ["time_zone", "timeout", "overlap", "overlap_limit"]


def test_masks_are_written_as_lists():
    request = job_service_pb2.UpdateJobRequest()
    request.update_mask.paths.append("*")
    assert to_json(request)["updateMask"] == ["*"]


def test_only_values_outside_of_strings_are_found():
    """A string without an end must not be scanned again from each quote in it."""
    many = standard.MOST_VALUES + 1
    for harmless in ('"' + ",[{" * many + '"', '"' + '\\",' * many, '"' + '\\",' * many + "\\"):
        standard.check_width(harmless)
    for wide in ("[" + '"a,\\"",' * many, "[" * (2 * many)):
        with pytest.raises(standard.TooMany):
            standard.check_width(wide)
