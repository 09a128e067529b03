"""A member's gRPC server takes any input, and continues."""

from __future__ import annotations

import asyncio
import gc
import gzip
import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import grpc
import grpc.aio
import pytest

from faults.hostile import calls, http2
from schedd.api.errors import LimitReachedError
from schedd.api.runs.stream_readers import Places
from schedd.rpc import request_decoding
from schedd.rpc.auth_interceptor import AuthInterceptor
from schedd.rpc.health import Health
from schedd.rpc.request_decoding import put, unary
from schedd.rpc.server import make_server, served
from schedd.rpc.status import abort
from schedkit.errors import Fault
from schedproto.v1 import job_service_pb2 as wire
from support.wait import wait_until_async

APART = {"grpc.use_local_subchannel_pool": 1}
"""For a channel that shares no connection with another."""
LIST = "/schedd.v1.JobService/ListJobs"


@pytest.fixture
async def address() -> AsyncIterator[str]:
    """Where a server with one call and the health service listens."""

    async def answer(asked: Any, context: Any) -> Any:
        return wire.ListJobsResponse()

    server = make_server(16)
    table = {"ListJobs": unary(answer, wire.ListJobsRequest, wire.ListJobsResponse)}
    put(server, AuthInterceptor(), "schedd.v1.JobService", table)
    Health(list).serve(server, AuthInterceptor())
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


@pytest.fixture
async def channel(address: str) -> AsyncIterator[grpc.aio.Channel]:
    async with calls.channel_to(address) as opened:
        yield opened


async def status_of(address: str, said: bytes) -> int | None:
    """Return the outcome of a raw call on a connection of its own."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    received = bytearray()
    try:
        writer.write(said)
        async with asyncio.timeout(10):
            while piece := await reader.read(65_536):
                received += piece
                for kind, _, _, payload in http2.read(received):
                    if kind == http2.HEADERS and (status := http2.status_of(payload)) is not None:
                        return status
    finally:
        writer.transport.abort()
    return None


async def test_a_malformed_path_is_an_unknown_method_and_ends_nothing(
    address: str, channel: grpc.aio.Channel
) -> None:
    """Grpcio 1.85's own server is ended by it, for everybody (see schedd/rpc/server.py)."""
    path = {":path": b"\xad\xff/x"}
    call = http2.hello() + http2.opening("", address, 1, **path)
    for _ in range(3):
        said = call + http2.data(http2.message(b""), 1, end=True)
        assert await status_of(address, said) == grpc.StatusCode.UNIMPLEMENTED.value[0]
        assert await calls.ask(channel, LIST, [b""]) == "OK"


async def test_an_unknown_method_is_unimplemented(channel: grpc.aio.Channel) -> None:
    for path in ("/x", LIST + "x", LIST + "/", "/a.B/C", "/" + "a" * 5000):
        assert await calls.ask(channel, path, [b""]) == "UNIMPLEMENTED"
    assert await calls.ask(channel, LIST, [b""]) == "OK"


