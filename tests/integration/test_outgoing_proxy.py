"""HTTP jobs, gRPC jobs and webhooks through an outgoing proxy."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc.aio
import pytest
from aiohttp import web

from schedd.core.ids import JobId, RunId, ShardId, new_id
from schedd.core.jobs.notifications import NotificationChannel, NotificationKind, OutboxNotification
from schedd.notify.senders.webhook import Webhook
from schedkit.egress.policy import Egress, ignored_proxies
from schedproto.v1 import job_handler_pb2, job_handler_pb2_grpc, job_pb2
from support.attempts import attempt_start
from support.fake_member import FakeMember
from support.forward_proxy import ForwardProxy, forward_proxy
from support.runs import NOW
from workerd.core.outcome import AttemptOutcome, AttemptVerdict, OutcomeReason
from workerd.executors.base import Stop
from workerd.executors.grpc import GrpcExecutor
from workerd.executors.http import HttpExecutor


def egress_through(proxy: ForwardProxy, *, password: str = "", **settings: Any) -> Egress:
    return Egress(proxy=f"http://{password}127.0.0.1:{proxy.port}", **settings)


async def run(executor: HttpExecutor | GrpcExecutor, **action: Any) -> AttemptOutcome:
    given = FakeMember().assignment(incarnation="i", **action)
    deadline = datetime.now(UTC) + timedelta(seconds=10)
    try:
        return await executor.run(attempt_start(given, "w1", deadline), Stop())
    finally:
        await executor.close()


async def get(egress: Egress, url: str) -> AttemptOutcome:
    return await run(HttpExecutor(egress), http=job_pb2.HttpAction(url=url))


async def call(egress: Egress, endpoint: str) -> AttemptOutcome:
    return await run(GrpcExecutor(egress), grpc=job_pb2.GrpcAction(endpoint=endpoint))


@contextlib.asynccontextmanager
async def web_target() -> AsyncIterator[tuple[str, int]]:
    async def answer(_request: web.Request) -> web.Response:
        return web.json_response({"fine": True})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield "127.0.0.1", runner.addresses[0][1]
    finally:
        await runner.cleanup()


class Handler(job_handler_pb2_grpc.JobHandlerServicer):
    async def Run(self, request: Any, context: Any) -> Any:  # noqa: N802
        del request, context
        return job_handler_pb2.RunResponse()


@contextlib.asynccontextmanager
async def grpc_target() -> AsyncIterator[tuple[str, int]]:
    server = grpc.aio.server()
    job_handler_pb2_grpc.add_JobHandlerServicer_to_server(Handler(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield "127.0.0.1", port
    finally:
        await server.stop(None)


async def test_an_http_job_uses_the_proxy_which_resolves_the_name() -> None:
    async with web_target() as at, forward_proxy(shop_example=at) as proxy:
        outcome = await get(egress_through(proxy), "http://shop.example:8080/ok")
    assert outcome.verdict is AttemptVerdict.SUCCEEDED
    assert proxy.lines == ["POST http://shop.example:8080/ok"]


async def test_https_uses_connect_through_the_proxy() -> None:
    async with web_target() as at, forward_proxy(shop_example=at) as proxy:
        outcome = await get(egress_through(proxy), "https://shop.example/ok")
    assert proxy.lines == ["CONNECT shop.example:443"]
    assert "handshake with shop.example:443 failed: the target doesn't speak TLS" in outcome.error


async def test_a_grpc_job_uses_connect_through_the_proxy() -> None:
    async with grpc_target() as at, forward_proxy("ops:p@ss", pay_example=at) as proxy:
        outcome = await call(egress_through(proxy, password="ops:p%40ss@"), "pay.example:50051")
    assert outcome.verdict is AttemptVerdict.SUCCEEDED, outcome.error
    assert proxy.lines == ["CONNECT pay.example:50051"]


async def test_the_password_of_the_proxy_is_sent_and_a_wrong_one_is_named() -> None:
    async with web_target() as at, forward_proxy("ops:p@ss", shop_example=at) as proxy:
        right = egress_through(proxy, password="ops:p%40ss@")
        assert (await get(right, "http://shop.example/")).verdict is AttemptVerdict.SUCCEEDED
        wrong = egress_through(proxy, password="ops:other@")
        plain = await get(wrong, "http://shop.example/")
        assert plain.error == (
            "the proxy rejected its user or password: 407 Proxy Authentication Required;"
            " correct egress.proxy"
        )
        assert plain.reason is OutcomeReason.EXCEPTION
        connect = await get(wrong, "https://shop.example/")
        assert connect.error == (
            "the proxy rejected a connection to shop.example:443: it answered"
            " 407 Proxy Authentication Required"
        )
        called = await call(wrong, "shop.example:50051")
        assert "407" in called.error


async def test_a_proxy_that_is_down_is_named_and_not_the_target() -> None:
    egress = Egress(proxy="http://127.0.0.1:1")
    outcome = await get(egress, "http://shop.example/")
    assert outcome.error.startswith("can't connect to the proxy 127.0.0.1:1: ")


@pytest.mark.parametrize("scheme", ["http", "https", "grpc"])
@pytest.mark.parametrize(
    "host",
    [
        *("10.0.0.5", "[fd00::7]", "[::ffff:10.0.0.5]", "169.254.169.254", "0x7f.1", "2130706433"),
        *("metadata.google.internal", "METADATA.google.internal."),
    ],
)
async def test_no_proxy_carries_a_call_to_a_target_that_is_refused(host: str, scheme: str) -> None:
    async with forward_proxy() as proxy:
        egress = egress_through(proxy)
        if scheme == "grpc":
            outcome = await call(egress, f"{host}:80")
        else:
            outcome = await get(egress, f"{scheme}://{host}/")
    assert outcome.reason is OutcomeReason.DONT_RETRY, outcome.error
    assert proxy.lines == []


async def test_targets_of_no_proxy_and_loopback_are_called_directly_and_checked() -> None:
    async with web_target() as (_, port), grpc_target() as (_, other), forward_proxy() as proxy:
        allowed = egress_through(proxy, allow=("127.0.0.1", "localhost"))
        for host in ("127.0.0.1", "localhost"):
            assert (
                await get(allowed, f"http://{host}:{port}/")
            ).verdict is AttemptVerdict.SUCCEEDED
            assert (await call(allowed, f"{host}:{other}")).verdict is AttemptVerdict.SUCCEEDED
        direct = egress_through(proxy, no_proxy=("10.0.0.0/8", ".nowhere.invalid"))
        refused = await get(direct, "http://10.0.0.5/")
        assert "write in workerd.toml: [egress] allow" in refused.error
        unknown = await get(direct, "http://app.nowhere.invalid/")
        said = "the name of app.nowhere.invalid:80 can't be resolved: "
        assert unknown.error.startswith(said)
    assert proxy.lines == []


async def test_a_webhook_uses_the_members_proxy() -> None:
    one = OutboxNotification(
        new_id(), NotificationChannel.WEBHOOK, JobId(new_id()), ShardId(1),
        NotificationKind.FAILURE,
        "default", "etl", RunId(new_id()), NOW, NOW, NOW, NOW, "FAILED", "EXIT_CODE", "", 3, 4, 1,
        "w1", 5, 2, NOW, NOW, 1,
    )  # fmt: skip
    async with web_target() as at, forward_proxy(hooks_example=at) as proxy:
        webhook = Webhook(None, egress_through(proxy))
        try:
            assert await webhook.send(one, "http://hooks.example/x") == ""
        finally:
            await webhook.close()
    assert proxy.lines == ["POST http://hooks.example/x"]


@pytest.mark.parametrize(
    "url", ["proxy:3128", "https://proxy:3128", "http://proxy", "http://p:1/x", "http://[x:1"]
)
def test_an_invalid_proxy_is_reported_without_its_password(url: str) -> None:
    faults: Iterable[Any] = Egress(proxy=url).faults()
    assert [each.what for each in faults] == [
        "the value must be the URL of a proxy: http://[user:password@]host:port"
    ]


def test_proxy_variables_without_the_setting_are_reported_as_ignored() -> None:
    environ = {"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "x", "http_proxy": ""}
    assert ignored_proxies(Egress(), environ) == ["HTTPS_PROXY"]
    assert ignored_proxies(Egress(proxy="http://proxy:3128"), environ) == []
