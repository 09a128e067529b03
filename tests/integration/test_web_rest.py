"""REST over the real table of calls and the real store, by plain HTTP."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, closing
from http.client import HTTPConnection
from typing import Any
from uuid import uuid4

import aiohttp
import psycopg2
import pytest

from schedd.api import calls, deadlines
from schedd.web.rest.bodies import MOST_BYTES
from schedd.web.rest.http_rules import routes_of
from schedd.web.rest.rest import STREAMS_OF_ONE_HOST
from schedd.web.server import GRACE
from schedproto.v1 import run_pb2
from support.postgres import private_postgres, restart
from support.wait import WAIT_TIMEOUT, wait_until, wait_until_async
from support.web import Sent, Web, served

ETL = {"name": "etl", "cron": "0 2 * * *", "shell": {"argv": ["true"]}}
NO_WORKER = "no worker is running; its runs stay PENDING until one connects"
SUBMITTED = {"name": "once", "spec": {"shell": {"argv": ["true"]}}, "delay": "1h"}


@pytest.fixture
async def web(dsn: str) -> AsyncIterator[Web]:
    async with served(dsn) as face:
        yield face


async def create_job(web: Web, **fields: Any) -> dict[str, Any]:
    answer = await web.post("/api/v1/jobs", ETL | fields)
    assert answer.status == 201, answer.text
    return answer.json


async def test_a_job_is_made_read_changed_and_deleted(web: Web) -> None:
    answer = await web.post("/api/v1/jobs", ETL)
    assert answer.status == 201
    assert answer.headers["location"] == "/api/v1/jobs/etl"
    assert answer.headers["etag"] == answer.json["etag"]
    job = (await web.get("/api/v1/jobs/etl")).json
    assert answer.json == job | {"warnings": [NO_WORKER]}
    assert job["cron"] == ["0 2 * * *"]
    assert job["timeout"] is None

    changed = await web.ask("PATCH", "/api/v1/jobs/etl", json={"timeout": "5m", "priority": "high"})
    assert (changed.json["timeout"], changed.json["priority"]) == ("300s", "HIGH")
    assert changed.json["generation"] == 2

    by_id = await web.get(f"/api/v1/jobs/{job['jobId']}")
    assert changed.json == by_id.json | {"warnings": [NO_WORKER]}

    gone = await web.ask("DELETE", "/api/v1/jobs/etl")
    assert gone.json == {"deleted": True}
    missing = await web.get("/api/v1/jobs/etl")
    assert (missing.status, missing.json["reason"]) == (404, "NO_SUCH_JOB")
    assert missing.headers["content-type"] == "application/problem+json"


async def test_many_jobs_and_many_submits_go_in_one_request(web: Web) -> None:
    jobs = [{"job": ETL}, {"job": ETL | {"cron": "nonsense", "name": "odd"}}, {"job": ETL}]
    answer = await web.post("/api/v1/jobs:batchCreate", {"requests": jobs})
    assert answer.status == 200, answer.text
    stored, wrong, taken = answer.json["results"]
    job = (await web.get("/api/v1/jobs/etl")).json
    assert stored == {"job": job | {"warnings": [NO_WORKER]}, "error": None}
    assert (wrong["job"], wrong["error"]["code"]) == (None, "INVALID_ARGUMENT")
    assert [one["field"] for one in wrong["error"]["violations"]] == ["cron"]
    assert taken["error"]["reason"] == "NAME_TAKEN"

    nowhere = {"job": ETL | {"name": "nowhere", "timeZone": "Nowhere/At"}}
    [result] = (await web.post("/api/v1/jobs:batchCreate", {"requests": [nowhere]})).json["results"]
    assert [one["field"] for one in result["error"]["violations"]] == ["timeZone"]
    assert result["error"]["message"].startswith("timeZone: ")

    answer = await web.post("/api/v1/runs:batchSubmit", {"requests": [SUBMITTED] * 2})
    runs = [one["run"]["runId"] for one in answer.json["results"]]
    assert [(await web.get(f"/api/v1/runs/{run}")).status for run in runs] == [200, 200]

    none = await web.post("/api/v1/jobs:batchCreate", {"requests": []})
    assert (none.status, none.json["reason"]) == (400, "BAD_COUNT")


async def test_a_calendar_is_put_used_and_kept_while_it_is(web: Web) -> None:
    off = {"dates": ["12-25"], "ranges": [{"from": "2026-12-24", "to": "2026-12-26"}]}
    put = await web.ask("PUT", "/api/v1/calendars/off", json={**off, "roll": "next"})
    assert (put.status, put.json["version"], put.json["roll"]) == (200, 1, "NEXT")
    assert (await web.get("/api/v1/calendars/off")).json == put.json
    job = await create_job(web, exclude={"calendars": ["off"]})
    assert job["calendarVersions"] == {"off": 1}
    coming = await web.get("/api/v1/jobs/etl/next?after=2026-12-23T12:00:00Z&excluded=true&count=1")
    assert [one["excludedBy"] for one in coming.json["instants"]] == [
        *["calendar off v1"] * 3,
        None,
    ]
    again = await web.ask("PUT", "/api/v1/calendars/off", json=off)
    assert (again.json["version"], again.json["jobs"], again.json["jobsBehind"]) == (2, 1, 0)
    assert (await web.get("/api/v1/calendars/off?version=1")).json["roll"] == "NEXT"
    kept = await web.ask("DELETE", "/api/v1/calendars/off")
    assert (kept.status, kept.json["reason"]) == (409, "CALENDAR_IN_USE")
    wrong = await web.ask("PUT", "/api/v1/calendars/off", json={"dates": ["2026-02-30"]})
    assert (wrong.status, wrong.json["reason"]) == (400, "INVALID_CALENDAR")
    await web.ask("DELETE", "/api/v1/jobs/etl")
    assert (await web.ask("DELETE", "/api/v1/calendars/off")).json == {"deleted": True}


async def test_a_job_that_was_read_can_be_created_under_another_name(web: Web) -> None:
    """Fields that the cluster sets are ignored then, whatever they contain."""
    await web.ask("PATCH", f"/api/v1/jobs/{(await create_job(web))['jobId']}", json={"slots": 2})
    job = (await web.get("/api/v1/jobs/etl")).json
    assert job["generation"] == 2
    for given, name in ((job["jobId"], "a"), ("x", "b"), ("", "c")):
        sent = job | {"name": name, "jobId": given, "createdBy": "ann", "runsCreated": 7}
        alone = await web.post("/api/v1/jobs", sent)
        batch = {"requests": [{"job": sent | {"name": f"{name}-2"}}]}
        [many] = (await web.post("/api/v1/jobs:batchCreate", batch)).json["results"]
        for new in (alone.json, many["job"]):
            assert new["jobId"] not in (job["jobId"], given)
            assert (new["slots"], new["generation"], new["runsCreated"]) == (2, 1, 0)
            assert new["createdBy"] == job["createdBy"]


async def test_fields_set_by_the_cluster_are_accepted_only_in_an_edit_of_all_fields(
    web: Web,
) -> None:
    job = await create_job(web)
    whole = await web.ask("PATCH", "/api/v1/jobs/etl?updateMask=*", json=job | {"slots": 3})
    assert (whole.status, whole.json["slots"]) == (200, 3), whole.text
    for given in ("x", str(uuid4())):
        answer = await web.ask("PATCH", "/api/v1/jobs/etl", json={"jobId": given, "slots": 2})
        assert (answer.status, answer.json["reason"]) == (400, "JOB_ID_MISMATCH")
    for field in ("generation", "createdBy", "nextRunAt", "pausedBy", "runsCreated"):
        answer = await web.ask("PATCH", "/api/v1/jobs/etl", json={field: job[field]})
        assert (answer.status, answer.json["reason"]) == (400, "BAD_UPDATE_MASK"), field


async def test_an_edit_changes_the_job_of_its_path_or_none(web: Web) -> None:
    await create_job(web)
    other = await create_job(web, name="other")
    body = {"jobId": other["jobId"], "labels": {"a": "b"}}
    answer = await web.ask("PATCH", "/api/v1/jobs/etl?updateMask=labels", json=body)
    assert (answer.status, answer.json["reason"]) == (400, "JOB_ID_MISMATCH")
    assert (await web.get("/api/v1/jobs/other")).json == other | {"warnings": []}
    named = await web.ask("PATCH", "/api/v1/jobs/etl", json={"name": "other", "slots": 2})
    assert named.status == 400
    elsewhere = await web.ask("POST", "/api/v1/jobs/etl:pause", json={"job": "other"})
    assert elsewhere.status == 400
    elsewhere = await web.ask("DELETE", "/api/v1/jobs/etl?job=other")
    assert elsewhere.status == 400
    assert (await web.get("/api/v1/jobs/other")).json == other | {"warnings": []}


async def test_an_invalid_field_is_reported_as_it_is_in_the_body(web: Web) -> None:
    await create_job(web)
    for ask, field in (
        (web.post("/api/v1/jobs", ETL | {"name": "a\0b"}), "name"),
        (web.post("/api/v1/jobs", ETL | {"shell": {"argv": ["a\0b"]}}), "shell.argv"),
        (web.ask("PATCH", "/api/v1/jobs/etl", json={"nextRunAt": None}), "nextRunAt"),
        (web.ask("PATCH", "/api/v1/jobs/etl", json={"shell": {"argv": ["\0"]}}), "shell.argv"),
    ):
        answer = await ask
        assert answer.status == 400
        assert [one["field"] for one in answer.json["violations"]] == [field]
        assert answer.json["detail"].startswith(f"{field}: ")


async def test_remedies_use_the_words_of_rest(web: Web) -> None:
    answer = await web.get("/api/v1/jobs?pageToken=x")
    assert (answer.status, answer.json["reason"]) == (400, "BAD_PAGE_TOKEN")
    assert "_" not in answer.json["remedy"]


async def test_an_edit_with_fields_outside_its_mask_is_refused(web: Web) -> None:
    await create_job(web, priority="high")
    path = "/api/v1/jobs/etl?updateMask=priority"
    beside = await web.ask("PATCH", path, json={"cron": "5 5 * * *"})
    assert (beside.status, beside.json["violations"][0]["field"]) == (400, "cron"), beside.text
    assert (await web.get("/api/v1/jobs/etl")).json["priority"] == "HIGH"
    reset = await web.ask("PATCH", path, json={})
    assert (reset.status, reset.json["priority"]) == (200, None)


async def test_if_match_keeps_an_edit_from_going_over_another(web: Web) -> None:
    seen = (await create_job(web))["etag"]
    headers = {"If-Match": seen}
    first = await web.ask("PATCH", "/api/v1/jobs/etl", json={"timeout": "1m"}, headers=headers)
    assert first.status == 200
    second = await web.ask("PATCH", "/api/v1/jobs/etl", json={"timeout": "2m"}, headers=headers)
    assert (second.status, second.json["reason"]) == (412, "ETAG_MISMATCH")
    assert (await web.get("/api/v1/jobs/etl")).json["timeout"] == "60s"


async def test_if_match_holds_where_one_of_its_tags_does(web: Web) -> None:
    seen = (await create_job(web))["etag"]
    for etags, status in (
        (f'"a", {seen}', 200),
        (f'"a",{seen} , "b"', 200),
        ("*", 200),
        ('"a", "b"', 412),
        (f"W/{seen}", 412),
        (f'W/{seen}, "b"', 412),
        ("", 400),
        (seen.strip('"'), 400),
    ):
        path, headers = "/api/v1/jobs/etl?validateOnly=true", {"If-Match": etags}
        answer = await web.ask("PATCH", path, json={"slots": 2}, headers=headers)
        assert answer.status == status, (etags, answer.text)
    headers = {"If-Match": f'"a", {seen}'}
    paused = await web.post("/api/v1/jobs/etl:pause", {}, headers=headers)
    assert (paused.status, paused.json["paused"]) == (200, True)
    seen = paused.json["etag"]
    lines = [("If-Match", '"a"'), ("If-Match", seen)]
    async with web.session.delete(f"{web.url}/api/v1/jobs/etl", headers=lines) as gone:
        assert gone.status == 200, await gone.text()


async def test_a_document_is_known_by_one_of_many_tags_weak_or_strong(web: Web) -> None:
    etag = (await web.get("/api/v1/openapi.json")).headers["etag"]
    for known, status in (
        (f'"a", {etag}', 304),
        (f'"a",W/{etag}', 304),
        ("*", 304),
        ('"a", "b"', 200),
        ("", 200),
    ):
        answer = await web.get("/api/v1/openapi.json", headers={"If-None-Match": known})
        assert answer.status == status, known
    lines = [("If-None-Match", '"a"'), ("If-None-Match", etag)]
    async with web.session.get(f"{web.url}/api/v1/openapi.json", headers=lines) as answer:
        assert answer.status == 304


async def test_an_error_of_a_header_names_the_header(web: Web) -> None:
    await create_job(web)
    long = {"Idempotency-Key": "x" * 300}
    for path, body in (
        ("/api/v1/jobs", ETL | {"name": "other"}),
        ("/api/v1/jobs/etl:trigger", {}),
        ("/api/tasks", {"taskName": "t"}),
    ):
        answer = await web.post(path, body, headers=long)
        assert (answer.status, answer.json["violations"][0]["field"]) == (400, "Idempotency-Key")
        assert answer.json["detail"].startswith("Idempotency-Key: has 300 characters")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (("",), "the value is empty"),
        (("a", "a"), "the header is given twice"),
        (("a", ""), "the header is given twice"),
    ],
)
async def test_an_idempotency_key_that_is_none_or_two_is_refused_by_name(
    web: Web, given: tuple[str, ...], problem: str
) -> None:
    await create_job(web)
    headers = [("Idempotency-Key", key) for key in given]
    for path, body in (
        ("/api/v1/jobs/etl:trigger", {}),
        ("/api/v1/runs", {"spec": {"shell": {"argv": ["true"]}}}),
        ("/api/tasks", {"taskName": "t"}),
    ):
        async with web.session.post(f"{web.url}{path}", json=body, headers=headers) as answer:
            refusal = await answer.json()
        assert (answer.status, refusal["detail"]) == (
            400,
            f"Idempotency-Key: {problem}",
        ), path
        assert refusal["violations"] == [{"field": "Idempotency-Key", "problem": problem}]
    assert (await web.get("/api/v1/runs")).json["runs"] == []


async def test_the_same_idempotency_key_makes_one_job(web: Web) -> None:
    headers = {"Idempotency-Key": "k"}
    first = await web.post("/api/v1/jobs", ETL, headers=headers)
    again = await web.post("/api/v1/jobs", ETL, headers=headers)
    assert again.json["jobId"] == first.json["jobId"]
    other = await web.post("/api/v1/jobs", ETL | {"name": "other"}, headers=headers)
    assert (other.status, other.json["reason"]) == (409, "IDEMPOTENCY_KEY_REUSED")


async def test_a_path_with_any_characters_is_answered_by_a_problem(web: Web) -> None:
    for path in (
        "/api/v1/jobs/a%0Ab",
        "/api/%0A",
        "/api/v1/runs/%00:why",
        "/api/v1/jobs/a%2Fb/status",
    ):
        answer = await web.get(path)
        assert answer.status in (400, 404)
        assert answer.headers["content-type"] == "application/problem+json"


async def test_the_openapi_document_is_served_once_and_then_known(web: Web) -> None:
    first = await web.get("/api/v1/openapi.json")
    assert (first.status, first.json["openapi"]) == (200, "3.1.0")
    known = {"If-None-Match": first.headers["etag"]}
    again = await web.get("/api/v1/openapi.json", headers=known)
    assert (again.status, again.text, again.headers["etag"]) == (304, "", first.headers["etag"])
    other = await web.get("/api/v1/openapi.json", headers={"If-None-Match": '"other"'})
    assert other.status == 200
    assert (await web.post("/api/v1/openapi.json", {})).status == 405


async def test_values_beyond_the_bounds_of_the_openapi_document_are_refused(web: Web) -> None:
    """By the field's own name, in each call that reads."""
    document = (await web.get("/api/v1/openapi.json")).json
    asked = 0
    for path, verbs in document["paths"].items():
        given = verbs.get("get", {}).get("parameters", [])
        least = {one["name"]: WELL[one["name"]] for one in given if one.get("required")}
        for one in given:
            for beyond in out_of(one):
                values = least | {one["name"]: beyond}
                query = {name: value for name, value in values.items() if value is not None}
                at = path.format_map({**dict.fromkeys(WELL, "x"), **query})
                query = {name: value for name, value in query.items() if f"{{{name}}}" not in path}
                answer = await web.get(at, params=query)
                assert answer.status == 400, (at, query, answer.text)
                fields = [each["field"] for each in answer.json["violations"]]
                assert fields in ([one["name"]], [camel(one["name"])]), (at, query, answer.text)
                asked += 1
    assert asked > 60


