"""Calls of recognized callers start first, however many calls of unknown callers wait."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import grpc
import grpc.aio
import pytest

from faults.hostile import calls
from schedd.rpc import server as call_acceptance
from schedd.rpc.auth_interceptor import AuthInterceptor
from schedd.rpc.request_decoding import put, unary
from schedd.rpc.server import AcceptedCall, UnrecognizedCalls, make_server, recognize_by
from schedproto.v1 import job_service_pb2 as wire
from support.wait import wait_until_async

LIST = "/schedd.v1.JobService/ListJobs"
KNOWN = (("authorization", "Bearer known"),)
UNKNOWN = (("authorization", "Bearer unknown"),)
APART = {"grpc.use_local_subchannel_pool": 1}


class Server:
    """A server with one method, which never answers unknown callers."""

    def __init__(self) -> None:
        self.started: Counter[str] = Counter()
        self.recognized = {"Bearer known"}
        self.hold = asyncio.Event()
        self.grpc = make_server(64)
        table = {"ListJobs": unary(self.answer, wire.ListJobsRequest, wire.ListJobsResponse)}
        put(self.grpc, AuthInterceptor(), "schedd.v1.JobService", table)
        recognize_by(self.grpc, self.is_recognized)
        self.port = self.grpc.add_insecure_port("127.0.0.1:0")

    def is_recognized(self, method: str, context: Any) -> bool:
        assert method == LIST
        return authorization(context) in self.recognized

    async def answer(self, _request: Any, context: Any) -> Any:
        who = authorization(context)
        self.started[who] += 1
        if who not in self.recognized:
            await self.hold.wait()
        return wire.ListJobsResponse()


def authorization(context: Any) -> str:
    return next(
        (value for key, value in context.invocation_metadata() if key == "authorization"), ""
    )


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    await made.grpc.start()
    yield made
    made.hold.set()
    await made.grpc.stop(None)


@pytest.fixture
async def channels(server: Server) -> AsyncIterator[list[grpc.aio.Channel]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                calls.channel_to(f"127.0.0.1:{server.port}", **APART, **{"grpc.enable_retries": 0})
            )
            for _ in range(10)
        ]


def ask(channel: grpc.aio.Channel, metadata: Any) -> Any:
    return channel.unary_unary(LIST)(b"", metadata=metadata, timeout=60)


@pytest.mark.slow
async def test_known_callers_of_the_same_method_start_before_unknown_ones(
    server: Server, channels: list[grpc.aio.Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.grpc._server._queue._queue, "_rate", 50.0)
    known, *others = channels
    flood = [ask(others[number % len(others)], UNKNOWN) for number in range(1_000)]
    await wait_until_async(
        lambda: server.started["Bearer unknown"] >= call_acceptance.BURST, 20, "the burst"
    )
    async with asyncio.timeout(5):
        for _ in range(20):
            await ask(known, KNOWN)
    assert server.started["Bearer known"] == 20
    assert server.started["Bearer unknown"] < 900
    for call in flood:
        call.cancel()


async def test_callers_that_were_recognized_while_they_waited_start_outside_of_the_rate(
    server: Server, channels: list[grpc.aio.Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = server.grpc._server._queue._queue
    monkeypatch.setattr(queue, "take_burst", lambda: False)
    monkeypatch.setattr(queue, "_set_timer", lambda: None)
    waiting = [ask(channels[0], UNKNOWN) for _ in range(60)]
    await wait_until_async(lambda: len(queue) == 60, 10, "the calls to be queued")
    server.recognized.add("Bearer unknown")
    queue._release_some()
    await asyncio.gather(*waiting)


async def test_a_server_stops_with_queued_calls(
    server: Server, channels: list[grpc.aio.Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = server.grpc._server._queue._queue
    monkeypatch.setattr(queue, "take_burst", lambda: False)
    monkeypatch.setattr(queue, "_set_timer", lambda: None)
    waiting = [ask(channels[0], UNKNOWN) for _ in range(60)]
    await wait_until_async(lambda: len(queue) == 60, 10, "the calls to be queued")
    async with asyncio.timeout(10):
        await server.grpc.stop(0.2)
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert {error.code() for error in ended} <= {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNAVAILABLE,
    }


async def test_a_failure_to_recognize_a_caller_is_logged_and_ends_nothing(
    server: Server,
    channels: list[grpc.aio.Channel],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(_method: str, _context: Any) -> bool:
        raise LookupError("broken")

    monkeypatch.setattr(server.grpc._server, "recognize", fail)
    with caplog.at_level(logging.ERROR):
        await ask(channels[0], KNOWN)
    assert "a caller couldn't be recognized" in caplog.text


async def test_calls_over_the_limit_of_the_queue_are_rejected_at_the_host_with_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(call_acceptance, "MOST", 3)
    rejected = list[str]()
    queue = UnrecognizedCalls()
    monkeypatch.setattr(queue._queue, "take_burst", lambda: False)

    def call(host: str, name: str) -> AcceptedCall:
        def reject() -> None:
            rejected.append(name)

        return AcceptedCall(host, lambda: False, lambda: False, lambda: None, reject)

    for number in range(4):
        queue.add(call("ipv4:10.0.0.1", f"here {number}"))
    assert rejected == ["here 3"]
    queue.add(call("ipv4:10.0.0.2", "there"))
    assert rejected == ["here 3", "here 2"]
    assert len(queue) == 3
    queue.close()
    assert len(queue) == 0


async def test_a_queued_call_whose_deadline_has_passed_is_not_started(
    server: Server, channels: list[grpc.aio.Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = server.grpc._server._queue._queue
    monkeypatch.setattr(queue, "take_burst", lambda: False)
    monkeypatch.setattr(queue, "_set_timer", lambda: None)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await channels[0].unary_unary(LIST)(b"", metadata=UNKNOWN, timeout=1)
    assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    [[call]] = queue._by_host.values()
    await wait_until_async(call.is_over, 10, "the deadline by the server's clock")
    queue._release_some()
    assert (len(queue), server.grpc._server._calls) == (0, set())


async def test_half_of_the_calls_are_kept_for_recognized_callers(
    server: Server, channels: list[grpc.aio.Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("schedd.rpc.server.MOST_UNRECOGNIZED", 3)
    held = [ask(channels[0], UNKNOWN) for _ in range(3)]
    await wait_until_async(lambda: server.started["Bearer unknown"] == 3, 10, "three calls")
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await ask(channels[0], UNKNOWN)
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await ask(channels[0], KNOWN)
    server.hold.set()
    await asyncio.gather(*held)


@pytest.mark.slow
async def test_calls_past_the_most_at_a_time_are_rejected(
    server: Server, channels: list[grpc.aio.Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("schedd.rpc.server.MOST_CALLS", 5)
    server.recognized.clear()
    monkeypatch.setattr(server.grpc._server, "recognize", lambda *_: True)
    held = [ask(channels[0], UNKNOWN) for _ in range(5)]
    await wait_until_async(lambda: server.started["Bearer unknown"] == 5, 10, "five calls")
    began = time.monotonic()
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await ask(channels[0], UNKNOWN)
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert time.monotonic() - began < 10
    server.hold.set()
    await asyncio.gather(*held)
    await ask(channels[0], UNKNOWN)
