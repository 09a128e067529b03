"""The HTTP rules of the protos, as routes."""

from __future__ import annotations

import pytest

from schedd.api import calls
from schedd.web.rest.http_rules import RouteMatch, Routes, routes_of

ROUTES = Routes(calls.methods())


def found(verb: str, path: str) -> tuple[str, dict[str, str]]:
    answer = ROUTES.find(verb, path)
    assert isinstance(answer, RouteMatch), answer
    return answer.route.method.name, answer.variables


@pytest.mark.parametrize("method", calls.methods(), ids=lambda method: method.full_name)
def test_every_call_has_a_route_and_every_route_leads_to_its_call(method) -> None:
    routes = list(routes_of(method))
    assert routes
    for route in routes:
        path = route.template
        for variable in route.variables:
            path = path.replace("{" + variable + "}", "x1")
        assert found(route.verb, path)[0] == method.name


def test_a_verb_is_distinguished_from_a_name() -> None:
    assert found("POST", "/api/v1/jobs/etl:pause") == ("PauseJob", {"job": "etl"})
    assert found("GET", "/api/v1/jobs/etl") == ("GetJob", {"job": "etl"})
    assert found("GET", "/api/v1/runs:watch") == ("WatchRuns", {})
    assert found("GET", "/api/v1/workers/w1:watch") == ("WatchWorker", {"worker": "w1"})


def test_a_colon_in_a_name_is_written_escaped() -> None:
    assert found("GET", "/api/v1/workers/host%3A7422") == ("GetWorker", {"worker": "host:7422"})


def test_an_escaped_slash_stays_within_its_variable() -> None:
    assert found("GET", "/api/v1/jobs/a%2Fb") == ("GetJob", {"job": "a/b"})
    assert ROUTES.find("GET", "/api/v1/jobs/a/b") == frozenset()


def test_a_variable_may_lie_deeper_in_the_request() -> None:
    assert found("PATCH", "/api/v1/jobs/etl") == ("UpdateJob", {"job.name": "etl"})


def test_head_is_routed_as_get() -> None:
    assert found("HEAD", "/api/v1/jobs")[0] == "ListJobs"


def test_a_path_with_other_verbs_names_them() -> None:
    assert ROUTES.find("PUT", "/api/v1/jobs") == frozenset({"GET", "POST"})
    assert ROUTES.find("GET", "/api/v1/nothing") == frozenset()


def test_two_rules_for_one_request_are_refused() -> None:
    [get_job] = [method for method in calls.methods() if method.name == "GetJob"]
    with pytest.raises(ValueError, match=r"GET /api/v1/jobs/\{job\}"):
        Routes([get_job, get_job])
