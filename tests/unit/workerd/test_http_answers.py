"""Invalid answers of HTTP targets: the error names the target's fault."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from schedkit.egress.policy import Egress
from schedproto.v1 import job_pb2
from support.attempts import attempt_start
from support.certs import Authority
from support.fake_member import FakeMember
from workerd.core.outcome import AttemptOutcome, AttemptVerdict, Cause, OutcomeReason
from workerd.executors.base import Stop
from workerd.executors.http import HttpExecutor

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@contextlib.asynccontextmanager
async def answering(
    data: bytes, *, reset: bool = False, stay: bool = False, tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """Serve these bytes as the answer to each request."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(data)
            await writer.drain()
            if stay:
                await reader.read()
            if reset:
                await asyncio.sleep(0.05)  # the bytes arrive before the reset
                linger = struct.pack("ii", 1, 0)
                plain: socket.socket = writer.get_extra_info("socket")
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    async with server:
        yield server.sockets[0].getsockname()[1]
        server.close()


async def call(url: str, stop: Stop | None = None, **action: Any) -> AttemptOutcome:
    given = FakeMember().assignment(incarnation="i", http=job_pb2.HttpAction(url=url, **action))
    executor = HttpExecutor(Egress(allow=("127.0.0.1", "localhost")))
    try:
        return await executor.run(
            attempt_start(given, "w1", datetime.now(UTC), most_result=1 << 24), stop or Stop()
        )
    finally:
        await executor.close()


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (CHUNKED + b"zz\r\nabc\r\n", "isn't valid HTTP: Invalid character in chunk size"),
        (CHUNKED + b"5\r\nab", "incomplete or isn't valid HTTP: Not enough data"),
        (HEAD + b"X: " + b"a" * 70_000 + b"\r\n\r\n", "a header line of more than 65,536 bytes"),
        (HEAD + b"X: a\r\n" * 200 + b"\r\n", "more than 128 header lines"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "isn't valid HTTP: Bad status line"),
        (b"<html>hello</html>", "isn't valid HTTP: Bad status line"),
        (b"HTTP/1.1 abc OK\r\n\r\n", "isn't valid HTTP: Bad status line: Invalid status code"),
        (HEAD + b"no colon\r\n\r\n", "isn't valid HTTP: Invalid header token"),
        (HEAD + b"Content-Length: -1\r\n\r\n", "Invalid character in Content-Length"),
        (HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", "Duplicate Content-Length"),
        (HEAD + b"Content-Length: 10\r\n\r\nabc", "received 3 of 10 bytes"),
        (HEAD + b"X: a", "closed the connection during its answer"),
        (b"", "closed the connection before its answer"),
    ],
)
async def test_an_answer_that_isnt_http_is_named(data: bytes, error: str) -> None:
    async with answering(data) as port:
        outcome = await call(f"http://127.0.0.1:{port}/")
    assert (outcome.verdict, outcome.reason) == (AttemptVerdict.FAILED, OutcomeReason.EXCEPTION)
    assert error in outcome.error
    assert "400" not in outcome.error
    assert outcome.exit_code is None


async def test_an_invalid_chunk_after_valid_ones_is_named() -> None:
    good = b"ffff\r\n" + b"a" * 0xFFFF + b"\r\n"
    async with answering(CHUNKED + good * 30 + b"zz\r\n") as port:
        outcome = await call(f"http://127.0.0.1:{port}/")
    assert outcome.reason is OutcomeReason.EXCEPTION
    assert "a chunk of the body can't be parsed" in outcome.error


@pytest.mark.parametrize("size", [8_191, 60_000, 64 * 1024])
async def test_a_header_line_of_up_to_64_kib_is_read(size: int) -> None:
    line = b"X: ".ljust(size, b"a")
    async with answering(HEAD + line + b"\r\nContent-Length: 2\r\n\r\nok") as port:
        assert (await call(f"http://127.0.0.1:{port}/")).verdict is AttemptVerdict.SUCCEEDED


async def test_informational_answers_before_the_answer_are_skipped() -> None:
    flood = b"HTTP/1.1 100 Continue\r\n\r\n" * 5_000
    async with answering(flood + HEAD + b"Content-Length: 2\r\n\r\nok") as port:
        assert (await call(f"http://127.0.0.1:{port}/")).verdict is AttemptVerdict.SUCCEEDED


