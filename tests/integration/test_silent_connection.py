"""A connection that falls silent in the midst of a stream, takes all bytes, and reports nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from schedkit.net import channel
from support.proxied import proxied

ENDS_WITHIN = 15.0
"""Seconds; gRPC's own timeout for an unanswered ping is a minute."""
SLACK = 10.0
"""More, on a machine with other things to do."""


async def echo(said: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
    async for each in said:
        yield each


@asynccontextmanager
async def echoing() -> AsyncIterator[int]:
    """The port of a server that echoes on a stream."""
    server = grpc.aio.server(options=channel.SERVER_OPTIONS)
    handler = grpc.stream_stream_rpc_method_handler(echo)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("test.Test", {"Attach": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


async def test_a_stream_that_falls_silent_is_ended_and_not_waited_for(tmp_path: Path) -> None:
    async with (
        echoing() as port,
        proxied(tmp_path, ("127.0.0.1", port)) as through,
        channel.connect(f"127.0.0.1:{through.port}", tls=None) as line,
    ):
        call: Any = line.stream_stream("/test.Test/Attach")()
        await call.write(b"received")
        assert await call.read() == b"received"
        await through.order("stall", size=1000)
        with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
            async with asyncio.timeout(ENDS_WITHIN + SLACK):
                await _talk(call)
        assert through.report().found_struck == 1


async def _talk(call: Any) -> None:
    """As a worker does: a heartbeat now and then, and whatever comes."""

    async def beat() -> None:
        while True:
            await call.write(bytes(200))
            await asyncio.sleep(0.5)

    beating = asyncio.create_task(beat(), name="heartbeats")
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    finally:
        beating.cancel()
