"""Each field of a job is judged when the job is made, in the same words for SDK, REST and schedctl.

The cluster validates what a field means. A value of the wrong kind is rejected by the one reader of
forms, which the SDK and schedctl use before they send a request.
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from google.protobuf.descriptor import Descriptor

from schedclient import InvalidArgument, SyncClient
from schedctl import app
from schedd.runtime import job_codec
from schedproto.v1 import job_pb2
from support.cluster import DevCluster

DAILY: Final = {"cron": "0 2 * * *"}
LATER, LATER_STILL = "2099-01-01T00:00:00Z", "2100-01-01T00:00:00Z"

WRONG: Final[Mapping[str, Mapping[str, Any]]] = {
    "name": {**DAILY, "name": "Not a name"},
    "labels": {**DAILY, "labels": {"-": "a"}},
    "schedule": {**DAILY, "on_demand": True},
    "cron": {"cron": "61 * * * *"},
    "every": {"every": "500ms"},
    "phase": {**DAILY, "phase": "5s"},
    "at": {"at": "2020-01-01T00:00:00Z"},
    "anchor": {**DAILY, "anchor": "2026-01-01T00:00:00"},
    "on_demand": {"on_demand": "perhaps"},
    "time_zone": {**DAILY, "time_zone": "Europe/Berln"},
    "start": {"at": LATER, "start": LATER_STILL},
    "end": {**DAILY, "start": LATER_STILL, "end": LATER},
    "max_runs": {**DAILY, "max_runs": -1},
    "jitter": {**DAILY, "jitter": "-1s"},
    "exclude.calendars": {**DAILY, "exclude": {"calendars": ["no-such"]}},
    "exclude.cron": {**DAILY, "exclude": {"cron": ["61 * * * *"]}},
    "dst.gap": {**DAILY, "dst": {"gap": "sometimes"}},
    "dst.overlap": {**DAILY, "dst": {"overlap": "third"}},
    "catch_up.policy": {**DAILY, "catch_up": {"policy": "some"}},
    "catch_up.window": {**DAILY, "catch_up": {"window": "-1s"}},
    "overlap": {**DAILY, "overlap": "sometimes"},
    "overlap_limit": {**DAILY, "overlap": "skip", "overlap_limit": 2},
    "priority": {**DAILY, "priority": "urgent"},
    "slots": {**DAILY, "slots": 1001},
    "pool": {**DAILY, "pool": "no-such"},
    "retry.max_attempts": {**DAILY, "retry": {"max_attempts": -1}},
    "retry.backoff": {**DAILY, "retry": {"backoff": "-1s"}},
    "retry.factor": {**DAILY, "retry": {"factor": 0.5}},
    "retry.max": {**DAILY, "retry": {"max": "-1s"}},
    "retry.jitter": {**DAILY, "retry": {"jitter": 2}},
    "require": {**DAILY, "require": {"gpu/": "a100"}},
    "prefer": {**DAILY, "prefer": {"gpu": []}},
    "placement": {**DAILY, "placement": "scattered"},
    "retry.retry_on": {**DAILY, "retry": {"retry_on": ["requests.Timeout"]}},
    "retry.fail_on": {**DAILY, "retry": {"fail_on": ["78-64"]}},
    "delivery": {**DAILY, "delivery": "twice"},
    "on_lease_lost": {**DAILY, "on_lease_lost": "panic"},
    "timeout": {**DAILY, "timeout": "0s"},
    "start_deadline": {**DAILY, "start_deadline": "0s"},
    "run_timeout": {**DAILY, "run_timeout": "-1s"},
    "heartbeat_timeout": {**DAILY, "heartbeat_timeout": "1m"},
    "kill_after": {**DAILY, "kill_after": "-1s"},
    "pause_after_failures": {**DAILY, "pause_after_failures": -1},
    "after": {"after": {"jobs": ["no-such-job"]}},
    "retention": {**DAILY, "retention": "0s"},
    "shell": {**DAILY, "shell": {"argv": []}},
    "http": {**DAILY, "shell": None, "http": {"url": "gopher://example.org"}},
    "grpc": {**DAILY, "shell": None, "grpc": {"endpoint": "http://example.org"}},
    "python": {**DAILY, "shell": None, "python": {"handler": ""}},
    "plugin": {**DAILY, "shell": None, "plugin": {"executor": "No Such", "config": {}}},
    "payload": {**DAILY, "payload": "x" * 300_000},
    "on_failure": {**DAILY, "on_failure": {"threshold": 2}},
    "on_recovery": {**DAILY, "on_recovery": {"webhook": "https://ops.example.com/hook"}},
    "on_dead_letter": {**DAILY, "on_dead_letter": {"webhook": "ftp://ops.example.com/"}},
    "on_late": {**DAILY, "on_late": {"email": "ops", "threshold": 2}},
    "paused": {**DAILY, "paused": "perhaps"},
    "pause_note": {**DAILY, "paused": True, "pause_note": "of two\nlines"},
    "paused_until": {**DAILY, "paused_until": LATER},
}
"""Of each field what it may not say."""

NO_WORD_IS_WRONG: Final = {"namespace"}
"""Any text is one: there is no list of them yet."""

WRITTEN_AS: Final = {"local_at": "at"}
"""Fields of the message that people write as another one."""


def _fields(message: Descriptor, prefix: str = "") -> Iterator[str]:
    """Yield the fields that a person may set, of the job itself and of its schedule."""
    left_out = {*job_codec.SET_BY_CLUSTER, *WRITTEN_AS}
    inside = {"exclude", "dst", "catch_up", "retry"}
    for field in message.fields:
        if field.name in left_out | NO_WORD_IS_WRONG:
            continue
        if not prefix and field.name in inside and field.message_type is not None:
            yield from _fields(field.message_type, f"{field.name}.")
        else:
            yield prefix + field.name


def test_each_field_has_a_case() -> None:
    assert set(_fields(job_pb2.Job.DESCRIPTOR)) == WRONG.keys() - {"schedule"}


@pytest.fixture(scope="module")
def before(quiet_client: SyncClient) -> set[str]:
    return {job.name for job in quiet_client.jobs.list()}


@pytest.mark.parametrize("field", WRONG)
def test_an_invalid_field_is_rejected_in_the_same_words_by_sdk_rest_and_schedctl(
    field: str,
    quiet_cluster: DevCluster,
    quiet_client: SyncClient,
    before: set[str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    form = {"name": "wrong", "shell": {"argv": ["true"]}} | WRONG[field]
    problems = _sdk(quiet_client, form)
    named = [where for where, _ in problems if where == field or where.startswith(f"{field}.")]
    assert named, f"{field} isn't named: {problems}"
    assert _rest(quiet_cluster, form) == problems
    out = _schedctl(quiet_cluster, form, tmp_path, capfd)
    for _, problem in problems:
        assert " ".join(problem.split()) in " ".join(out.split())
    assert {job.name for job in quiet_client.jobs.list()} == before


def _sdk(client: SyncClient, form: Mapping[str, Any]) -> list[tuple[str, str]]:
    fields = dict(form)
    with pytest.raises(InvalidArgument) as refused:
        client.jobs.create(fields.pop("name"), **fields)
    assert refused.value.remedy
    return [(each.field, each.problem) for each in refused.value.violations]


def _rest(cluster: DevCluster, form: Mapping[str, Any]) -> list[tuple[str, str]]:
    session = http.client.HTTPConnection(cluster.entry("m1")["http"], timeout=20)
    try:
        headers = {"Content-Type": "application/json"}
        session.request("POST", "/api/v1/jobs", json.dumps(form), headers)
        answer = session.getresponse()
        problem = json.loads(answer.read())
    finally:
        session.close()
    assert (answer.status, problem["status"]) == (400, 400), problem
    assert problem["remedy"]
    return [(_snake(each["field"]), each["problem"]) for each in problem["violations"]]


def _snake(path: str) -> str:
    """A field of REST, `retry.maxAttempts`, as the SDK has it."""
    return re.sub(r"[A-Z]", lambda capital: f"_{capital[0].lower()}", path)


def _schedctl(
    cluster: DevCluster,
    form: Mapping[str, Any],
    folder: Path,
    capfd: pytest.CaptureFixture[str],
) -> str:
    """The entry point of the command itself, in this process: Python's start costs more than it."""
    manifest = folder / "job.json"
    manifest.write_text(json.dumps(form))
    capfd.readouterr()
    code = app.run(["--endpoints", ",".join(cluster.endpoints), "apply", "-f", str(manifest)])
    out, err = capfd.readouterr()
    assert (code, out) == (2, ""), err
    assert [line[:7] for line in err.splitlines()] == ["error: ", "  why: ", "  try: "], err
    return err
