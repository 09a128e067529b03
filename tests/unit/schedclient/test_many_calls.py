"""More concurrent calls than a connection allows: each is queued, sent and answered."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from google.protobuf.message import Message

from faults.hostile import http2
from schedclient import Client, ClusterUnavailable, DeadlineExceeded
from schedclient.transport import methods
from schedclient.transport.transport import AT_ONCE
from schedkit.net.channel import MAX_STREAMS
from schedproto.v1 import cluster_service_pb2 as cluster
from schedproto.v1 import common_pb2, run_pb2
from schedproto.v1 import job_service_pb2 as jobs
from schedproto.v1 import run_service_pb2 as runs
from support.scripted import Scripted
from support.wait import wait_until_async

RUN = run_pb2.Run(run_id="r", state=common_pb2.RUN_STATE_SUCCEEDED)
CALLS = int(os.environ.get("CONCURRENT_CALLS", "1000"))
PROMPT = 5
"""Seconds within which a started call is answered, if nothing blocks it."""


class Counting:
    """An answer that takes a moment, or until a gate opens; and how many are in hand at a time."""

    def __init__(self, answer: Message = RUN, gate: asyncio.Event | None = None) -> None:
        self.now = self.most = 0
        self._answer, self._gate = answer, gate

    async def __call__(self, _request: object) -> Message:
        self.now += 1
        self.most = max(self.most, self.now)
        await (asyncio.sleep(0.01) if self._gate is None else self._gate.wait())
        self.now -= 1
        return self._answer


@pytest.mark.slow
@pytest.mark.parametrize("call", ["SubmitRun", "DeleteJob"])
async def test_many_concurrent_calls_are_each_made_once(member: Scripted, call: str):
    """Each ends within the default timeout. A call that may have taken effect isn't repeated."""
    answer = Counting(jobs.DeleteJobResponse(deleted=True) if call == "DeleteJob" else RUN)
    member.say(call, answer)
    async with Client(member.address) as client:
        ask = {
            "SubmitRun": lambda: client.submit(shell={"argv": ["date"]}),
            "DeleteJob": lambda: client.jobs.delete("etl"),
        }[call]
        await asyncio.gather(*(ask() for _ in range(CALLS)))
    assert len(member.received(call)) == CALLS


@pytest.mark.slow
async def test_queueing_does_not_count_against_the_try_timeout(
    member: Scripted, other: Scripted, monkeypatch: pytest.MonkeyPatch
):
    """With two members, a try that has no answer in time is made again at the other."""
    method = replace(methods.method_of(runs.GetRunRequest.DESCRIPTOR), try_timeout=1.0)
    monkeypatch.setattr(methods, "method_of", lambda _: method)
    gate = asyncio.Event()
    answer = Counting(gate=gate)
    for one in (member, other):
        one.say("GetRun", answer)
    async with Client([member.address, other.address], timeout=60) as client:
        asked = [asyncio.ensure_future(client.runs.get("r")) for _ in range(4 * MAX_STREAMS)]
        await wait_until_async(lambda: answer.now == AT_ONCE, PROMPT, "the first to be in hand")
        gate.set()
        await asyncio.gather(*asked)
    assert answer.most == AT_ONCE
    assert len(member.received("GetRun")) + len(other.received("GetRun")) == len(asked)


async def test_a_call_that_times_out_in_the_queue_says_that_nothing_was_sent(member: Scripted):
    gate = asyncio.Event()
    answer = Counting(gate=gate)
    member.say("GetRun", answer)
    async with Client(member.address, timeout=60) as client:
        first = [asyncio.ensure_future(client.runs.get("r")) for _ in range(AT_ONCE)]
        await wait_until_async(lambda: answer.now == AT_ONCE, PROMPT, "the first to be in hand")
        with pytest.raises(DeadlineExceeded, match="timed out in the client's queue") as error:
            await client.runs.get("r", deadline=0.1)
        gate.set()
        await asyncio.gather(*first)
        assert (await client.runs.get("r")).run_id == "r", "its place is free again"
    assert error.value.reason == "NO_TIME"
    assert "nothing was sent" in error.value.remedy


async def test_a_queued_call_moves_to_another_member_when_its_member_stops(
    member: Scripted, other: Scripted
):
    """A deletion too, as it was never sent."""
    gate = asyncio.Event()
    hanging = Counting(gate=gate)
    for one in (member, other):
        one.say("GetRun", hanging)
        one.say("DeleteJob", jobs.DeleteJobResponse(deleted=True))
    async with Client([member.address, other.address], timeout=60) as client:
        first = [asyncio.ensure_future(client.runs.get("r")) for _ in range(AT_ONCE)]
        await wait_until_async(lambda: hanging.now == AT_ONCE, PROMPT, "the first to be in hand")
        asked, spare = (member, other) if member.requests else (other, member)
        waiting = asyncio.ensure_future(client.jobs.delete("etl"))
        await asyncio.sleep(0)
        spare.say("GetRun", RUN)
        await asked.stop()
        await asyncio.gather(waiting, *first)
    assert [sent.job for sent in spare.received("DeleteJob")] == ["etl"]
    assert not asked.received("DeleteJob")


