"""From what stands in a request to the message of its call."""

from __future__ import annotations

import re
from typing import Any

import pytest

from schedd.api import calls
from schedd.api.request_bounds import IDS
from schedd.web.rest.http_rules import RouteMatch, Routes
from schedd.web.rest.problems import RequestProblem
from schedd.web.rest.requests import message_of
from schedkit.protojson import FormErrors

ROUTES = Routes(calls.methods())


def message(
    verb: str,
    path: str,
    query: list[tuple[str, str]] | None = None,
    body: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
) -> Any:
    found = ROUTES.find(verb, path)
    assert isinstance(found, RouteMatch)
    return message_of(found, query or [], body, headers or {})


def test_a_body_that_is_a_field_fills_it_and_parameters_fill_the_rest() -> None:
    request = message(
        "POST",
        "/api/v1/jobs",
        [("validateOnly", "true"), ("request_id", "r1")],
        {"name": "etl", "cron": "0 2 * * *", "timeout": "2h"},
    )
    assert (request.job.name, list(request.job.cron)) == ("etl", ["0 2 * * *"])
    assert request.job.timeout.seconds == 7200
    assert request.validate_only
    assert request.request_id == "r1"


def test_a_path_and_a_whole_body_make_one_request() -> None:
    request = message("POST", "/api/v1/jobs/etl:pause", body={"note": "holiday"})
    assert (request.job, request.note) == ("etl", "holiday")


def test_a_body_may_repeat_the_path_but_not_differ_from_it() -> None:
    assert message("POST", "/api/v1/jobs/etl:pause", body={"job": "etl"}).job == "etl"
    with pytest.raises(RequestProblem) as refused:
        message("POST", "/api/v1/jobs/etl:pause", body={"job": "other"})
    assert refused.value.body["violations"] == [
        {"field": "job", "problem": "differs from the path"}
    ]


def test_lists_numbers_and_times_are_in_the_query() -> None:
    request = message(
        "GET",
        "/api/v1/runs",
        [
            ("states", "failed"),
            ("states", "RUNNING"),
            ("pageSize", "7"),
            ("scheduledAfter", "2026-01-01T00:00:00Z"),
        ],
    )
    assert [int(state) for state in request.states] == [5, 2]
    assert request.page_size == 7
    assert request.scheduled_after.seconds == 1767225600


def test_a_browser_that_reconnects_continues_from_its_header() -> None:
    """The browser requests its first address again, with its `resumeAfter`."""
    first = [("resumeAfter", "1-2e4"), ("job", "etl")]
    request = message("GET", "/api/v1/events", first, headers={"last-event-id": "1-2f0"})
    assert (request.resume_after, request.job) == ("1-2f0", "etl")
    assert message("GET", "/api/v1/events", first).resume_after == "1-2e4"
    empty = message("GET", "/api/v1/events", first, headers={"last-event-id": ""})
    assert empty.resume_after == "1-2e4"


def test_every_unknown_parameter_is_named() -> None:
    with pytest.raises(RequestProblem) as refused:
        message("GET", "/api/v1/runs", [("stat", "x"), ("sort", "y")])
    assert [one["field"] for one in refused.value.body["violations"]] == ["stat", "sort"]
    assert refused.value.body["status"] == 400


IDS_ASKED_BY = [
    (route.template, field.json_name)
    for route in ROUTES.all
    if route.verb == "GET"
    for field in route.method.input_type.fields
    if field.name in IDS and field.name not in route.variables
]
"""Each parameter whose format is `uuid`, as OpenAPI tells."""


def test_id_parameters_include_run_id_and_parent_run_id() -> None:
    asked = {("/api/v1/audit", "runId"), ("/api/v1/runs", "parentRunId")}
    assert asked <= {*IDS_ASKED_BY}


