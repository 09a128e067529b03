"""A worker, redrive or backfill as the SDK watches it: one request, and on past broken streams."""

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
OLD = Refusal("UNIMPLEMENTED", bare=True)
"""What members of the version before say, which know no such stream."""
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
    return run_pb2.Redrive(redrive_id="d1", total=3, made=made, state=state)


async def test_each_change_of_a_worker_is_told_in_one_request(client: Client, member: Scripted):
    member.say("WatchWorker", [worker(2), worker(1), worker(0), asyncio.Event()])
    found = await first(3, client.workers.watch("w1"))
    assert [one.running for one in found] == [2, 1, 0]
    assert [name for name, _ in member.requests] == ["WatchWorker"]


@pytest.mark.slow
async def test_a_broken_stream_goes_on_and_tells_nothing_twice(client: Client, member: Scripted):
    """Be it that its member dies, ends it, or hears nothing of its database."""
    member.say(
        "WatchWorker",
        [worker(2, age=1), AWAY],
        [worker(2, age=7)],
        [worker(2, age=3), worker(1, age=4), asyncio.Event()],
    )
    found = await first(2, client.workers.watch("w1"))
    assert [one.running for one in found] == [2, 1]
    assert len(member.received("WatchWorker")) == 3


async def test_another_member_tells_on_where_one_has_died(member: Scripted, other: Scripted):
    for one in (member, other):
        one.say("WatchRedrive", [redrive(1), asyncio.Event()])
    async with Client([member.address, other.address], timeout=5) as client:
        stream = client.redrives.watch("d1")
        assert (await anext(stream)).made == 1
        told, left = (member, other) if member.requests else (other, member)
        left.say("WatchRedrive", [redrive(1), redrive(2), redrive(3, Done)])
        await told.stop()
        async with asyncio.timeout(10):
            assert [one.made async for one in stream] == [2, 3]
        assert len(left.received("WatchRedrive")) == 1


@pytest.mark.parametrize("state", ["DONE", "STOPPED"])
async def test_a_redrive_is_told_of_until_it_makes_no_more(
    client: Client, member: Scripted, state: str
):
    last = redrive(2, run_pb2.Redrive.State.Value(f"STATE_{state}"))
    member.say("WatchRedrive", [redrive(1), last, asyncio.Event()])
    async with asyncio.timeout(10):
        found = [one async for one in client.redrives.watch("d1")]
    assert [one.state for one in found] == ["OPEN", state]


async def test_a_backfill_is_told_of_until_nothing_of_it_is_there(client: Client, member: Scripted):
    cancelled = jobs.Backfill.STATE_CANCELLED
    stands = [jobs.Backfill(state=cancelled, running=left) for left in (2, 1, 0)]
    member.say("WatchBackfill", [*stands, asyncio.Event()])
    async with asyncio.timeout(10):
        found = [one.running async for one in client.jobs.watch_backfill("b1")]
    assert found == [2, 1, 0]


@pytest.mark.slow
async def test_a_member_of_the_version_before_is_asked_until_one_tells(
    client: Client, member: Scripted
):
    """As while a cluster is upgraded, which its workers are drained for."""
    member.say("WatchWorker", OLD, OLD, OLD, [worker(1), worker(0), asyncio.Event()])
    member.say("GetWorker", worker(2), worker(2), worker(1))
    found = await first(3, client.workers.watch("w1"))
    assert [one.running for one in found] == [2, 1, 0]
    assert (len(member.received("WatchWorker")), len(member.received("GetWorker"))) == (4, 3)
    member.say("WatchRedrive", OLD)
    member.say("GetRedrive", redrive(1), redrive(3, Done))
    assert [one.made async for one in client.redrives.watch("d1")] == [1, 3]
    member.say("WatchBackfill", OLD)
    member.say("GetBackfill", jobs.Backfill(state=jobs.Backfill.STATE_DONE))
    assert [one.state async for one in client.jobs.watch_backfill("b1")] == ["DONE"]


@pytest.mark.slow
@pytest.mark.parametrize(("ends", "least"), [([], [1.0, 2.0]), ([AWAY], [0.08, 0.16, 0.32])])
async def test_a_member_whose_streams_tell_nothing_new_is_asked_less_and_less(
    client: Client, member: Scripted, ends: list[Any], least: list[float]
):
    """One of the version before ends them at DONE, however many runs are under way; another's
    break.
    """
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


