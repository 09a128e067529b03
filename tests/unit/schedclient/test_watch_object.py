"""The SDK watches a worker, redrive or backfill by one request, and across broken streams."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

import pytest

from schedclient import Client, ClusterUnavailable, DeadlineExceeded, NotFound, SyncClient
from schedproto.v1 import cluster_service_pb2 as cluster
from schedproto.v1 import job_service_pb2 as jobs
from schedproto.v1 import run_pb2
from support.endless import first
from support.scripted import Refusal, Scripted

AWAY = Refusal("UNAVAILABLE", reason="DATABASE_SILENT")
Draining, Open, Done = (
    cluster.Worker.STATE_DRAINING,
    run_pb2.Redrive.STATE_OPEN,
    run_pb2.Redrive.STATE_DONE,
)


def worker(running: int, age: int = 0) -> cluster.Worker:
    one = cluster.Worker(name="w1", state=Draining, running=running)
    one.lease_age.FromSeconds(age)
    return one


def redrive(made: int, state: Any = Open) -> run_pb2.Redrive:
    return run_pb2.Redrive(redrive_id="d1", total=3, created=made, state=state)


async def test_one_request_receives_each_change_of_a_worker(client: Client, member: Scripted):
    member.say("WatchWorker", [worker(2), worker(1), worker(0), asyncio.Event()])
    found = await first(3, client.workers.watch("w1"))
    assert [one.running for one in found] == [2, 1, 0]
    assert [name for name, _ in member.requests] == ["WatchWorker"]


@pytest.mark.slow
async def test_a_broken_stream_continues_and_repeats_nothing(client: Client, member: Scripted):
    """A member may stop, end the stream, or lose its database."""
    member.say(
        "WatchWorker",
        [worker(2, age=1), AWAY],
        [worker(2, age=7)],
        [worker(2, age=3), worker(1, age=4), asyncio.Event()],
    )
    found = await first(2, client.workers.watch("w1"))
    assert [one.running for one in found] == [2, 1]
    assert len(member.received("WatchWorker")) == 3


async def test_a_watch_continues_at_another_member_after_its_member_stops(
    member: Scripted, other: Scripted
):
    for one in (member, other):
        one.say("WatchRedrive", [redrive(1), asyncio.Event()])
    async with Client([member.address, other.address], timeout=5) as client:
        stream = client.redrives.watch("d1")
        assert (await anext(stream)).created == 1
        watched, left = (member, other) if member.requests else (other, member)
        left.say("WatchRedrive", [redrive(1), redrive(2), redrive(3, Done)])
        await watched.stop()
        async with asyncio.timeout(10):
            assert [one.created async for one in stream] == [2, 3]
        assert len(left.received("WatchRedrive")) == 1


@pytest.mark.parametrize("state", ["DONE", "STOPPED"])
async def test_a_redrive_is_watched_until_it_creates_no_more_runs(
    client: Client, member: Scripted, state: str
):
    last = redrive(2, run_pb2.Redrive.State.Value(f"STATE_{state}"))
    member.say("WatchRedrive", [redrive(1), last, asyncio.Event()])
    async with asyncio.timeout(10):
        found = [one async for one in client.redrives.watch("d1")]
    assert [one.state for one in found] == ["OPEN", state]


async def test_a_backfill_is_watched_until_none_of_its_runs_remain(
    client: Client, member: Scripted
):
    cancelled = jobs.Backfill.STATE_CANCELLED
    stands = [jobs.Backfill(state=cancelled, running=left) for left in (2, 1, 0)]
    member.say("WatchBackfill", [*stands, asyncio.Event()])
    async with asyncio.timeout(10):
        found = [one.running async for one in client.jobs.watch_backfill("b1")]
    assert found == [2, 1, 0]


@pytest.mark.slow
@pytest.mark.parametrize(("ends", "least"), [([], [1.0, 2.0]), ([AWAY], [0.08, 0.16, 0.32])])
async def test_a_member_whose_streams_end_without_news_is_asked_at_growing_intervals(
    client: Client, member: Scripted, ends: list[Any], least: list[float]
):
    """The streams end at DONE while runs are in progress, or break."""
    asked = list[float]()

    def stream(_: Any) -> list[Any]:
        asked.append(monotonic())
        live = {"RUNNING": 1} if len(asked) <= len(least) else {}
        return [run_pb2.Redrive(redrive_id="d1", state=Done, runs=live), *ends]

    member.say("WatchRedrive", stream)
    async with asyncio.timeout(20):
        found = [dict(one.runs) async for one in client.redrives.watch("d1")]
    assert found == [{"RUNNING": 1}, {}]
    assert len(asked) == len(least) + 1
    assert [b - a >= wait for a, b, wait in zip(asked, asked[1:], least, strict=False)] == [
        True for _ in least
    ], asked


BREAKS = [worker(2), AWAY]


@pytest.mark.slow
@pytest.mark.parametrize(
    "streams",
    [
        [BREAKS],
        [[worker(2)]],
        [AWAY],
        [[worker(2), asyncio.Event()]],
        [BREAKS, [worker(2), asyncio.Event()]],
    ],
    ids=["breaks", "ends", "away", "lasts", "breaks, then lasts"],
)
async def test_one_deadline_covers_the_whole_watch(
    client: Client, member: Scripted, streams: list[Any]
):
    """Resumed streams count against it."""
    member.say("WatchWorker", *streams)
    began, found = monotonic(), list[int]()

    async def watch() -> None:
        async for one in client.workers.watch("w1", deadline=1.0):
            found.append(one.running)

    with pytest.raises(DeadlineExceeded) as ended:
        await asyncio.wait_for(watch(), 10)
    assert 0.9 <= monotonic() - began < 2.0
    assert found == ([] if AWAY in streams else [2])
    assert ended.value.reason == "NO_ANSWER"


@pytest.mark.slow
async def test_connecting_counts_against_the_deadline_of_the_watch(
    member: Scripted, monkeypatch: pytest.MonkeyPatch
):
    """The endpoint that is tried first accepts and stays silent."""
    member.say("WatchWorker", [worker(2), asyncio.Event()])
    mute = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    endpoint = f"127.0.0.1:{mute.sockets[0].getsockname()[1]}"
    monkeypatch.setattr("schedclient.transport.transport.random.shuffle", lambda _: None)
    async with Client([endpoint, member.address], timeout=5) as client:
        began, stream = monotonic(), client.workers.watch("w1", deadline=2.2)
        assert (await asyncio.wait_for(anext(stream), 10)).running == 2
        assert monotonic() - began > 1.0, "the other one was connected to first"
        with pytest.raises(DeadlineExceeded):
            await asyncio.wait_for(anext(stream), 10)
        assert monotonic() - began < 3.2
    mute.close()


async def test_a_missing_object_is_reported_and_not_requested_again(
    client: Client, member: Scripted
):
    member.say("WatchWorker", Refusal("NOT_FOUND"))
    with pytest.raises(NotFound):
        await first(1, client.workers.watch("w1"))
    assert len(member.requests) == 1


async def test_a_watch_without_a_reachable_member_is_reported(member: Scripted):
    await member.stop()
    async with Client(member.address, timeout=0.3) as client:
        with pytest.raises(ClusterUnavailable, match="no member answered"):
            await first(1, client.workers.watch("w1"))


async def test_the_blocking_client_watches_too(member: Scripted):
    member.say("WatchRedrive", [redrive(1), redrive(3, Done)])

    def watched() -> list[int]:
        with SyncClient(member.address, timeout=5) as client:
            return [one.created for one in client.redrives.watch("d1")]

    assert await asyncio.to_thread(watched) == [1, 3]
