"""The frame of the pages over a real database: addresses, forms, what they tell and refuse."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from schedd.api.services import Caller
from schedd.store import migrate
from schedd.web.pages.all import PAGES
from schedd.web.pages.looks import AT_A_TIME, Looks
from schedd.web.pages.page import Asked, Shown
from support.callers import TESTER
from support.postgres import private_postgres, restart
from support.web import Answer, Web, served

JOB = {"name": "etl", "cron": "0 2 * * *", "shell": {"argv": ["true"]}}
FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.fixture
async def web(dsn: str) -> AsyncIterator[Web]:
    async with served(dsn) as face:
        yield face


async def sent(web: Web, path: str, **fields: str) -> Answer:
    """A form, its answer not followed."""
    return await web.ask("POST", path, data=fields, allow_redirects=False, headers=FORM)


async def test_every_page_is_there_and_within_the_frame(web: Web) -> None:
    await web.post("/api/v1/jobs", JOB)
    run = (await web.post("/api/v1/jobs/etl:trigger", {})).json["runId"]
    for page in PAGES:
        answer = await web.get(page.path.format(job="etl", run=run))
        assert answer.status == 200, page.path
        assert f'aria-current="page">{page.tab}</a>' in answer.text, page.path
        assert "<h1" in answer.text
        assert answer.headers["cache-control"] == "no-store"


async def test_what_a_form_did_is_told_once(web: Web) -> None:
    await web.post("/api/v1/jobs", JOB)
    answer = await sent(web, "/jobs/etl/pause", reason="the disks", back="/jobs")
    assert (answer.status, answer.headers["location"]) == (303, "/jobs")
    assert "httponly" in answer.headers["set-cookie"].lower()
    assert (await web.get("/api/v1/jobs/etl")).json["pauseNote"] == "the disks"
    cookie = {"cookie": answer.headers["set-cookie"].partition(";")[0]}
    telling = await web.get("/jobs", headers=cookie)
    assert "etl is paused" in telling.text
    assert "schedd-told=" in telling.headers["set-cookie"]
    assert "max-age=0" in telling.headers["set-cookie"].lower()
    assert "etl is paused" not in (await web.get("/jobs")).text


async def test_what_a_form_couldnt_do_is_told_with_what_to_do(web: Web) -> None:
    answer = await sent(web, "/jobs/nowhere/trigger")
    assert answer.status == 404
    assert "There is no job &#39;nowhere&#39;" in answer.text
    assert "What to do" in answer.text


async def test_a_form_of_another_site_is_refused(web: Web) -> None:
    await web.post("/api/v1/jobs", JOB)
    headers = FORM | {"origin": "https://evil.example"}
    answer = await web.ask("POST", "/jobs/etl/delete", data={"name": "etl"}, headers=headers)
    assert answer.status == 403
    assert (await web.get("/api/v1/jobs/etl")).status == 200


async def test_a_form_goes_back_to_no_other_site(web: Web) -> None:
    await web.post("/api/v1/jobs", JOB)
    answer = await sent(web, "/jobs/etl/trigger", back="https://evil.example/")
    assert answer.headers["location"].startswith("/runs/")


async def test_what_is_no_form_is_refused(web: Web) -> None:
    answer = await web.post("/jobs/etl/pause", {"reason": "x"})
    assert answer.status == 400
    assert "The form can&#39;t be read" in answer.text
    many = await web.ask("POST", "/new-job", data={f"f{at}": "x" for at in range(200)})
    assert many.status == 400


async def test_a_job_is_made_by_a_form_or_the_form_comes_back(web: Web) -> None:
    fields = {"name": "by-form", "schedule": "every", "action": "shell", "what": "true"}
    answer = await sent(web, "/new-job", **fields)
    assert answer.status == 400
    assert 'value="by-form"' in answer.text
    answer = await sent(web, "/new-job", **fields, when="1m")
    assert (answer.status, answer.headers["location"]) == (303, "/jobs/by-form")
    again = await sent(web, "/new-job", **fields, when="1m")
    assert again.status == 409


async def test_namespaces_go_with_every_link(web: Web) -> None:
    fields = {"name": "deep", "schedule": "on_demand", "action": "shell", "what": "true"}
    answer = await sent(web, "/new-job?namespace=team-a", **fields)
    assert answer.headers["location"] == "/jobs/deep?namespace=team-a"
    assert (await web.get("/jobs/deep")).status == 404
    page = await web.get("/jobs/deep?namespace=team-a")
    assert 'action="/jobs/deep/trigger?namespace=team-a"' in page.text
    assert 'href="/runs?namespace=team-a"' in page.text


async def test_what_a_page_cant_show_is_told_in_its_stream_too(web: Web) -> None:
    async with web.events("/live/jobs/etl") as events:
        assert "There is no job" in (await anext(events)).data
        await web.post("/api/v1/jobs", JOB)
        assert "<h1>etl</h1>" in (await anext(events)).data


async def test_jobs_come_in_pages_and_are_found_by_name(web: Web) -> None:
    for number in range(35):
        await web.post("/api/v1/jobs", JOB | {"name": f"job-{number:02}"})
    first = (await web.get("/jobs")).text
    assert first.count("data-row") == 30
    older = first[first.index('rel="next"') :].split('href="')[1].split('"')[0]
    second = (await web.get(older.replace("&amp;", "&"))).text
    assert second.count("data-row") == 5
    assert (await web.get("/jobs?filter=job-07")).text.count("data-row") == 1
    assert "No job is found by" in (await web.get("/jobs?filter=job-99")).text
    assert (await web.get("/jobs?page=nonsense")).status == 400


async def test_what_people_wrote_is_escaped_on_every_page(web: Web) -> None:
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


async def test_many_who_watch_one_address_share_its_looks(web: Web) -> None:
    await web.post("/api/v1/jobs", JOB)
    bodies: list[str] = []

    async def watch() -> None:
        async with web.events("/live/jobs") as events:
            bodies.append((await anext(events)).id)

    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(watch(), name=f"watcher {number}")
    assert len(set(bodies)) == 1


async def test_an_outage_is_said_on_every_page_which_keeps_what_it_knew() -> None:
    with private_postgres(synchronous_commit="on") as server:
        dsn = server.create_database()
        migrate.upgrade(dsn)
        async with served(dsn) as web:
            await web.post("/api/v1/jobs", JOB)
            async with web.events("/live/jobs") as events:
                assert "etl" in (await anext(events)).data
                server.process.send(signal.SIGQUIT)  # at once, as in a crash
                away = await anext(events)
                assert "The database doesn't answer." in away.data
                assert "etl" in away.data
                unknown = await web.get("/jobs/etl")
                assert unknown.status == 503
                assert "What to do" in unknown.text
                await asyncio.to_thread(restart, server)
                assert "answer" not in (await anext(events)).data


async def test_pages_take_no_more_of_the_database_than_they_may(web: Web) -> None:
    reading, most = 0, 0
    page = next(page for page in PAGES if page.path == "/cron")

    async def slowly(asked: Asked) -> Shown:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        for _ in range(100):
            await asyncio.sleep(0)
        reading -= 1
        return await page.read(asked)

    slow, looks = replace(page, read=slowly), Looks()
    caller = Caller(TESTER, source="test")
    async with asyncio.TaskGroup() as group:
        for number in range(20):
            asked = Asked(web.services, caller, query={"job": str(number)})
            group.create_task(looks.of(slow, asked).now(), name=f"look {number}")
    assert most == AT_A_TIME
