"""gRPC jobs against real servers on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.any_pb2 import Any as Packed
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message_factory import GetMessageClass
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from schedproto.v1 import common_pb2, job_handler_pb2, job_handler_pb2_grpc, job_pb2
from schedproto.v1 import worker_service_pb2 as pb
from support.addresses import NO_PUBLIC_HOST, THIS_HOST
from support.certs import Authority
from support.fake_member import Stream
from support.repository import ROOT
from support.shared_workers import SharedWorkers
from support.wait import wait_until_async

pytestmark = pytest.mark.asyncio(loop_scope="module")

ALLOWED = 'egress.allow = ["127.0.0.0/8", "::1", "localhost"]\n'
HEALTH = "grpc.health.v1.Health"
SHOP = "shop.v1.Shop"


class Service(job_handler_pb2_grpc.JobHandlerServicer):
    """A handler that does what its payload says, and keeps what it was asked."""

    def __init__(self) -> None:
        self.requests: list[job_handler_pb2.RunRequest] = []
        self.metadata: list[Mapping[str, str | bytes]] = []
        self.remaining: list[float] = []
        self.given_up = asyncio.Event()
        self.port = 0

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def Run(  # noqa: N802 - the name on the wire
        self, request: job_handler_pb2.RunRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> job_handler_pb2.RunResponse:
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata() or ()))
        self.remaining.append(context.time_remaining())
        answer = job_handler_pb2.RunResponse()
        match json.loads(request.payload.json or "null"):
            case "refused":
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no stock")
            case "busy":
                context.set_trailing_metadata([("grpc-status-details-bin", _in_a_while(42))])
                await context.abort(grpc.StatusCode.UNAVAILABLE, "busy")
            case "own deadline":
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "of my database")
            case "error":
                answer.error = "NoStock: sold out"
                answer.retry_after.FromSeconds(30)
            case "hopeless":
                answer.error, answer.dont_retry = "no such article", True
            case "for ever":
                try:
                    await asyncio.Event().wait()
                finally:
                    self.given_up.set()
            case {"letters": int(count)}:
                answer.result.json = json.dumps("x" * count)
            case "no json":
                answer.result.json = "{"
            case "raw":
                answer.result.raw = b"\xff\x00"
            case {"name": name}:
                answer.result.json = json.dumps({"hello": name})
        return answer


class Health(health_pb2_grpc.HealthServicer):
    """Real messages of a service that others have made."""

    async def Check(  # noqa: N802 - the name on the wire
        self,
        request: health_pb2.HealthCheckRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> health_pb2.HealthCheckResponse:
        if request.service:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no {request.service}")
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)


def _in_a_while(seconds: int) -> bytes:
    packed = Packed()
    packed.Pack(RetryInfo(retry_delay=Duration(seconds=seconds)))
    return Status(code=14, message="busy", details=[packed]).SerializeToString()


def shop() -> DescriptorPool:
    """A service in a file that stands on another one."""
    kinds = FileDescriptorProto(name="shop/kinds.proto", package="shop.v1", syntax="proto3")
    article = kinds.message_type.add(name="Article")
    article.field.add(name="article_name", number=1, type=9, label=1)
    article.field.add(name="amount", number=2, type=5, label=1)
    calls = FileDescriptorProto(
        name="shop/calls.proto",
        package="shop.v1",
        syntax="proto3",
        dependency=["shop/kinds.proto"],
    )
    service = calls.service.add(name="Shop")
    for name, sends, answers in (
        ("Price", False, False),
        ("Watch", False, True),
        ("Fill", True, False),
    ):
        service.method.add(
            name=name,
            input_type=".shop.v1.Article",
            output_type=".shop.v1.Article",
            client_streaming=sends,
            server_streaming=answers,
        )
    pool = DescriptorPool()
    pool.AddSerializedFile(kinds.SerializeToString())
    pool.AddSerializedFile(calls.SerializeToString())
    return pool


def _sell(server: grpc.aio.Server, pool: DescriptorPool) -> None:
    article = GetMessageClass(pool.FindMessageTypeByName("shop.v1.Article"))

    async def price(request: Any, _: object) -> Any:
        return article(article_name=request.article_name * (request.amount or 1), amount=7)

    handler = grpc.unary_unary_rpc_method_handler(
        price, article.FromString, article.SerializeToString
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SHOP, {"Price": handler}),)
    )


@contextlib.asynccontextmanager
async def served(
    *,
    reflects: bool = True,
    credentials: grpc.ServerCredentials | None = None,
    compression: grpc.Compression | None = None,
) -> AsyncIterator[Service]:
    service, pool = Service(), shop()
    server = grpc.aio.server(
        compression=compression, options=[("grpc.max_send_message_length", -1)]
    )
    job_handler_pb2_grpc.add_JobHandlerServicer_to_server(service, server)
    health_pb2_grpc.add_HealthServicer_to_server(Health(), server)
    _sell(server, pool)
    if reflects:
        reflection.enable_server_reflection([HEALTH], server)
    address = "127.0.0.1:0"
    service.port = (
        server.add_secure_port(address, credentials)
        if credentials
        else server.add_insecure_port(address)
    )
    await server.start()
    try:
        yield service
    finally:
        await server.stop(None)


@contextlib.asynccontextmanager
async def a_shop() -> AsyncIterator[str]:
    """The endpoint of a server that reflects types of its own alone."""
    server, pool = grpc.aio.server(), shop()
    _sell(server, pool)
    reflection.enable_server_reflection([SHOP], server, pool)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def call(
    stream: Stream, payload: str | bytes | None = None, *, timeout: float = 20, **action: Any
) -> pb.Result:
    given = job_pb2.GrpcAction(**action)
    key = await stream.assign(grpc=given, payload=payload, timeout=timeout)
    return await stream.result_of(key)


async def test_a_job_handler_receives_its_attempt_and_its_answer_is_the_result(
    workers: SharedWorkers,
) -> None:
    async with (
        served() as server,
        workers(config=ALLOWED) as (member, _),
    ):
        stream = await member.attached()
        given = job_pb2.GrpcAction(
            endpoint=server.endpoint, metadata={"X-Own": "yes", "authorization": "Bearer t"}
        )
        trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        key = await stream.assign(
            grpc=given, payload='{"name":"Ada"}', timeout=20, traceparent=trace
        )
        result = await stream.result_of(key)
        assert result.outcome == pb.Result.OUTCOME_SUCCEEDED
        assert json.loads(result.result.json) == {"hello": "Ada"}
        (request,), (metadata,) = server.requests, server.metadata
        assert (request.job, request.attempt, request.worker) == ("probe", 1, "w1")
        assert (request.namespace, request.traceparent) == ("default", trace)
        assert (request.run_id, request.fencing_token) == (key.run_id, key.fencing_token)
        assert request.idempotency_key == key.run_id
        assert request.scheduled_at == key.scheduled_at
        left = request.deadline.ToDatetime(UTC) - datetime.now(UTC)
        assert timedelta(0) < left <= timedelta(seconds=20)
        assert metadata["schedd-run-id"] == key.run_id
        assert metadata["schedd-fencing-token"] == str(key.fencing_token)
        assert metadata["traceparent"] == trace
        assert (metadata["x-own"], metadata["authorization"]) == ("yes", "Bearer t")


async def test_a_job_stored_by_an_earlier_version_overrides_no_metadata_of_schedd(
    workers: SharedWorkers,
) -> None:
    """Members refuse such a job; one may have been stored by another version."""
    wrong = {"Schedd-Run-Id": "fake", "content-type": "text/plain", "grpc-timeout": "1n"}
    async with served() as server, workers(config=ALLOWED) as (member, _):
        stream = await member.attached()
        own = {**wrong, "traceparent": "mine"}
        result = await call(stream, endpoint=server.endpoint, metadata=own)
        assert result.outcome == pb.Result.OUTCOME_SUCCEEDED
        assert not result.HasField("result")
        (metadata,) = server.metadata
        assert metadata["schedd-run-id"] == result.key.run_id
        assert metadata["traceparent"] == "mine"


async def test_the_error_of_a_job_handler_decides_on_the_next_attempt(
    workers: SharedWorkers,
) -> None:
    async with served() as server, workers(config=ALLOWED) as (member, _):
        stream = await member.attached()
        failed = await call(stream, '"error"', endpoint=server.endpoint)
        assert failed.reason == common_pb2.REASON_EXCEPTION
        assert (failed.error, failed.retry_after.seconds) == ("NoStock: sold out", 30)
        hopeless = await call(stream, '"hopeless"', endpoint=server.endpoint)
        assert hopeless.reason == common_pb2.REASON_DONT_RETRY
        assert hopeless.error == "no such article"


async def test_a_status_other_than_ok_fails_and_says_so(workers: SharedWorkers) -> None:
    async with served() as server, workers(config=ALLOWED) as (member, _):
        stream = await member.attached()
        refused = await call(stream, '"refused"', endpoint=server.endpoint)
        assert refused.outcome == pb.Result.OUTCOME_FAILED
        assert refused.reason == common_pb2.REASON_GRPC_STATUS
        assert (refused.error, refused.exit_code) == ("FAILED_PRECONDITION: no stock", 9)
        assert not refused.HasField("retry_after")
        busy = await call(stream, '"busy"', endpoint=server.endpoint)
        assert (busy.error, busy.retry_after.seconds) == ("UNAVAILABLE: busy", 42)
        away = await call(stream, endpoint="127.0.0.1:1")
        assert away.reason == common_pb2.REASON_GRPC_STATUS
        assert away.error.startswith("UNAVAILABLE: failed to connect")
        unknown = await call(stream, endpoint="no-such-host.invalid:1")
        assert unknown.reason == common_pb2.REASON_EXCEPTION


async def test_the_timeout_of_an_attempt_is_the_deadline_of_its_call(
    workers: SharedWorkers,
) -> None:
    async with served() as server, workers(config=ALLOWED) as (member, _):
        stream = await member.attached()
        late = await call(stream, '"for ever"', endpoint=server.endpoint, timeout=1)
        assert late.reason == common_pb2.REASON_TIMEOUT
        assert 0 < server.remaining[0] <= 1
        await asyncio.wait_for(server.given_up.wait(), 10)
        own = await call(stream, '"own deadline"', endpoint=server.endpoint)
        assert own.reason == common_pb2.REASON_GRPC_STATUS
        assert own.error == "DEADLINE_EXCEEDED: of my database"


async def test_a_cancelled_run_cancels_its_call(workers: SharedWorkers) -> None:
    async with served() as server, workers(config=ALLOWED) as (member, _):
        stream = await member.attached()
        given = job_pb2.GrpcAction(endpoint=server.endpoint)
        key = await stream.assign(grpc=given, payload='"for ever"', timeout=60)
        await wait_until_async(lambda: server.requests, 20, "the call")
        await stream.send(cancels=[pb.Cancel(key=key)])
        result = await stream.result_of(key)
        assert result.outcome == pb.Result.OUTCOME_CANCELLED
        await asyncio.wait_for(server.given_up.wait(), 10)


async def test_a_large_grpc_answer_is_stored_and_one_over_4_mib_is_rejected(
    workers: SharedWorkers,
) -> None:
    async with served() as server, workers(config=ALLOWED) as (member, _):
        stream = await member.attached()
        large = await call(stream, '{"letters":100000}', endpoint=server.endpoint)
        assert large.outcome == pb.Result.OUTCOME_SUCCEEDED
        assert not large.HasField("result")
        assert large.stored_result.problem == ""
        assert large.stored_result.size > 100_000
        too_large = await call(stream, '{"letters":5000000}', endpoint=server.endpoint)
        assert too_large.reason == common_pb2.REASON_GRPC_STATUS
        assert "Received message larger than max" in too_large.error


async def test_a_result_that_only_says_it_is_json_is_kept_as_bytes(workers: SharedWorkers) -> None:
    async with served() as server, workers(config=ALLOWED) as (member, _):
        stream = await member.attached()
        assert (await call(stream, '"no json"', endpoint=server.endpoint)).result.raw == b"{"
        assert (await call(stream, '"raw"', endpoint=server.endpoint)).result.raw == b"\xff\x00"


async def test_a_compressed_answer_is_rejected(workers: SharedWorkers) -> None:
    """A few bytes may hold gigabytes. Not each core of gRPC's bounds them."""
    async with (
        served(compression=grpc.Compression.Gzip) as server,
        workers(config=ALLOWED) as (member, _),
    ):
        stream = await member.attached()
        result = await call(stream, '{"letters":100000}', endpoint=server.endpoint)
        assert result.outcome == pb.Result.OUTCOME_FAILED
        assert "compress" in result.error.lower()


