"""gRPC's health service says what `/readyz` says, by service, to who asks and to who watches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from faults.hostile import calls, http2
from schedd.rpc.auth_interceptor import AuthInterceptor
from schedd.rpc.health import Health
from schedd.rpc.server import make_server

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
DEADLINE = 10


@dataclass
class Served:
    """A server with the health service alone, and reasons of the test's own."""

    health: Health
    stub: health_pb2_grpc.HealthStub
    port: int
    reasons: list[str] = field(default_factory=list)

    async def says(self, service: str = "") -> int:
        asked = health_pb2.HealthCheckRequest(service=service)
        return (await self.stub.Check(asked, timeout=DEADLINE)).status

    async def becomes(self, *reasons: str) -> None:
        self.reasons[:] = reasons
        await self.health.step()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    server, reasons = make_server(64), list[str]()
    health = Health(lambda: reasons, ["schedd.v1.JobService"], ["schedd.v1.WorkerService"])
    health.serve(server, AuthInterceptor())
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Served(health, health_pb2_grpc.HealthStub(channel), port, reasons)
    await server.stop(None)


async def test_a_member_that_isnt_ready_serves_no_calls_but_its_workers(served: Served) -> None:
    assert {await served.says(name) for name in ("", "schedd.v1.JobService")} == {SERVING}
    await served.becomes("the member hasn't joined the cluster yet")
    assert {await served.says(name) for name in ("", "schedd.v1.JobService")} == {NOT_SERVING}
    assert await served.says("schedd.v1.WorkerService") == SERVING
    await served.becomes()
    assert await served.says("schedd.v1.JobService") == SERVING


async def test_a_check_returns_the_current_status(served: Served) -> None:
    for reasons, status in ((["away"], NOT_SERVING), ([], SERVING)):
        served.reasons[:] = reasons
        assert await served.says() == status


async def test_a_watch_receives_each_change_and_nothing_else(served: Served) -> None:
    watch = served.stub.Watch(health_pb2.HealthCheckRequest(service="schedd.v1.JobService"))
    received = [(await watch.read()).status]
    for reasons in ((), ("away",), ("away", "and worse"), ()):
        await served.becomes(*reasons)
        if bool(reasons) != (received[-1] == NOT_SERVING):
            received.append((await watch.read()).status)
    assert received == [SERVING, NOT_SERVING, SERVING]
    watch.cancel()


async def test_an_unread_watch_delays_no_check(served: Served) -> None:
    await served.becomes("away")
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    watch = http2.opening(calls.HEALTH[1], "unread", 1)
    asked = http2.data(http2.message(b""), 1, end=True)
    writer.write(http2.hello({http2.INITIAL_WINDOW: 0}) + watch + asked)
    async with asyncio.timeout(DEADLINE):
        await _is_answered(reader)
    for reasons, status in (([], SERVING), (["away"], NOT_SERVING), ([], SERVING)):
        served.reasons[:] = reasons
        for name in ("", "schedd.v1.JobService"):
            assert await served.says(name) == status
    writer.transport.abort()


async def _is_answered(reader: asyncio.StreamReader) -> None:
    """The head of an answer is there; its body has no leave to come."""
    received = bytearray()
    while piece := await reader.read(65_536):
        received += piece
        if any(kind == http2.HEADERS for kind, *_ in http2.read(received)):
            return
    raise AssertionError("the server hung up")


async def test_an_unknown_service_is_rejected_by_check_and_unknown_to_watch(
    served: Served,
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await served.says("schedd.v1.Unknown")
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    watch = served.stub.Watch(health_pb2.HealthCheckRequest(service="schedd.v1.Unknown"))
    assert (await watch.read()).status == UNKNOWN
    watch.cancel()


async def test_the_log_has_a_line_when_a_member_isnt_ready_any_more_and_one_when_it_is_again(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for reasons in (("the database is away",), ("the database is away", "and etcd"), (), ()):
        await served.becomes(*reasons)
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", "not ready: the database is away"),
        ("INFO", "ready"),
    ]