WELL = {
    "job": "etl",
    "run_id": str(uuid4()),
    "backfill_id": str(uuid4()),
    "redrive_id": str(uuid4()),
    "worker": "w1",
    "calendar": "off",
    "pool": "p",
    "expression": "@daily",
    "at": "2026-01-01T00:00:00Z",
}
"""A value of each parameter that some call can't do without."""


def out_of(parameter: dict[str, Any]) -> list[Any]:
    """Values that the document doesn't allow; None: that it is left out."""
    schema = parameter["schema"].get("items", parameter["schema"])
    wrong: list[Any] = [
        schema[end] + by for end, by in (("minimum", -1), ("maximum", 1)) if end in schema
    ]
    wrong += ["x y"] if "pattern" in schema or "format" in schema else []
    return wrong + ([None] if parameter.get("required") and parameter["in"] == "query" else [])


def camel(name: str) -> str:
    return re.sub("_([a-z])", lambda found: found[1].upper(), name)


async def test_a_name_that_is_taken_is_a_conflict(web: Web) -> None:
    await create_job(web)
    again = await web.post("/api/v1/jobs", ETL)
    assert (again.status, again.json["reason"]) == (409, "NAME_TAKEN")


async def test_pages_continue_where_the_last_one_ended(web: Web) -> None:
    for name in ("a1", "b2", "c3"):
        await create_job(web, name=name)
    first = (await web.get("/api/v1/jobs?pageSize=2")).json
    assert [job["name"] for job in first["jobs"]] == ["c3", "b2"]
    rest = await web.get("/api/v1/jobs", params={"pageToken": first["nextPageToken"]})
    assert [job["name"] for job in rest.json["jobs"]] == ["a1"]
    assert rest.json["nextPageToken"] is None


