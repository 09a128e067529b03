"""Addresses and the loopback rule; then real servers and channels, with and without TLS."""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest

from schedkit.errors import Misconfigured
from schedkit.net.channel import (
    MAX_MESSAGE,
    SERVER_OPTIONS,
    TLS,
    check_plaintext,
    connect,
    is_loopback,
    listen,
    split_address,
)
from support.certs import Authority

ECHO = "/test.Echo/Echo"
SOON = 10.0


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("127.0.0.1:7420", ("127.0.0.1", 7420)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:7420", ("::1", 7420)),
        ("m1.example.com:65535", ("m1.example.com", 65535)),
    ],
)
def test_an_address_has_a_host_and_a_port(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts


@pytest.mark.parametrize(
    "address",
    [
        *(
            "",
            "host",
            ":7420",
            "host:",
            "host:x",
            "host:65536",
            "::1:7420",
            "http://host:1",
            "[]:1",
        ),
        *("a b:1", "a\nb:1", "\0:1", "256.0.0.1:1", "[host]:1", "-x:1", "münchen:1", "h:١"),
    ],
)
def test_an_address_without_host_and_port_is_rejected(address: str) -> None:
    with pytest.raises(
        ValueError, match=r"isn't valid: (write host:port|.+ isn't a valid host name)"
    ):
        split_address(address)


def test_the_user_part_of_an_address_is_not_repeated() -> None:
    for wrong in ("u:s3cr3t@127.0.0.1:1", "s3cr3t@h:1", "http://u:s3cr3t@h:1"):
        with pytest.raises(ValueError, match="it contains an @") as refused:
            split_address(wrong)
        assert "s3cr3t" not in str(refused.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "::ffff:127.0.0.1"])
def test_a_loopback_address_is_local(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "::", "10.0.0.1", "127.0.0.1.example.com", "localhost.example", "2130706433"],
)
def test_any_other_address_is_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_plaintext_is_for_loopback_or_explicit_settings_only() -> None:
    check_plaintext("127.0.0.1:7420", insecure=False)
    check_plaintext("0.0.0.0:7420", insecure=True)
    with pytest.raises(
        Misconfigured, match=r"0\.0\.0\.0:7420 can be reached from other hosts, but TLS isn't"
    ):
        check_plaintext("0.0.0.0:7420", insecure=False)


def test_the_rejection_of_plaintext_says_where_the_key_belongs() -> None:
    with pytest.raises(Misconfigured, match=r"insecure = true under \[listen\] to send"):
        check_plaintext("0.0.0.0:7420", insecure=False, section="listen")
    with pytest.raises(Misconfigured, match="insecure = true to send"):
        check_plaintext("0.0.0.0:7420", insecure=False)


