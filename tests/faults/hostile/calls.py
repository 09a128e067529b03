"""Every call of a member over gRPC, asked with what isn't its request; the statuses that come."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor

from schedd.api.request_bounds import SERVICES as USERS
from schedproto.v1 import peer_service_pb2, worker_service_pb2

WITHIN = 20.0
HUGE = (("grpc.max_send_message_length", -1), ("grpc.max_metadata_size", 64 << 20))
NEVER_CLEAR = ("INTERNAL", "UNKNOWN")
"""Statuses that depend on the message."""
SENDER = "INTERNAL: Internal error from Core"
"""Of grpcio's own client, no answer: the call was ended while it was still sending."""
TRIES = 5
SERVICES = (
    *USERS,
    *worker_service_pb2.DESCRIPTOR.services_by_name.values(),
    *peer_service_pb2.DESCRIPTOR.services_by_name.values(),
)
ENDLESS = ("/schedd.v1.RunService/WatchRuns", "/schedd.v1.PeerService/Changes")
"""Streams that continue until their caller leaves."""
HEALTH = ("/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch")


def methods() -> Iterator[tuple[str, bool, bool]]:
    """Path, and whether requests and answers are streams."""
    for service in SERVICES:
        each: MethodDescriptor
        for each in service.methods:
            yield f"/{service.full_name}/{each.name}", each.client_streaming, each.server_streaming
    yield HEALTH[0], False, False
    yield HEALTH[1], False, True


async def ask(
    channel: grpc.aio.Channel, path: str, requests: Sequence[bytes], **options: Any
) -> str:
    """Call with these requests, whatever the method takes; the status by name (see NEVER_CLEAR).
    Asked again where the client can't tell it (SENDER).
    """
    for _ in range(TRIES):
        if (status := await _ask(channel, path, requests, **options)) != SENDER:
            break
    return status


async def _ask(
    channel: grpc.aio.Channel, path: str, requests: Sequence[bytes], **options: Any
) -> str:
    async def sending() -> AsyncIterator[bytes]:
        for each in requests:
            yield each

    call = channel.stream_stream(path)(sending(), timeout=WITHIN, **options)
    try:
        async for _ in call:
            if path in ENDLESS:
                call.cancel()
                return "OK"
        return (await call.code()).name
    except grpc.aio.AioRpcError as error:
        name = error.code().name
        return f"{name}: {error.details()}"[:160] if name in NEVER_CLEAR else name


def channel_to(address: str, **more: Any) -> grpc.aio.Channel:
    """A channel of its own, without limits on this side."""
    return grpc.aio.insecure_channel(address, options=[*HUGE, *more.items()])