@pytest.mark.parametrize(("path", "name"), IDS_ASKED_BY)
def test_an_empty_id_in_the_query_is_refused_and_not_taken_as_none(path: str, name: str) -> None:
    """A caller that expects the entries of one run would get all."""
    concrete = re.sub(r"\{[a-z_]+\}", "x", path)
    snake = re.sub("([A-Z])", lambda found: f"_{found[1].lower()}", name)
    for said in {name, snake}:
        with pytest.raises(RequestProblem) as refused:
            message("GET", concrete, [(said, "")])
        problem = "is empty: give an id, or leave it out"
        assert refused.value.body["violations"] == [{"field": said, "problem": problem}]
        assert refused.value.body["status"] == 400
    message("GET", concrete)


@pytest.mark.parametrize(
    ("path", "query", "body", "field"),
    [
        ("/api/v1/jobs/etl:trigger", [], {"idempotencyKey": ""}, "idempotencyKey"),
        ("/api/v1/runs", [], {"name": "a", "idempotency_key": ""}, "idempotency_key"),
        ("/api/v1/jobs", [("idempotencyKey", "")], {"name": "a"}, "idempotencyKey"),
        (
            "/api/v1/runs:batchSubmit",
            [],
            {"requests": [{"idempotencyKey": "k"}, {"idempotencyKey": ""}]},
            "requests[1].idempotencyKey",
        ),
    ],
)
def test_an_empty_idempotency_key_is_rejected_in_body_and_header(
    path: str, query: list[tuple[str, str]], body: dict[str, Any], field: str
) -> None:
    """As that of the header is: who sends one believes to be safe."""
    with pytest.raises(RequestProblem) as refused:
        message("POST", path, query, body)
    problem = "is empty: give a key, or leave it out"
    assert refused.value.body["violations"] == [{"field": field, "problem": problem}]
    without = {name: value for name, value in body.items() if value != ""}
    message("POST", path, [], without | ({"requests": [{}]} if "requests" in body else {}))


@pytest.mark.parametrize(
    ("path", "name"),
    [("/api/v1/runs", "job"), ("/api/v1/runs", "worker"), ("/api/v1/dead-letters", "fingerprint")],
)
def test_an_empty_choice_in_the_query_is_refused_and_not_taken_as_none(
    path: str, name: str
) -> None:
    """A script's variable that is empty by mistake would give everything."""
    with pytest.raises(RequestProblem, match=f"{name}: is empty: give a value, or leave it out"):
        message("GET", path, [(name, "")])


def test_an_empty_namespace_is_the_usual_one_and_an_empty_page_token_the_first() -> None:
    asked = message("GET", "/api/v1/runs", [("namespace", ""), ("pageToken", ""), ("job", "x")])
    assert (asked.namespace, asked.page_token, asked.job) == ("", "", "x")


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/api/v1/dead-letters:discard", {"job": "bad", "fingerprint": ""}, "fingerprint"),
        ("/api/v1/dead-letters:redrive", {"fingerprint": "a", "job": ""}, "job"),
        ("/api/v1/cluster:transferLeader", {"member": ""}, "member"),
    ],
)
def test_a_selector_in_a_body_isnt_empty(path: str, body: dict[str, Any], field: str) -> None:
    """Else all of a job is discarded by who meant one of its groups."""
    with pytest.raises(RequestProblem, match=f"{field}: is empty: give a value, or leave it out"):
        message("POST", path, [], body)
    message("POST", path, [], {name: value for name, value in body.items() if value})


@pytest.mark.parametrize(
    ("verb", "path", "body", "field"),
    [
        ("PATCH", "/api/v1/jobs/etl", {"etag": "", "priority": "HIGH"}, "etag"),
        ("POST", "/api/v1/jobs/etl:pause", {"note": "x", "etag": ""}, "etag"),
        ("POST", "/api/v1/jobs", {"name": "etl", "etag": ""}, "etag"),
        (
            *("POST", "/api/v1/jobs:batchCreate"),
            {"requests": [{"job": {"name": "a"}}, {"job": {"name": "b", "etag": ""}}]},
            "requests[1].job.etag",
        ),
    ],
)
def test_an_empty_etag_in_a_body_is_refused_and_not_taken_as_none(
    verb: str, path: str, body: dict[str, Any], field: str
) -> None:
    """As that of `If-Match` and that of a parameter are: an edit would go over anybody's."""
    with pytest.raises(RequestProblem) as refused:
        message(verb, path, [], body)
    assert refused.value.body["status"] == 400
    problem = "is empty: give a value, or leave it out"
    assert refused.value.body["violations"] == [{"field": field, "problem": problem}]