@pytest.mark.parametrize("failed", [AWAY, Refusal("DEADLINE_EXCEEDED")])
async def test_a_question_that_fails_is_asked_again(
    client: Client, member: Scripted, failed: Refusal
):
    """A member of the version before tells nobody: what it can't say now, it says later."""
    member.say("WatchRedrive", OLD)
    member.say("GetRedrive", failed, redrive(1), failed, redrive(3, Done))
    async with asyncio.timeout(20):
        assert [one.made async for one in client.redrives.watch("d1")] == [1, 3]


async def test_a_question_has_the_time_of_a_call_and_no_more(member: Scripted):
    """It isn't the watch's: of a member that hangs once."""

    async def hangs(_: Any) -> Any:
        await asyncio.sleep(2.0)
        return redrive(1)

    member.say("WatchRedrive", OLD)
    member.say("GetRedrive", hangs, redrive(3, Done))
    async with Client(member.address, timeout=0.5) as client, asyncio.timeout(20):
        assert [one.made async for one in client.redrives.watch("d1", deadline=15)] == [3]


BREAKS = [worker(2), AWAY]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("streams", "stands"),
    [
        ([OLD], worker(2)),
        ([OLD], AWAY),
        ([BREAKS], None),
        ([[worker(2)]], None),
        ([AWAY], None),
        ([[worker(2), asyncio.Event()]], None),
        ([BREAKS, [worker(2), asyncio.Event()]], None),
    ],
    ids=["old", "old and away", "breaks", "ends", "away", "lasts", "breaks, then lasts"],
)
async def test_a_deadline_is_one_for_the_whole_watch(
    client: Client, member: Scripted, streams: list[Any], stands: Any
):
    """Whatever it takes until then: questions, or streams that are taken up again."""
    member.say("WatchWorker", *streams)
    member.say("GetWorker", stands or Refusal("INTERNAL"))
    began, found = monotonic(), list[int]()

    async def watch() -> None:
        async for one in client.workers.watch("w1", deadline=1.0):
            found.append(one.running)

    with pytest.raises(DeadlineExceeded) as ended:
        await asyncio.wait_for(watch(), 10)
    assert 0.9 <= monotonic() - began < 2.0
    assert found == ([] if AWAY in (*streams, stands) else [2])
    assert ended.value.reason == "NO_ANSWER"


@pytest.mark.slow
async def test_what_connecting_takes_is_of_the_watchs_time(
    member: Scripted, monkeypatch: pytest.MonkeyPatch
):
    """As where the endpoint that is asked first accepts, and says nothing."""
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


@pytest.mark.slow
async def test_where_no_member_is_left_to_be_asked_that_is_told(member: Scripted):
    member.say("WatchRedrive", OLD)
    member.say("GetRedrive", redrive(1))
    async with Client(member.address, timeout=1) as client, asyncio.timeout(20):
        stream = client.redrives.watch("d1")
        assert (await anext(stream)).made == 1
        await member.stop()
        with pytest.raises(ClusterUnavailable, match="no endpoint answers"):
            await anext(stream)


async def test_what_isnt_there_is_told_and_not_asked_for_again(client: Client, member: Scripted):
    member.say("WatchWorker", Refusal("NOT_FOUND"))
    with pytest.raises(NotFound):
        await first(1, client.workers.watch("w1"))
    assert len(member.requests) == 1


async def test_where_no_member_is_left_that_is_told(member: Scripted):
    await member.stop()
    async with Client(member.address, timeout=0.3) as client:
        with pytest.raises(ClusterUnavailable, match="no endpoint answers"):
            await first(1, client.workers.watch("w1"))


async def test_the_blocking_client_watches_too(member: Scripted):
    member.say("WatchRedrive", [redrive(1), redrive(3, Done)])

    def watched() -> list[int]:
        with SyncClient(member.address, timeout=5) as client:
            return [one.made for one in client.redrives.watch("d1")]

    assert await asyncio.to_thread(watched) == [1, 3]
