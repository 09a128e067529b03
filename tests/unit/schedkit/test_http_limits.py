"""HTTP connections that are silent, slow, oversized or don't read."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from schedd.web import server
from schedkit.net import http_limits
from schedkit.net.proxies import NO_PROXIES, Proxies

HEAD = b"GET / HTTP/1.1\r\nhost: localhost\r\n"
SHORT = 0.3


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timeouts of 0.3 s instead of 10 s and 20 s."""
    monkeypatch.setattr(http_limits, "HEAD_WITHIN", SHORT)
    monkeypatch.setattr(http_limits, "STALLED_FOR", SHORT)


@asynccontextmanager
async def serving(
    most: int = 64, size: int = 10, proxies: Proxies = NO_PROXIES
) -> AsyncIterator[tuple[str, int]]:
    """Serve answers of this length."""

    async def answer(_: Request) -> Response:
        return PlainTextResponse("x" * size)

    async def slow(_: Request) -> Response:
        await asyncio.sleep(3 * SHORT)
        return PlainTextResponse("slow")

    app = Starlette(routes=[Route("/", answer), Route("/slow", slow)])
    app.state.closing = asyncio.Event()
    async with server.bound("127.0.0.1:0") as bound, asyncio.TaskGroup() as group:
        task = group.create_task(bound.serve(app, most, proxies=proxies), name="http")
        yield bound.host, bound.port
        task.cancel()


async def received(reader: asyncio.StreamReader) -> bytes:
    """Return all bytes until the end of the connection."""
    async with asyncio.timeout(10):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


async def test_a_silent_connection_is_closed() -> None:
    async with serving() as (host, port):
        reader, writer = await asyncio.open_connection(host, port)
        assert await received(reader) == b""
        writer.close()