async def test_any_unary_method_is_found_by_reflection_and_called_with_json(
    workers: SharedWorkers,
) -> None:
    async with (
        served() as server,
        a_shop() as bought,
        workers(config=ALLOWED) as (member, _),
    ):
        stream = await member.attached()
        health = await call(stream, endpoint=server.endpoint, method=f"{HEALTH}/Check")
        assert json.loads(health.result.json) == {"status": "SERVING"}
        unknown = await call(
            stream, '{"service":"x"}', endpoint=server.endpoint, method=f"{HEALTH}/Check"
        )
        assert unknown.error == "NOT_FOUND: no x"
        for article in ('{"articleName":"tea","amount":2}', '{"article_name":"tea","amount":2}'):
            price = await call(stream, article, endpoint=bought, method=f"{SHOP}/Price")
            assert json.loads(price.result.json) == {"articleName": "teatea", "amount": 7}
        wide = '{"articleName":"' + "x" * 1000 + '","amount":100}'
        large = await call(stream, wide, endpoint=bought, method=f"{SHOP}/Price")
        assert large.outcome == pb.Result.OUTCOME_SUCCEEDED
        assert not large.HasField("result")
        assert b"isn't kept" in large.output[0].data


async def test_a_call_that_no_attempt_can_make_is_not_retried(workers: SharedWorkers) -> None:
    wrong: Sequence[tuple[str, str | bytes | None, str]] = (
        ("Price", '{"articel":"tea"}', 'no field named "articel"'),
        ("Price", '{"amount":"many"}', "amount"),
        ("Price", "[1]", "payload isn't a valid shop.v1.Article message"),
        ("Price", b"\x00", "must be JSON if the job has `method`, but the payload is bytes"),
        ("Watch", None, "it is a streaming method, and only unary"),
        ("Fill", None, "it is a streaming method, and only unary"),
    )
    async with a_shop() as endpoint, workers(config=ALLOWED) as (member, _):
        stream = await member.attached()
        for method, payload, message in wrong:
            result = await call(stream, payload, endpoint=endpoint, method=f"{SHOP}/{method}")
            assert result.reason == common_pb2.REASON_DONT_RETRY, message
            assert message in result.error
            assert "\n" not in result.error


