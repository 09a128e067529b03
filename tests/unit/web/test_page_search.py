"""The words that runs are searched by."""

from __future__ import annotations

import pytest

from schedd.api.errors import InvalidArgumentError
from schedd.web.pages.runs.runs import request_of, with_word
from schedproto.v1 import common_pb2, run_pb2, run_service_pb2


def test_each_search_term_narrows_the_search() -> None:
    request = request_of("state:failed,retrying job:etl worker:w3 trigger:manual")
    assert list(request.states) == [
        common_pb2.RUN_STATE_FAILED,
        common_pb2.RUN_STATE_RETRYING,
    ]
    assert (request.job, request.worker) == ("etl", "w3")
    assert request.trigger == run_pb2.Run.TRIGGER_MANUAL


def test_a_word_without_a_colon_is_a_job_and_nothing_is_all() -> None:
    assert request_of("etl").job == "etl"
    assert request_of("") == run_service_pb2.ListRunsRequest()


def test_states_are_known_by_the_words_that_pages_show() -> None:
    assert list(request_of("state:waiting").states) == [common_pb2.RUN_STATE_PENDING]
    assert list(request_of("state:PENDING").states) == [common_pb2.RUN_STATE_PENDING]


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("2026-03-04", "2026-03-04T00:00:00"),
        ("2026-03-04T12:30", "2026-03-04T12:30:00"),
        ("2026-03-04T12:30:00+02:00", "2026-03-04T10:30:00"),
        ("2026-03-04T12:30:00.000Z", "2026-03-04T12:30:00"),
    ],
)
def test_times_without_an_offset_are_utc(text: str, iso: str) -> None:
    assert request_of(f"after:{text}").scheduled_after.ToDatetime().isoformat() == iso


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("colour:red", "colour: the search field is unknown"),
        ("state:dead", "'dead' isn't a valid state"),
        ("trigger:me", "'me' isn't a valid trigger"),
        ("after:soon", "after: 'soon' isn't a valid time"),
        ("before:0001-01-01T00:00:00+23:00", "isn't a valid time"),
        ("worker:", "worker: the value is empty"),
    ],
)
def test_an_invalid_search_is_rejected_by_name(words: str, error: str) -> None:
    with pytest.raises(InvalidArgumentError, match=error):
        request_of(words)


def test_a_search_term_replaces_the_term_of_the_same_kind() -> None:
    assert with_word("state:failed job:etl", "state", "running") == "job:etl state:running"
    assert with_word("state:failed job:etl", "state", "") == "job:etl"
    assert with_word("", "state", "missed") == "state:missed"


@pytest.mark.parametrize(
    "words",
    [
        "job:a job:b",
        "a job:b",
        "a b",
        "worker:w1 state:failed worker:w2",
        "trigger:manual trigger:chain",
        "after:2026-03-04 after:2026-03-05",
        "before:2026-03-04 before:2026-03-05",
        "backfill:a backfill:b",
        "parent:a parent:a",
    ],
)
def test_a_word_that_takes_one_value_isn_t_given_twice(words: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is given twice") as refused:
        request_of(words)
    field = refused.value.violations[0].field
    assert f"{field}:" in words or field == "job"


def test_states_may_be_named_in_one_search_term_or_in_several() -> None:
    one, several = request_of("state:failed,retrying"), request_of("state:failed state:retrying")
    assert list(one.states) == list(several.states)
    assert len(one.states) == 2