async def test_a_page_token_is_only_valid_for_its_own_query(web: Web) -> None:
    for _ in range(2):
        for name in ("h1", "h7"):
            await create_job(web, name=f"{name}-{uuid4()}")
        await web.post("/api/v1/runs", SUBMITTED)
    await web.ask("PUT", "/api/v1/pools/a1", json={"limit": 1})
    await web.ask("PUT", "/api/v1/pools/b2", json={"limit": 1})
    for path, mine, other in (
        ("jobs", {"filter": "h1"}, {"filter": "h7"}),
        ("runs", {"states": "PENDING"}, {"states": "FAILED"}),
        ("runs", {}, {"namespace": "billing"}),
        ("audit", {"action": "create"}, {"action": "submit"}),
        ("pools", {}, {"namespace": "billing"}),
    ):
        first = await web.get(f"/api/v1/{path}", params=mine | {"pageSize": "1"})
        token = {"pageToken": first.json["nextPageToken"]}
        assert (await web.get(f"/api/v1/{path}", params=mine | token)).status == 200, path
        refused = await web.get(f"/api/v1/{path}", params=other | token)
        assert (refused.status, refused.json["reason"]) == (400, "BAD_PAGE_TOKEN"), path
        assert "was issued for a list with another filter" in refused.json["detail"]