async def _echo(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
    return request


@asynccontextmanager
async def echo_server(tls: TLS | None, address: str = "127.0.0.1:0") -> AsyncIterator[str]:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    handlers = {"Echo": grpc.unary_unary_rpc_method_handler(_echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
    port = listen(server, address, tls)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def call(endpoint: str, tls: TLS | None, payload: bytes = b"hello") -> bytes:
    async with connect(endpoint, tls=tls) as channel:
        echo = channel.unary_unary(ECHO)
        answer: bytes = await echo(payload, timeout=SOON, wait_for_ready=False)
        return answer


async def test_a_plaintext_call_succeeds() -> None:
    async with echo_server(None) as endpoint:
        assert await call(endpoint, None) == b"hello"


async def test_a_message_over_four_mebibytes_is_refused() -> None:
    async with echo_server(None) as endpoint:
        assert len(await call(endpoint, None, bytes(MAX_MESSAGE - 64))) == MAX_MESSAGE - 64
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(endpoint, None, bytes(MAX_MESSAGE + 1))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_port_in_use_is_reported_and_never_shared() -> None:
    async with echo_server(None) as endpoint:
        with pytest.raises(Misconfigured, match=f"can't listen on {endpoint}"):
            async with echo_server(None, endpoint):
                pass


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("authority"))


async def test_both_sides_show_a_certificate_of_the_same_authority(authority: Authority) -> None:
    async with echo_server(authority.issue("member")) as endpoint:
        assert await call(endpoint, authority.issue("worker")) == b"hello"


async def test_a_client_of_another_authority_is_refused(
    authority: Authority, tmp_path: Path
) -> None:
    stranger = Authority.create(tmp_path / "other").issue("stranger")
    trusting = TLS(authority.folder / "ca.pem", stranger.cert, stranger.key)
    async with echo_server(authority.issue("member")) as endpoint:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(endpoint, trusting)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_client_without_tls_is_refused(authority: Authority) -> None:
    async with echo_server(authority.issue("member")) as endpoint:
        with pytest.raises(grpc.aio.AioRpcError):
            await call(endpoint, None)


async def test_a_server_for_another_host_is_refused(authority: Authority) -> None:
    elsewhere = authority.issue("elsewhere", san="DNS:elsewhere.example")
    async with echo_server(elsewhere) as endpoint:
        with pytest.raises(grpc.aio.AioRpcError):
            await call(endpoint, authority.issue("worker"))


old_versions = pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1:DeprecationWarning")


def _handshake(endpoint: str, tls: TLS, newest: ssl.TLSVersion) -> tuple[str | None, bytes | None]:
    """The version agreed on and the server's certificate; the client offers up to `newest`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(tls.ca)
    context.load_cert_chain(tls.cert, tls.key)
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = newest
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(split_address(endpoint), SOON) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        return secure.version(), secure.getpeercert(binary_form=True)


@old_versions
async def test_tls_below_1_2_is_refused(authority: Authority) -> None:
    worker = authority.issue("worker")
    async with echo_server(authority.issue("member")) as endpoint:
        version, _ = await asyncio.to_thread(_handshake, endpoint, worker, ssl.TLSVersion.TLSv1_2)
        assert version == "TLSv1.2"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.to_thread(_handshake, endpoint, worker, ssl.TLSVersion.TLSv1_1)


@old_versions
async def test_a_certificate_changed_on_disk_is_used_from_the_next_handshake(
    authority: Authority,
) -> None:
    worker = authority.issue("worker")
    served = authority.issue("rotated")
    newest = ssl.TLSVersion.TLSv1_3
    async with echo_server(served) as endpoint:
        _, before = await asyncio.to_thread(_handshake, endpoint, worker, newest)
        await asyncio.to_thread(authority.issue, "rotated")
        _, after = await asyncio.to_thread(_handshake, endpoint, worker, newest)
        assert before != after
        assert after == ssl.PEM_cert_to_DER_cert(served.cert.read_text())
        assert await call(endpoint, worker) == b"hello"


async def test_files_that_cannot_be_read_leave_the_certificate_in_use(
    authority: Authority, tmp_path: Path
) -> None:
    worker, source = authority.issue("worker"), authority.issue("member")
    cert = tmp_path / "member.pem"
    shutil.copy(source.cert, cert)
    async with echo_server(TLS(source.ca, cert, source.key)) as endpoint:
        cert.unlink()
        assert await call(endpoint, worker) == b"hello"


@old_versions
async def test_a_key_that_doesn_t_fit_leaves_the_certificate_in_use_and_is_logged(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker, source = authority.issue("worker"), authority.issue("member")
    files = TLS(source.ca, tmp_path / "m.pem", tmp_path / "m.key")
    shutil.copy(source.cert, files.cert)
    shutil.copy(source.key, files.key)
    newest = ssl.TLSVersion.TLSv1_3
    with caplog.at_level(logging.INFO):
        async with echo_server(files) as endpoint:
            shutil.copy(worker.key, files.key)
            _, shown = await asyncio.to_thread(_handshake, endpoint, worker, newest)
            assert shown == ssl.PEM_cert_to_DER_cert(source.cert.read_text())
            assert "new certificate rejected, the old one stays in use: " in caplog.text
            assert "m.key is the key of another certificate than" in caplog.text
            assert "using" not in caplog.text
            shutil.copy(worker.cert, files.cert)
            _, shown = await asyncio.to_thread(_handshake, endpoint, worker, newest)
            assert shown == ssl.PEM_cert_to_DER_cert(worker.cert.read_text())


async def test_a_key_that_doesn_t_fit_is_not_reported_as_a_port_in_use(
    authority: Authority,
) -> None:
    member, other = authority.issue("member"), authority.issue("other")
    with pytest.raises(Misconfigured, match="is the key of another certificate than") as error:
        async with echo_server(TLS(member.ca, member.cert, other.key)):
            pass
    assert "can't listen" not in str(error.value)


def test_a_missing_tls_file_is_reported(tmp_path: Path) -> None:
    absent = tmp_path / "none.pem"
    with pytest.raises(
        Misconfigured, match=r"a TLS file \(ca, cert or key\) can't be read: .*none\.pem"
    ):
        connect("127.0.0.1:1", tls=TLS(absent, absent, absent))