async def test_a_call_canceled_in_the_queue_takes_no_place(member: Scripted):
    gate = asyncio.Event()
    answer = Counting(gate=gate)
    member.say("GetRun", answer)
    async with Client(member.address, timeout=60) as client:
        asked = [asyncio.ensure_future(client.runs.get("r")) for _ in range(2 * AT_ONCE)]
        await wait_until_async(lambda: answer.now == AT_ONCE, PROMPT, "the first to be in hand")
        for one in asked:
            one.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        gate.set()
        again = [client.runs.get("r", deadline=PROMPT) for _ in range(2 * AT_ONCE)]
        assert len(await asyncio.gather(*again)) == 2 * AT_ONCE


async def test_streams_do_not_block_calls(member: Scripted):
    running = runs.RunEvent(run=run_pb2.Run(run_id="r", state=common_pb2.RUN_STATE_RUNNING))
    member.say("WatchRuns", [running, asyncio.Event()])
    member.say("GetCluster", cluster.Cluster())
    async with Client(member.address, timeout=60) as client:
        watches = [client.runs.watch("r") for _ in range(MAX_STREAMS)]
        await asyncio.gather(*(anext(watch) for watch in watches))
        await asyncio.wait_for(client.cluster.status(), PROMPT)
        await asyncio.gather(*(watch.aclose() for watch in watches))


@pytest.mark.slow
@pytest.mark.parametrize("refusals", [1, 2, 5])
async def test_a_call_with_a_refused_stream_is_always_retried(refusals: int):
    """No server has begun to process it (RFC 9113, 8.7)."""
    answer = jobs.DeleteJobResponse(deleted=True)
    async with (
        refusing(refusals, answer.SerializeToString()) as (address, streams),
        Client(address, timeout=60) as client,
    ):
        await client.jobs.delete("etl")
    assert len(streams) == refusals + 1


@pytest.mark.slow
async def test_a_permanently_refused_stream_is_reported_as_refused():
    async with refusing(1_000_000, b"") as (address, _), Client(address, timeout=1) as client:
        with pytest.raises(ClusterUnavailable, match="too many calls") as error:
            await client.jobs.delete("etl")
    assert error.value.reason == "REFUSED_STREAM"


async def test_a_call_that_a_member_cancels_is_retried_if_that_is_safe():
    """Not a fault of the cluster: gRPC cancels when too many calls wait, and a proxy may."""
    answer = run_pb2.Run(run_id="r").SerializeToString()
    async with (
        refusing(2, answer, code=8) as (address, streams),
        Client(address, timeout=60) as client,
    ):
        run = await client.submit(shell={"argv": ["true"]})
    assert (run.run_id, len(streams)) == ("r", 3), "under one key, which it has made"


@pytest.mark.slow
async def test_a_permanently_canceled_call_is_reported_as_canceled():
    async with refusing(1_000_000, b"", code=8) as (address, _), Client(address, timeout=2) as one:
        with pytest.raises(DeadlineExceeded, match="may have taken effect") as error:
            await one.submit(shell={"argv": ["true"]})
        with pytest.raises(ClusterUnavailable) as read_error:
            await one.runs.get("r")
    assert error.value.reason == read_error.value.reason == "CANCELLED"


@asynccontextmanager
async def refusing(
    count: int, answer: bytes, code: int = 7
) -> AsyncIterator[tuple[str, list[int]]]:
    """A member that resets the first streams (7: refused, 8: cancelled), and answers each other;
    its address, and the streams that were opened.
    """
    streams: list[int] = []
    connections: list[tuple[asyncio.StreamWriter, asyncio.Task[None]]] = []

    def reply(stream: int) -> bytes:
        streams.append(stream)
        if len(streams) <= count:
            return http2.frame(http2.RST, code.to_bytes(4, "big"), stream=stream)
        head = [(":status", b"200"), ("content-type", b"application/grpc")]
        end = http2.END_HEADERS | http2.END_STREAM
        return (
            http2.frame(http2.HEADERS, http2.block(head), flags=http2.END_HEADERS, stream=stream)
            + http2.data(http2.message(answer), stream)
            + http2.frame(
                http2.HEADERS, http2.block([("grpc-status", b"0")]), flags=end, stream=stream
            )
        )

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer), name="a connection")
        connections.append((writer, task))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(http2.PREFACE))
        writer.write(http2.settings())
        received = bytearray()
        while piece := await reader.read(65_536):
            received += piece
            for kind, flags, stream, payload in http2.read(received):
                if kind == http2.HEADERS:
                    writer.write(reply(stream))
                elif kind in (http2.SETTINGS, http2.PING) and not flags & http2.ACK:
                    said = payload if kind == http2.PING else b""
                    writer.write(http2.frame(kind, said, flags=http2.ACK))

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}", streams
        for writer, _ in connections:
            writer.close()
        await asyncio.gather(*(task for _, task in connections))
