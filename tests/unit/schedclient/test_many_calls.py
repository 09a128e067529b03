"""More calls at once than a connection bears: each has its turn, and its answer."""

import asyncio
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
PROMPT = 5
"""Seconds in which what has begun is answered, if nothing keeps it waiting."""


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
async def test_five_thousand_calls_at_once_are_all_made_and_each_but_once(
    member: Scripted, call: str
):
    """In the time that a call has by default. What may have happened isn't sent twice."""
    answer = Counting(jobs.DeleteJobResponse(deleted=True) if call == "DeleteJob" else RUN)
    member.say(call, answer)
    async with Client(member.address) as client:
        ask = {
            "SubmitRun": lambda: client.submit(shell={"argv": ["date"]}),
            "DeleteJob": lambda: client.jobs.delete("etl"),
        }[call]
        await asyncio.gather(*(ask() for _ in range(5_000)))
    assert len(member.received(call)) == 5_000


@pytest.mark.slow
async def test_waiting_for_a_turn_costs_nothing_of_what_a_try_may_take(
    member: Scripted, other: Scripted, monkeypatch: pytest.MonkeyPatch
):
    """With two members, a try that has no answer in time is made again at the other."""
    monkeypatch.setattr(methods, "GET_RUN", replace(methods.GET_RUN, try_timeout=1.0))
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


async def test_a_call_whose_turn_never_came_says_that_nothing_was_sent(member: Scripted):
    gate = asyncio.Event()
    answer = Counting(gate=gate)
    member.say("GetRun", answer)
    async with Client(member.address, timeout=60) as client:
        first = [asyncio.ensure_future(client.runs.get("r")) for _ in range(AT_ONCE)]
        await wait_until_async(lambda: answer.now == AT_ONCE, PROMPT, "the first to be in hand")
        with pytest.raises(DeadlineExceeded, match="timed out in the client's queue") as told:
            await client.runs.get("r", deadline=0.1)
        gate.set()
        await asyncio.gather(*first)
        assert (await client.runs.get("r")).run_id == "r", "its place is free again"
    assert told.value.reason == "NO_TIME"
    assert "nothing was sent" in told.value.remedy


async def test_a_call_whose_turn_comes_when_its_member_has_gone_is_made_at_another(
    member: Scripted, other: Scripted
):
    """Also a deletion: it was never sent."""
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


async def test_a_call_that_is_given_up_while_it_waits_takes_no_place(member: Scripted):
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


async def test_streams_keep_no_call_waiting(member: Scripted):
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
async def test_a_call_that_was_refused_its_stream_is_made_again_whatever_it_does(refusals: int):
    """Nobody has begun on it (RFC 9113, 8.7)."""
    answer = jobs.DeleteJobResponse(deleted=True)
    async with (
        refusing(refusals, answer.SerializeToString()) as (address, streams),
        Client(address, timeout=60) as client,
    ):
        await client.jobs.delete("etl")
    assert len(streams) == refusals + 1


@pytest.mark.slow
async def test_a_stream_that_is_refused_for_ever_is_told_as_what_it_is():
    async with refusing(1_000_000, b"") as (address, _), Client(address, timeout=1) as client:
        with pytest.raises(ClusterUnavailable, match="too many calls") as told:
            await client.jobs.delete("etl")
    assert told.value.reason == "REFUSED_STREAM"


async def test_what_a_member_cancels_is_made_again_where_that_does_it_once():
    """No bug of the cluster: the core of gRPC does so where too many calls wait, a proxy may."""
    answer = run_pb2.Run(run_id="r").SerializeToString()
    async with (
        refusing(2, answer, code=8) as (address, streams),
        Client(address, timeout=60) as client,
    ):
        run = await client.submit(shell={"argv": ["true"]})
    assert (run.run_id, len(streams)) == ("r", 3), "under one key, which it has made"


@pytest.mark.slow
async def test_what_is_cancelled_for_ever_is_told_as_what_it_is():
    async with refusing(1_000_000, b"", code=8) as (address, _), Client(address, timeout=2) as one:
        with pytest.raises(DeadlineExceeded, match="may have taken effect") as told:
            await one.submit(shell={"argv": ["true"]})
        with pytest.raises(ClusterUnavailable) as told_of_a_read:
            await one.runs.get("r")
    assert told.value.reason == told_of_a_read.value.reason == "CANCELLED"


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
        heard = bytearray()
        while piece := await reader.read(65_536):
            heard += piece
            for kind, flags, stream, payload in http2.read(heard):
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
