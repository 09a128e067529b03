"""The requests of the user's own documents, as they stand there (docs/rest.md)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from schedproto.v1 import auth_service_pb2 as auth
from support.web import Web, bearer, served, token

DAILY = {
    "name": "daily-report",
    "cron": "0 9 * * *",
    "callback_url": "https://example.com/callback",
    "priority": "HIGH",
    "payload": {"kind": "daily"},
}
TASK = {
    "taskName": "sendEmail",
    "payload": {"to": "a@example.com"},
    "delayMs": 3_600_000,
    "priority": 1,
    "customJobId": "mail-1",
}


@pytest.fixture
async def web(dsn: str) -> AsyncIterator[Web]:
    async with served(dsn) as face:
        yield face


async def test_a_job_with_a_callback_is_created_read_and_deleted(web: Web) -> None:
    made = await web.post("/api/v1/jobs", DAILY)
    assert made.status == 201, made.text
    assert made.json.keys() == {"job_id", "next_fire_time"}
    due = datetime.fromisoformat(made.json["next_fire_time"])
    assert (due.hour, due.minute, due.tzinfo) == (9, 0, UTC)

    job = (await web.get(f"/api/v1/jobs/{made.json['job_id']}")).json
    assert (job["name"], job["cron"], job["priority"]) == ("daily-report", ["0 9 * * *"], "HIGH")
    assert (job["http"]["method"], job["http"]["url"]) == ("POST", DAILY["callback_url"])
    assert job["payload"] == DAILY["payload"]

    for name in (made.json["job_id"], "daily-report"):
        status = await web.get(f"/api/v1/jobs/{name}/status")
        assert status.json == {
            "job_id": made.json["job_id"],
            "status": "PENDING",
            "last_run": None,
            "next_run": made.json["next_fire_time"],
            "retry_count": 0,
        }

    assert (await web.ask("DELETE", f"/api/v1/jobs/{made.json['job_id']}")).json == {
        "deleted": True
    }
    gone = await web.get(f"/api/v1/jobs/{made.json['job_id']}/status")
    assert (gone.status, gone.json["reason"]) == (404, "NO_SUCH_JOB")


async def test_other_fields_of_a_job_are_allowed_with_a_callback(web: Web) -> None:
    made = await web.post("/api/v1/jobs", DAILY | {"timeZone": "Europe/Berlin", "timeout": "1m"})
    job = (await web.get(f"/api/v1/jobs/{made.json['job_id']}")).json
    assert (job["timeZone"], job["timeout"]) == ("Europe/Berlin", "60s")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"callback_url": 7}, "callback_url"),
        ({"callback_url": ""}, "callback_url"),
        ({"callback_url": "ftp://example.com"}, "callback_url"),
        ({"http": {"url": "https://example.com"}}, "callback_url"),
        ({"shell": {"argv": ["true"]}}, ""),
        ({"cron": "no cron"}, "cron"),
        ({"priority": "URGENT"}, "priority"),
        ({"colour": "red"}, "colour"),
    ],
)
async def test_an_invalid_job_is_reported_and_nothing_is_stored(
    web: Web, changes: dict[str, Any], field: str
) -> None:
    answer = await web.post("/api/v1/jobs", DAILY | changes)
    assert (answer.status, answer.headers["content-type"]) == (400, "application/problem+json")
    fields = [one["field"] for one in answer.json["violations"]]
    assert any(each.startswith(field) for each in fields), answer.text
    assert (await web.get("/api/v1/jobs")).json["jobs"] == []


async def test_a_task_is_accepted_once_and_read_by_its_id(web: Web) -> None:
    taken = await web.post("/api/tasks", TASK)
    assert taken.status == 202, taken.text
    assert taken.json.keys() == {"job_id", "run_id"}
    run = (await web.get(f"/api/v1/runs/{taken.json['run_id']}")).json
    assert (run["state"], run["priority"], run["trigger"]) == ("PENDING", "HIGH", "SUBMIT")
    due, made = (datetime.fromisoformat(run[at]) for at in ("dueAt", "scheduledAt"))
    assert (due - made).total_seconds() == 3600

    status = await web.get(f"/api/v1/jobs/{taken.json['job_id']}/status")
    assert status.json == {
        "job_id": taken.json["job_id"],
        "status": "PENDING",
        "last_run": None,
        "next_run": run["dueAt"],
        "retry_count": 0,
    }

    assert (await web.post("/api/tasks", TASK)).json == taken.json
    other = await web.post("/api/tasks", TASK | {"delayMs": 1})
    assert (other.status, other.json["reason"]) == (409, "IDEMPOTENCY_KEY_REUSED")
    assert len((await web.get("/api/v1/runs")).json["runs"]) == 1


@pytest.mark.parametrize(
    ("number", "word"), [(1, "HIGH"), (2, "MEDIUM"), (3, "LOW"), (None, "MEDIUM")]
)
async def test_the_least_number_is_the_highest_priority(
    web: Web, number: int | None, word: str
) -> None:
    taken = await web.post("/api/tasks", {"taskName": "t", "priority": number})
    assert (await web.get(f"/api/v1/runs/{taken.json['run_id']}")).json["priority"] == word


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"taskName": None}, "taskName"),
        ({"taskName": 3}, "taskName"),
        ({"taskName": ""}, "taskName"),
        ({"delayMs": -1}, "delayMs"),
        ({"delayMs": 1.5}, "delayMs"),
        ({"delayMs": 10**30}, "delayMs"),
        ({"delayMs": True}, "delayMs"),
        ({"priority": 0}, "priority"),
        ({"priority": "HIGH"}, "priority"),
        ({"customJobId": 7}, "customJobId"),
        ({"customJobId": "x" * 5000}, "customJobId"),
        ({"payload": "x" * 300_000}, "payload"),
        ({"taskname": "twice"}, "taskname"),
        ({"task_name": "twice"}, "task_name"),
        ({"delay_ms": 1}, "delay_ms"),
        ({"custom_job_id": "mail-1"}, "custom_job_id"),
    ],
)
async def test_errors_of_a_task_name_its_own_keys(
    web: Web, changes: dict[str, Any], field: str
) -> None:
    answer = await web.post("/api/tasks", TASK | changes)
    assert answer.status == 400, answer.text
    assert [one["field"] for one in answer.json["violations"]] == [field], answer.text
    assert (await web.get("/api/v1/runs")).json["runs"] == []


@pytest.mark.parametrize("key", ["customJobId", "custom_job_id", "namespace"])
async def test_an_empty_text_of_a_task_is_reported_as_empty(web: Web, key: str) -> None:
    task = {name: value for name, value in TASK.items() if name != "customJobId"}
    answer = await web.post("/api/tasks", task | {key: ""})
    assert answer.status == 400
    problem = "the value is empty: give a text, or leave the key out"
    assert answer.json["violations"] == [{"field": key, "problem": problem}]


async def test_a_task_may_be_written_in_snake_case(web: Web) -> None:
    snake = {"task_name": "sendEmail", "delay_ms": 3_600_000, "custom_job_id": "mail-1"}
    same = {key: TASK[key] for key in ("payload", "priority")}
    taken = await web.post("/api/tasks", same | snake)
    assert taken.status == 202, taken.text
    assert (await web.post("/api/tasks", TASK)).json == taken.json
    for wrong in ({"task_name": ""}, {"delay_ms": -1}, {"custom_job_id": "x" * 5000}):
        answer = await web.post("/api/tasks", same | snake | wrong)
        assert answer.status == 400
        assert [one["field"] for one in answer.json["violations"]] == [*wrong], answer.text
    unasked = await web.ask("POST", "/api/tasks?delay_ms=3", json=snake)
    assert unasked.json["violations"] == [
        {"field": "delay_ms", "problem": "must be in the body, not in the address"}
    ]


async def test_a_callback_may_be_written_in_camel_case(web: Web) -> None:
    camel = {key: value for key, value in DAILY.items() if key != "callback_url"}
    made = await web.post("/api/v1/jobs", camel | {"callbackUrl": DAILY["callback_url"]})
    assert (made.status, made.json.keys()) == (201, {"job_id", "next_fire_time"}), made.text
    both = await web.post("/api/v1/jobs", DAILY | {"callbackUrl": DAILY["callback_url"]})
    assert (both.status, both.json["violations"][0]["field"]) == (400, "callbackUrl")
    for url in ("", "ftp://example.com"):
        answer = await web.post("/api/v1/jobs", camel | {"name": "b", "callbackUrl": url})
        assert answer.status == 400
        assert answer.json["violations"][0]["field"] == "callbackUrl", answer.text
        assert answer.json["detail"].startswith("callbackUrl: ")


async def test_the_header_is_a_tasks_key_too(web: Web) -> None:
    key = {"Idempotency-Key": "k"}
    first = await web.post("/api/tasks", {"taskName": "t"}, headers=key)
    assert (await web.post("/api/tasks", {"taskName": "t"}, headers=key)).json == first.json
    both = await web.post("/api/tasks", TASK, headers=key)
    assert (both.status, both.json["violations"][0]["field"]) == (400, "customJobId")
    matched = await web.post("/api/tasks", {"taskName": "t"}, headers={"If-Match": "x"})
    assert (matched.status, matched.json["violations"][0]["field"]) == (400, "If-Match")
    none = await web.post("/api/tasks", {"taskName": "t"}, headers={"If-None-Match": "*"})
    assert (none.status, none.json["violations"][0]["field"]) == (400, "If-None-Match")


async def test_a_task_that_ended_before_its_start_is_shown_as_ended(web: Web) -> None:
    taken = (await web.post("/api/tasks", TASK)).json
    await web.post(f"/api/v1/runs/{taken['run_id']}:cancel", {})
    status = (await web.get(f"/api/v1/jobs/{taken['job_id']}/status")).json
    assert (status["status"], status["last_run"], status["next_run"]) == ("CANCELLED", None, None)


@pytest.mark.parametrize("name", ["", "nightly"])
async def test_the_audit_says_which_task_was_deleted(web: Web, name: str) -> None:
    body = {"name": name, "spec": {"shell": {"argv": ["true"]}}, "delay": "1h"}
    run = (await web.post("/api/v1/runs", body)).json["runId"] if name else ""
    run = run or (await web.post("/api/tasks", TASK)).json["job_id"]
    assert (await web.ask("DELETE", f"/api/v1/jobs/{run}")).json == {"deleted": True}
    [entry] = (await web.get("/api/v1/audit?action=delete")).json["entries"]
    assert (entry["object"], entry["runId"]) == (f"run/{run}", run)
    found = (await web.get(f"/api/v1/audit?runId={run}")).json["entries"]
    assert {one["action"] for one in found} == {"submit", "delete"}


async def test_the_next_run_is_the_soonest(web: Web) -> None:
    job = {"name": "now-and-then", "onDemand": True, "callback_url": "https://example.com/x"}
    made = (await web.post("/api/v1/jobs", job)).json
    assert made["next_fire_time"] is None
    runs = [
        (await web.post("/api/v1/jobs/now-and-then:trigger", {"delay": delay})).json
        for delay in ("1h", "2h")
    ]
    status = (await web.get(f"/api/v1/jobs/{made['job_id']}/status")).json
    assert (status["status"], status["next_run"]) == ("PENDING", runs[0]["dueAt"])


async def test_all_errors_are_reported_at_once(web: Web) -> None:
    answer = await web.post("/api/tasks", {"delayMs": "soon", "priority": 9})
    fields = {one["field"] for one in answer.json["violations"]}
    assert fields == {"taskName", "delayMs", "priority"}


async def test_the_paths_of_the_document_know_their_verbs_alone(web: Web) -> None:
    for verb, path, allowed in (
        ("GET", "/api/tasks", "POST"),
        ("DELETE", "/api/tasks", "POST"),
        ("POST", "/api/v1/jobs/x/status", "GET"),
    ):
        answer = await web.ask(verb, path)
        assert (answer.status, answer.headers["allow"]) == (405, allowed)
    asked = await web.get("/api/v1/jobs/x/status?verbose=1")
    assert (asked.status, asked.json["violations"][0]["field"]) == (400, "verbose")


async def test_an_admin_of_one_namespace_makes_all_four_requests_there(dsn: str) -> None:
    async with served(dsn, demanded=True) as web:
        _, text = await token(web, auth.ROLE_ADMIN, "billing")
        billing: dict[str, Any] = {"headers": bearer(text)}
        made = await web.post("/api/v1/jobs", DAILY | {"namespace": "billing"}, **billing)
        assert made.status == 201, made.text
        for name in (made.json["job_id"], DAILY["name"]):
            status = await web.get(f"/api/v1/jobs/{name}/status?namespace=billing", **billing)
            assert (status.status, status.json["job_id"]) == (200, made.json["job_id"])
            assert status.json["next_run"] == made.json["next_fire_time"]

        taken = await web.post("/api/tasks", TASK | {"namespace": "billing"}, **billing)
        assert taken.status == 202, taken.text
        run = (await web.get(f"/api/v1/runs/{taken.json['run_id']}", **billing)).json
        assert run["namespace"] == "billing"
        asked = f"/api/v1/jobs/{taken.json['job_id']}/status?namespace=billing"
        assert (await web.get(asked, **billing)).json["next_run"] == run["dueAt"]

        path = f"/api/v1/jobs/{made.json['job_id']}"
        gone = await web.ask("DELETE", f"{path}?namespace=billing", **billing)
        assert gone.json == {"deleted": True}

        for refused in (
            await web.post("/api/tasks", TASK, **billing),
            await web.post("/api/tasks", TASK | {"namespace": "other"}, **billing),
            await web.get(f"{path}/status", **billing),
            await web.get(f"{path}/status?namespace=other", **billing),
        ):
            assert (refused.status, refused.json["reason"]) == (403, "ROLE_MISSING")


async def test_the_namespace_of_a_task_is_in_its_body(web: Web) -> None:
    asked = await web.post("/api/tasks?namespace=billing", TASK)
    assert asked.json["violations"] == [
        {"field": "namespace", "problem": "must be in the body, not in the address"}
    ]
    for wrong in ("no space", 7):
        answer = await web.post("/api/tasks", TASK | {"namespace": wrong})
        assert (answer.status, answer.json["violations"][0]["field"]) == (400, "namespace")
    asked = await web.get("/api/v1/jobs/x/status?namespace=a&namespace=b")
    assert (asked.status, asked.json["violations"][0]["field"]) == (400, "namespace")


async def test_a_job_with_a_callback_says_where_it_is_and_which_it_is(web: Web) -> None:
    for namespace, where in (("default", ""), ("billing", "?namespace=billing")):
        made = await web.post("/api/v1/jobs", DAILY | {"namespace": namespace})
        assert made.headers["location"] == f"/api/v1/jobs/daily-report{where}"
        job = await web.get(made.headers["location"])
        assert job.json["jobId"] == made.json["job_id"]
        assert made.headers["etag"] == job.json["etag"]


@pytest.mark.parametrize("url", ["ftp://example.com", "https://example.com/\0"])
async def test_an_invalid_callback_is_reported_by_its_key_everywhere(web: Web, url: str) -> None:
    problem = (await web.post("/api/v1/jobs", DAILY | {"callback_url": url})).json
    assert [one["field"] for one in problem["violations"]] == ["callback_url"]
    assert problem["detail"].startswith("callback_url: ")
