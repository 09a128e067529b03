"""Refusals as problem details."""

from __future__ import annotations

import json

import pytest

from schedd.api import errors
from schedd.api.errors import CallError, FieldViolation
from schedd.web.rest import problems
from schedkit.errors import OutcomeUnknown, Unavailable
from schedkit.protojson import FormErrors, Problem

REFUSALS = [one for one in vars(errors).values() if isinstance(one, type)]
CODES = {one.code for one in REFUSALS if issubclass(one, CallError)} - {"UNKNOWN"}


@pytest.mark.parametrize("code", sorted(CODES))
def test_every_code_of_a_refusal_has_a_status(code: str) -> None:
    status, title = problems.STATUSES[code]
    assert 400 <= status < 600
    assert title


def test_a_rejection_keeps_its_failure_reason_and_remedy() -> None:
    refused = errors.NotFoundError("there is no job 'x'", reason="NO_SUCH_JOB", remedy="look")
    assert problems.problem_of(refused) == {
        "type": "urn:schedd:problem:no-such-job",
        "title": "Not found",
        "status": 404,
        "detail": "there is no job 'x'",
        "reason": "NO_SUCH_JOB",
        "remedy": "look",
        "violations": [],
    }


def test_each_invalid_field_is_reported() -> None:
    wrong = errors.InvalidArgumentError(
        "two", reason="BAD", violations=[FieldViolation("cron[0]", "no")]
    )
    assert problems.problem_of(wrong)["violations"] == [{"field": "cron[0]", "problem": "no"}]
    form = FormErrors([Problem(("retry", "max"), "isn't a valid duration", "write 10m")])
    body = problems.of_form(form).body
    assert body["violations"] == [
        {"field": "retry.max", "problem": "isn't a valid duration (write 10m)"}
    ]


@pytest.mark.parametrize(
    ("field", "named"),
    [
        ("run_id", "runId"),
        ("time_zone", "timeZone"),
        ("job.retry.max_attempts", "job.retry.maxAttempts"),
        ("requests[3].job.time_zone", "requests[3].job.timeZone"),
        ("cron[0]", "cron[0]"),
        ("callback_url", "callback_url"),
    ],
)
def test_an_invalid_field_has_its_name_in_rest(field: str, named: str) -> None:
    wrong = [FieldViolation(field, "isn't time_zone")]
    body = problems.problem_of(
        errors.InvalidArgumentError(f"{field}: no", reason="BAD", violations=wrong)
    )
    assert body["violations"] == [{"field": named, "problem": "isn't time_zone"}]
    assert body["detail"] == f"{named}: no"


def test_names_given_by_people_stay_as_written() -> None:
    refused = errors.NotFoundError("there is no job 'time_zone'", reason="NO_SUCH_JOB")
    assert problems.problem_of(refused)["detail"] == "there is no job 'time_zone'"


def test_an_unavailable_dependency_answers_retry_after() -> None:
    answer = problems.problem_response(
        problems.problem_of(Unavailable("connection to 10.0.0.1 refused"))
    )
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.headers["content-type"] == "application/problem+json"
    assert "10.0.0.1" not in json.dumps(answer.body.decode()), "addresses stay inside"


def test_a_write_without_an_answer_is_an_unknown_outcome() -> None:
    """The write may have succeeded: a caller that takes it for "nothing was done" repeats it."""
    body = problems.problem_of(OutcomeUnknown("COMMIT was sent: it may stand"))
    assert (body["status"], body["reason"]) == (504, "OUTCOME_UNKNOWN")
