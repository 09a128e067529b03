"""The filter of a list of jobs: what its words mean, and what is said of others."""

from __future__ import annotations

import pytest

from schedd.api.errors import InvalidArgumentError
from schedd.api.jobs import job_filter
from schedproto.v1 import job_pb2

JOB = job_pb2.Job(
    name="nightly-etl",
    labels={"team": "data", "tier": "gold star", "long": "x" * 300},
    shell=job_pb2.ShellAction(argv=["true"]),
)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "label.team:data",
        "label.team:*",
        'label.tier:"gold star" label.team:data',
        f"label.long:{'x' * 300}",
        "action:shell",
        "action:SHELL label.team:data",
    ],
)
def test_a_job_is_found_by_label_and_action_in_the_database_and_in_memory(text: str) -> None:
    wanted = job_filter.parse_filter(text)
    stored = JOB.SerializeToString(deterministic=True)
    assert all(part in stored for part in wanted.stored.bytes_)
    assert wanted.holds(JOB)


@pytest.mark.parametrize("text", ["label.team:dat", "label.tea:*", "action:http", "label.x:data"])
def test_another_label_or_action_is_not_found(text: str) -> None:
    assert not job_filter.parse_filter(text).holds(JOB)


def test_bytes_that_look_like_a_label_elsewhere_in_a_job_match_no_label() -> None:
    wanted = job_filter.parse_filter("label.team:data")
    pretends = job_pb2.Job(shell=job_pb2.ShellAction(env={"team": "data"}))
    assert all(part in pretends.SerializeToString() for part in wanted.stored.bytes_)
    assert not wanted.holds(pretends)


def test_words_and_fields_combine() -> None:
    stored = job_filter.parse_filter("night etl name:n*-etl paused:Yes pool:none").stored
    assert stored.words == ("night", "etl")
    assert (stored.name, stored.paused, stored.pool) == ("n*-etl", True, "")
    assert job_filter.parse_filter("paused:false pool:reports").stored.pool == "reports"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nmae:etl", 'did you mean "name"?'),
        ("state:failed", "use one of name, paused, pool, action, label.KEY"),
        ("labels.team:data", 'did you mean "label.KEY"?'),
        ("paused:maybe", "give true or false"),
        ("action:shel", 'did you mean "shell"?'),
        ("name:", "gives this field no value"),
        ("pool:a pool:b", "given twice"),
        ("label.a:b label.a:c", "given twice"),
        ('name:"etl', "unclosed"),
        (" ".join(["x"] * 21), "more than 20 words"),
        ("x" * 1001, "more than 1,000 characters"),
    ],
)
def test_an_unknown_term_is_refused_with_a_suggestion(text: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        job_filter.parse_filter(text)
    assert message in refused.value.message
    assert {one.field for one in refused.value.violations} == {"filter"}
