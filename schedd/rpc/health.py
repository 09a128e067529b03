"""gRPC's own health service, with requests read as all others are (`reading`)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc.aio
from grpc_health.v1 import health_pb2
from grpc_health.v1.health import SERVICE_NAME
from grpc_health.v1.health import aio as grpc_health

from schedd.api.errors import TooMany
from schedd.rpc.places import Places
from schedd.rpc.reading import Context, put, streaming, unary
from schedd.rpc.status import abort_with


async def serve_health(server: grpc.aio.Server) -> None:
    """Put it on this server; it says SERVING."""
    health, places = grpc_health.HealthServicer(), Places()
    await health.set("", health_pb2.HealthCheckResponse.SERVING)

    async def watch(
        asked: health_pb2.HealthCheckRequest, context: Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        try:
            with places.taken(context.peer()):
                await health.Watch(asked, context)  # writes by itself
        except TooMany as error:
            await abort_with(context, error)
        return
        yield  # what makes it a stream

    asked, answer = health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse
    table = {
        "Check": unary(health.Check, asked, answer),
        "Watch": streaming(watch, asked, answer),
    }
    put(server, SERVICE_NAME, table)
