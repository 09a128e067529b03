"""Looks at pages: shared by who watches, ended with what is over, and forgotten in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from schedd.api.errors import InvalidArgumentError
from schedd.api.services import Caller
from schedd.web.app import PAGES
from schedd.web.pages import snapshots as module
from schedd.web.pages.page import EVERY, Page, PageRequest, Shown
from schedd.web.pages.snapshots import KEPT, KEPT_FOR, PageSnapshot, PageSnapshots
from schedd.web.streams import ServerSentEvent
from schedd.web.templating import render
from schedkit.errors import Unavailable
from schedproto.v1 import cluster_service_pb2 as cluster_pb
from support.callers import TESTER
from support.web import StubCluster


@dataclass
class Read:
    """A page whose every reading is counted, and what it shows."""

    over: bool = False
    times: int = 0
    seen: tuple[object, ...] = ()
    error: Exception | None = None

    async def __call__(self, asked: PageRequest) -> Shown:
        del asked
        self.times += 1
        if self.error is not None:
            raise self.error
        return Shown("Doctor", self.seen, over=self.over)

    def page(self, every: float = 0.0) -> Page:
        return Page("/doctor", "Cluster", "doctor", self, every=every)


def page_request(**query: str) -> PageRequest:
    services = cast("Any", SimpleNamespace(cluster=StubCluster()))
    return PageRequest(services, Caller(TESTER, source="test"), query=query)


async def event_names(events: AsyncGenerator[ServerSentEvent, None]) -> list[str]:
    """Names of all events; a stream that doesn't end fails."""
    async with asyncio.timeout(5):
        return [event.name async for event in events]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Now, as looks see it."""
    now = [100.0]
    monkeypatch.setattr(module, "boottime", lambda: now[0])
    return now


def is_kept(looks: PageSnapshots, page: Page, look: PageSnapshot, **query: str) -> bool:
    return looks.snapshot_for(page, page_request(**query)) is look


def test_made_up_addresses_leave_only_a_limited_number_of_snapshots() -> None:
    looks, page = PageSnapshots(), Read().page()
    first = looks.snapshot_for(page, page_request(q="first"))
    made = [looks.snapshot_for(page, page_request(q=str(number))) for number in range(KEPT)]
    assert is_kept(looks, page, made[-1], q=str(KEPT - 1))
    assert not is_kept(looks, page, first, q="first")


def test_a_snapshot_that_no_page_requests_is_dropped_in_time(clock: list[float]) -> None:
    looks, page = PageSnapshots(), Read().page()
    look = looks.snapshot_for(page, page_request())
    clock[0] += KEPT_FOR
    assert is_kept(looks, page, look), "it was asked for again in time"
    clock[0] += KEPT_FOR + 1
    looks.snapshot_for(page, page_request(q="another"))
    assert not is_kept(looks, page, look)


async def test_a_watched_snapshot_stays_when_others_are_requested(clock: list[float]) -> None:
    looks, page = PageSnapshots(), Read().page()
    look = looks.snapshot_for(page, page_request())
    events = look.events("")
    await anext(events)
    clock[0] += 10 * KEPT_FOR
    for number in range(2 * KEPT):
        looks.snapshot_for(page, page_request(q=str(number)))
    assert is_kept(looks, page, look)
    await events.aclose()
    clock[0] += KEPT_FOR + 1
    looks.snapshot_for(page, page_request(q="another"))
    assert not is_kept(looks, page, look)


async def test_an_unchanged_page_is_not_drawn_again_that_day(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn, today = list[object](), [datetime(2026, 3, 4, 23, 59, tzinfo=UTC)]

    def counted(template: str, **values: Any) -> str:
        drawn.append(values["seen"])
        return render(template, **values)

    monkeypatch.setattr(module, "render", counted)
    monkeypatch.setattr(module, "utcnow", lambda: today[0])
    read = Read()
    look = PageSnapshots().snapshot_for(read.page(), page_request())
    first = await look.now()
    assert await look.refresh() is first
    assert (read.times, len(drawn)) == (2, 1)

    read.seen = (cluster_pb.Finding(what="the disk is full"),)
    other = await look.refresh()
    assert "the disk is full" in other.html
    assert other.digest != first.digest
    read.seen = (cluster_pb.Finding(what="the disk is full"),)
    assert await look.refresh() is other, "a value of its own, and equal"
    today[0] += timedelta(minutes=1)
    assert (await look.refresh()).html == other.html
    assert len(drawn) == 3, "instants may read otherwise on another day"


async def test_a_page_is_drawn_as_before_once_the_database_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    today = [datetime(2026, 3, 4, 23, 59, tzinfo=UTC)]
    monkeypatch.setattr(module, "utcnow", lambda: today[0])
    read = Read()
    look = PageSnapshots().snapshot_for(read.page(), page_request())
    before = await look.now()
    read.error = Unavailable("PostgreSQL: away")
    away = await look.refresh()
    assert away.html.endswith(before.html)
    assert away.digest != before.digest
    assert "from 23:59:00 UTC, less than a minute ago" in away.html
    today[0] += timedelta(minutes=2, seconds=1)
    assert "from 04 Mar 23:59 UTC, 2 min ago" in (await look.refresh()).html
    read.error = None
    assert (await look.refresh()).html == before.html


@pytest.mark.parametrize("read_before", [True, False])
async def test_a_failed_read_is_retried_soon_however_seldom_the_page_is_read(
    clock: list[float], read_before: bool
) -> None:
    read = Read()
    look = PageSnapshots().snapshot_for(read.page(every=60), page_request())
    if read_before:
        await look.now()
        clock[0] += 61
    read.error = Unavailable("PostgreSQL: away")
    away = (await look.now()).html
    assert (await look.now()).html == away
    read.error = None
    clock[0] += EVERY
    assert (await look.now()).html != away
    assert read.times == 2 + read_before


async def test_a_slow_failed_read_is_retried_after_as_long_as_it_took(clock: list[float]) -> None:
    """The read holds one of the few slots, of a database that has nothing to spare."""

    async def read(_: PageRequest) -> Shown:
        reads.append(clock[0])
        clock[0] += 10
        raise Unavailable("PostgreSQL: no answer")

    reads: list[float] = []
    look = PageSnapshots().snapshot_for(replace(Read().page(every=60), read=read), page_request())
    for _ in range(60):
        await look.now()
        clock[0] += 1
    assert len(reads) > 3
    assert {after - before for before, after in pairwise(reads)} == {20}


@pytest.mark.slow
async def test_a_member_that_fires_nothing_is_shown_at_once_however_seldom_the_page_is_read(
    clock: list[float],
) -> None:
    read, asking = Read(), page_request()
    cluster = cast("StubCluster", asking.services.cluster)
    look = PageSnapshots().snapshot_for(read.page(every=60), asking)
    before = (await look.now()).html
    events = look.events("")
    assert (await anext(events)).data == before
    for trusted in (False, True):
        cluster.has_trust = trusted
        async with asyncio.timeout(5):
            page = (await anext(events)).data
        assert ("isn't trusted" in page) is not trusted
        assert page.endswith(before)
    await events.aclose()
    assert read.times == 1
    assert clock == [100.0]


async def test_a_page_that_has_ended_is_sent_once_and_not_read_again() -> None:
    read = Read(over=True)
    look = PageSnapshots().snapshot_for(read.page(), page_request())
    assert await event_names(look.events("")) == ["", "end"]
    assert read.times == 1


async def test_a_reader_that_returns_to_an_ended_page_gets_its_end() -> None:
    look = PageSnapshots().snapshot_for(Read(over=True).page(), page_request())
    seen = (await look.now()).digest
    assert (await event_names(look.events(seen)))[-1] == "end"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)
def test_a_page_accepts_only_its_own_parameters(page: Page) -> None:
    page.check([*page.asks, "namespace"])
    with pytest.raises(InvalidArgumentError, match="look: unknown parameter") as refused:
        page.check(["namespace", "look"])
    assert [one.field for one in refused.value.violations] == ["look"]
    assert "namespace" in refused.value.remedy
    with pytest.raises(
        InvalidArgumentError, match="namespace: the parameter is given twice"
    ) as refused:
        page.check([*page.asks, "namespace", "namespace"])
    assert [one.field for one in refused.value.violations] == ["namespace"]