async def test_a_body_with_a_wrong_gzip_header_is_kept_unchanged() -> None:
    head = HEAD + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\n"
    async with answering(head + b"\x1f\x8bx") as port:
        outcome = await call(f"http://127.0.0.1:{port}/")
    assert outcome.verdict is AttemptVerdict.SUCCEEDED
    assert outcome.result is not None
    assert outcome.result.data == b"\x1f\x8bx"


async def test_a_connection_that_is_reset_inside_the_body_is_named() -> None:
    async with answering(HEAD + b"Content-Length: 10\r\n\r\nabc", reset=True) as port:
        outcome = await call(f"http://127.0.0.1:{port}/")
    assert outcome.reason is OutcomeReason.EXCEPTION
    assert "incomplete" in outcome.error


async def test_a_redirect_to_an_invalid_url_is_named() -> None:
    redirect = b"HTTP/1.1 302 Found\r\nLocation: http://[nowhere/\r\nContent-Length: 0\r\n\r\n"
    async with answering(redirect) as port:
        outcome = await call(f"http://127.0.0.1:{port}/", follow_redirects=True)
    assert outcome.reason is OutcomeReason.HTTP_STATUS
    assert "redirects to 'http://[nowhere/', which isn't a valid URL" in outcome.error


async def test_a_redirect_limit_counts_redirects() -> None:
    """Five redirects are followed; the sixth is above the limit."""
    requests: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        requests.append(path)
        left = int(path.strip("/"))
        head = b"HTTP/1.1 302 Found\r\nLocation: /%d\r\n" % (left - 1) if left else HEAD
        writer.write(head + b"Content-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert (await call(f"{url}/5", follow_redirects=True)).verdict is AttemptVerdict.SUCCEEDED
        assert requests == ["/5", "/4", "/3", "/2", "/1", "/0"]
        too_many = await call(f"{url}/6", follow_redirects=True)
        assert too_many.error == "the target sent more than 5 redirects"
        assert requests[6:] == ["/6", "/5", "/4", "/3", "/2", "/1"]
        server.close()


@pytest.mark.parametrize(
    ("data", "doing"),
    [(b"", "waiting for the answer"), (HEAD + b"Content-Length: 9\r\n\r\na", "reading the answer")],
)
async def test_a_timeout_names_the_phase_that_timed_out(data: bytes, doing: str) -> None:
    async with answering(data, stay=True) as port:
        stop = Stop()
        asyncio.get_running_loop().call_later(0.3, stop.ask, Cause.TIMEOUT)
        outcome = await call(f"http://127.0.0.1:{port}/", stop)
    assert outcome.reason is OutcomeReason.TIMEOUT
    assert f"{doing} of 127.0.0.1:{port}" in outcome.error


async def test_a_port_that_doesnt_speak_tls_is_named() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(16)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(plain, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        outcome = await call(f"https://127.0.0.1:{port}/")
        server.close()
    begins = f"the TLS handshake with 127.0.0.1:{port} failed: the target doesn't speak TLS"
    assert outcome.error.startswith(begins)


@pytest.mark.parametrize(
    ("san", "trusted", "error"),
    [
        ("IP:127.0.0.1", False, "unable to get local issuer certificate"),
        ("DNS:elsewhere.example", True, "IP address mismatch"),
    ],
)
async def test_a_rejected_certificate_is_named_with_the_reason(
    san: str, trusted: bool, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = Authority.create(tmp_path).issue("target", san=san)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    assert tls.cert is not None
    context.load_cert_chain(tls.cert, tls.key)
    if trusted:
        default = ssl.create_default_context(cafile=str(tls.ca))
        monkeypatch.setattr("aiohttp.connector._SSL_CONTEXT_VERIFIED", default)
    async with answering(HEAD, tls=context) as port:
        outcome = await call(f"https://127.0.0.1:{port}/")
    assert outcome.error.startswith(f"the certificate of 127.0.0.1:{port} is rejected: ")
    assert error in outcome.error
