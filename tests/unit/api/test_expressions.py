"""A cron expression explained by a call: its words, its instants, and what is wrong with it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from schedd.api.errors import InvalidArgumentError
from schedd.api.jobs.explain import explanation
from schedd.api.request_bounds import MOST_COMING
from schedproto.v1 import job_service_pb2 as wire

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def explained(expression: str, **fields: Any) -> wire.ExplainCronResponse:
    return explanation(wire.ExplainCronRequest(expression=expression, **fields), NOW)


def test_an_expression_is_explained_in_words_with_ten_local_instants() -> None:
    answer = explained("0 9 * * *", time_zone="Europe/Riga")
    assert (answer.expression, answer.time_zone) == ("0 9 * * *", "Europe/Riga")
    assert "09:00" in answer.description
    instants = [at.ToDatetime(UTC) for at in answer.instants]
    assert len(instants) == 10
    assert instants[0] == datetime(2026, 3, 1, 7, tzinfo=UTC)
    assert explained("0 9 * * *").time_zone == "UTC"
    assert len(explained("0 9 * * *", count=3).instants) == 3


def test_a_clock_change_is_a_warning() -> None:
    [spring, autumn] = explained("30 3 * * *", time_zone="Europe/Riga").warnings
    assert "2026-03-29: 03:30 does not exist in Europe/Riga" in spring
    assert "2026-10-25: 03:30 comes twice" in autumn
    assert not explained("30 3 * * *").warnings


def test_an_h_is_resolved_for_the_named_job() -> None:
    def first(**fields: Any) -> datetime:
        return explained("H H * * *", **fields).instants[0].ToDatetime(UTC)

    assert "default/etl" in explained("H H * * *", job="etl").warnings[0]
    assert first(job="etl") == first(job="etl", namespace="default")
    assert first(job="etl") != first(job="etl", namespace="billing")


@pytest.mark.parametrize(
    ("expression", "fields", "field", "problem"),
    [
        ("", {}, "expression", ""),
        ("0 25 * * *", {}, "expression", "hour: "),
        ("0 9 * *", {}, "expression", ""),
        ("0 9 * * *", {"time_zone": "Europe/Rigo"}, "time_zone", ""),
        ("0 9 * * *", {"count": MOST_COMING + 1}, "count", ""),
        ("0 9 * * *", {"count": -1}, "count", ""),
        ("0 0 31 2 *", {}, "expression", ""),
    ],
)
def test_a_mistake_is_reported_by_the_field_of_the_caller(
    expression: str, fields: dict[str, Any], field: str, problem: str
) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        explained(expression, **fields)
    [violation] = refused.value.violations
    assert violation.field == field
    assert violation.problem.startswith(problem)
    assert refused.value.remedy