def test_a_label_named_etag_may_be_empty() -> None:
    named = {"labels": {"etag": ""}, "payload": {"etag": ""}, "shell": {"env": {"etag": ""}}}
    made = message("POST", "/api/v1/jobs", [], {"name": "a", "etag": None} | named)
    assert dict(made.job.labels) == {"etag": ""}


def test_a_parameter_of_a_call_with_a_whole_body_belongs_into_it() -> None:
    with pytest.raises(RequestProblem, match="must be in the body, not in the address"):
        message("POST", "/api/v1/jobs/etl:pause", [("note", "x")], {})


@pytest.mark.parametrize(
    ("verb", "path"), [("PATCH", "/api/v1/jobs/etl"), ("POST", "/api/v1/jobs")]
)
def test_a_parameter_that_is_a_field_of_the_body_belongs_into_it(verb: str, path: str) -> None:
    with pytest.raises(
        RequestProblem,
        match="namespace: must be in the body, not in the address; sort: unknown parameter",
    ):
        message(verb, path, [("namespace", "x"), ("sort", "y")], {"labels": {}})


@pytest.mark.parametrize("second", ["job", "job.name", "job.name.x"])
def test_a_parameter_given_twice_is_refused(second: str) -> None:
    """Also one of which another says that it has parts."""
    for query in ([("job", "a"), (second, "a")], [(second, "b"), ("job", "a")]):
        with pytest.raises(RequestProblem, match="given twice"):
            message("GET", "/api/v1/runs", query)


def test_all_problems_of_a_body_are_reported_at_once() -> None:
    with pytest.raises(FormErrors) as errors:
        message("POST", "/api/v1/jobs", body={"nam": "x", "every": 5})
    assert [problem.where for problem in errors.value.problems] == ["nam", "every"]


def test_a_patch_changes_the_fields_that_its_body_names_and_a_null_clears() -> None:
    request = message("PATCH", "/api/v1/jobs/etl", body={"timeout": "5m", "labels": None})
    assert list(request.update_mask.paths) == ["timeout", "labels"]
    assert request.job.name == "etl"


def test_a_patch_may_name_its_fields_itself() -> None:
    request = message(
        "PATCH",
        "/api/v1/jobs/etl",
        [("updateMask", "retry.maxAttempts,timeout")],
        {"retry": {"maxAttempts": 3}},
    )
    assert list(request.update_mask.paths) == ["retry.max_attempts", "timeout"]


@pytest.mark.parametrize(
    ("mask", "body", "fields"),
    [
        ("priority", {"cron": "5 5 * * *"}, ["cron"]),
        ("priority", {"cron": None, "time_zone": None, "priority": "high"}, ["cron", "time_zone"]),
        ("retry.maxAttempts", {"retry": {"maxAttempts": 3, "max": "1m"}}, ["retry.max"]),
        ("retry.maxAttempts", {"retry": None}, ["retry"]),
        ("labels", {"labels": {"a": "b"}, "createdBy": "me"}, ["createdBy"]),
        ("labels.a", {"labels": {"a": "b"}}, ["labels"]),
        ("payload.json", {"payload": {"a": 1}}, ["payload.a"]),
    ],
)
def test_a_body_with_a_field_outside_its_mask_is_rejected(
    mask: str, body: dict[str, Any], fields: list[str]
) -> None:
    with pytest.raises(RequestProblem, match="isn't in updateMask") as refused:
        message("PATCH", "/api/v1/jobs/etl", [("updateMask", mask)], body)
    assert [one["field"] for one in refused.value.body["violations"]] == fields
    assert refused.value.body["status"] == 400


