"""HTTPS: client certificates, certificates that change on disk, and failed handshakes."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from schedctl.authority import Authority, Subject
from schedd.core.auth.rights import IdentityKind, Role, uri_of, uris_of_user
from schedd.web.server import bound
from schedkit.daemon import log_rate_limit
from schedkit.errors import Misconfigured
from schedkit.net import channel, handshake
from schedkit.net.certificates import first_of
from schedkit.net.channel import TLS, Rotation
from schedkit.net.handshake import why_not
from schedkit.net.https import CERTIFICATE, context_of

DAY = timedelta(days=1)
MEMBER = Subject("m1", [uri_of(IdentityKind.MEMBER, "m1")], ["127.0.0.1"])
ALICE = Subject("alice", uris_of_user("alice", Role.VIEWER, ["*"]))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "ca")


class App:
    """An application that returns the names of the client's certificate."""

    def __init__(self) -> None:
        self.state = type("State", (), {"closing": asyncio.Event()})()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        names = scope.get(CERTIFICATE, {}).get("names", ())
        shown = " ".join(name for kind, name in names if kind == "URI") or "anonymous"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": f"{scope['scheme']} {shown}".encode()})


@asynccontextmanager
async def https(tls: TLS) -> AsyncIterator[str]:
    async with bound("127.0.0.1:0") as http, asyncio.TaskGroup() as group:
        app: Any = App()
        server = group.create_task(http.serve(app, tls=context_of(tls)))
        yield f"127.0.0.1:{http.port}"
        server.cancel()


async def ask(address: str, tls: TLS) -> tuple[str, bytes]:
    """Return the answer, and the server's certificate."""
    context = ssl.create_default_context(cafile=tls.ca)
    if tls.cert is not None:
        context.load_cert_chain(tls.cert, tls.key)
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    if not answer:
        raise ConnectionError("no answer")
    return answer.partition(b"\r\n\r\n")[2].decode(), shown


async def test_the_app_receives_the_names_of_a_client_certificate_or_none(
    authority: Authority, tmp_path: Path
) -> None:
    member = authority.issue(MEMBER, tmp_path / "m", DAY)
    alice = authority.issue(ALICE, tmp_path / "a", DAY)
    async with https(member) as address:
        assert "https schedd://user/alice/viewer/*" in (await ask(address, alice))[0]
        assert "https anonymous" in (await ask(address, TLS(alice.ca)))[0]


async def test_a_certificate_of_another_authority_ends_the_handshake(
    authority: Authority, tmp_path: Path
) -> None:
    member = authority.issue(MEMBER, tmp_path / "m", DAY)
    eve = Authority.create(tmp_path / "other").issue(ALICE, tmp_path / "e", DAY)
    async with https(member) as address:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await ask(address, TLS(member.ca, eve.cert, eve.key))


def shown(address: str, tls: TLS) -> None:
    """Do a handshake as curl does, ignoring its outcome."""
    context = ssl.create_default_context(cafile=tls.ca)
    assert tls.cert is not None
    context.load_cert_chain(tls.cert, tls.key)
    host, port = address.split(":")
    with (
        socket.create_connection((host, int(port)), 5) as plain,
        suppress(OSError),
        context.wrap_socket(plain, server_hostname=host) as secure,
    ):
        secure.recv(1)


async def test_the_reason_of_a_rejected_certificate_is_logged(
    authority: Authority,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_rate_limit.LimitedLine, "every", 0.0)
    member = authority.issue(MEMBER, tmp_path / "m", DAY)
    alice = authority.issue(ALICE, tmp_path / "a", DAY)
    ended = authority.issue(ALICE, tmp_path / "old", timedelta(minutes=-1))
    eve = Authority.create(tmp_path / "other").issue(ALICE, tmp_path / "e", DAY)
    async with https(member) as address:
        for tls, said in (
            (
                ended,
                r"handshake with 127\.0\.0\.1:\d+ failed: its certificate: certificate has expired",
            ),
            (TLS(member.ca, eve.cert, eve.key), "its certificate: unable to get local issuer"),
            (TLS(eve.ca, alice.cert, alice.key), "alert unknown ca"),
        ):
            caplog.clear()
            await asyncio.to_thread(shown, address, tls)
            async with asyncio.timeout(5):
                while not caplog.messages:  # noqa: ASYNC110 - the server's side ends later
                    await asyncio.sleep(0.01)
            assert re.search(said, caplog.text), caplog.text
            assert "(1 handshakes failed since the last such line)" in caplog.text
        caplog.clear()
        assert "user/alice" in (await ask(address, alice))[0]
        assert caplog.messages == []