AT_THE_ENDS_OF_TIME = ("9999-12-31T23:59:59-23:00", "0001-01-01T00:00:00+23:00")


async def test_an_invented_page_token_is_refused_by_every_list(web: Web) -> None:
    lists = {
        "jobs": "jobs",
        "runs": "runs",
        "dead-letters": "dead letters",
        "redrives": "redrives",
        "backfills": "backfills",
        "tokens": "tokens",
    }
    for path, listing in lists.items():
        for at in AT_THE_ENDS_OF_TIME:
            token = token_of(listing, at, str(uuid4()))
            answer = await web.get(f"/api/v1/{path}", params={"pageToken": token})
            assert (answer.status, answer.json["reason"]) == (400, "BAD_PAGE_TOKEN"), path
    for path in ("pools", "calendars"):
        for name in ("a\0b", "\ud800"):
            token = token_of(path, name)
            answer = await web.get(f"/api/v1/{path}", params={"pageToken": token})
            assert (answer.status, answer.json["reason"]) == (400, "BAD_PAGE_TOKEN"), path
    for page in ("jobs", "runs"):
        shown = await web.get(f"/{page}", params={"page": token_of(page, AT_THE_ENDS_OF_TIME[0])})
        assert shown.status == 400, page


@pytest.mark.parametrize(
    "at", [*AT_THE_ENDS_OF_TIME, "9999-12-31T23:59:59.999999Z", "0001-01-01T00:00:00Z"]
)
async def test_no_time_in_a_page_token_causes_an_internal_error(web: Web, at: str) -> None:
    for name in ("a1", "b2"):
        await create_job(web, name=name)
        await web.post("/api/v1/runs", SUBMITTED)
    for path in ("/api/v1/jobs", "/api/v1/runs"):
        given = (await web.get(f"{path}?pageSize=1")).json["nextPageToken"]
        listing, _, row = json.loads(base64.urlsafe_b64decode(given))
        params = {"pageSize": "1", "pageToken": token_of(listing, at, row)}
        answer = await web.get(path, params=params)
        assert answer.status == (400 if at in AT_THE_ENDS_OF_TIME else 200), answer.text


def token_of(*parts: str) -> str:
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode()


@pytest.mark.parametrize("at", AT_THE_ENDS_OF_TIME)
async def test_no_time_or_cursor_causes_an_internal_error(web: Web, at: str) -> None:
    await create_job(web)
    for path, name in (("runs", "scheduledAfter"), ("jobs/etl/next", "after")):
        answer = await web.get(f"/api/v1/{path}", params={name: at})
        assert answer.status == 400, answer.text
    for last in ("ffffffff-ffffffffffffffff", "0-0"):
        async with web.session.get(
            f"{web.url}/api/v1/events", headers={"Last-Event-ID": last}
        ) as stream:
            first = await stream.content.readany()
            assert stream.status in (200, 400), (last, first)
            assert b"event: error" not in first


async def test_pause_and_resume_take_an_empty_body(web: Web) -> None:
    await create_job(web)
    paused = await web.ask("POST", "/api/v1/jobs/etl:pause")
    assert paused.json["paused"] is True
    resumed = await web.ask("POST", "/api/v1/jobs/etl:resume")
    assert resumed.json["paused"] is False


async def test_a_submit_is_accepted_with_its_run(web: Web) -> None:
    answer = await web.post("/api/v1/runs", SUBMITTED)
    assert answer.status == 202, answer.text
    run = answer.json
    assert (run["state"], run["job"], run["fencingToken"]) == ("PENDING", "once", None)
    assert (await web.get(f"/api/v1/runs/{run['runId']}")).json == run
    listed = (await web.get("/api/v1/runs?states=pending")).json["runs"]
    assert [one["runId"] for one in listed] == [run["runId"]]


async def test_a_watched_run_is_reported_until_it_ends(web: Web) -> None:
    run_id = (await web.post("/api/v1/runs", SUBMITTED)).json["runId"]
    async with web.events(f"/api/v1/runs:watch?runIds={run_id}") as events:
        assert json.loads((await anext(events)).data)["run"]["state"] == "PENDING"
        cancelled = await web.post(f"/api/v1/runs/{run_id}:cancel", {})
        assert cancelled.json["state"] == "CANCELLED"
        assert json.loads((await anext(events)).data)["run"]["state"] == "CANCELLED"
        assert (await anext(events)).name == "end"
        with pytest.raises(StopAsyncIteration):
            await anext(events)


async def written(web: Web, *pieces: tuple[str, bytes]) -> str:
    """A run that has ended, and has written these, one after the other."""
    run_id = (await web.post("/api/v1/runs", SUBMITTED)).json["runId"]
    await web.post(f"/api/v1/runs/{run_id}:cancel", {})
    output, ends = run_pb2.Output(), dict.fromkeys(("STDOUT", "STDERR"), 0)
    for stream, data in pieces:
        number = run_pb2.LogPiece.Stream.Value(f"STREAM_{stream}")
        output.pieces.add(stream=number, data=data, offset=ends[stream])
        ends[stream] += len(data)
    statement = "UPDATE runs SET token = 1 WHERE run_id = %(run_id)s"
    stored = "INSERT INTO outputs VALUES (%(run_id)s, 1, now(), %(pieces)s, true)"
    values = {"run_id": run_id, "pieces": output.SerializeToString()}
    for each in (statement, stored):
        await web.store.database.call(lambda c, sql=each: c.exec_driver_sql(sql, values))
    return str(run_id)


async def events_of(web: Web, path: str, last: str = "") -> list[Sent]:
    """Return all events of a stream that ends, as a browser asks that has received `last`."""
    headers = {"Last-Event-ID": last} if last else {}
    async with web.events(path, headers=headers) as events:
        return [each async for each in events]


@pytest.mark.parametrize("follow", ["", "?follow=true", "?fencingToken=1"])
async def test_a_log_continues_after_the_last_event_and_is_sent_once(web: Web, follow: str) -> None:
    run_id = await written(web, ("STDOUT", b"one"), ("STDERR", b"oh"), ("STDOUT", b"two"))
    path = f"/api/v1/runs/{run_id}/logs{follow}"
    all_of_it = await events_of(web, path)
    assert [each.name for each in all_of_it] == ["", "", "", "end"]
    for place, event in enumerate(all_of_it[:-2]):
        rest = await events_of(web, path, event.id)
        assert [each.data for each in rest] == [each.data for each in all_of_it[place + 1 :]]
    for last in all_of_it[-2:]:
        over = await web.get(path, headers={"Last-Event-ID": last.id})
        assert (over.status, over.text) == (204, ""), "a browser asks no more"


