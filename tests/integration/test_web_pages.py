"""The frame of the pages over a real database: addresses, forms, what they tell and refuse."""

from __future__ import annotations

import asyncio
import html
import json
import re
import signal
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import unquote

import pytest

from schedd.api import deadlines
from schedd.api.calls import STREAMING, UNARY
from schedd.api.services import Caller
from schedd.store.schema import migrate
from schedd.web.app import PAGES
from schedd.web.pages import site
from schedd.web.pages.page import AT_A_TIME, EVERY, PageRequest
from schedd.web.pages.snapshots import PageSnapshots
from schedkit.errors import Unavailable
from schedproto.v1 import run_pb2
from support.callers import TESTER
from support.postgres import private_postgres, restart
from support.wait import WAIT_TIMEOUT, wait_until_async
from support.web import Answer, Web, served

JOB = {"name": "etl", "cron": "0 2 * * *", "shell": {"argv": ["true"]}}
FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.fixture
async def web(dsn: str) -> AsyncIterator[Web]:
    async with served(dsn) as face:
        yield face


BURY = """
WITH failed AS (UPDATE runs SET state = 'FAILED' RETURNING run_id, scheduled_at, job_id)
INSERT INTO dead_letters (run_id, scheduled_at, job_id, fingerprint)
SELECT run_id, scheduled_at, job_id, 'f' FROM failed
"""


def counted(stream: Any, calls: list[object]) -> Any:
    """A call that streams, each time noted."""

    def noted(*asked: object) -> Any:
        calls.append(asked)
        return stream(*asked)

    return noted


async def sent(web: Web, path: str, **fields: str) -> Answer:
    """A form, its answer not followed."""
    return await web.ask("POST", path, data=fields, allow_redirects=False, headers=FORM)


async def test_each_page_warns_that_its_member_fires_nothing_without_a_trusted_lease(
    web: Web,
) -> None:
    """Else it counts down to runs that no member fires. Pages that list problems show it once."""
    await web.post("/api/v1/jobs", JOB)
    live = [page.path for page in PAGES if page.every == EVERY and "{" not in page.path]
    for path in live:
        assert "trusted" not in (await web.get(path)).text, path
    web.cluster.has_trust = False
    for path in live:
        await wait_until_async(
            lambda path=path: shows_once(
                web, path, "in etcd isn&#39;t trusted", "in etcd isn't trusted"
            ),
            WAIT_TIMEOUT,
            path,
        )
    web.cluster.has_trust = True


async def shows_once(web: Web, path: str, *words: str) -> bool:
    text = (await web.get(path)).text
    return sum(text.count(each) for each in words) == 1