@pytest.mark.parametrize(
    ("mask", "body", "paths"),
    [
        ("retry", {"retry": {"maxAttempts": 3}}, ["retry"]),
        ("retry.maxAttempts,timeout", {"name": "etl", "jobId": "x"}, None),
        ("labels", {"labels": {"retry": "x"}, "etag": '"a"'}, None),
        ("env", {}, None),
        ("overlap", {"overlap": {"allow": 3}}, ["overlap", "overlap_limit"]),
        ("overlap", {"overlap": "skip"}, ["overlap"]),
        ("*", {"cron": "5 5 * * *", "createdBy": "me"}, ["*"]),
    ],
)
def test_a_mask_may_name_more_than_its_body(
    mask: str, body: dict[str, Any], paths: list[str] | None
) -> None:
    request = message("PATCH", "/api/v1/jobs/etl", [("updateMask", mask)], body)
    if paths:
        assert list(request.update_mask.paths) == paths


@pytest.mark.parametrize("body", [{}, {"name": "etl"}])
def test_a_patch_that_names_no_field_is_rejected_in_words_of_rest(body: dict[str, str]) -> None:
    with pytest.raises(RequestProblem, match="body has no field to change") as refused:
        message("PATCH", "/api/v1/jobs/etl", body=body)
    assert refused.value.body["reason"] == "BAD_UPDATE_MASK"
    assert "mask" not in refused.value.body["detail"]


def test_names_in_a_patch_identify_the_job_and_change_nothing() -> None:
    request = message("PATCH", "/api/v1/jobs/etl", body={"name": "etl", "priority": "high"})
    assert list(request.update_mask.paths) == ["priority"]
    with pytest.raises(RequestProblem, match=r"job\.name"):
        message("PATCH", "/api/v1/jobs/etl", body={"name": "renamed"})


def test_if_match_is_the_etag_and_a_star_matches_any() -> None:
    headers = {"if-match": '"abc-1"'}
    assert message("DELETE", "/api/v1/jobs/etl", headers=headers).etag == '"abc-1"'
    assert message("DELETE", "/api/v1/jobs/etl", headers={"if-match": "*"}).etag == ""
    assert message("POST", "/api/v1/jobs/etl:pause", body={}, headers=headers).etag == '"abc-1"'


def test_a_header_that_the_call_has_no_use_for_is_refused() -> None:
    with pytest.raises(RequestProblem, match="If-Match: not supported by this call"):
        message("POST", "/api/v1/jobs/etl:resume", body={}, headers={"if-match": '"a"'})


@pytest.mark.parametrize("given", ["", " ", ",", "abc-1", '"abc', '*, "abc-1"', 'w/"abc-1"'])
def test_an_if_match_that_names_no_tag_changes_nothing(given: str) -> None:
    with pytest.raises(RequestProblem, match=r"If-Match: the value must be") as refused:
        message("DELETE", "/api/v1/jobs/etl", headers={"if-match": given})
    assert refused.value.body["violations"][0]["field"] == "If-Match"


@pytest.mark.parametrize(
    "given", ['"a", "abc-1"', '"a","abc-1"', ', "a" ,, "abc-1" ,', 'W/"a","b"']
)
def test_an_if_match_may_name_several_tags(given: str) -> None:
    headers = {"if-match": given}
    assert message("DELETE", "/api/v1/jobs/etl", headers=headers).etag == given


@pytest.mark.parametrize("given", ["*", '"abc-1"', ""])
def test_a_call_that_changes_state_rejects_if_none_match(given: str) -> None:
    headers = {"if-none-match": given}
    for verb, path in (("DELETE", "/api/v1/jobs/etl"), ("PUT", "/api/v1/calendars/off")):
        with pytest.raises(RequestProblem, match="If-None-Match: not supported by this call"):
            message(verb, path, body={} if verb == "PUT" else None, headers=headers)
    assert message("GET", "/api/v1/jobs/etl", headers=headers).job == "etl"


def test_an_idempotency_key_may_be_a_header() -> None:
    headers = {"idempotency-key": "k1"}
    request = message("POST", "/api/v1/jobs/etl:trigger", body={}, headers=headers)
    assert request.idempotency_key == "k1"