async def test_an_empty_log_is_requested_twice_at_most(web: Web) -> None:
    path = f"/api/v1/runs/{await written(web)}/logs?follow=true"
    [end] = await events_of(web, path)
    assert (end.name, bool(end.id)) == ("end", True)
    assert (await web.get(path, headers={"Last-Event-ID": end.id})).status == 204


async def test_a_watch_of_runs_continues_until_all_have_ended(web: Web) -> None:
    first, second = [(await web.post("/api/v1/runs", SUBMITTED)).json["runId"] for _ in range(2)]
    path = f"/api/v1/runs:watch?runIds={first}&runIds={second}"
    await web.post(f"/api/v1/runs/{first}:cancel", {})
    async with web.events(path) as events:
        last = [await anext(events) for _ in range(2)][-1].id
    async with web.events(path, headers={"Last-Event-ID": last}) as events:
        only = json.loads((await anext(events)).data)["run"]
        assert (only["runId"], only["state"]) == (second, "PENDING"), "the other has ended"
        await web.post(f"/api/v1/runs/{second}:cancel", {})
        ended = await anext(events)
        assert (await anext(events)).id == ended.id
    over = await web.get(path, headers={"Last-Event-ID": ended.id})
    assert (over.status, over.text) == (204, "")


async def test_a_cursor_that_no_stream_has_sent_is_refused(web: Web) -> None:
    run_id = await written(web, ("STDOUT", b"one"))
    other = (await web.post("/api/v1/runs", SUBMITTED)).json["runId"]
    async with web.events(f"/api/v1/runs:watch?runIds={other}") as events:
        of_other = (await anext(events)).id
    for path, last in (
        (f"{run_id}/logs", "yesterday"),
        (f"{run_id}/logs", "1-2"),
        (f"{run_id}/logs", f"1-{10**20}-0"),
        (f"{run_id}/logs?fencingToken=1", "2-0-0"),
        (f":watch?runIds={run_id}", of_other),
        (f":watch?runIds={run_id}", "yesterday"),
    ):
        asked = f"/api/v1/runs/{path}".replace("/:", ":")
        answer = await web.get(asked, headers={"Last-Event-ID": last})
        assert (answer.status, answer.json["reason"]) == (400, "BAD_CURSOR"), (path, last)
        assert answer.json["violations"][0]["field"] == "Last-Event-ID"
        assert answer.json["detail"].startswith("Last-Event-ID: ")
        assert f" '{last[:20]}" in answer.json["detail"]
        answer = await web.get(asked + ("&" if "?" in asked else "?") + f"resumeAfter={last}")
        assert answer.json["violations"][0]["field"] == "resumeAfter"


async def test_an_error_before_a_stream_begins_is_a_plain_problem(web: Web) -> None:
    answer = await web.get("/api/v1/runs:watch?runIds=x")
    assert (answer.status, answer.json["violations"][0]["field"]) == (400, "runIds")
    for field in ("job", "namespace"):
        answer = await web.get(f"/api/v1/runs:watch?{field}=etl&runIds={uuid4()}")
        assert (answer.status, answer.json["violations"][0]["field"]) == (400, field)
        assert "run_ids" not in answer.text, "it is runIds here"
    answer = await web.get("/api/v1/events?job=elt")
    assert (answer.status, answer.json["reason"]) == (404, "NO_SUCH_JOB")
    answer = await web.get("/api/v1/events", headers={"Last-Event-ID": "yesterday"})
    assert (answer.status, answer.json["reason"]) == (400, "BAD_CURSOR")
    assert answer.json["detail"].startswith(
        "Last-Event-ID: 'yesterday' isn't the id of an event of this cluster"
    )


async def test_events_begin_with_the_live_runs_and_a_cursor(web: Web) -> None:
    await create_job(web)
    run = (await web.post("/api/v1/jobs/etl:trigger", {})).json["runId"]
    lines: list[str] = []
    async with web.session.get(f"{web.url}/api/v1/events?job=etl") as response:
        async for line in response.content:
            lines.append(line.decode().strip())
            if line.startswith(b"id: "):
                break
    [event] = [json.loads(line.removeprefix("data: ")) for line in lines if "data: " in line]
    assert (event["run"]["runId"], event["run"]["state"]) == (run, "PENDING")
    assert event["gap"] is None
    assert re.fullmatch("id: [0-9a-f]+-[0-9a-f]+", lines[-1]), "once all live runs were sent"


async def test_streams_of_one_host_over_the_limit_are_rejected(web: Web) -> None:
    async with AsyncExitStack() as open_:
        unbounded = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        session = await open_.enter_async_context(unbounded)
        for _ in range(STREAMS_OF_ONE_HOST):
            stream = session.get(f"{web.url}/api/v1/events")
            assert (await open_.enter_async_context(stream)).status == 200
        answer = await web.get("/api/v1/events")
        assert (answer.status, answer.json["reason"]) == (429, "TOO_MANY_STREAMS")


async def test_a_backfill_is_planned_asked_for_read_and_cancelled(web: Web) -> None:
    await create_job(web, cron="0 * * * *", overlap="skip")
    body = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T02:00:00Z"}
    hours = [f"2026-01-01T0{hour}:00:00.000Z" for hour in range(3)]

    dry = await web.post("/api/v1/jobs/etl:backfill", body | {"dryRun": True})
    assert (dry.status, dry.json["instants"], dry.json["backfill"]) == (200, hours, None)
    asked = (await web.post("/api/v1/jobs/etl:backfill", body)).json
    path = f"/api/v1/backfills/{asked['backfill']['backfillId']}"
    read = (await web.get(path)).json
    assert (read["state"], read["from"], read["notCreated"]) == ("ACTIVE", hours[0], 3)
    ended = (await web.post(f"{path}:cancel", {})).json
    assert (ended["state"], ended["notCreated"]) == ("CANCELLED", 0)
    listed = (await web.get("/api/v1/backfills?job=etl")).json
    assert [one["backfillId"] for one in listed["backfills"]] == [read["backfillId"]]
    wrong = await web.post("/api/v1/jobs/etl:backfill", body | {"maxParallel": 2})
    assert (wrong.status, wrong.json["reason"]) == (400, "INVALID_FIELD")