async def test_a_missing_method_is_unimplemented_and_retried(workers: SharedWorkers) -> None:
    """Its service may be of a version to come: that is for the job's retries to say."""
    async with (
        served() as server,
        served(reflects=False) as silent,
        workers(config=ALLOWED) as (member, _),
    ):
        stream = await member.attached()
        for endpoint, method, message in (
            (server.endpoint, f"{HEALTH}/Chekc", f"service {HEALTH} has no method Chekc"),
            (server.endpoint, "no.such.Service/Run", "gRPC server doesn't know no.such.Service"),
            (silent.endpoint, f"{HEALTH}/Check", "has no reflection service"),
        ):
            result = await call(stream, endpoint=endpoint, method=method)
            assert result.reason == common_pb2.REASON_GRPC_STATUS
            assert result.error.startswith("UNIMPLEMENTED: ")
            assert message in result.error


async def test_tls_is_by_the_systems_roots_and_by_name(
    workers: SharedWorkers, tmp_path: Path
) -> None:
    files = Authority.create(tmp_path / "ca").issue("shop", san="DNS:localhost")
    credentials = grpc.ssl_server_credentials([(files.key.read_bytes(), files.cert.read_bytes())])
    environ = {"SSL_CERT_FILE": str(files.ca)}
    async with (
        served(credentials=credentials) as server,
        workers(config=ALLOWED, environ=environ) as (member, _),
    ):
        stream = await member.attached()
        known = await call(stream, endpoint=f"grpcs://localhost:{server.port}")
        assert known.outcome == pb.Result.OUTCOME_SUCCEEDED, known.error
        other = await call(stream, endpoint=f"grpcs://127.0.0.1:{server.port}")
        assert other.reason == common_pb2.REASON_GRPC_STATUS
        in_the_clear = await call(stream, endpoint=server.endpoint)
        assert in_the_clear.reason == common_pb2.REASON_GRPC_STATUS
        assert len(server.requests) == 1