async def test_a_form_does_not_wait_for_page_reads(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor has it less time than the same change over REST."""
    monkeypatch.setattr(site, "AT_A_TIME", 0)
    monkeypatch.setattr(deadlines, "READ_WITHIN", 0.6)
    async with served(dsn) as web:
        await web.post("/api/v1/jobs", JOB)
        assert (await web.get("/jobs")).status == 503, "no page has a turn"
        assert (await sent(web, "/jobs/etl/pause", reason="the disks")).status == 303
        assert (await web.get("/api/v1/jobs/etl")).json["pauseNote"] == "the disks"


async def test_pages_without_the_database_or_about_its_state_wait_for_no_page(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "AT_A_TIME", 0)
    monkeypatch.setattr(deadlines, "READ_WITHIN", 0.6)
    async with served(dsn) as web:
        assert (await web.get("/jobs")).status == 503, "no page has a turn"
        doctor = await web.get("/cluster/doctor")
        assert doctor.status == 200
        assert "it is away" in doctor.text
        assert "every minute" in (await web.get("/cron?expression=*+*+*+*+*")).text.lower()


async def test_every_page_exists_and_is_within_the_frame(web: Web) -> None:
    await web.post("/api/v1/jobs", JOB)
    run = (await web.post("/api/v1/jobs/etl:trigger", {})).json["runId"]
    for page in PAGES:
        answer = await web.get(page.path.format(job="etl", run=run))
        assert answer.status == 200, page.path
        assert f'aria-current="page">{page.tab}</a>' in answer.text, page.path
        assert "<h1" in answer.text
        assert answer.headers["cache-control"] == "no-store"


async def test_unknown_parameters_of_a_page_are_refused_by_name_without_a_query(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PageSnapshots, "snapshot_for", lambda *_: pytest.fail("it was looked at"))
    for address in ("/runs?state=failed", "/live/runs?state=failed", "/runs?state="):
        answer = await web.get(address)
        assert answer.status == 400, address
        assert "State: unknown parameter" in answer.text
        assert "parameters of this page: q, page, namespace" in answer.text


async def test_a_repeated_parameter_of_a_page_is_refused_by_name(web: Web) -> None:
    """As by REST: one of the two was meant."""
    twice = "dead-letters?job=a&job=b"
    for address in (f"/{twice}", f"/live/{twice}", "/jobs?page=&page="):
        answer = await web.get(address)
        assert answer.status == 400, address
        assert "is given twice" in answer.text


async def test_a_stream_begins_with_its_caller_for_the_footer(web: Web) -> None:
    page = (await web.get("/jobs")).text
    [name] = re.findall('<span id="served"> Served by ([^<]+)[.]</span>', page)
    async with web.events("/live/jobs", beats=True) as events:
        beat = await anext(events)
        assert (beat.name, beat.data) == ("beat", name)
        assert "No jobs yet" in (await anext(events)).data


async def test_an_ended_run_ends_its_stream_and_its_log_isn_t_read_again(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[object] = []
    logs = STREAMING["schedd.v1.RunService.ReadLogs"]
    monkeypatch.setitem(STREAMING, "schedd.v1.RunService.ReadLogs", counted(logs, read))
    await web.post("/api/v1/jobs", JOB)
    run = (await web.post("/api/v1/jobs/etl:trigger", {})).json["runId"]
    assert f'data-live="/live/runs/{run}"' in (await web.get(f"/runs/{run}")).text
    async with web.events(f"/live/runs/{run}") as events:
        assert "waiting" in (await anext(events)).data
        await web.post(f"/api/v1/runs/{run}:cancel", {})
        shown = [event async for event in events]  # until the server ends it
    assert [event.name for event in shown] == ["", "end"]
    assert "cancelled" in shown[0].data
    assert len(read) == 1
    assert "data-live" not in (await web.get(f"/runs/{run}")).text


async def ended_with(
    web: Web, monkeypatch: pytest.MonkeyPatch, lines: int, stored: run_pb2.Output | None = None
) -> str:
    """The page of a run that has ended and wrote so many lines, of 128 bytes; `stored`: what its
    row has of them.
    """

    async def logs(*_: object) -> AsyncIterator[run_pb2.LogPiece]:
        for first in range(0, lines, 500):
            data = b"".join(b"%07d %s\n" % (at, b"." * 119) for at in range(first, first + 500))
            # a worker reads wherever it is, within lines, too
            yield run_pb2.LogPiece(data=data[:777], offset=first * 128)
            yield run_pb2.LogPiece(data=data[777:], offset=first * 128 + 777)

    monkeypatch.setitem(STREAMING, "schedd.v1.RunService.ReadLogs", logs)
    await web.post("/api/v1/jobs", JOB)
    run = (await web.post("/api/v1/jobs/etl:trigger", {})).json["runId"]
    await web.post(f"/api/v1/runs/{run}:cancel", {})
    if stored is not None:
        row = "INSERT INTO outputs SELECT run_id, 1, scheduled_at, %s, true FROM runs"
        kept = (stored.SerializeToString(),)
        await web.store.database.call(lambda c: c.exec_driver_sql(row, kept))
    return (await web.get(f"/runs/{run}")).text.partition('id="log-text"')[2].partition("</pre>")[0]


async def test_the_page_of_a_long_log_has_the_newest_lines(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = await ended_with(web, monkeypatch, 10_000)
    assert "earlier output omitted: see the whole log with `schedctl run logs`" in text
    _, *lines = re.sub("<[^>]*>", "", text.partition("schedctl run logs`")[2]).splitlines()
    assert {len(line) for line in lines} == {127}, "whole ones"
    numbers = [int(line.split()[0]) for line in lines]
    assert numbers == list(range(numbers[0], 10_000)), "to the last"
    assert 255 * 1024 <= 128 * len(numbers) < 352 * 1024


async def test_the_page_of_a_log_of_many_megabytes_reads_only_its_ends(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = run_pb2.Output(
        pieces=[
            run_pb2.LogPiece(data=b"the first line\n"),
            run_pb2.LogPiece(data=b"the last line\n", offset=99_999_986, omitted=99_999_971),
        ]
    )
    text = await ended_with(web, monkeypatch, 800_000, ends)
    shown = [re.sub("<[^>]*>", "", line) for line in text.partition(">")[2].splitlines()]
    assert [line for line in shown if line] == [
        "beginning and end of a long log: see the whole log with `schedctl run logs`",
        "the first line",
        "99,999,971 bytes omitted",
        "the last line",
    ]


async def test_the_result_of_a_form_is_shown_once(web: Web) -> None:
    await web.post("/api/v1/jobs", JOB)
    answer = await sent(web, "/jobs/etl/pause", reason="the disks", back="/jobs")
    assert (answer.status, answer.headers["location"]) == (303, "/jobs")
    assert "httponly" in answer.headers["set-cookie"].lower()
    assert (await web.get("/api/v1/jobs/etl")).json["pauseNote"] == "the disks"
    cookie = {"cookie": answer.headers["set-cookie"].partition(";")[0]}
    telling = await web.get("/jobs", headers=cookie)
    assert "etl is paused" in telling.text
    assert "schedd-flash=" in telling.headers["set-cookie"]
    assert "max-age=0" in telling.headers["set-cookie"].lower()
    assert "etl is paused" not in (await web.get("/jobs")).text


def flash_of(answer: Answer) -> str:
    """Return the message that the cookie of an answer brings to the next page."""
    cookie = answer.headers["set-cookie"].partition(";")[0].partition("=")[2]
    return str(json.loads(unquote(cookie))[0])


async def test_the_answer_to_the_last_of_two_forms_reports_both(web: Web) -> None:
    for name in ("etl", "load"):
        await web.post("/api/v1/jobs", JOB | {"name": name})
    await sent(web, "/jobs/etl/trigger", request_id="0123")
    last = await sent(web, "/jobs/load/trigger", request_id="0123")
    assert "etl was triggered" in flash_of(last)
    assert "load was triggered" in flash_of(last)
    other = await sent(web, "/jobs/etl/trigger", request_id="4567")
    assert "load" not in flash_of(other)


async def test_deleting_a_job_twice_isnt_an_error(web: Web) -> None:
    await web.post("/api/v1/jobs", JOB)
    for words in ("etl was deleted.", "etl was already deleted."):
        answer = await sent(web, "/jobs/etl/delete", name="etl", reason="no longer read")
        assert (answer.status, answer.headers["location"], flash_of(answer)) == (
            303,
            "/jobs",
            words,
        )


async def test_without_a_script_a_page_that_asks_for_a_reason_isn_t_reloaded(web: Web) -> None:
    for path, reloads in (("/workers", True), ("/jobs/etl", False)):
        if not reloads:
            await web.post("/api/v1/jobs", JOB)
        page = (await web.get(path)).text
        assert ('http-equiv="refresh"' in page, ">Reload</a>" in page) == (
            reloads,
            not reloads,
        )


async def test_the_audit_keeps_the_reasons_of_forms_that_destroy_or_do_again(web: Web) -> None:
    await web.post("/api/v1/jobs", JOB)
    await web.post("/api/v1/jobs/etl:trigger", {})
    await web.store.database.call(lambda c: c.exec_driver_sql(BURY))
    assert (await web.get("/dead-letters")).text.count('name="reason"') == 2
    await sent(
        web,
        "/dead-letters/redrive",
        job="etl",
        fingerprint="f",
        rate="10",
        reason="the mail is back",
    )
    assert 'name="reason"' in (await web.get("/jobs/etl")).text.partition('id="delete"')[2]
    await sent(web, "/jobs/etl/delete", name="etl", reason="no longer read")
    entries = (await web.get("/api/v1/audit")).json["entries"]
    notes = {one["action"]: one["after"] for one in entries[:2]}
    assert '"note":"the mail is back"' in notes["redrive"]
    assert notes["delete"] == '{"note":"no longer read"}'


async def test_a_failed_form_is_reported_with_a_remedy(web: Web) -> None:
    answer = await sent(web, "/jobs/nowhere/trigger")
    assert answer.status == 404
    assert "Job &#39;nowhere&#39; not found" in answer.text
    assert "Remedy" in answer.text


async def test_a_form_of_another_site_is_refused(web: Web) -> None:
    await web.post("/api/v1/jobs", JOB)
    headers = FORM | {"origin": "https://evil.example"}
    answer = await web.ask("POST", "/jobs/etl/delete", data={"name": "etl"}, headers=headers)
    assert answer.status == 403
    assert (await web.get("/api/v1/jobs/etl")).status == 200


async def test_a_form_does_not_redirect_to_another_site(web: Web) -> None:
    await web.post("/api/v1/jobs", JOB)
    answer = await sent(web, "/jobs/etl/trigger", back="https://evil.example/")
    assert answer.headers["location"].startswith("/runs/")


async def test_a_body_that_isnt_a_form_is_refused(web: Web) -> None:
    answer = await web.post("/jobs/etl/pause", {"reason": "x"})
    assert answer.status == 400
    assert "The form isn't valid" in html.unescape(answer.text)
    twice = await web.ask("POST", "/jobs/etl/pause", data=[("reason", "x"), ("reason", "y")])
    assert twice.status == 400
    assert "reason is given twice" in twice.text
    many = await web.ask("POST", "/new-job", data={f"f{at}": "x" for at in range(200)})
    assert many.status == 400


async def test_a_form_creates_a_job_or_is_shown_again_with_the_error(web: Web) -> None:
    fields = {"name": "by-form", "schedule": "every", "action": "shell", "what": "true"}
    answer = await sent(web, "/new-job", **fields)
    assert answer.status == 400
    assert 'value="by-form"' in answer.text
    of_mars = fields | {"schedule": "cron", "when": "0 9 * * *", "time_zone": "Mars"}
    assert "Time zone: unknown time zone" in (await sent(web, "/new-job", **of_mars)).text
    timed = fields | {"schedule": "on_demand", "when": "0 9 * * *"}
    no_clock = await sent(web, "/new-job", **timed)
    assert no_clock.status == 400
    assert "When: the field has no effect: a job on demand has no schedule" in no_clock.text
    assert 'name="when" value="0 9 * * *"' in no_clock.text
    elsewhere = await sent(web, "/new-job", **fields, when="1m", namespace="zz")
    assert elsewhere.status == 400
    assert "Namespace: belongs in the address" in elsewhere.text
    assert 'action="/new-job"' in elsewhere.text
    assert 'name="when" value="1m"' in elsewhere.text
    answer = await sent(web, "/new-job", **fields, when="1m")
    assert (answer.status, answer.headers["location"]) == (303, "/jobs/by-form")
    again = await sent(web, "/new-job", **fields, when="1m")
    assert again.status == 409


def drawn(page: str) -> str:
    """Return the request id that the forms of this rendering of a page share."""
    [request_id] = set(re.findall(r'name="request_id" value="(\w+)"', page))
    return str(request_id)


async def test_a_form_sent_twice_asks_once_and_a_newly_rendered_one_asks_again(web: Web) -> None:
    await web.post("/api/v1/jobs", JOB)
    await web.post("/api/v1/jobs", JOB | {"name": "other"})
    first = drawn((await web.get("/jobs")).text)
    once, twice, other = [
        (await sent(web, f"/jobs/{job}/trigger", request_id=first)).headers["location"]
        for job in ("etl", "etl", "other")
    ]
    assert once == twice != other
    again = drawn((await web.get("/jobs")).text)  # the same snapshot, rendered for another caller
    later = (await sent(web, "/jobs/etl/trigger", request_id=again)).headers["location"]
    assert later != once
    assert len((await web.get("/api/v1/runs")).json["runs"]) == 3


async def test_a_streams_rendering_is_the_same_for_all_watchers(web: Web) -> None:
    await web.post("/api/v1/jobs", JOB)
    async with web.events("/live/jobs") as events:
        assert 'name="request_id" value=""' in (await anext(events)).data


async def test_a_job_that_is_made_twice_by_one_form_is_made_once(web: Web) -> None:
    fields = {"name": "one", "schedule": "on_demand", "action": "shell", "what": "true"}
    fields["request_id"] = drawn((await web.get("/new-job")).text)
    for _ in range(2):
        answer = await sent(web, "/new-job", **fields)
        assert (answer.status, answer.headers["location"]) == (303, "/jobs/one")
    other = await sent(web, "/new-job", **fields | {"what": "false"})
    assert (other.status, "ob &#39;one&#39; already exists" in other.text) == (409, True)
    assert drawn(other.text) != fields["request_id"]


async def test_namespaces_go_with_every_link(web: Web) -> None:
    fields = {"name": "deep", "schedule": "on_demand", "action": "shell", "what": "true"}
    answer = await sent(web, "/new-job?namespace=team-a", **fields)
    assert answer.headers["location"] == "/jobs/deep?namespace=team-a"
    assert (await web.get("/jobs/deep")).status == 404
    page = await web.get("/jobs/deep?namespace=team-a")
    assert 'action="/jobs/deep/trigger?namespace=team-a"' in page.text
    assert 'href="/runs?namespace=team-a"' in page.text


async def test_links_on_the_page_of_a_run_keep_the_namespace_of_the_run(web: Web) -> None:
    made = {}
    for namespace in ("default", "team-a"):
        await web.post("/api/v1/jobs", JOB | {"namespace": namespace})
        asked = {"namespace": namespace}
        made[namespace] = (await web.post("/api/v1/jobs/etl:trigger", asked)).json["runId"]
    for namespace, page_s, links in (
        ("team-a", "", "?namespace=team-a"),
        ("team-a", "?namespace=team-a", "?namespace=team-a"),
        ("default", "?namespace=team-a", "?namespace=default"),
        ("default", "?namespace=default", "?namespace=default"),
        ("default", "", ""),
    ):
        run = made[namespace]
        text = (await web.get(f"/runs/{run}{page_s}")).text.partition('<div id="body"')[2]
        body = text.partition("<footer>")[0]
        assert f'href="/jobs/etl{links}"' in body, (namespace, page_s)
        assert f'action="/runs/{run}/cancel{links}"' in body, (namespace, page_s)
        others = page_s.removeprefix("?namespace=") or "default"
        assert (f"namespace {namespace}</span>" in body) is (namespace != others)


async def test_the_name_of_a_submitted_run_leads_to_the_runs_of_that_name(web: Web) -> None:
    asked = {"name": "once", "spec": {"shell": {"argv": ["true"]}}}
    run = (await web.post("/api/v1/runs", asked)).json["runId"]
    text = (await web.get(f"/runs/{run}")).text
    assert 'href="/jobs/once"' not in text
    [there] = re.findall(r'<h1><a href="([^"]*)">once</a>', text)
    assert run in (await web.get(there)).text


async def test_a_page_that_cant_be_shown_says_so_in_its_stream_too(web: Web) -> None:
    async with web.events("/live/jobs/etl") as events:
        assert "Job &#39;etl&#39; not found" in (await anext(events)).data
        await web.post("/api/v1/jobs", JOB)
        assert "<h1>etl</h1>" in (await anext(events)).data


async def test_jobs_are_listed_in_pages_and_found_by_name(web: Web) -> None:
    for number in range(35):
        await web.post("/api/v1/jobs", JOB | {"name": f"job-{number:02}"})
    first = (await web.get("/jobs")).text
    assert first.count("data-row") == 30
    older = first[first.index('rel="next"') :].split('href="')[1].split('"')[0]
    second = (await web.get(older.replace("&amp;", "&"))).text
    assert second.count("data-row") == 5
    rows = second.partition("<tbody>")[2].partition("</tbody>")[0]
    backs = set(re.findall(r'name="back" value="([^"]*)"', rows))
    assert backs == {older}
    paused = await sent(web, "/jobs/job-34/pause", back=older.replace("&amp;", "&"))
    assert paused.headers["location"] == older.replace("&amp;", "&")
    assert 'href="/jobs">Newest</a>' in second
    assert (await web.get("/jobs?filter=job-07")).text.count("data-row") == 1
    assert "No jobs found for" in (await web.get("/jobs?filter=job-99")).text
    assert (await web.get("/jobs?page=nonsense")).status == 400


async def test_user_text_is_escaped_on_every_page(web: Web) -> None:
    nasty = '"><script>alert(1)</script>'
    shell = {"argv": ["echo", nasty]}
    await web.post("/api/v1/jobs", JOB | {"shell": shell, "payload": nasty})
    await sent(web, "/jobs/etl/pause", reason=nasty)
    run = (await web.post("/api/v1/jobs/etl:trigger", {})).json["runId"]
    await web.post(f"/api/v1/runs/{run}:cancel", {"reason": nasty})
    paths = ("/jobs", "/jobs/etl", f"/runs/{run}", "/runs", f"/runs?q={nasty}", "/")
    for path in (
        *paths,
        f"/cron?expression={nasty}",
        f"/jobs?filter={nasty}",
        f"/new-job?what={nasty}",
    ):
        assert "<script>alert" not in (await web.get(path)).text, path


async def test_the_cron_page_shows_the_answer_of_the_call_in_the_time_zone(web: Web) -> None:
    asked = "expression=0+9+*+*+*"
    explained = (await web.get(f"/api/v1/cron:explain?{asked}&timeZone=Asia/Tokyo")).json
    page = (await web.get(f"/cron?{asked}&timeZone=Asia/Tokyo")).text
    assert explained["description"][1:] in page
    assert page.count("09:00:00</time> <small>JST") == 10
    assert explained["instants"][0].endswith("T00:00:00.000Z")
    wrong = (await web.get("/cron?expression=0+25+*+*+*")).text
    assert 'role="alert">Hour: ' in wrong
    mars = (await web.get(f"/cron?{asked}&timeZone=Mars")).text
    assert 'role="alert">Time zone: unknown time zone' in mars


async def test_many_watchers_of_one_address_share_its_snapshots(web: Web) -> None:
    await web.post("/api/v1/jobs", JOB)
    bodies: list[str] = []

    async def watch() -> None:
        async with web.events("/live/jobs") as events:
            bodies.append((await anext(events)).id)

    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(watch(), name=f"watcher {number}")
    assert len(set(bodies)) == 1


async def test_an_outage_is_shown_on_every_page_which_keeps_its_last_data() -> None:
    with private_postgres(copied=True, synchronous_commit="on") as server:
        dsn = server.create_database()
        migrate.upgrade(dsn)
        async with served(dsn) as web:
            await web.post("/api/v1/jobs", JOB)
            async with web.events("/live/jobs") as events:
                assert "etl" in (await anext(events)).data
                server.process.send(signal.SIGQUIT)  # at once, as in a crash
                away = await anext(events)
                assert "PostgreSQL is unavailable." in away.data
                assert "etl" in away.data
                for unread in ("/jobs/etl", "/cluster", "/workers"):
                    unknown = await web.get(unread)
                    assert unknown.status == 503, unread
                    assert "Remedy" in unknown.text
                await asyncio.to_thread(restart, server)
                assert "answer" not in (await anext(events)).data


async def test_a_click_continues_a_search_that_found_nothing_so_far(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("schedd.store.jobs.jobs.LOOKED_AT", 2)
    monkeypatch.setattr("schedd.api.jobs.jobs.LOOKED_FOR", 0.0)
    monkeypatch.setattr("schedd.store.runs.run_list.LOOKED_AT", 2)
    for number in range(3):
        await web.post("/api/v1/jobs", JOB | {"name": f"job-{number}"})
        run = (await web.post(f"/api/v1/jobs/job-{number}:trigger", {})).json["runId"]
        await web.post(f"/api/v1/runs/{run}:cancel", {})
    for first, words in (
        ("/jobs?filter=paused:true", "<code>paused:true</code>"),
        ("/runs?q=trigger:schedule", "<code>trigger:schedule</code>"),
    ):
        text = (await web.get(first)).text
        assert f"found so far for {words}" in text
        assert "searched back to" in text
        further = text[text.index('rel="next"') :]
        assert further.split(">")[1].startswith("Search further")
        address = further.split('href="')[1].split('"')[0].replace("&amp;", "&")
        text = (await web.get(address)).text
        assert f"found for {words}" in text
        assert "so far" not in text
        assert "Search further" not in text


async def test_the_greatest_groups_of_dead_letters_are_shown_and_the_rest_counted(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("schedd.web.pages.runs.dead_letters.GROUPS", 2)
    for number in range(4):
        await web.post("/api/v1/jobs", JOB | {"name": f"job-{number}"})
        for _ in range(number + 1):
            await web.post(f"/api/v1/jobs/job-{number}:trigger", {})
    await web.store.database.call(lambda c: c.exec_driver_sql(BURY))
    text = (await web.get("/dead-letters")).text
    assert "10 open" in text
    assert [name for name in ("job-0", "job-1", "job-2", "job-3") if f">{name}<" in text] == [
        "job-2",
        "job-3",
    ]
    assert "3 more in smaller groups" in text


async def test_dead_letters_are_chosen_by_a_job_or_by_a_kind_of_error_alone(web: Web) -> None:
    for name in ("etl", "report"):
        await web.post("/api/v1/jobs", JOB | {"name": name})
        await web.post(f"/api/v1/jobs/{name}:trigger", {})
    await web.store.database.call(lambda c: c.exec_driver_sql(BURY))
    one = "UPDATE dead_letters SET fingerprint = 'other' WHERE job_id = (SELECT job_id FROM jobs "
    await web.store.database.call(lambda c: c.exec_driver_sql(f"{one} WHERE name = 'report')"))
    for asked in ("job=etl", "fingerprint=f", "job=etl&fingerprint=f"):
        text = (await web.get(f"/dead-letters?{asked}")).text
        assert "1 open in this selection" in text, asked
        assert 'id="letters"' in text, asked
        assert ">etl<" in text, asked
        assert "report" not in text, asked
    none = (await web.get("/dead-letters?job=report&fingerprint=f")).text
    assert "none open in this selection" in none
    assert "/dead-letters/redrive" not in none


async def create_dead_letters(web: Web) -> None:
    """Dead letters of a kind: 3 of a job, 2 submitted, 1 submitted by its name."""
    await web.post("/api/v1/jobs", JOB)
    for _ in range(3):
        await web.post("/api/v1/jobs/etl:trigger", {})
    for named in ({}, {}, {"name": "etl"}):
        made = await web.post("/api/v1/runs", named | {"spec": {"shell": {"argv": ["true"]}}})
        assert made.status == 202, made.text
    await web.store.database.call(lambda c: c.exec_driver_sql(BURY))


ROWS = {  # of `create_dead_letters`: the text of a row, and what is left without its letters
    "submitted runs": ("All 2 dead letters of submitted runs without a name", [("", 2)]),
    "etl": ("All 3 dead letters of etl with", [("etl", 3)]),
    "etl, submitted": ("The 1 dead letter of submitted runs named etl", [("etl", 1)]),
}


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("action", ["discard", "redrive"])
async def test_a_row_of_dead_letters_handles_the_letters_it_shows_and_no_others(
    web: Web, row: str, action: str
) -> None:
    said, dealt_with = ROWS[row]
    await create_dead_letters(web)
    [shown] = [
        each
        for each in (await web.get("/dead-letters")).text.split("<tr data-key=")
        if f"data-row>{row}</a>" in each
    ]
    form = shown.partition(f'action="/dead-letters/{action}"')[2].partition("</form>")[0]
    assert said in form
    names = re.findall(r'type="hidden" name="([^"]*)" value="([^"]*)"', form)
    await sent(web, f"/dead-letters/{action}", **dict(names))
    groups = (await web.get("/api/v1/dead-letters:groups")).json["groups"]
    if action == "redrive":
        gone = [(one["job"] or "", int(one["queued"])) for one in groups]
        assert [one for one in gone if one[1]] == dealt_with
    else:
        left = {(one["job"] or "", int(one["count"])) for one in groups}
        assert {("etl", 3), ("etl", 1), ("", 2)} - left == set(dealt_with)


async def test_a_form_submitted_twice_starts_one_redrive(web: Web) -> None:
    await create_dead_letters(web)
    page = (await web.get("/dead-letters")).text
    form = page.partition('action="/dead-letters/redrive"')[2].partition("</form>")[0]
    names = dict(re.findall(r'type="hidden" name="([^"]*)" value="([^"]*)"', form))
    for _ in range(2):
        answer = await sent(web, "/dead-letters/redrive", **names, rate="10")
        assert answer.status == 303
    assert len((await web.get("/api/v1/redrives")).json["redrives"]) == 1


FRESH = "/dead-letters?fingerprint=f"  # an address of its own has a snapshot of its own


async def form_of(
    web: Web, action: str, row: str = "etl", address: str = "/dead-letters"
) -> dict[str, str]:
    """Return the hidden fields of a row's dialog, as a page shows it."""
    page = (await web.get(address)).text
    [shown] = [
        each
        for each in page.partition('id="groups"')[2].split("<tr data-key=")
        if f"data-row>{row}</a>" in each
    ]
    form = shown.partition(f'action="/dead-letters/{action}"')[2].partition("</form>")[0]
    return dict(re.findall(r'type="hidden" name="([^"]*)" value="([^"]*)"', form))


async def page_after(web: Web, answer: Answer) -> str:
    """The page that says what a form did."""
    assert answer.status == 303, answer.text
    cookie = {"cookie": answer.headers["set-cookie"].partition(";")[0]}
    return (await web.get(answer.headers["location"], headers=cookie)).text


@pytest.mark.parametrize("action", ["discard", "redrive"])
async def test_a_dialog_of_dead_letters_handles_only_the_letters_it_showed(
    web: Web, action: str
) -> None:
    """As on a page that isn't updated: without JavaScript, or while the stream is away."""
    await create_dead_letters(web)
    names = await form_of(web, action)
    for _ in range(2):
        await web.post("/api/v1/jobs/etl:trigger", {})
    more = BURY.replace("RETURNING", "WHERE state = 'PENDING' RETURNING")
    await web.store.database.call(lambda c: c.exec_driver_sql(more))
    answer = await sent(web, f"/dead-letters/{action}", **names)
    assert "3 dead letters are" in await page_after(web, answer)
    later = await form_of(web, action, address=FRESH)
    assert later["until"] > names["until"], "it shows newer ones now"
    assert names["count"] == "3"


async def test_dead_letters_discarded_already_are_reported_as_that_and_not_as_none(
    web: Web,
) -> None:
    await create_dead_letters(web)
    names = await form_of(web, "discard")
    assert "3 dead letters are discarded" in await page_after(
        web, await sent(web, "/dead-letters/discard", **names)
    )
    again = await page_after(web, await sent(web, "/dead-letters/discard", **names))
    assert "Nothing was discarded" in again
    assert "0 dead letters" not in again


async def test_a_redrive_is_reported_with_what_will_run_and_what_may_stay(web: Web) -> None:
    await create_dead_letters(web)
    await web.ask("DELETE", "/api/v1/jobs/etl")
    said = (await web.get("/dead-letters")).text
    assert "become new runs at this rate. Those of deleted jobs or pools stay open." in said
    assert "becomes a new run. It stays open if its job or pool is deleted." in said
    answer = await sent(web, "/dead-letters/redrive", **await form_of(web, "redrive"), rate="10")
    page = await page_after(web, answer)
    assert "3 dead letters are queued for redrive. See the progress under Redrives." in page
    assert ">0 of 3" in page.partition('id="redrives"')[2]


@pytest.mark.parametrize("action", ["discard", "redrive"])
@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, "Group.fingerprint: is missing"),
        ({"job": "etl"}, "Group.fingerprint: is missing"),
        ({"fingerprint": "f"}, "Group.job: is missing"),
        ({"job": "etl", "fingerprint": "f", "until": "then"}, "isn&#39;t a valid time"),
        ({"job": "etl", "fingerprint": "f", "count": "many"}, "isn&#39;t a valid count"),
        ({"job": "etl", "fingerprint": "f", "count": "2"}, "selection now has more than 2"),
    ],
)
async def test_a_form_that_names_no_group_of_dead_letters_is_refused(
    web: Web, action: str, fields: dict[str, str], problem: str
) -> None:
    await create_dead_letters(web)
    answer = await sent(web, f"/dead-letters/{action}", **fields)
    assert answer.status == (409 if fields.get("count") == "2" else 400)
    assert problem in answer.text
    assert "6 open" in (await web.get("/dead-letters")).text