async def test_rejected_certificates_are_logged_at_most_once_a_second(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    member = authority.issue(MEMBER, tmp_path / "m", DAY)
    ended = authority.issue(ALICE, tmp_path / "old", timedelta(minutes=-1))

    async def refused() -> None:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await ask(address, ended)

    async with https(member) as address:
        begun = asyncio.get_running_loop().time()
        await asyncio.gather(*(refused() for _ in range(20)))
        passed = asyncio.get_running_loop().time() - begun
    assert 1 <= len(caplog.messages) <= 1 + passed


async def test_a_certificate_changed_on_disk_is_used_from_the_next_handshake(
    authority: Authority, tmp_path: Path
) -> None:
    member = authority.issue(MEMBER, tmp_path / "m", DAY)
    trust = TLS(member.ca)
    async with https(member) as address:
        _, before = await ask(address, trust)
        authority.issue(MEMBER, tmp_path / "m", DAY)
        _, after = await ask(address, trust)
        assert before != after
        assert member.cert is not None
        assert after == ssl.PEM_cert_to_DER_cert(member.cert.read_text())
        member.cert.write_text("in the middle of being written")
        assert (await ask(address, trust))[1] == after


async def test_another_authority_is_trusted_as_soon_as_it_is_in_the_file(
    authority: Authority, tmp_path: Path
) -> None:
    member = authority.issue(MEMBER, tmp_path / "m", DAY)
    other = Authority.create(tmp_path / "other")
    bob = other.issue(ALICE, tmp_path / "b", DAY)
    ours = TLS(authority.certificate, bob.cert, bob.key)
    async with https(member) as address:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await ask(address, ours)
        both = authority.certificate.read_bytes() + other.certificate.read_bytes()
        member.ca.write_bytes(both)
        assert "user/alice" in (await ask(address, ours))[0]


def test_files_that_don_t_match_are_reported_at_the_start(
    authority: Authority, tmp_path: Path
) -> None:
    member = authority.issue(MEMBER, tmp_path / "m", DAY)
    alice = authority.issue(ALICE, tmp_path / "a", DAY)
    with pytest.raises(Misconfigured, match="can't be used"):
        context_of(TLS(member.ca, member.cert, alice.key))
    with pytest.raises(Misconfigured, match="needs cert and key"):
        context_of(TLS(member.ca))
    with pytest.raises(Misconfigured, match="only one of cert and key"):
        TLS(member.ca, member.cert)


async def test_the_reason_of_a_failed_handshake_is_explained(
    authority: Authority, tmp_path: Path
) -> None:
    member = authority.issue(MEMBER, tmp_path / "m", DAY)
    alice = authority.issue(ALICE, tmp_path / "a", DAY)
    ended = authority.issue(ALICE, tmp_path / "old", timedelta(minutes=-1))
    stranger = Authority.create(tmp_path / "other").issue(ALICE, tmp_path / "e", DAY)
    elsewhere = Subject("m2", MEMBER.uris, ["m2.example.com"])
    async with https(member) as address:
        for tls, said in (
            (ended, r"the client certificate .*old.*pem expired at \d{4}-\d\d-\d\d \d\d:\d\d UTC$"),
            (TLS(stranger.ca, alice.cert, alice.key), "member's certificate isn't valid"),
            (
                TLS(alice.ca, stranger.cert, stranger.key),
                "rejects the client certificate|doesn't accept the client certificate",
            ),
            (TLS(tmp_path / "none.pem"), "can't be read"),
        ):
            why = await asyncio.to_thread(why_not, address, tls)
            assert why is not None
            assert re.search(said, why.what), why
            assert "check ca, cert and key" in why.remedy
    async with https(authority.issue(elsewhere, tmp_path / "m2", DAY)) as address:
        reason = await asyncio.to_thread(why_not, address, alice)
        assert reason is not None
        assert "mismatch" in reason.what
    assert why_not("127.0.0.1:1", alice) is None


def test_a_certificate_that_isn_t_valid_yet_is_reported_with_its_start(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = authority.issue(ALICE, tmp_path / "a", DAY)
    assert alice.cert is not None
    begins = first_of(alice.cert.read_bytes()).not_before
    now = begins - timedelta(days=3)
    monkeypatch.setattr(handshake, "utcnow", lambda: now)
    why = why_not("127.0.0.1:1", alice)
    assert why is not None
    assert why.what == (
        f"the client certificate {alice.cert} isn't valid before {begins:%Y-%m-%d %H:%M} UTC,"
        f" and this host's clock shows {now:%Y-%m-%d %H:%M}"
    )


def test_a_change_of_the_files_is_detected_once_and_a_missing_file_is_no_change(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "LOOK_EVERY", 0.0)
    tls = authority.issue(ALICE, tmp_path / "a", DAY)
    rotation = Rotation(tls)
    assert not rotation.turned()
    authority.issue(ALICE, tmp_path / "a", DAY)
    assert rotation.turned()
    assert not rotation.turned()
    assert tls.cert is not None
    content = tls.cert.read_bytes()
    tls.cert.unlink()
    assert not rotation.turned()
    tls.cert.write_bytes(content)
    assert rotation.turned()
    assert not Rotation(None).turned()