async def test_the_service_of_the_docs_does_its_job(workers: SharedWorkers) -> None:
    page = (ROOT / "docs" / "semantics" / "grpc-jobs.md").read_text(encoding="utf-8")
    programs = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (code,) = (each for each in programs if "JobHandlerServicer" in each)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    assert code.count("127.0.0.1:50051") == 1
    code = code.replace("127.0.0.1:50051", endpoint)
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    try:
        async with workers(config=ALLOWED) as (member, _):
            stream = await member.attached()

            async def answer(payload: str) -> pb.Result:
                result = await call(stream, payload, endpoint=endpoint)
                while result.reason == common_pb2.REASON_GRPC_STATUS and process.returncode is None:
                    result = await call(stream, payload, endpoint=endpoint)  # it isn't up yet
                return result

            done = await answer('{"month":"2026-10"}')
            assert json.loads(done.result.json) == {"month": "2026-10", "attempt": 1}
            hopeless = await answer("{}")
            assert (hopeless.reason, hopeless.error) == (
                common_pb2.REASON_DONT_RETRY,
                "which month?",
            )
    finally:
        process.kill()
        await process.wait()


async def test_a_host_that_the_worker_allows_is_called_and_another_names_the_setting(
    workers: SharedWorkers,
) -> None:
    config = 'egress.allow = ["localhost"]\n'
    async with served() as server, workers(config=config) as (member, _):
        stream = await member.attached()
        port = server.endpoint.rpartition(":")[2]
        allowed = await call(stream, endpoint=f"localhost:{port}")
        assert allowed.outcome == pb.Result.OUTCOME_SUCCEEDED
        refused = await call(stream, endpoint=f"127.0.0.1:{port}")
        assert refused.reason == common_pb2.REASON_DONT_RETRY
        assert '[egress] allow = ["127.0.0.1"]' in refused.error
        assert len(server.requests) == 1