async def test_a_redrive_of_submitted_runs_is_shown_as_that(web: Web) -> None:
    await create_dead_letters(web)
    for row in ("etl", "etl, submitted", "submitted runs"):
        names = await form_of(web, "redrive", row)
        await sent(web, "/dead-letters/redrive", **names, rate="10")
    shown = (await web.get(FRESH)).text.partition('id="redrives"')[2]
    assert re.findall(r'<tr data-key="[^"]*"><td>([^<]*) <span', shown) == [
        "submitted runs",
        "etl, submitted",
        "etl",
    ]


async def test_a_dialog_of_dead_letters_keeps_its_id_when_its_group_moves(web: Web) -> None:
    await create_dead_letters(web)
    before = re.findall(r'popover id="([^"]*)"', (await web.get("/dead-letters")).text)
    more = (
        "UPDATE dead_letters SET resolution = 'DISCARDED' WHERE run_id IN (SELECT run_id FROM runs"
    )
    await web.store.database.call(
        lambda c: c.exec_driver_sql(f"{more} WHERE trigger = 'MANUAL' LIMIT 2)")
    )
    text = (await web.get("/dead-letters?fingerprint=f")).text  # a new snapshot
    after = re.findall(r'popover id="([^"]*)"', text)
    assert len(set(before)) == 6
    assert sorted(before) == sorted(after)
    assert before != after