async def test_a_connection_that_sends_a_head_slowly_is_closed() -> None:
    async with serving() as (host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(HEAD)

        async def trickle() -> None:
            while True:
                writer.write(b"x-more: y\r\n")
                await asyncio.sleep(0.05)

        trickling = asyncio.create_task(trickle(), name="trickle")
        assert await received(reader) == b""
        trickling.cancel()
        writer.close()


async def test_a_connection_that_sends_a_second_head_slowly_is_closed() -> None:
    async with serving() as (host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(HEAD + b"\r\n" + HEAD)
        said = await received(reader)
        assert said.count(b"HTTP/1.1 200") == 1
        writer.close()


@pytest.mark.slow
async def test_a_connection_that_doesn_t_read_an_answer_is_closed() -> None:
    async with serving(size=32 << 20) as (host, port):
        reader, writer = await asyncio.open_connection(host, port, limit=1024)
        writer.write(HEAD + b"\r\n")
        await reader.readexactly(15)
        await asyncio.sleep(2 * SHORT)  # not to read is the subject
        said = await received(reader)
        assert 15 < len(said) < 32 << 20
        writer.close()


@pytest.mark.slow
async def test_a_connection_that_leaves_the_end_of_the_last_answer_unread_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The unread rest is smaller than what a transport reports."""
    nearly, over = asyncio.Event(), asyncio.Event()

    class Watched(http_limits.HttpLimits):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            ours = transport.get_extra_info("socket")
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            super().connection_made(transport)

        def resume_writing(self) -> None:
            super().resume_writing()
            nearly.set()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            over.set()

    monkeypatch.setattr(http_limits, "HttpLimits", Watched)
    monkeypatch.setattr(http_limits, "STALLED_FOR", 3.0)
    loop = asyncio.get_running_loop()
    async with serving(size=100_000) as address:
        with socket.socket() as theirs:
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            theirs.setblocking(False)
            await loop.sock_connect(theirs, address)
            await loop.sock_sendall(theirs, HEAD + b"connection: close\r\n\r\n")
            async with asyncio.timeout(10):
                while not nearly.is_set():
                    assert await loop.sock_recv(theirs, 2048)
                await over.wait()


@pytest.mark.slow
async def test_a_pipelined_request_has_its_full_time() -> None:
    async with serving() as (host, port):
        reader, writer = await asyncio.open_connection(host, port)
        slow = b"GET /slow HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        writer.write(HEAD + b"\r\n" + slow)
        said = await received(reader)
        assert said.count(b"HTTP/1.1 200") == 2
        assert said.endswith(b"slow")
        writer.close()


async def test_a_body_that_continues_after_the_answer_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_limits, "HEAD_WITHIN", 60.0)
    async with serving() as (host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(HEAD + b"content-length: 99999999\r\n\r\n")
        await reader.readexactly(15)

        async def send_body() -> None:
            while True:
                writer.write(b"x" * 65_536)
                await writer.drain()

        with pytest.raises(ConnectionError):
            await asyncio.wait_for(send_body(), 10)
        writer.close()


async def test_too_many_connections_of_one_host_are_answered_with_503(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "MOST_OF_ONE_HOST", 4)
    monkeypatch.setattr(http_limits, "HEAD_WITHIN", 60.0)
    async with serving(most=32) as (host, port):
        kept = [await asyncio.open_connection(host, port) for _ in range(4)]
        reader, writer = await asyncio.open_connection(host, port)
        assert (await received(reader)).startswith(b"HTTP/1.1 503 ")
        writer.close()
        kept.pop()[1].close()

        async def taken() -> bool:
            again, tell = await asyncio.open_connection(host, port)
            tell.write(HEAD + b"connection: close\r\n\r\n")
            said = await received(again)
            tell.close()
            return said.startswith(b"HTTP/1.1 200 ")

        async with asyncio.timeout(10):
            while not await taken():
                continue
        for _, each in kept:
            each.close()


async def test_a_trusted_proxy_may_use_the_limit_of_all_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "MOST_OF_ONE_HOST", 4)
    monkeypatch.setattr(http_limits, "HEAD_WITHIN", 60.0)
    async with serving(most=8, proxies=Proxies.from_texts(["127.0.0.1"])) as (host, port):
        kept = [await asyncio.open_connection(host, port) for _ in range(7)]
        for answer in (b"HTTP/1.1 200 ", b"HTTP/1.1 503 "):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(HEAD + b"\r\n")
            async with asyncio.timeout(10):
                assert (await reader.readline()).startswith(answer)
            kept.append((reader, writer))
        for _, each in kept:
            each.close()


def test_a_daemon_raises_its_descriptor_limit_as_far_as_allowed() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lower = (min(512, before[1]), before[1])
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, lower)
        assert http_limits.more_descriptors() == before[1]
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == before[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(("descriptors", "each"), [(1024, 384), (20_000, 4096), (100, 16)])
def test_connections_leave_descriptors_to_spare(descriptors: int, each: int) -> None:
    assert http_limits.connections_for(descriptors, listeners=2) == each


@pytest.mark.parametrize(
    ("lengths", "status"),
    [
        (b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"400"),
        (b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n0\r\n\r\n", b"400"),
        (b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", b"400"),
        (b"Content-Length: -1\r\n\r\n", b"400"),
        (b"Content-Length: +5\r\n\r\nhello", b"400"),
        (b"Transfer-Encoding: identity\r\n\r\n", b"400"),
        (b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", b"400"),
        (b"Transfer-Encoding: chunked\r\n\r\nfive\r\nhello\r\n0\r\n\r\n", b"400"),
    ],
)
async def test_a_request_of_ambiguous_length_is_rejected_and_its_connection_closed(
    lengths: bytes, status: bytes
) -> None:
    async with serving() as (host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n" + lengths + HEAD + b"\r\n")
        said = await received(reader)
        assert said.startswith(b"HTTP/1.1 " + status), said
        assert said.count(b"HTTP/1.1") == 1, "nothing behind it was answered"
        writer.close()
