"""A client's certificate changes on disk: later calls use the new one, earlier ones continue."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from schedclient import TLS, Client, ClusterUnavailable
from schedctl.authority import Authority, Subject
from schedd.core.auth.rights import IdentityKind, Role, uri_of, uris_of_user
from schedkit.net import channel
from schedkit.net.channel import SERVER_OPTIONS, listen
from schedkit.net.handshake import is_tls
from schedproto.v1 import auth_service_pb2 as auth
from support.wait import WAIT_TIMEOUT, wait_until_async

DAY = timedelta(days=1)
CLOSED_PORT = "127.0.0.1:1"
ALICE = Subject("alice", uris_of_user("alice", Role.VIEWER, ["*"]))


class Member:
    """Return to each caller the digest of its certificate. The first call waits until `go`."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.waits = False

    async def identity(self, _: object, context: Any) -> auth.Identity:
        if self.waits:
            self.waits = False
            await self.go.wait()
        pem = next(iter(context.auth_context()["x509_pem_cert"]))
        return auth.Identity(actor=hashlib.sha256(pem).hexdigest())


@asynccontextmanager
async def serving(tls: TLS | None) -> AsyncIterator[tuple[str, Member]]:
    server, member = grpc.aio.server(options=SERVER_OPTIONS), Member()
    handler = grpc.unary_unary_rpc_method_handler(
        member.identity,
        request_deserializer=auth.GetIdentityRequest.FromString,
        response_serializer=auth.Identity.SerializeToString,
    )
    named = grpc.method_handlers_generic_handler("schedd.v1.AuthService", {"GetIdentity": handler})
    server.add_generic_rpc_handlers((named,))
    port = listen(server, "127.0.0.1:0", tls)
    await server.start()
    yield f"127.0.0.1:{port}", member
    await server.stop(None)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "ca")


def member_files(authority: Authority, tmp_path: Path) -> TLS:
    subject = Subject("m1", [uri_of(IdentityKind.MEMBER, "m1")], ["127.0.0.1"])
    return authority.issue(subject, tmp_path / "m1", DAY)


async def test_later_calls_use_the_new_certificate_and_earlier_ones_continue(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "LOOK_EVERY", 0.0)
    files = authority.issue(ALICE, tmp_path, DAY)
    assert files.cert is not None

    def on_disk() -> str:
        assert files.cert is not None
        return hashlib.sha256(files.cert.read_bytes()).hexdigest()

    async with (
        serving(member_files(authority, tmp_path)) as (address, member),
        Client(address, tls=files) as client,
    ):
        first = on_disk()
        assert (await client.access.identity()).actor == first
        member.waits = True
        earlier = asyncio.create_task(client.access.identity())
        await wait_until_async(lambda: not member.waits, WAIT_TIMEOUT, "the call to be there")
        authority.issue(ALICE, tmp_path, DAY)
        assert on_disk() != first
        assert (await client.access.identity()).actor == on_disk()
        member.go.set()
        assert (await earlier).actor == first


@pytest.mark.slow
async def test_an_expired_certificate_is_reported_by_its_name(
    authority: Authority, tmp_path: Path
) -> None:
    files = authority.issue(ALICE, tmp_path, timedelta(minutes=-1))
    async with (
        serving(member_files(authority, tmp_path)) as (address, _),
        Client(address, tls=files, timeout=2) as client,
    ):
        with pytest.raises(
            ClusterUnavailable, match=r"the client certificate .*alice\.pem expired"
        ) as error:
            await client.access.identity()
        assert error.value.reason == "TLS_REFUSED"


@pytest.mark.slow
async def test_a_member_of_another_authority_is_reported(
    authority: Authority, tmp_path: Path
) -> None:
    files = authority.issue(ALICE, tmp_path, DAY)
    other = Authority.create(tmp_path / "other")
    trusting = TLS(other.certificate, files.cert, files.key)
    async with (
        serving(member_files(authority, tmp_path)) as (address, _),
        Client(address, tls=trusting, timeout=2) as client,
    ):
        with pytest.raises(ClusterUnavailable, match="member's certificate isn't valid"):
            await client.access.identity()


@pytest.mark.slow
@pytest.mark.parametrize("secret", [None, "schedd_x"])
async def test_a_client_without_a_certificate_is_referred_to_the_port_for_tokens(
    authority: Authority, tmp_path: Path, secret: str | None
) -> None:
    member = member_files(authority, tmp_path)
    async with (
        serving(member) as (address, _),
        Client(address, tls=TLS(member.ca), token=secret, timeout=2) as client,
    ):
        with pytest.raises(ClusterUnavailable) as error:
            await client.access.identity()
    assert error.value.reason == "TLS_REFUSED"
    assert "the member requires a client certificate, and none is configured" in error.value.what
    assert "the client certificate" not in error.value.what
    assert "listen.grpc_tokens" in error.value.remedy


@pytest.mark.slow
async def test_a_plaintext_client_learns_that_the_member_requires_tls(
    authority: Authority, tmp_path: Path
) -> None:
    async with (
        serving(member_files(authority, tmp_path)) as (address, _),
        Client([CLOSED_PORT, address], timeout=2) as client,
    ):
        asked = client.access.identity(), client.jobs.get("etl"), client.runs.wait("r")
        for ask in (*asked, anext(client.runs.events()), anext(client.runs.watch("r"))):
            with pytest.raises(ClusterUnavailable) as error:
                async with asyncio.timeout(WAIT_TIMEOUT):  # it isn't tried for ever
                    await ask
            assert error.value.reason == "TLS_WANTED"
            assert f"{address} requires TLS, but this client uses plaintext" in error.value.what
            assert f"schedctl config set NAME --at {address} --ca FILE" in error.value.remedy


@pytest.mark.slow
async def test_a_tls_client_learns_that_the_member_uses_plaintext(
    authority: Authority, tmp_path: Path
) -> None:
    """Nothing is wrong with the files."""
    async with (
        serving(None) as (address, _),
        Client(address, tls=authority.issue(ALICE, tmp_path, DAY), timeout=2) as client,
    ):
        with pytest.raises(ClusterUnavailable) as error:
            await client.access.identity()
    assert error.value.reason == "TLS_REFUSED"
    assert f"{address} failed: the member serves plaintext" in error.value.what
    assert "check ca, cert" not in error.value.remedy
    assert "leave ca, cert and key out" in error.value.remedy


async def test_a_plaintext_server_is_not_detected_as_tls() -> None:
    quiet = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    rude = await asyncio.start_server(
        lambda _reader, writer: writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "127.0.0.1", 0
    )
    async with quiet, rude:
        for server in (quiet, rude):
            port = server.sockets[0].getsockname()[1]
            assert not await asyncio.to_thread(is_tls, f"127.0.0.1:{port}")
    assert not is_tls(CLOSED_PORT)