async def test_a_page_of_letters_without_a_selection_is_rejected(web: Web) -> None:
    answer = await web.get("/dead-letters?page=x")
    assert answer.status == 400
    assert "only the dead letters of a job or of a fingerprint have pages" in answer.text


async def test_pages_take_no_more_of_the_database_than_they_may(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, most, full = 0, 0, asyncio.Event()

    def slowly(call: Any) -> Any:
        async def slow(*asked: object) -> Any:
            nonlocal reading, most
            reading += 1
            most = max(most, reading)
            if reading == AT_A_TIME:
                full.set()
            await full.wait()
            await asyncio.sleep(0.05)  # for one more to come, were there no end to them
            reading -= 1
            return await call(*asked)

        return slow

    for name in ("ListShards", "ListMembers", "ListWorkers", "GetCluster"):
        call = f"schedd.v1.ClusterService.{name}"
        monkeypatch.setitem(UNARY, call, slowly(UNARY[call]))
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        for path in ("/", "/cluster", "/workers"):
            group.create_task(web.get(path), name=f"look at {path}")
    assert most == AT_A_TIME


async def test_the_first_error_of_concurrent_page_reads_is_raised(web: Web) -> None:
    asked = PageRequest(web.services, Caller(TESTER, source="test"))
    under_way = asyncio.Event()

    async def forever() -> None:
        under_way.set()
        await asyncio.Event().wait()

    async def fails() -> None:
        await under_way.wait()
        raise Unavailable("it is away")

    async def read() -> None:
        async with asked.at_once() as both:
            tasks.append(both.read("for ever", forever()))
            both.read("a fault", fails())

    tasks: list[asyncio.Task[None]] = []
    with pytest.raises(Unavailable, match="it is away"):
        await read()
    assert tasks[0].cancelled()


async def test_the_cluster_page_shows_a_change_of_leader_and_a_pause_in_words(
    web: Web,
) -> None:
    await sent(web, "/cluster/pause", reason="disks")
    await sent(web, "/cluster/transfer-leader", member="m9", reason="upgrade")
    page = (await web.get("/cluster")).text
    assert "<td>transfer leader" in page
    assert "leader: m9 · reason: upgrade" in page
    assert "note: disks" in page
    assert "&#34;paused&#34;" not in page
