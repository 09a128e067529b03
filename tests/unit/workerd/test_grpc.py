"""gRPC calls that need no worker: allowed targets and hostile servers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2

from schedkit.clock import utcnow
from schedkit.egress.policy import Egress
from schedkit.egress.targets import Targets
from schedproto.v1 import common_pb2, job_handler_pb2, job_pb2
from schedproto.v1 import worker_service_pb2 as pb
from support.attempts import attempt_start
from support.descriptors import open_files
from support.wait import wait_until_async
from workerd.core.outcome import AttemptOutcome, AttemptVerdict, Cause, OutcomeReason
from workerd.executors import grpc as executors_grpc
from workerd.executors import reflection
from workerd.executors.base import AttemptStart, Stop
from workerd.executors.grpc import (
    GrpcExecutor,
    _is_json,
    judged,
    metadata_of,
    run_request,
    target_of,
)

Answers = Callable[[Any], Sequence[FileDescriptorProto]]

LOOPBACK = Egress(allow=("127.0.0.1", "localhost"))


def attempt(namespace: str = "default", timeout: float = 20, **action: Any) -> AttemptStart:
    assignment = pb.Assignment(
        key=pb.AssignmentKey(run_id="run", fencing_token=7),
        namespace=namespace,
        job="probe",
        attempt=2,
        traceparent="00-trace",
        grpc=job_pb2.GrpcAction(**action),
        payload=common_pb2.Payload(json="{}"),
    )
    return attempt_start(assignment, "w1", utcnow() + timedelta(seconds=timeout))


async def ran(endpoint: str, method: str = "", timeout: float = 20) -> AttemptOutcome:
    call = attempt(timeout=timeout, endpoint=endpoint, method=method)
    return await GrpcExecutor(LOOPBACK).run(call, Stop())


@contextlib.asynccontextmanager
async def serving(*handlers: grpc.GenericRpcHandler) -> AsyncIterator[int]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(handlers)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


def handler(run: Callable[[bytes, Any], Any]) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(
        "schedd.v1.JobHandler", {"Run": grpc.unary_unary_rpc_method_handler(run)}
    )


async def _fine(_request: bytes, _context: object) -> bytes:
    return b""


def reflecting(version: str, answers: Answers) -> grpc.GenericRpcHandler:
    """Return a server whose reflection answers each request with `answers`."""

    async def reflect(requests: AsyncIterator[Any], _: object) -> AsyncIterator[Any]:
        async for request in requests:
            answer = reflection_pb2.ServerReflectionResponse()
            files = [file.SerializeToString() for file in answers(request)]
            answer.file_descriptor_response.file_descriptor_proto.extend(files)
            yield answer

    rpc = grpc.stream_stream_rpc_method_handler(
        reflect,
        reflection_pb2.ServerReflectionRequest.FromString,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    service = f"grpc.reflection.{version}.ServerReflection"
    return grpc.method_handlers_generic_handler(service, {"ServerReflectionInfo": rpc})


def shop(*imports: str) -> FileDescriptorProto:
    file = FileDescriptorProto(name="shop.proto", package="shop", dependency=imports)
    file.message_type.add(name="Nothing")
    service = file.service.add(name="Shop")
    service.method.add(name="Open", input_type=".shop.Nothing", output_type=".shop.Nothing")
    return file


@pytest.mark.parametrize(("size", "here"), [(100, True), (100_000, False)])
async def test_a_large_answer_is_checked_outside_of_the_loop(
    monkeypatch: pytest.MonkeyPatch, size: int, here: bool
) -> None:
    threads: list[threading.Thread] = []

    def looked(data: bytes) -> bool:
        threads.append(threading.current_thread())
        return _is_json(data)

    async def large(_request: bytes, _context: object) -> bytes:
        result = common_pb2.Payload(json=json.dumps("x" * size))
        return job_handler_pb2.RunResponse(result=result).SerializeToString()

    monkeypatch.setattr(executors_grpc, "_is_json", looked)
    async with serving(handler(large)) as port:
        call = attempt(endpoint=f"127.0.0.1:{port}")
        call.most_result = 1 << 20
        outcome = await GrpcExecutor(LOOPBACK).run(call, Stop())
    assert outcome.result is not None, outcome.error
    assert (outcome.result.json, len(outcome.result.data)) == (True, size + 2)
    assert [each is threading.current_thread() for each in threads] == [here]


def test_a_channel_receives_only_checked_addresses_of_one_family() -> None:
    assert target_of(["192.0.2.1", "192.0.2.2"], 1) == "ipv4:192.0.2.1:1,192.0.2.2:1"
    assert target_of(["2001:db8::1"], 1) == "ipv6:[2001:db8::1]:1"
    mixed = target_of(["192.0.2.1", "2001:db8::1"], 1)
    assert mixed == "ipv6:[::ffff:192.0.2.1]:1,[2001:db8::1]:1"


async def test_a_name_is_resolved_once_and_the_checked_address_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    async def resolve(_: Targets, host: str, *_more: object) -> list[dict[str, str]]:
        asked.append(host)
        return [{"host": "127.0.0.1"}]

    monkeypatch.setattr(Targets, "resolve", resolve)
    async with serving(handler(_fine)) as port:
        outcome = await ran(f"rebinding.example:{port}")
    assert outcome.verdict is AttemptVerdict.SUCCEEDED
    assert asked == ["rebinding.example"]


async def test_a_proxy_from_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("grpc_proxy", "https_proxy", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("GRPC_ADDRESS_HTTP_PROXY", "127.0.0.1:1")
    monkeypatch.setenv("GRPC_ADDRESS_HTTP_PROXY_ENABLED_ADDRESSES", "0.0.0.0/0")
    async with serving(handler(_fine)) as port:
        outcome = await ran(f"127.0.0.1:{port}")
    assert outcome.verdict is AttemptVerdict.SUCCEEDED, outcome.error


async def test_a_job_handler_receives_all_facts_in_the_request_and_in_the_metadata() -> None:
    start = attempt()
    request = run_request(start)
    said = {field.name for field, _ in request.ListFields()}
    assert said == {*start.facts(), "traceparent", "payload"}
    metadata = dict(metadata_of(start))
    named = {f"schedd-{name.replace('_', '-')}" for name in start.facts()}
    assert metadata.keys() == {*named, "traceparent"}


def test_metadata_is_ascii_for_any_namespace() -> None:
    assert dict(metadata_of(attempt("bücher 100%")))["schedd-namespace"] == "b%C3%BCcher 100%25"


@pytest.mark.parametrize(
    ("answer", "verdict", "reason"),
    [
        ({}, AttemptVerdict.SUCCEEDED, OutcomeReason.NONE),
        ({"retry_after": {"seconds": 5}}, AttemptVerdict.SUCCEEDED, OutcomeReason.NONE),
        ({"error": "ValueError: x"}, AttemptVerdict.FAILED, OutcomeReason.EXCEPTION),
        ({"dont_retry": True}, AttemptVerdict.FAILED, OutcomeReason.DONT_RETRY),
        ({"result": {"json": "1"}, "error": "x"}, AttemptVerdict.FAILED, OutcomeReason.EXCEPTION),
    ],
)
def test_an_answer_with_an_error_is_a_failure(
    answer: dict[str, Any], verdict: AttemptVerdict, reason: OutcomeReason
) -> None:
    outcome = judged(job_handler_pb2.RunResponse(**answer))
    assert (outcome.verdict, outcome.reason) == (verdict, reason)


def test_a_server_can_delay_the_next_try_by_at_most_a_day() -> None:
    for seconds, hours in ((10**11, 24), (-5, 0)):
        answer = job_handler_pb2.RunResponse(error="x", retry_after={"seconds": seconds})
        assert judged(answer).retry_after == timedelta(hours=hours)


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_both_versions_of_reflection_are_supported(version: str) -> None:
    def answers(request: Any) -> list[FileDescriptorProto]:
        kinds = FileDescriptorProto(name="kinds.proto")
        return [kinds] if request.file_by_filename == "kinds.proto" else [shop("kinds.proto")]

    shut = grpc.method_handlers_generic_handler(
        "shop.Shop", {"Open": grpc.unary_unary_rpc_method_handler(_fine)}
    )
    async with serving(reflecting(version, answers), shut) as port:
        outcome = await ran(f"127.0.0.1:{port}", "shop.Shop/Open")
    assert outcome.verdict is AttemptVerdict.SUCCEEDED, outcome.error
    assert outcome.result is not None
    assert outcome.result.data == b"{}"


def _more_and_more(request: Any) -> list[FileDescriptorProto]:
    asked = request.file_by_filename or "0"
    return [FileDescriptorProto(name=asked, dependency=[str(int(asked) + 1)])]


def _wide(letters: int) -> list[FileDescriptorProto]:
    return [FileDescriptorProto(name=f"{n}" + "x" * letters) for n in range(2)]


def _of_enum(value: str) -> FileDescriptorProto:
    file = shop()
    file.enum_type.add(name="Kind").value.add(name=value, number=0)
    return file


HOSTILE: dict[str, tuple[Answers, str]] = {
    "files without end": (_more_and_more, "sent more than 20 files or"),
    "long files": (lambda _: _wide(600_000), "sent more than 20 files or"),
    "long names": (lambda _: [_of_enum("E" * 201)], "a name has more than 200 characters"),
    "a file without a name": (lambda _: [FileDescriptorProto()] * 3, "without a name"),
    "files in a circle": (lambda _: [shop("shop.proto")], "sent invalid message types"),
    "another file": (lambda _: [shop("nowhere.proto")], "a required file, 'nowhere.proto'"),
    "another service": (lambda _: [FileDescriptorProto(name="a")], "no service shop.Shop"),
    "nothing": (lambda _: [], "no service shop.Shop"),
    "types that aren't there": (
        lambda _: [FileDescriptorProto(name="a", service=shop().service)],
        "sent invalid message types",
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_invalid_reflection_fails_only_its_call(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflection, "MAX_FILES", 20)
    answers, error = HOSTILE[kind]
    async with serving(reflecting("v1", answers)) as port:
        outcome = await ran(f"127.0.0.1:{port}", "shop.Shop/Open")
    assert outcome.verdict is AttemptVerdict.FAILED
    assert error in outcome.error


async def test_too_much_reflection_fails_its_call() -> None:
    async with serving(reflecting("v1", lambda _: _wide(3_000_000))) as port:
        outcome = await ran(f"127.0.0.1:{port}", "shop.Shop/Open")
    assert outcome.error.startswith("RESOURCE_EXHAUSTED")


async def test_reflection_that_ends_without_an_answer_fails_its_call() -> None:
    async def silent(requests: AsyncIterator[bytes], _: object) -> None:
        await anext(aiter(requests))

    rpc = grpc.stream_stream_rpc_method_handler(silent)
    service = grpc.method_handlers_generic_handler(
        "grpc.reflection.v1.ServerReflection", {"ServerReflectionInfo": rpc}
    )
    async with serving(service) as port:
        outcome = await ran(f"127.0.0.1:{port}", "shop.Shop/Open")
    assert outcome.error == (
        "UNIMPLEMENTED: the job's gRPC server has no service shop.Shop: correct the field `method`"
        " of the job"
    )


async def test_a_service_at_its_own_limits_fails_the_call_and_nothing_is_returned() -> None:
    async def full(_request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "Too many open files")
        return b""

    async with serving(handler(full)) as port:
        outcome = await ran(f"127.0.0.1:{port}")
    assert (outcome.verdict, outcome.reason) == (AttemptVerdict.FAILED, OutcomeReason.GRPC_STATUS)


async def test_a_service_that_ends_without_an_answer_fails_its_call() -> None:
    async def silent(requests: AsyncIterator[bytes], _: object) -> None:
        await anext(aiter(requests))

    run = grpc.stream_stream_rpc_method_handler(silent)
    service = grpc.method_handlers_generic_handler("schedd.v1.JobHandler", {"Run": run})
    async with serving(service) as port:
        outcome = await ran(f"127.0.0.1:{port}")
    assert (outcome.reason, outcome.error) == (
        OutcomeReason.EXCEPTION,
        "the gRPC server ended the call with OK, but sent no answer: correct the server",
    )


@pytest.mark.slow
async def test_a_streaming_service_is_read_until_the_calls_deadline() -> None:
    async def chatty(requests: AsyncIterator[bytes], _: object) -> AsyncIterator[bytes]:
        async for _request in requests:
            yield b""
            yield b""

    run = grpc.stream_stream_rpc_method_handler(chatty)
    service = grpc.method_handlers_generic_handler("schedd.v1.JobHandler", {"Run": run})
    async with serving(service) as port:
        outcome = await ran(f"127.0.0.1:{port}", timeout=1)
    assert outcome.reason is OutcomeReason.TIMEOUT


async def test_an_invalid_message_as_answer_is_an_exception() -> None:
    async def noise(_request: bytes, _context: object) -> bytes:
        return b"\xff"

    async with serving(handler(noise)) as port:
        outcome = await ran(f"127.0.0.1:{port}")
    assert (outcome.reason, outcome.error) == (
        OutcomeReason.EXCEPTION,
        "the target's answer isn't a valid RunResponse message",
    )


@pytest.mark.slow
async def test_a_silent_server_is_waited_for_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bounds = dict(executors_grpc._OPTIONS)
    assert bounds["grpc.min_reconnect_backoff_ms"] == 10_000
    soon = bounds | {"grpc.min_reconnect_backoff_ms": 300}
    monkeypatch.setattr(executors_grpc, "_OPTIONS", tuple(soon.items()))
    silent = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    async with silent, asyncio.timeout(10):
        outcome = await ran(f"127.0.0.1:{port}")
    assert outcome.error.startswith("UNAVAILABLE: failed to connect")


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
async def test_a_stop_ends_the_call_and_leaves_nothing_open(killed: bool) -> None:
    gc.collect()  # earlier tests' leftovers would close between two counts
    begun = asyncio.Event()

    async def forever(_request: bytes, _context: object) -> bytes:
        begun.set()
        await asyncio.Event().wait()
        return b""

    async with serving(handler(forever)) as port:
        assert (
            await ran("127.0.0.1:1")
        ).verdict is AttemptVerdict.FAILED  # gRPC's permanent descriptors are open
        before, stop = open_files(), Stop()
        run = asyncio.create_task(
            GrpcExecutor(LOOPBACK).run(attempt(endpoint=f"127.0.0.1:{port}"), stop)
        )
        await begun.wait()
        assert open_files() != before
        stop.ask(Cause.CANCEL)
        stop.ask(Cause.CANCEL, kill=killed)
        assert (await run).verdict is AttemptVerdict.CANCELLED
        await wait_until_async(lambda: open_files() == before, 10, "closed connections")