async def test_bytes_that_are_no_request_are_an_invalid_argument(
    channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    for path in (LIST, *calls.HEALTH):
        assert await calls.ask(channel, path, [b"\x0f\x0e"]) == "INVALID_ARGUMENT"
    assert "Traceback" not in caplog.text


async def test_calls_leave_no_garbage_whether_they_are_rejected_or_not(
    channel: grpc.aio.Channel,
) -> None:
    """The member runs a full collection after up to 15 minutes: memory would grow until then."""
    gc.collect()
    gc.disable()
    try:
        for path, request in (
            (LIST, b""),
            *((path, b"\x0f\x0e") for path in (LIST, *calls.HEALTH)),
        ):
            for _ in range(25):
                await calls.ask(channel, path, [request])
        # gRPC's own loop keeps the newest call, and has some that wait for the next ones.
        await wait_until_async(lambda: _kept_calls() < 20, 10, "the calls to be freed")
    finally:
        gc.enable()


def _kept_calls() -> int:
    return sum(type(one).__name__ in ("RPCState", "AbortError") for one in gc.get_objects())


@pytest.mark.slow
async def test_a_caller_within_its_limit_of_concurrent_calls_is_never_rejected(
    address: str,
) -> None:
    """Ended calls don't count, though the core of grpcio frees them later."""
    async with calls.channel_to(address, **{"grpc.enable_retries": 0}) as channel:
        assert await calls.ask(channel, LIST, [b""]) == "OK", "it knows how many it may make"
        statuses = await asyncio.gather(*(calls.ask(channel, LIST, [b""]) for _ in range(2_000)))
    assert set(statuses) == {"OK"}


@pytest.mark.parametrize("path", [LIST, *calls.HEALTH])
async def test_a_call_without_its_request_ends_in_time(
    address: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a caller without a deadline; half a request is none."""
    monkeypatch.setattr(request_decoding, "REQUEST_WITHIN", 0.2)
    began = http2.hello() + http2.opening(path, address, 1)
    for piece in (b"", http2.data(http2.message(b"a", length=100), 1)):
        status = await status_of(address, began + piece)
        assert status == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]


async def test_a_call_that_ends_without_a_request_is_an_invalid_argument(address: str) -> None:
    said = http2.hello() + http2.opening(LIST, address, 1) + http2.data(b"", 1, end=True)
    assert await status_of(address, said) == grpc.StatusCode.INVALID_ARGUMENT.value[0]


async def test_a_request_that_is_too_long_is_rejected(channel: grpc.aio.Channel) -> None:
    for path in (LIST, *calls.HEALTH):
        assert await calls.ask(channel, path, [bytes(5 << 20)]) == "RESOURCE_EXHAUSTED"


@pytest.mark.slow
async def test_a_call_that_the_core_has_ended_is_not_answered_and_logs_no_traceback(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A bomb is refused when it is unpacked: the call has no request then, and not always its end
    yet. Some of these calls meet it between the two.
    """
    bomb = http2.message(gzip.compress(bytes(16 << 20)), packed=True)
    for path in (LIST, *calls.HEALTH) * 20:
        call = http2.opening(path, address, 1, grpc_encoding=b"gzip")
        said = http2.hello() + call + http2.data(bomb, 1, end=True)
        assert await status_of(address, said) == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    assert "Traceback" not in caplog.text


async def test_a_client_that_cant_be_answered_counts_as_disconnected() -> None:
    """The same for sure: the core itself is between the two in one of hundreds of calls."""

    class Ended:
        async def abort(self, *_: Any) -> None:
            raise grpc.aio.InternalError("Failed execute_batch")

    context: Any = Ended()
    with pytest.raises(asyncio.CancelledError):
        await abort(context, "INVALID_ARGUMENT", "no request", reason="NO_REQUEST")


async def test_a_caller_that_disconnects_or_a_canceled_call_is_not_logged_as_an_error(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The core tells the first as one when it finds out a moment before the call's end has come,
    and the second when the server stops.
    """
    log = logging.getLogger("grpc._cython.cygrpc")
    hung_up = grpc.aio.InternalError("Failed grpc_call_start_batch")
    for error in (hung_up, asyncio.CancelledError(), ValueError("ours")):
        try:
            raise error
        except (grpc.aio.InternalError, asyncio.CancelledError, ValueError):
            log.exception("ExecuteBatchError raised in core by servicer method [%s]", LIST)
    assert [record.exc_info[1].args for record in caplog.records if record.exc_info] == [("ours",)]


@pytest.mark.slow
async def test_no_host_holds_more_health_streams_than_it_may(
    address: str, channel: grpc.aio.Channel
) -> None:
    watch = channel.unary_stream(calls.HEALTH[1])
    open_ones = [watch(b"") for _ in range(256)]
    for each in open_ones:
        await each.read()
    async with calls.channel_to(address, **APART) as other:
        assert await calls.ask(other, calls.HEALTH[1], [b""]) == "RESOURCE_EXHAUSTED"
    for each in open_ones:
        each.cancel()


async def test_a_server_that_is_watched_no_longer_can_still_be_stopped() -> None:
    server = make_server(16)
    server.add_insecure_port("127.0.0.1:0")
    await server.start()
    watched = asyncio.create_task(served(server), name="served")
    await asyncio.sleep(0)
    watched.cancel()
    await asyncio.wait([watched])
    async with asyncio.timeout(10):
        await server.stop(0.5)


async def test_a_server_that_ends_unexpectedly_is_a_fault() -> None:
    server = make_server(16)
    server.add_insecure_port("127.0.0.1:0")
    await server.start()
    watched = asyncio.create_task(served(server), name="served")
    await server.stop(None)
    with pytest.raises(Fault):
        await watched


@pytest.mark.slow
async def test_thousands_of_calls_during_a_stall_of_the_loop_are_all_answered(
    address: str,
) -> None:
    """The core cancels some of more than 1,000, by chance, unless configured otherwise."""
    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(calls.channel_to(address, **APART)) for _ in range(12)
        ]
        for channel in channels:
            assert await calls.ask(channel, LIST, [b""]) == "OK"
        asked = [
            asyncio.create_task(calls.ask(channel, LIST, [b""]), name="call")
            for channel in channels
            for _ in range(128)
        ]
        await asyncio.sleep(0)
        time.sleep(1.0)  # noqa: ASYNC251 - the server's loop is this one, and stands still
        assert set(await asyncio.gather(*asked)) == {"OK"}


def test_concurrent_calls_are_limited_per_host_and_in_total() -> None:
    places = Places(most_of_one=2, most=3)
    with places.taken("ipv4:10.0.0.1:1"), places.taken("ipv4:10.0.0.1:2"):
        with pytest.raises(LimitReachedError), places.taken("ipv4:10.0.0.1:3"):
            pass
        with (
            places.taken("ipv4:10.0.0.2:1"),
            pytest.raises(LimitReachedError),
            places.taken("ipv4:10.0.0.3:1"),
        ):
            pass
        with places.taken("ipv4:10.0.0.3:1"):
            pass
    with places.taken("ipv4:10.0.0.1:3"):
        pass
