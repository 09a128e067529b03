"""The overview page over a real database: what it shows, and what watching it costs."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import AsyncIterator

import pytest

from schedd.web.pages.cluster import overview
from schedd.web.pages.cluster.overview import Stored
from support.postgres import private_postgres, restart
from support.store import incarnation
from support.wait import WAIT_TIMEOUT, wait_until_async
from support.web import Web, served

JOB = {"name": "etl", "cron": "0 2 * * *", "shell": {"argv": ["true"]}}


@pytest.fixture
async def web(dsn: str) -> AsyncIterator[Web]:
    async with served(dsn) as face:
        yield face


@pytest.fixture
def database_reads(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When the database was read for the page."""
    taken: list[float] = []
    really = overview.run_queries

    async def counted(asked: object) -> Stored:
        taken.append(asyncio.get_running_loop().time())
        return await really(asked)

    monkeypatch.setattr(overview, "run_queries", counted)
    return taken


async def test_the_page_reads_without_a_script_and_loads_nothing_from_elsewhere(web: Web) -> None:
    await web.post("/api/v1/jobs", JOB)
    page = await web.get("/")
    assert page.status == 200
    assert "every day at 02:00" in page.text
    assert "Leader: <b>m1</b>, term 7." in page.text
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'self'; script-src 'self';")
    assert "unsafe" not in policy


async def test_the_stylesheet_and_script_of_a_page_are_served(web: Web) -> None:
    page = (await web.get("/")).text
    for name, kind in (("schedd.css", "text/css"), ("schedd.js", "javascript")):
        start = page.index(f"/static/{name}?")
        answer = await web.get(page[start : page.index('"', start)])
        assert answer.status == 200
        assert kind in answer.headers["content-type"]


async def test_a_watcher_receives_changes_and_nothing_else(web: Web) -> None:
    async with web.events("/live/") as events:
        first = await anext(events)
        assert "etl" not in first.data
        await web.post("/api/v1/jobs", JOB)
        second = await anext(events)
        assert "etl" in second.data
        assert second.id != first.id


async def test_a_watcher_that_reconnects_receives_only_news(web: Web) -> None:
    async with web.events("/live/") as events:
        seen = await anext(events)
    async with web.events("/live/", headers={"Last-Event-ID": seen.id}) as events:
        await web.post("/api/v1/jobs", JOB)
        assert (await anext(events)).id != seen.id


async def test_many_watchers_cost_one_set_of_queries(web: Web, database_reads: list[float]) -> None:
    watchers, began = 20, asyncio.get_running_loop().time()
    async with asyncio.TaskGroup() as group:
        begun = asyncio.Barrier(watchers + 1)

        async def watch() -> None:
            async with web.events("/live/") as events:
                await anext(events)
                await begun.wait()
                assert "etl" in (await anext(events)).data

        for number in range(watchers):
            group.create_task(watch(), name=f"watcher {number}")
        await begun.wait()
        await web.post("/api/v1/jobs", JOB)
    took = asyncio.get_running_loop().time() - began
    assert len(database_reads) <= 2 + took / overview.EVERY
    gaps = [later - earlier for earlier, later in itertools.pairwise(database_reads)]
    assert all(gap > overview.EVERY * 0.9 for gap in gaps), gaps


async def test_a_page_without_watchers_costs_nothing(web: Web, database_reads: list[float]) -> None:
    async with web.events("/live/") as events:
        await anext(events)

    async def quiet() -> bool:
        before = len(database_reads)
        await asyncio.sleep(overview.EVERY * 1.5)  # the silence itself is what is looked at
        return len(database_reads) == before

    await wait_until_async(quiet, WAIT_TIMEOUT, "the looking to end with its only watcher")


async def test_an_outage_is_shown_on_the_page_which_keeps_its_last_data() -> None:
    with private_postgres(copied=True, synchronous_commit="on") as server:
        dsn = server.create_migrated()
        async with served(dsn) as web:
            await web.post("/api/v1/jobs", JOB)
            async with web.events("/live/") as events:
                assert "etl" in (await anext(events)).data
                server.process.send(signal.SIGQUIT)  # at once, as in a crash
                away = await anext(events)
                assert "PostgreSQL is unavailable" in away.data
                assert "etl" in away.data
                unread = (await web.get("/?namespace=never-shown")).text
                assert "no data has been read yet" in unread
                assert 'class="figure">0' not in unread
                await asyncio.to_thread(restart, server)
                assert "unavailable" not in (await anext(events)).data


async def test_the_overview_reports_runs_without_a_matching_worker(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "GOOD_FOR", 0.0)
    one = incarnation(worker="w1", actions=("shell",))
    await web.store.workers.register(one)
    web.cluster.workers.add(one.id)
    picky = JOB | {"name": "picky", "require": {"disk": "ssd"}}
    for job in (JOB, picky):
        await web.post("/api/v1/jobs", job)
        await web.post(f"/api/v1/jobs/{job['name']}:trigger", {})
    assert "without a matching worker" not in (await web.get("/")).text  # it has just begun to wait
    await altered(web, "UPDATE runs SET ready_at = now() - interval '27 min'")
    unmatched = "1 run waits without a matching worker: "
    other = (await web.get("/?namespace=other")).text.lower()  # an address with a look of its own
    assert unmatched + "jobs of other namespaces" in other
    assert "picky" not in other
    assert "a run has waited 27 min" in other

    async def is_named() -> bool:
        return unmatched + "picky" in (await web.get("/")).text.lower()

    await wait_until_async(is_named, WAIT_TIMEOUT, "the next look at the page")
    await altered(web, "UPDATE timers SET paused = true")
    manual = (await web.get("/?namespace=manual")).text.lower()
    assert unmatched in manual, "its pause keeps no trigger"
    await altered(web, "UPDATE runs SET trigger = 'SCHEDULE'")
    assert "without a matching worker" not in (await web.get("/?namespace=paused")).text


async def test_the_overview_reports_a_missed_run_behind_hundreds_of_newer_runs(web: Web) -> None:
    await web.post("/api/v1/jobs", JOB)
    await web.post("/api/v1/jobs/etl:trigger", {})
    await altered(web, "UPDATE runs SET state = 'MISSED', finished_at = now()")
    copies = "scheduled_at + n * interval '1 s', gen_random_uuid()"
    same = "job_id, due_at, shard, priority, fired_by, trigger, 'SUCCEEDED', ready_at"
    named = "job_id, due_at, shard, priority, fired_by, trigger, state, ready_at"
    await altered(
        web,
        f"INSERT INTO runs (scheduled_at, run_id, {named})"
        f" SELECT {copies}, {same} FROM runs, generate_series(1, 500) n",
    )
    assert "A run was missed in the last day." in (await web.get("/")).text


async def altered(web: Web, statement: str) -> None:
    """Have the database be as if it had been so."""
    await web.store.database.call(lambda c: c.exec_driver_sql(statement))
