"""Users, passwords, rights and TLS, against the real etcd."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from schedd.etcd.access import EtcdAccess, EtcdTls
from schedd.etcd.client import connect
from schedd.etcd.errors import AccessDenied
from schedd.etcd.lease_keeper import keep_lease
from schedkit.errors import Misconfigured, Rejected, Unavailable
from support.etcd import Certificates, EtcdCluster
from support.wait import WAIT_TIMEOUT, wait_until_async

from .conftest import DEADLINE, make_authority
from .test_follow import following


@pytest.fixture(scope="module")
def guarded() -> Iterator[EtcdCluster]:
    """An etcd with rights: `daemon` may use what begins with `schedd/`."""
    with EtcdCluster(1, flags=("--bcrypt-cost", "4", "--auth-token-ttl", "1")) as cluster:
        for command in (
            "user add root --new-user-password root-secret",
            "user grant-role root root",
            "role add daemons",
            "role grant-permission --prefix=true daemons readwrite schedd/",
            "user add daemon --new-user-password secret",
            "user grant-role daemon daemons",
            "auth enable",
        ):
            cluster.ctl(*command.split())
        yield cluster


def access(cluster: EtcdCluster, user: str | None = "daemon", password: str | None = "secret"):
    return EtcdAccess(cluster.endpoints, user=user, password=password)


async def test_a_user_with_the_right_password_may_do_what_its_role_allows(guarded):
    async with connect(access(guarded), deadline=DEADLINE) as client:
        await client.put("a", b"1")
        assert (await client.get("a")).value == b"1"
        assert len(await client.list("")) >= 1


async def test_a_call_that_the_role_doesnt_allow_is_denied(guarded):
    async with connect(access(guarded), deadline=DEADLINE, root="other/") as client:
        with pytest.raises(AccessDenied, match="permission denied"):
            await client.put("a", b"1")


async def test_a_follower_without_the_permission_waits_until_it_is_granted(guarded):
    root = ("--user", "root:root-secret")
    async with (
        connect(access(guarded), deadline=DEADLINE, root="later/") as client,
        aclosing(client.follow("")) as followed,
    ):
        first = asyncio.create_task(anext(followed))
        done, _ = await asyncio.wait({first}, timeout=2 * DEADLINE)
        assert not done, "a rejection is retried"
        guarded.ctl(*root, "role", "grant-permission", "daemons", "readwrite", "later/", "later0")
        async with asyncio.timeout(WAIT_TIMEOUT):
            assert len((await first).listing) == 0


@pytest.mark.parametrize(("user", "password"), [("daemon", "wrong"), ("ghost", "secret")])
async def test_a_wrong_password_is_reported(guarded, user, password):
    async with connect(access(guarded, user, password), deadline=DEADLINE) as client:
        with pytest.raises(AccessDenied, match="authentication failed"):
            await client.get("a")


async def test_a_login_that_isnt_sent_again_is_no_new_rejection(guarded):
    reported: list[Rejected] = []
    async with connect(access(guarded, password="wrong"), deadline=DEADLINE) as client:
        client.on_rejected(reported.append)
        for _ in range(3):
            with pytest.raises(AccessDenied):
                await client.get("a")
    assert [each.reason for each in reported] == ["login_rejected"]


async def test_without_a_user_nothing_is_allowed(guarded):
    async with connect(access(guarded, None, None), deadline=DEADLINE) as client:
        with pytest.raises(AccessDenied, match="user name is empty"):
            await client.get("a")


async def test_a_token_that_etcd_has_forgotten_is_renewed_within_the_call(guarded):
    async with (
        connect(access(guarded), deadline=DEADLINE) as client,
        following(client.follow("w/")) as seen,
    ):
        await client.put("a", b"1")
        token = client._connection._token
        for command in ("auth disable", "auth enable"):  # forgets all tokens
            guarded.ctl("--user", "root:root-secret", *command.split())

        await client.put("a", b"2")

        assert client._connection._token != token
        await client.put("w/1", b"")
        await seen.until_equal(client, "w/")


async def test_a_lease_is_kept_and_a_prefix_followed_under_rights(guarded):
    async with (
        connect(access(guarded), deadline=DEADLINE) as client,
        keep_lease(client, access(guarded), ttl=3, deadline=DEADLINE) as keeper,
        following(client.follow("w/")) as seen,
    ):
        first = keeper.trusted_until
        await wait_until_async(
            lambda: keeper.trusted_until > first + 1.5, WAIT_TIMEOUT, "two keepalives"
        )
        await client.put("w/1", b"", keeper.lease.id)
        await seen.until_equal(client, "w/")


async def test_a_user_is_reported_as_unused_where_etcd_checks_no_rights(single, caplog):
    async with connect(access(single), deadline=DEADLINE, root="vain/") as client:
        await client.put("a", b"1")
    assert "has no effect" in caplog.text


async def test_a_password_is_in_no_repr():
    assert "secret" not in repr(EtcdAccess(("a:1",), user="u", password="secret"))


@pytest.fixture(scope="module")
def encrypted(certificates: Certificates) -> Iterator[EtcdCluster]:
    """An etcd that speaks TLS with those who show a certificate."""
    with EtcdCluster(1, tls=certificates) as cluster:
        yield cluster


async def test_calls_leases_and_watches_work_over_tls_with_a_client_certificate(
    encrypted, certificates
):
    tls = EtcdTls(certificates.ca, certificates.cert, certificates.key)
    endpoints = tuple(f"https://{endpoint}" for endpoint in encrypted.endpoints)
    async with (
        connect(EtcdAccess(endpoints, tls), deadline=DEADLINE) as client,
        keep_lease(client, EtcdAccess(endpoints, tls), ttl=3, deadline=DEADLINE) as keeper,
        following(client.follow("w/")) as seen,
    ):
        first = keeper.trusted_until
        await client.put("w/1", b"", keeper.lease.id)
        await seen.until_equal(client, "w/")
        await wait_until_async(
            lambda: keeper.trusted_until > first, WAIT_TIMEOUT, "a keepalive over TLS"
        )


async def test_tls_without_the_certificate_gets_nowhere(encrypted, certificates):
    for tls in (EtcdTls(certificates.ca), None):
        async with connect(EtcdAccess(encrypted.endpoints, tls), deadline=DEADLINE) as client:
            with pytest.raises(Unavailable):
                await client.get("a")


async def test_a_server_of_another_authority_is_rejected(encrypted, certificates, tmp_path):
    make_authority(tmp_path)
    tls = EtcdTls(tmp_path / "ca.pem", certificates.cert, certificates.key)
    async with connect(EtcdAccess(encrypted.endpoints, tls), deadline=DEADLINE) as client:
        with pytest.raises(Unavailable):
            await client.get("a")


async def test_new_certificates_are_used_without_a_restart(encrypted, certificates, tmp_path):
    make_authority(tmp_path)
    tls = EtcdTls(tmp_path / "ca.pem", certificates.cert, certificates.key)
    access = EtcdAccess(encrypted.endpoints, tls)
    async with connect(access, deadline=DEADLINE) as client:
        with pytest.raises(Unavailable):
            await client.get("a")
        shutil.copy(certificates.ca, tmp_path / "ca.pem")
        await client.put("a", b"1")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: EtcdAccess(()), "no endpoint"),
        (lambda: EtcdAccess(("host",)), "no port"),
        (lambda: EtcdAccess(("https://a:1",)), "needs TLS"),
        (lambda: EtcdAccess(("http://a:1",), EtcdTls()), "is plaintext"),
        (lambda: EtcdAccess(("ftp://a:1",)), "valid endpoint; write"),
        (lambda: EtcdAccess(("a:1",), user="u"), "must be given together"),
        (lambda: EtcdTls(cert="x"), "must be given together"),
    ],
)
def test_impossible_settings_are_refused_with_their_reason(build, message):
    with pytest.raises(Misconfigured, match=message):
        build()


def test_a_certificate_that_cant_be_read_now_is_retried():
    with pytest.raises(Rejected, match="the TLS file /none can't be read"):
        EtcdTls(ca=Path("/none")).credentials()
