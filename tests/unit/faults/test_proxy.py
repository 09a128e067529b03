"""The proxy that spoils: each of its ways, on real sockets that are open already."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from faults.nemesis.frames import PREFACE
from faults.nemesis.proxies import Wire, lacking, total
from faults.nemesis.proxy_process import Effects
from faults.world.network import Host
from support.proxied import Proxied, proxied
from support.wait import wait_until_async

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def frame(payload: bytes) -> bytes:
    """Return a frame of HTTP/2."""
    return len(payload).to_bytes(3, "big") + bytes(6) + payload


SAID = bytes(PREFACE) + frame(b"a" * 40) + frame(b"") + frame(b"b" * 100)
"""The bytes of a client. An echo returns them, preface too, which forms no frames downwards."""


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(65536):
        writer.write(piece)
    writer.close()


@asynccontextmanager
async def before_an_echo(folder: Path) -> AsyncIterator[Proxied]:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with proxied(folder, server.sockets[0].getsockname()) as through:
        yield through
    server.close()


async def connect(through: Proxied) -> Streams:
    return await asyncio.open_connection("127.0.0.1", through.port)


async def say(streams: Streams, what: bytes) -> bytes:
    """Say it, and hear its echo."""
    streams[1].write(what)
    return await streams[0].readexactly(len(what))


async def test_a_plain_proxy_changes_no_bytes(tmp_path: Path) -> None:
    async with before_an_echo(tmp_path) as through:
        streams = await connect(through)
        assert await say(streams, SAID) == SAID
        streams[1].write_eof()
        assert await streams[0].read() == b""


async def test_an_open_stream_gets_slow_in_order_and_both_ways(tmp_path: Path) -> None:
    async with before_an_echo(tmp_path) as through:
        streams = await connect(through)
        await say(streams, SAID)
        await through.order("slow", seconds=0.3)
        began = time.monotonic()
        assert await say(streams, b"one,two,three") == b"one,two,three"
        assert 0.6 <= time.monotonic() - began < 5.0
        await wait_until_async(lambda: through.report().struck_down, 5, "it to be reported")
        report = through.report()
        assert (report.found, report.found_struck, report.bytes_up) == (1, 1, 13)
        assert (report.least_late or 0.0) >= 0.3


async def test_an_open_stream_falls_silent_in_mid_frame_and_resumes_with_the_rest(
    tmp_path: Path,
) -> None:
    async with before_an_echo(tmp_path) as through:
        streams = await connect(through)
        await say(streams, SAID)
        await through.order("stall", size=50)
        streams[1].write(frame(b"c" * 200))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await streams[0].readexactly(209)
        await wait_until_async(lambda: through.report().struck_up, 5, "it to be reported")
        report = through.report()
        assert (report.found_struck, report.in_frame) == (1, report.struck_up + report.struck_down)
        assert report.bytes_up >= 209 - 50
        await through.order("plain")
        assert (await streams[0].read(65536)).endswith(b"c")


@pytest.mark.parametrize("way", ["truncate", "reset"])
async def test_an_open_stream_ends_in_mid_frame_in_alternating_directions(
    tmp_path: Path, way: str
) -> None:
    async with before_an_echo(tmp_path) as through:
        first, second = await connect(through), await connect(through)
        for streams in (first, second):
            await say(streams, SAID)
        await through.order(way, size=50)
        for streams in (first, second):
            streams[1].write(frame(b"d" * 200))
            received = await _until_the_end(streams, reset=way == "reset")
            assert len(received) < 209
        await wait_until_async(lambda: through.report().in_frame == 2, 5, "it to be reported")
        report = through.report()
        assert (report.found, report.found_struck, report.came) == (2, 2, 0)
        assert (report.struck_up, report.struck_down) == (1, 1)


async def test_a_client_that_connects_during_the_fault_is_affected_too(tmp_path: Path) -> None:
    async with before_an_echo(tmp_path) as through:
        await through.order("truncate", size=50)
        streams = await connect(through)
        streams[1].write(SAID)
        await _until_the_end(streams, reset=False)
        await wait_until_async(lambda: through.report().struck_up == 1, 5, "it to be reported")
        assert (through.report().found, through.report().came) == (0, 1)


async def _until_the_end(streams: Streams, *, reset: bool) -> bytes:
    async with asyncio.timeout(5):
        if not reset:
            return await streams[0].read()
        received = b""
        with pytest.raises(ConnectionResetError):  # noqa: PT012 - what came before it isn't the end
            while piece := await streams[0].read(65536):
                received += piece
        return received


def host(name: str) -> Host:
    return Host(name, 1, "", "10.213.1.1", "10.213.1.101")


WIRE = Wire([host("w1"), host("w2")], [host("m1")], 7420, [])
CUT = Effects("reset", 2, 2, 2, 5, struck_up=3, struck_down=2, in_frame=5)
STALLED = Effects("stall", 2, 2, 2, 0, 2, 2, 4, bytes_up=10, bytes_down=10)
SLOW = Effects("slow", 2, 2, 2, 0, 9, 9, 0, 90, 90, 0.5)


@pytest.mark.parametrize(
    ("done", "seen"),
    [
        (CUT, True),
        (replace(CUT, found_struck=1), False),
        (replace(CUT, struck_up=0, in_frame=2), False),
        (replace(CUT, struck_down=0, in_frame=3), False),
        (replace(CUT, in_frame=4), False),
        (STALLED, True),
        (replace(STALLED, bytes_down=0), False),
        (SLOW, True),
        (replace(SLOW, least_late=0.4), False),
        (replace(SLOW, least_late=None), False),
        (Effects("plain", 2, 2), False),
    ],
)
def test_a_wire_is_spoiled_only_if_every_declared_effect_was_counted(
    done: Effects, seen: bool
) -> None:
    assert (lacking(done, 0.5, WIRE) == "") is seen


def test_the_effects_of_proxies_are_summed_and_the_least_lateness_is_kept() -> None:
    summed = total([replace(SLOW, least_late=0.7), SLOW, replace(SLOW, least_late=None)])
    assert (summed.way, summed.struck_up, summed.least_late) == ("slow", 27, 0.5)