async def test_a_watched_backfill_or_redrive_is_reported_until_it_ends(web: Web) -> None:
    await create_job(web, cron="0 * * * *", overlap="skip")
    body = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T02:00:00Z"}
    asked = (await web.post("/api/v1/jobs/etl:backfill", body)).json
    await dead(web, 2)
    begun = (await web.post("/api/v1/dead-letters:redrive", {"all": True, "rate": 0.01})).json
    for path, verb, states in (
        (f"backfills/{asked['backfill']['backfillId']}", "cancel", ["ACTIVE", "CANCELLED"]),
        (f"redrives/{begun['redrive']['redriveId']}", "stop", ["OPEN", "STOPPED"]),
    ):
        async with web.events(f"/api/v1/{path}:watch") as events:
            found = [json.loads((await anext(events)).data)]
            assert found[0] == (await web.get(f"/api/v1/{path}")).json
            assert (await web.post(f"/api/v1/{path}:{verb}", {})).status == 200
            found.append(json.loads((await anext(events)).data))
            assert [one["state"] for one in found] == states
            assert (await anext(events)).name == "end"
        unknown = await web.get(f"/api/v1/{path.partition('/')[0]}/{uuid4()}:watch")
        assert (unknown.status, unknown.json["reason"][:7]) == (404, "NO_SUCH")
    answer = await web.get("/api/v1/workers/w9:watch")
    assert (answer.status, answer.json["reason"]) == (404, "NO_SUCH_WORKER")


async def dead(web: Web, count: int) -> list[str]:
    """So many runs of the job `etl` that failed for good."""
    made = [(await web.post("/api/v1/jobs/etl:trigger", {})).json["runId"] for _ in range(count)]
    letters = """
    INSERT INTO dead_letters (run_id, scheduled_at, job_id, fingerprint)
    SELECT run_id, scheduled_at, job_id, 'f1' FROM runs
    """
    ended = "UPDATE runs SET state = 'FAILED', finished_at = now(), error = 'boom'"
    for statement in ("DELETE FROM live", ended, letters):
        await web.store.database.call(lambda c, sql=statement: c.exec_driver_sql(sql))
    return made


async def test_dead_letters_are_grouped_retried_and_discarded(web: Web) -> None:
    await create_job(web)
    one, other, third = await dead(web, 3)

    [group] = (await web.get("/api/v1/dead-letters:groups?job=etl")).json["groups"]
    assert (group["count"], group["fingerprint"], group["error"]) == (3, "f1", "boom")
    again = await web.post(f"/api/v1/runs/{one}:retry", {"payload": {"json": {"new": 1}}})
    assert (again.status, again.json["redriveOf"], again.json["trigger"]) == (200, one, "REDRIVE")
    letter = (await web.get(f"/api/v1/dead-letters/{one}")).json
    assert (letter["resolution"], letter["redrivenAs"]) == ("REDRIVEN", again.json["runId"])

    for half, field in (({"job": "etl"}, "group.fingerprint"), ({"fingerprint": "f"}, "group.job")):
        wrong = await web.post("/api/v1/dead-letters:discard", {"group": half})
        assert wrong.status == 400
        assert f"{field}: is missing" in wrong.json["detail"]
    selection = {"group": {"job": "etl", "fingerprint": group["fingerprint"]}}
    early = selection | {"until": "2026-01-01T00:00:00Z"}
    assert (await web.post("/api/v1/dead-letters:discard", early)).json["discarded"] == 0
    until = selection | {"until": group["lastDiedAt"], "dryRun": True}
    assert (await web.post("/api/v1/dead-letters:redrive", until)).json["total"] == 2
    gone = await web.post("/api/v1/dead-letters:discard", {"runIds": [other], "note": "known"})
    assert (gone.status, gone.json) == (200, {"discarded": 1})
    waiting = (await web.get("/api/v1/dead-letters")).json["deadLetters"]
    assert [one["run"]["runId"] for one in waiting] == [third]
    resolved = (await web.get("/api/v1/dead-letters?resolved=true")).json["deadLetters"]
    assert len(resolved) == 3
    unselected = await web.post("/api/v1/dead-letters:discard", {})
    assert (unselected.status, unselected.json["violations"][0]["field"]) == (400, "all")
    missing = await web.get(f"/api/v1/dead-letters/{again.json['runId']}")
    assert (missing.status, missing.json["reason"]) == (404, "NO_SUCH_DEAD_LETTER")


async def test_a_redrive_is_asked_for_read_stopped_and_resumed(web: Web) -> None:
    await create_job(web)
    await dead(web, 2)
    body = {"fingerprint": "f1", "rate": 0.5, "idempotencyKey": "k"}

    dry = await web.post("/api/v1/dead-letters:redrive", {"all": True, "dryRun": True})
    assert (dry.status, dry.json) == (200, {"total": 2, "redrive": None})
    asked = (await web.post("/api/v1/dead-letters:redrive", body)).json["redrive"]
    assert (asked["state"], asked["rate"], asked["total"], asked["created"]) == ("OPEN", 0.5, 2, 0)
    assert (await web.post("/api/v1/dead-letters:redrive", body)).json["redrive"] == asked
    path = f"/api/v1/redrives/{asked['redriveId']}"
    assert (await web.get(path)).json == asked
    stopped = (await web.post(f"{path}:stop", {})).json
    assert (stopped["state"], bool(stopped["stoppedAt"])) == ("STOPPED", True)
    assert (await web.post(f"{path}:resume", {})).json["state"] == "OPEN"
    listed = (await web.get("/api/v1/redrives")).json["redrives"]
    assert [one["redriveId"] for one in listed] == [asked["redriveId"]]
    chosen = (await web.get(f"/api/v1/dead-letters?redriveId={asked['redriveId']}")).json
    assert len(chosen["deadLetters"]) == 2
    none = await web.post("/api/v1/dead-letters:redrive", {"all": True})
    assert (none.status, none.json["reason"]) == (409, "NO_DEAD_LETTERS")
    none = await web.post("/api/v1/dead-letters:redrive", {"fingerprint": "mistyped"})
    assert "no dead letter with the fingerprint 'mistyped' can be redriven" in none.json["detail"]
    for more in ({}, {"dryRun": True}):
        none = await web.post("/api/v1/dead-letters:redrive", {"job": "mistyped", **more})
        assert (none.status, none.json["reason"]) == (404, "NO_SUCH_JOB")
    wrong = await web.post("/api/v1/dead-letters:redrive", {"all": True, "rate": 1e6})
    assert (wrong.status, wrong.json["reason"]) == (400, "INVALID_FIELD")


