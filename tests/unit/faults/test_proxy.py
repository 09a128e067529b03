"""The proxy that spoils: each of its ways, on real sockets."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from faults.nemesis import proxy_process
from schedctl.dev import ports
from support.wait import wait_until_async

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(65536):
        writer.write(piece)
    writer.close()


@asynccontextmanager
async def through(
    folder: Path, way: str, *, seconds: float = 0.0, after: int = 1
) -> AsyncIterator[tuple[Streams, Callable[[], dict[str, int]]]]:
    """A connection to an echo by way of a proxy, and what the proxy reports."""
    [port] = ports.reserve(1)
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    report = folder / "report.json"
    order = {
        "listen": ["127.0.0.1", port],
        "to": list(server.sockets[0].getsockname()),
        "way": way,
        "seconds": seconds,
        "bytes": after,
        "report": str(report),
    }
    proxy = await asyncio.create_subprocess_exec(
        sys.executable, "-P", proxy_process.__file__, json.dumps(order)
    )
    try:
        await wait_until_async(report.exists, 10, "the proxy to listen")
        streams = await asyncio.open_connection("127.0.0.1", port)
        yield streams, lambda: json.loads(report.read_text())
        streams[1].close()
    finally:
        proxy.kill()
        await proxy.wait()
        server.close()


async def test_slow_hands_everything_on_in_order_and_late(tmp_path: Path) -> None:
    async with through(tmp_path, "slow", seconds=0.3) as ((reader, writer), report):
        began = time.monotonic()
        for piece in (b"one,", b"two,", b"three"):
            writer.write(piece)
        assert await reader.readexactly(13) == b"one,two,three"
        assert 0.6 <= time.monotonic() - began < 2.0
        await wait_until_async(lambda: report()["spoiled"] >= 2, 5, "it to be reported")


async def test_stall_is_silence_without_an_end(tmp_path: Path) -> None:
    async with through(tmp_path, "stall", after=4) as ((reader, writer), _):
        writer.write(b"four")
        assert await reader.readexactly(4) == b"four"
        writer.write(b"more")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.5)


async def test_truncate_ends_in_mid_air(tmp_path: Path) -> None:
    async with through(tmp_path, "truncate", after=4) as ((reader, writer), _):
        writer.write(b"more than four")
        assert await reader.read(100) == b""


async def test_reset_is_a_reset(tmp_path: Path) -> None:
    async with through(tmp_path, "reset", after=4) as ((reader, writer), _):
        writer.write(b"more than four")
        with pytest.raises(ConnectionResetError):
            await reader.read(100)


async def test_corrupt_turns_one_bit_of_so_many_bytes(tmp_path: Path) -> None:
    async with through(tmp_path, "corrupt", after=10) as ((reader, writer), report):
        writer.write(bytes(25))
        got = await reader.readexactly(25)
        assert [(at, byte) for at, byte in enumerate(got) if byte] == [(9, 0x10), (19, 0x10)]
        await wait_until_async(lambda: report()["spoiled"] == 2, 5, "it to be reported")


async def test_a_plain_end_passes(tmp_path: Path) -> None:
    async with through(tmp_path, "truncate", after=10**6) as ((reader, writer), _):
        writer.write(b"bye")
        writer.write_eof()
        assert await reader.read() == b"bye"
