"""The OpenAPI document says what the routes take and what One JSON writes."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest

from schedd.api.calls import STREAMING, UNARY, methods
from schedd.api.request_bounds import MOST_COMING
from schedd.web.rest import openapi, rest
from schedd.web.rest.http_rules import Routes
from schedd.web.rest.rest import STATUSES
from schedkit.protojson import to_json
from schedproto.v1 import common_pb2, job_pb2, pool_service_pb2, run_pb2, run_service_pb2

THERE = {**UNARY, **STREAMING}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    routes = [one for one in Routes(methods()).all if one.method.full_name in THERE]
    made = openapi.document(
        routes, "1.2", statuses=STATUSES, streaming=STREAMING, words=rest.DOCUMENT_OPERATIONS
    )
    return dict(json.loads(json.dumps(made)))


def validator(document: dict[str, Any], name: str) -> jsonschema_rs.Draft202012Validator:
    """Of one schema of the document, its references resolved within it."""
    return jsonschema_rs.Draft202012Validator(
        {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    )


def test_each_call_has_one_operation(document: dict[str, Any]) -> None:
    ids = [one["operationId"] for verbs in document["paths"].values() for one in verbs.values()]
    assert len(ids) == len(set(ids))
    names = {name.rpartition(".")[2] for name in THERE}
    wanted = {name[0].lower() + name[1:] for name in names}
    assert set(ids) == wanted | {"getJobStatus", "submitTask", "watchRunsByEvents"}


def test_each_reference_resolves(document: dict[str, Any]) -> None:
    def refs(node: Any) -> list[str]:
        if isinstance(node, dict):
            own = [node["$ref"]] if "$ref" in node else []
            return own + [ref for value in node.values() for ref in refs(value)]
        return [ref for value in node for ref in refs(value)] if isinstance(node, list) else []

    for ref in set(refs(document)):
        _, components, kind, name = ref.split("/")
        assert name in document[components][kind], ref


def test_an_empty_and_a_full_message_match_the_schema(document: dict[str, Any]) -> None:
    full = job_pb2.Job(
        job_id="j",
        name="n",
        cron=["* * * * *"],
        labels={"a": "b"},
        require=[common_pb2.LabelMatch(key="disk", any_of=["ssd"])],
        shell=job_pb2.ShellAction(argv=["true"], success_codes=[0, 3]),
        overlap=job_pb2.OVERLAP_SKIP,
    )
    full.timeout.FromSeconds(90)
    full.at.GetCurrentTime()
    full.payload.json = '{"a": [1, null]}'
    run = run_pb2.Run(run_id="r", fencing_token=1 << 60, exit_code=0)
    run.started_at.GetCurrentTime()
    pool = pool_service_pb2.Pool(name="p")
    pool.rate.count, pool.rate.per.seconds = 100, 60
    for name, message in (
        ("Job", job_pb2.Job()),
        ("Job", full),
        ("Run", run_pb2.Run()),
        ("Run", run),
        ("Pool", pool),
    ):
        schema, written = validator(document, name), to_json(message)
        assert [error.message for error in schema.iter_errors(written)] == []
        bounded = {field for field in written if not schema.is_valid({**written, field: [1.5]})}
        assert bounded == written.keys() - {"payload"}, "the schema says what each of them is"
        for field in written:
            rest = {name: value for name, value in written.items() if name != field}
            assert not schema.is_valid(rest), f"the schema says that {field} is always there"


def test_a_schema_of_answers_lacks_no_key_and_one_of_requests_takes_no_other(
    document: dict[str, Any],
) -> None:
    answer = to_json(job_pb2.Job())
    del answer["paused"]
    assert not validator(document, "Job").is_valid(answer)
    written = validator(document, "Job.Input")
    assert written.is_valid({"name": "x", "cron": "* * * * *", "overlap": {"allow": 3}})
    assert written.is_valid({"cron": ["* * * * *"], "timeout": None, "require": {"a": ["b"]}})
    assert not written.is_valid({"colour": "red"})
    assert not written.is_valid({"priority": "URGENT"})
    assert not written.is_valid({"overlap": {"allow": 0}})


def test_a_new_job_is_accepted_in_both_forms(document: dict[str, Any]) -> None:
    operation = document["paths"]["/api/v1/jobs"]["post"]
    either = operation["requestBody"]["content"]["application/json"]["schema"]["anyOf"]
    assert either[0] == {"$ref": "#/components/schemas/Job.Input"}
    assert either[1]["required"] == ["name", "cron", "callback_url"]
    answers = operation["responses"]["201"]["content"]["application/json"]["schema"]["anyOf"]
    assert answers[1]["required"] == ["job_id", "next_fire_time"]


def parameters(document: dict[str, Any], path: str) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in document["paths"][path]["get"]["parameters"]}


def test_fields_that_a_call_needs_are_required(document: dict[str, Any]) -> None:
    asked = parameters(document, "/api/v1/cron:explain")
    assert {name for name, one in asked.items() if one.get("required")} == {"expression"}
    asked = parameters(document, "/api/v1/jobs/{job}:explain")
    assert {name for name, one in asked.items() if one.get("required")} == {"job", "at"}


def test_numbers_ids_and_namespaces_are_bounded_as_calls_bound_them(
    document: dict[str, Any],
) -> None:
    count = parameters(document, "/api/v1/cron:explain")["count"]["schema"]
    assert (count["minimum"], count["maximum"]) == (0, MOST_COMING)
    asked = parameters(document, "/api/v1/runs")
    assert asked["pageSize"]["schema"]["minimum"] == 0
    assert asked["backfillId"]["schema"]["format"] == "uuid"
    assert parameters(document, "/api/v1/runs/{run_id}")["run_id"]["schema"]["format"] == "uuid"
    namespace = jsonschema_rs.Draft202012Validator(asked["namespace"]["schema"])
    assert [namespace.is_valid(one) for one in ("", "billing", "no space")] == [True, True, False]
    schemas = document["components"]["schemas"]
    for name, field in (("Run", "runId"), ("Run", "jobId"), ("Job", "jobId")):
        assert schemas[name]["properties"][field]["format"] == "uuid"
    ids = schemas["DiscardDeadLettersRequest.Input"]["properties"]["runIds"]["items"]
    assert ids["format"] == "uuid"


def test_an_etag_in_a_body_or_a_parameter_isnt_empty(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for name in ("Job.Input", "PauseJobRequest.Input"):
        etag = jsonschema_rs.Draft202012Validator(schemas[name]["properties"]["etag"])
        assert [etag.is_valid(one) for one in ("", None, '"a-1"')] == [False, True, True]
    asked = document["paths"]["/api/v1/jobs/{job}"]["delete"]["parameters"]
    sent = [one["schema"] for one in asked if one["name"] in ("etag", "If-Match")]
    assert [one["minLength"] for one in sent] == [1, 1]


def test_a_sent_id_has_no_more_constraints_than_calls_check(document: dict[str, Any]) -> None:
    """A job is made with whatever stands there, so what was read of one can make another."""
    sent = document["components"]["schemas"]["Job.Input"]["properties"]
    assert sent["jobId"] == {"type": ["string", "null"]}
    ids = document["components"]["schemas"]["DiscardDeadLettersRequest.Input"]["properties"]
    assert ids["runIds"]["items"]["format"] == "uuid"


def test_a_resumed_stream_may_have_no_more_events(document: dict[str, Any]) -> None:
    logs = document["paths"]["/api/v1/runs/{run_id}/logs"]["get"]
    assert "204" in logs["responses"]
    assert {"Last-Event-ID", "resumeAfter"} <= {one["name"] for one in logs["parameters"]}


def test_the_document_names_the_ways_of_authentication(document: dict[str, Any]) -> None:
    schemes = document["components"]["securitySchemes"]
    assert (schemes["accessToken"]["type"], schemes["accessToken"]["scheme"]) == ("http", "bearer")
    assert schemes["certificate"]["type"] == "mutualTLS"
    asked = {name for way in document["security"] for name in way}
    assert asked == schemes.keys()
    assert {} in document["security"], "a member without TLS requires no credentials"


def test_a_stream_names_the_object_that_each_event_holds(document: dict[str, Any]) -> None:
    for path, name in (("/api/v1/events", "RunEvent"), ("/api/v1/runs/{run_id}/logs", "LogPiece")):
        content = document["paths"][path]["get"]["responses"]["200"]["content"]["text/event-stream"]
        data = content["schema"]["contentSchema"]
        assert data["anyOf"][0] == {"$ref": f"#/components/schemas/{name}"}
        schema = jsonschema_rs.Draft202012Validator(data | {"components": document["components"]})
        assert schema.is_valid({})
        assert not schema.is_valid({"heartbeatsMissing": 1})
    event = run_service_pb2.RunEvent(cursor="1-2e4")
    event.run.run_id = "r"
    validator(document, "RunEvent").validate(to_json(event))