async def test_every_reading_call_answers_without_a_fault(web: Web) -> None:
    await create_job(web)
    run_id = (await web.post("/api/v1/runs", SUBMITTED)).json["runId"]
    for method in calls.methods():
        for route in routes_of(method):
            if route.verb == "GET":
                path = route.template.replace("{job}", "etl").replace("{run_id}", run_id)
                for other in ("{backfill_id}", "{redrive_id}"):
                    path = path.replace(other, run_id)  # there is none of this id
                query = {
                    "runs:watch": f"?runIds={run_id}",
                    "etl:explain": "?at=2026-01-01T00:00:00Z",
                    "cron:explain": "?expression=@daily",
                }.get(path.rpartition("/")[2], "")
                async with web.session.get(web.url + path + query) as answer:
                    assert answer.status in (200, 404), (path, await answer.text())


async def test_a_cron_expression_is_explained(web: Web) -> None:
    """By anybody, whether or not a job has it; a sign of space may be written `+`."""
    asked = "expression=0+9+*+*+*&timeZone=Europe/Riga&after=2026-03-01T00:00:00Z"
    answer = await web.get(f"/api/v1/cron:explain?{asked}")
    explained = answer.json
    assert answer.status == 200, answer.text
    assert (explained["expression"], explained["timeZone"]) == ("0 9 * * *", "Europe/Riga")
    assert "09:00" in explained["description"]
    assert (len(explained["instants"]), explained["instants"][0]) == (
        10,
        "2026-03-01T07:00:00.000Z",
    )
    assert explained["warnings"] == []
    wrong = await web.get("/api/v1/cron:explain?expression=0+25+*+*+*")
    assert (wrong.status, wrong.json["reason"]) == (400, "WRONG_EXPRESSION")
    assert wrong.headers["content-type"] == "application/problem+json"
    assert [one["field"] for one in wrong.json["violations"]] == ["expression"]


async def test_the_cluster_call_shows_leader_shards_members_and_workers(web: Web) -> None:
    cluster = (await web.get("/api/v1/cluster")).json
    assert cluster["leader"] == "m1"
    assert (cluster["shards"], cluster["members"], cluster["workers"]) == (256, 1, 0)


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", {"content-type": "application/json"}, 400),
        (b"{}", {"content-type": "text/plain"}, 415),
        (b"{}", {}, 415),
        (b" " * (MOST_BYTES + 1), {"content-type": "application/json"}, 413),
        (b'{"name": "\\ud800"}', {"content-type": "application/json"}, 400),
        (b'{"labels": ' + b'{"a":' * 50_000, {"content-type": "application/json"}, 400),
        (json.dumps(ETL | {"name": "a\0b"}).encode(), {"content-type": "application/json"}, 400),
    ],
    ids=["malformed", "text", "no type", "too large", "surrogate", "deep", "nul"],
)
async def test_bad_bodies_are_refused_and_nothing_is_stored(
    web: Web, body: bytes, headers: dict[str, str], status: int
) -> None:
    skip = {"skip_auto_headers": ["content-type"]} if not headers else {}
    answer = await web.ask("POST", "/api/v1/jobs", data=body, headers=headers, **skip)
    assert answer.status == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert (await web.get("/api/v1/jobs")).json["jobs"] == []


@pytest.mark.parametrize(
    ("coding", "status"), [("gzip", 415), ("Identity", 201), ("identity, br", 415), ("", 201)]
)
async def test_a_body_that_says_it_is_compressed_is_refused(
    web: Web, coding: str, status: int
) -> None:
    body = json.dumps({"name": "coded", "cron": "0 6 * * *", "shell": {"argv": ["true"]}})
    headers = {"content-type": "application/json", "content-encoding": coding}
    answer = await web.ask("POST", "/api/v1/jobs", data=body, headers=headers)
    assert answer.status == status
    if status == 415:
        assert answer.json["reason"] == "ENCODED"
        assert answer.headers["accept-encoding"] == "identity"
        assert (await web.get("/api/v1/jobs/coded")).status == 404


@pytest.mark.parametrize(
    ("charset", "status"),
    [
        ("utf-8", 201),
        ("UTF-8", 201),
        ('"utf-8"', 201),
        ("utf8", 201),
        ("utf-16", 415),
        ("latin-1", 415),
        ('"ISO-8859-1"', 415),
        ('""', 415),
        ("utf-8x", 415),
    ],
)
async def test_a_body_in_another_charset_is_refused_by_its_name(
    web: Web, charset: str, status: int
) -> None:
    headers = {"content-type": f"application/json; Charset={charset}"}
    body = json.dumps(ETL).encode()
    answer = await web.ask("POST", "/api/v1/jobs", data=body, headers=headers)
    assert answer.status == status, answer.text
    if status == 415:
        refusal, bare = answer.json, charset.strip('"')
        assert refusal["reason"] == "NOT_UTF_8"
        assert refusal["detail"] == f"the charset {bare} isn't supported"
        assert (await web.get("/api/v1/jobs")).json["jobs"] == []


@pytest.mark.parametrize("size", [MOST_BYTES + 1, 5_000_000, 16 << 20])
async def test_a_sender_of_too_large_a_body_reads_why_it_was_refused(web: Web, size: int) -> None:
    """As a plain client does: it reads nothing before all is sent."""

    def sent() -> tuple[int, Any]:
        plain = HTTPConnection(web.url.removeprefix("http://"), timeout=10)
        plain.request("POST", "/api/v1/jobs", bytes(size), {"content-type": "application/json"})
        answer = plain.getresponse()
        return answer.status, json.loads(answer.read())

    status, problem = await asyncio.to_thread(sent)
    assert (status, problem["reason"]) == (413, "REQUEST_TOO_LARGE")


async def test_a_page_of_another_site_changes_nothing(web: Web) -> None:
    await create_job(web)
    foreign = [{"Origin": "https://evil.example"}, {"Origin": "http://["}]
    for headers in (*foreign, {"Sec-Fetch-Site": "cross-site"}):
        refused = await web.ask("POST", "/api/v1/jobs/etl:pause", headers=headers)
        assert (refused.status, refused.json["reason"]) == (403, "CROSS_ORIGIN")
    own = await web.ask("POST", "/api/v1/jobs/etl:pause", headers={"Origin": web.url})
    assert own.status == 200


async def test_a_page_that_gives_its_own_name_our_address_reads_and_changes_nothing(
    web: Web,
) -> None:
    """Its origin would be the host that it asks: a browser lets it read the answers."""
    await create_job(web)
    evil = {"Host": "evil.example:7421", "Origin": "http://evil.example:7421"}
    for method, path in (("POST", "/api/v1/jobs/etl:pause"), ("GET", "/api/v1/jobs"), ("GET", "/")):
        refused = await web.ask(method, path, headers=evil)
        assert (refused.status, refused.json["reason"]) == (403, "UNKNOWN_HOST")
    assert (await web.ask("GET", "/healthz", headers=evil)).status == 200
    for own in ("localhost:7421", "[::1]:7421", "127.0.0.1", "app.localhost"):
        assert (await web.ask("GET", "/api/v1/jobs", headers={"Host": own})).status == 200