async def test_metadata_services_are_refused_though_every_network_is_allowed(
    workers: SharedWorkers,
) -> None:
    config = 'egress.allow = ["0.0.0.0/0", "::/0", "*.internal"]\n'
    async with workers(config=config) as (member, _):
        stream = await member.attached()
        for host in ("169.254.169.254", "[fd00:ec2::254]", "metadata.google.internal"):
            refused = await call(stream, endpoint=f"{host}:80")
            assert refused.reason == common_pb2.REASON_DONT_RETRY
            assert "jobs and webhooks can't call it" in refused.error


REFUSED = (
    *("isn't a public address", "can't call it", "its notation isn't that of a public address"),
    *("isn't a valid endpoint", "Name or service not known"),
)
"""Texts which show that the address was refused, and not by chance out of reach."""


async def test_no_spelling_of_an_address_reaches_a_host_that_is_not_public(
    workers: SharedWorkers,
) -> None:
    async with served() as server, workers() as (member, _):
        stream = await member.attached()
        odd = {}
        for host in (*THIS_HOST, *NO_PUBLIC_HOST):
            for endpoint in (f"{host}:{server.port}", f"grpcs://{host}:{server.port}"):
                result = await call(stream, endpoint=endpoint)
                assert result.outcome == pb.Result.OUTCOME_FAILED, endpoint
                if not any(refusal in result.error for refusal in REFUSED):
                    odd[endpoint] = result.error
        assert server.requests == []
        assert odd == {}
