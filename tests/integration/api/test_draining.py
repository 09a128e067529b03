"""Draining a worker as a person sees it, on a real database."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta

import pytest

from schedd.api.errors import InvalidArgumentError, NotFoundError
from schedd.core.cluster.membership import EMPTY_VIEW
from schedd.core.runs.records import WorkerView
from schedproto.v1 import cluster_service_pb2 as wire
from support.store import incarnation
from support.wait import WAIT_TIMEOUT

SECOND = timedelta(seconds=1)


@pytest.fixture
async def api_with_worker(api):
    """`w1`, attached here."""
    one = incarnation(worker="w1")
    await api.world.store.workers.register(one)
    api.lines.attached = [
        WorkerView(one, False, free=2, running=2, lease_age=0.0, unstored_results=3)
    ]
    return api


async def test_a_drain_shows_its_time_actor_and_reason_until_it_ends(api_with_worker):
    asked = wire.DrainWorkerRequest(worker="w1", reason="new kernel", request_id="r1")
    drained = await api_with_worker("DrainWorker", asked)
    assert (drained.drained_by, drained.drain_reason) == ("tester", "new kernel")
    assert (drained.running, drained.unstored_results) == (2, 3)
    assert drained.state == wire.Worker.STATE_LIVE, "the worker hasn't received it yet"
    assert (await api_with_worker("GetWorker", wire.GetWorkerRequest(worker="w1"))) == drained

    free = await api_with_worker(
        "UndrainWorker", wire.UndrainWorkerRequest(worker="w1", reason="done")
    )
    assert (free.drained_by, free.HasField("drained_at")) == ("", False)

    second, first = (
        await api_with_worker("ListAudit", wire.ListAuditRequest(object="worker/w1"))
    ).entries
    assert (first.actor, first.action, first.source) == ("tester", "drain", "test request:r1")
    assert json.loads(first.before) == {"drained": False}
    drain = {"drained": True, "by": "tester", "reason": "new kernel"}
    assert json.loads(first.after) == json.loads(second.before) == drain
    assert second.action == "undrain"
    assert json.loads(second.after) == {"drained": False, "reason": "done"}


async def test_a_watch_of_a_worker_reports_each_change_of_it_and_nothing_else(api_with_worker):
    [view] = api_with_worker.lines.attached
    async with (
        asyncio.timeout(WAIT_TIMEOUT),
        aclosing(
            api_with_worker.stream("WatchWorker", wire.WatchWorkerRequest(worker="w1"))
        ) as updates,
    ):
        assert (await anext(updates)) == await api_with_worker(
            "GetWorker", wire.GetWorkerRequest(worker="w1")
        )
        following = asyncio.ensure_future(anext(updates))
        api_with_worker.lines.attached = [replace(view, lease_age=3.0)]
        await asyncio.sleep(1.5)
        assert not following.done(), "that its lease is older is no change"
        drained = await api_with_worker("DrainWorker", wire.DrainWorkerRequest(worker="w1"))
        assert (await following).drained_at == drained.drained_at
        api_with_worker.lines.attached = [
            replace(view, draining=True, running=0, unstored_results=0)
        ]
        last = await anext(updates)
        assert (last.state, last.running) == (wire.Worker.STATE_DRAINING, 0)
        api_with_worker.lines.attached = []
        await api_with_worker.world.store.workers.lose([view.incarnation.id], None)
        async for stopped in updates:
            if stopped.state == wire.Worker.STATE_STOPPED:
                break
        await api_with_worker("UndrainWorker", wire.UndrainWorkerRequest(worker="w1"))
        with pytest.raises(NotFoundError, match="worker 'w1' not found"):
            await anext(updates)


async def test_two_hundred_watches_of_workers_read_views_as_often_as_two(
    api_with_worker, monkeypatch
):
    """A look is of all workers: one for each of those watched would stop the member."""
    [view] = api_with_worker.lines.attached
    names = [f"w{number}" for number in range(1000)]
    api_with_worker.lines.attached = [
        replace(view, incarnation=incarnation(worker=name), running=0) for name in names
    ]
    looked, views = [], api_with_worker.lines.views

    async def counted(incarnations):
        looked.append(len(incarnations))
        return await views(incarnations)

    monkeypatch.setattr(api_with_worker.lines, "views", counted)
    updates = [
        api_with_worker.stream("WatchWorker", wire.WatchWorkerRequest(worker=name))
        for name in names[:200]
    ]
    async with asyncio.timeout(WAIT_TIMEOUT):
        assert [one.name for one in await asyncio.gather(*map(anext, updates))] == names[:200]
        following = [asyncio.ensure_future(anext(one)) for one in updates]
        await asyncio.sleep(2.0)
        api_with_worker.lines.attached = [
            replace(one, running=1) for one in api_with_worker.lines.attached
        ]
        assert {one.running for one in await asyncio.gather(*following)} == {1}
    assert looked == [1000] * len(looked)
    assert len(looked) <= 12, "as often as two would"
    for one in updates:
        await one.aclose()


async def test_a_watch_of_an_unknown_worker_fails_at_once(api_with_worker):
    with pytest.raises(NotFoundError, match="worker 'w2' not found"):
        await anext(api_with_worker.stream("WatchWorker", wire.WatchWorkerRequest(worker="w2")))


async def test_draining_again_changes_the_reason_and_nothing_else(api_with_worker):
    first = await api_with_worker("DrainWorker", wire.DrainWorkerRequest(worker="w1", reason="one"))
    again = await api_with_worker("DrainWorker", wire.DrainWorkerRequest(worker="w1"))
    assert again == first
    other = await api_with_worker("DrainWorker", wire.DrainWorkerRequest(worker="w1", reason="two"))
    assert (other.drained_at, other.drain_reason) == (first.drained_at, "two")
    entries = (
        await api_with_worker("ListAudit", wire.ListAuditRequest(object="worker/w1"))
    ).entries
    assert len(entries) == 2, "a call without a change isn't audited"


async def test_a_drained_and_stopped_worker_is_still_listed_and_may_be_undrained(api_with_worker):
    await api_with_worker("DrainWorker", wire.DrainWorkerRequest(worker="w1", reason="new disk"))
    [view], api_with_worker.lines.attached = api_with_worker.lines.attached, []
    [ends] = (await api_with_worker("ListWorkers", wire.ListWorkersRequest())).workers
    assert (ends.state, ends.heartbeats_missing) == (wire.Worker.STATE_DRAINING, True), (
        "whether it was lost isn't recorded yet"
    )
    await api_with_worker.world.store.workers.lose([view.incarnation.id], None)
    [gone] = (await api_with_worker("ListWorkers", wire.ListWorkersRequest())).workers
    assert (gone.name, gone.state, gone.drain_reason) == (
        "w1",
        wire.Worker.STATE_STOPPED,
        "new disk",
    ), "it wasn't lost"
    assert not gone.HasField("lost_at")
    free = await api_with_worker("UndrainWorker", wire.UndrainWorkerRequest(worker="w1"))
    assert (free.state, free.drained_by) == (wire.Worker.STATE_STOPPED, "")
    assert not (await api_with_worker("ListWorkers", wire.ListWorkersRequest())).workers


async def test_an_undrain_of_an_undrained_worker_changes_nothing(api_with_worker):
    before = await api_with_worker("GetWorker", wire.GetWorkerRequest(worker="w1"))
    assert (
        await api_with_worker("UndrainWorker", wire.UndrainWorkerRequest(worker="w1"))
    ) == before
    assert not (
        await api_with_worker("ListAudit", wire.ListAuditRequest(object="worker/w1"))
    ).entries


@pytest.mark.parametrize(
    ("name", "said"),
    [("", "the worker's name is missing"), ("missing", "worker 'missing' not found")],
)
async def test_a_drain_of_an_unknown_name_is_refused(api_with_worker, name, said):
    for call, request in (
        ("DrainWorker", wire.DrainWorkerRequest(worker=name)),
        ("UndrainWorker", wire.UndrainWorkerRequest(worker=name)),
    ):
        with pytest.raises(NotFoundError, match=said):
            await api_with_worker(call, request)


async def test_a_reason_is_one_line(api_with_worker):
    with pytest.raises(InvalidArgumentError, match="reason"):
        await api_with_worker("DrainWorker", wire.DrainWorkerRequest(worker="w1", reason="a\nb"))


@pytest.mark.parametrize("attached", ["both", "newer"])
async def test_the_last_started_of_two_incarnations_of_a_name_is_shown(api_with_worker, attached):
    """The older was killed, and its lease lasts for a while beside its successor."""
    [view] = api_with_worker.lines.attached
    older = view.incarnation
    for _ in range(4):  # their ids are in any order
        newer = replace(incarnation(worker="w1"), started_at=older.started_at + SECOND)
        await api_with_worker.world.store.workers.register(newer)
        of_newer = replace(view, incarnation=newer)
        api_with_worker.lines.attached = [of_newer, view] if attached == "both" else [of_newer]
        ids = frozenset({older.id, newer.id})
        api_with_worker.cluster.now = replace(EMPTY_VIEW, workers=ids)
        found = await api_with_worker("GetWorker", wire.GetWorkerRequest(worker="w1"))
        assert (found.incarnation, found.heartbeats_missing) == (str(newer.id), False)


async def test_a_worker_with_a_lease_and_no_heartbeats_is_shown_without_invented_figures(
    api_with_worker,
):
    """Once it was shown as live, with all its slots free, no runs and a lease just refreshed."""
    [one] = api_with_worker.lines.attached
    api_with_worker.cluster.now = replace(EMPTY_VIEW, workers=frozenset({one.incarnation.id}))
    api_with_worker.lines.attached = []
    found = await api_with_worker("DrainWorker", wire.DrainWorkerRequest(worker="w1"))
    assert (found.state, found.heartbeats_missing) == (wire.Worker.STATE_DRAINING, True)
    assert (found.slots, found.host) == (one.incarnation.slots, one.incarnation.host)
    assert (found.free, found.running, found.HasField("lease_age")) == (0, 0, False)
    api_with_worker.lines.attached = [one]
    received = await api_with_worker("GetWorker", wire.GetWorkerRequest(worker="w1"))
    assert (received.heartbeats_missing, received.running, received.HasField("lease_age")) == (
        False,
        2,
        True,
    )