async def test_a_nul_in_a_text_causes_no_internal_error(web: Web) -> None:
    await create_job(web)
    answer = await web.post("/api/v1/jobs/etl:pause", {"note": "a\0b"})
    assert answer.status < 500, answer.text


async def test_unknown_paths_and_verbs_have_different_errors(web: Web) -> None:
    missing = await web.get("/api/v1/nothing")
    assert (missing.status, missing.json["reason"]) == (404, "NO_SUCH_PATH")
    other = await web.ask("PUT", "/api/v1/jobs")
    assert (other.status, other.headers["allow"]) == (405, "GET, POST")


async def test_a_change_is_audited_with_its_source(web: Web) -> None:
    await create_job(web)
    [entry] = (await web.get("/api/v1/audit?action=create")).json["entries"]
    assert entry["object"] == "job/default/etl"
    assert entry["source"].startswith("http:127.0.0.1:")


async def test_the_audit_has_why_letters_are_done_again_and_why_a_job_went(web: Web) -> None:
    await create_job(web)
    await dead(web, 1)
    request = {"all": True, "note": "the mail is back"}
    asked = (await web.post("/api/v1/dead-letters:redrive", request)).json["redrive"]
    assert (await web.ask("DELETE", "/api/v1/jobs/etl?note=no+longer+read")).status == 200
    entries = (await web.get("/api/v1/audit")).json["entries"]
    notes = {one["object"]: json.loads(one["after"])["note"] for one in entries[:2]}
    assert notes == {
        f"redrive/{asked['redriveId']}": "the mail is back",
        "job/default/etl": "no longer read",
    }


async def test_the_cluster_is_paused_and_resumed_and_its_page_says_so(web: Web) -> None:
    paused = await web.post("/api/v1/cluster:pause", {"note": "new disks"})
    assert (paused.status, paused.json["paused"], paused.json["pauseNote"]) == (
        200,
        True,
        "new disks",
    )
    assert paused.json["pausedAt"].endswith("Z")
    assert paused.json["pausedBy"]
    page = (await web.get("/")).text
    assert f"The cluster is paused by {paused.json['pausedBy']} since" in page
    assert "new disks" in page
    resumed = (await web.post("/api/v1/cluster:resume", {})).json
    assert (resumed["paused"], resumed["pausedAt"], resumed["pauseNote"]) == (False, None, None)


async def test_health_distinguishes_alive_from_ready(web: Web) -> None:
    assert (await web.get("/healthz")).status == 200
    assert (await web.get("/readyz")).json == {"status": "ready", "reasons": [], "notes": []}
    web.reasons.append("the member hasn't joined the cluster yet")
    answer = await web.get("/readyz")
    assert (answer.status, answer.json["reasons"]) == (
        503,
        ["the member hasn't joined the cluster yet"],
    )
    assert (await web.get("/healthz")).status == 200


async def test_the_metrics_are_served(web: Web) -> None:
    answer = await web.get("/metrics")
    assert answer.status == 200
    assert "schedd_leader 1.0" in answer.text.splitlines()


async def test_an_outage_of_the_database_is_a_503_with_retry_after() -> None:
    with private_postgres(copied=True, synchronous_commit="on") as server:
        dsn = server.create_migrated()
        async with served(dsn) as web:
            server.process.send(signal.SIGQUIT)  # at once, as in a crash
            wait_until(lambda: not server.process.alive(), WAIT_TIMEOUT, "the server's end")
            away = await web.get("/api/v1/jobs")
            assert (away.status, away.json["reason"]) == (503, "DATABASE_UNAVAILABLE")
            assert away.headers["retry-after"] == "1"
            assert dsn.rpartition("@")[2] not in away.text
            await asyncio.to_thread(restart, server)

            async def back() -> bool:
                return (await web.get("/api/v1/jobs")).status == 200

            await wait_until_async(back, WAIT_TIMEOUT, "the database's return")


async def test_a_change_that_the_database_leaves_unanswered_may_have_happened_and_happens_once(
    web: Web, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "WAITS", 0.3)
    monkeypatch.setattr(deadlines, "STATEMENTS", 0.2)
    job, key = await create_job(web), {"Idempotency-Key": str(uuid4())}
    path, runs = "/api/v1/jobs/etl:trigger", f"/api/v1/runs?job={job['jobId']}"
    with closing(psycopg2.connect(dsn)) as other, other.cursor() as cursor:
        cursor.execute("LOCK TABLE runs IN EXCLUSIVE MODE")  # so it is read, and not written
        async with asyncio.timeout(WAIT_TIMEOUT):
            unknown = await web.post(path, {}, headers=key)
        assert (await web.get(runs)).json["runs"] == []
    assert (unknown.status, unknown.json["reason"]) == (504, "OUTCOME_UNKNOWN")
    assert unknown.json["title"] == "Timed out, outcome unknown"
    assert "idempotency key" in unknown.json["remedy"]

    async def answered() -> bool:
        return (await web.post(path, {}, headers=key)).status == 202

    await wait_until_async(answered, WAIT_TIMEOUT, "the answer of the same key")
    again = await web.post(path, {}, headers=key)
    [run] = (await web.get(runs)).json["runs"]
    assert again.json["runId"] == run["runId"]


async def test_the_server_ends_soon_though_a_caller_watches(web: Web) -> None:
    run_id = (await web.post("/api/v1/runs", SUBMITTED)).json["runId"]
    async with web.events(f"/api/v1/runs:watch?runIds={run_id}") as events:
        await anext(events)
        web.server.cancel()
        async with asyncio.timeout(GRACE):  # which requests that still wait for an answer get
            with pytest.raises(StopAsyncIteration):
                await anext(events)
            await asyncio.wait([web.server])


async def test_a_caller_that_leaves_in_the_middle_of_its_body_is_no_bug(
    web: Web, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    host, port = web.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = b"POST /api/v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    writer.write(head + b"content-length: 1000\r\n\r\n{")
    await writer.drain()
    assert (await web.get("/healthz")).status == 200
    writer.close()
    await wait_until_async(
        lambda: "caller disconnected" in caplog.text, WAIT_TIMEOUT, "it to be seen"
    )
    assert "Traceback" not in caplog.text
    assert "Exception" not in caplog.text
