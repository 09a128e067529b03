"""What a daemon is told of the files of its TLS before it starts: all that is wrong, at once."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from schedctl.authority import Authority, Subject
from schedd.core.auth.rights import IdentityKind, identity_of, uri_of, uris_of_worker
from schedkit.clock import utcnow
from schedkit.config.loader import ConfigProblem, refusal
from schedkit.errors import NotNow
from schedkit.net.certificates import MOST_NAMES, listed_names
from schedkit.net.channel import TLS
from schedkit.net.credentials import Bearer, problems
from support import certs
from workerd.config import names_worker

DAY = timedelta(days=1)
MEMBER = Subject("m1", [uri_of(IdentityKind.MEMBER, "m1")], ["127.0.0.1"])
WORKER = Subject("w1", uris_of_worker("w1"))


def bearer(name: str, *, serves: bool) -> Bearer:
    kind = IdentityKind.MEMBER if serves else IdentityKind.WORKER

    def is_named(uris: object) -> bool:
        who = identity_of(uris)  # type: ignore[arg-type]
        return who is not None and (who.kind, who.name) == (kind, name)

    return Bearer(kind.value, name, uri_of(kind, name), is_named, "ISSUE", serves=serves)


M1, W1 = bearer("m1", serves=True), bearer("w1", serves=False)


def told(tls: TLS, whom: Bearer, now: datetime | None = None) -> list[str]:
    return [str(each) for each in problems(tls, whom, now or utcnow())]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "ca")


def test_right_files_are_fine_for_all_that_may_be_named(
    authority: Authority, tmp_path: Path
) -> None:
    hosts = ["127.0.0.1", "::1", "m1.example.com"]
    assert told(authority.issue(replace(MEMBER, hosts=hosts), tmp_path / "m", DAY), M1) == []
    for number, namespaces in enumerate([[], ["billing"], ["billing", "mail"]]):
        subject = Subject("w1", uris_of_worker("w1", namespaces))
        assert told(authority.issue(subject, tmp_path / f"w{number}", DAY), W1) == []


def test_an_authority_of_ones_own_without_purposes_and_with_other_names_does(
    tmp_path: Path,
) -> None:
    own = certs.Authority.create(tmp_path / "own")
    san = "IP:127.0.0.1,DNS:m1.example.com,URI:spiffe://example/m1,URI:schedd://member/m1"
    assert told(own.issue("m1", san=san), M1) == []


def test_of_several_authorities_in_the_file_one_is_enough(
    authority: Authority, tmp_path: Path
) -> None:
    tls = authority.issue(MEMBER, tmp_path / "m", DAY)
    other = Authority.create(tmp_path / "other").certificate.read_bytes()
    tls.ca.write_bytes(other + tls.ca.read_bytes())
    assert told(tls, M1) == []
    tls.ca.write_bytes(other)
    [why] = told(tls, M1)
    assert why.startswith("tls.cert: ")
    assert f"isn't signed by an authority of {tls.ca}: unable to get local issuer" in why


@pytest.mark.slow
def test_what_stands_between_authority_and_certificate_belongs_into_its_file(
    tmp_path: Path,
) -> None:
    tls = chained(tmp_path)
    assert told(tls, M1) == []
    assert tls.cert is not None
    leaf = tls.cert.read_text().split("-----END CERTIFICATE-----")[0]
    tls.cert.write_text(f"{leaf}-----END CERTIFICATE-----\n")
    [why] = told(tls, M1)
    assert "put what stands between the two below the certificate" in why
    between = TLS(tmp_path / "between.pem", tls.cert, tls.key)
    assert told(between, M1) == [], "gRPC trusts what isn't a root, too"


def chained(folder: Path) -> TLS:
    """A root ─▶ between ─▶ m1; between is in m1's file."""

    def openssl(*args: str) -> None:
        subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "rsa:2048", "-nodes", "-keyout")
    openssl("req", "-x509", *key, "root.key", "-out", "root.pem", "-subj", "/CN=root")
    issuer = "root"
    for name, extension in (
        ("between", "basicConstraints=critical,CA:true"),
        ("m1", "subjectAltName=IP:127.0.0.1,URI:schedd://member/m1"),
    ):
        openssl("req", *key, f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (folder / "ext").write_text(f"{extension}\n")
        by = ("-CA", f"{issuer}.pem", "-CAkey", f"{issuer}.key", "-CAcreateserial")
        made = ("-in", f"{name}.csr", "-out", f"{name}.pem", "-extfile", "ext", "-days", "2")
        openssl("x509", "-req", *by, *made)
        issuer = name
    both = (folder / "m1.pem").read_text() + (folder / "between.pem").read_text()
    (folder / "m1.pem").write_text(f"# Zertifikat für m1\n{both}", "utf-8")
    return TLS(folder / "root.pem", folder / "m1.pem", folder / "m1.key")


def test_another_name_kind_and_purpose_are_told_with_what_they_should_be(
    authority: Authority, tmp_path: Path
) -> None:
    member = authority.issue(MEMBER, tmp_path / "m", DAY)
    worker = authority.issue(WORKER, tmp_path / "w", DAY)
    [why] = told(member, bearer("m3", serves=True))
    assert "m1.pem names 'schedd://member/m1', and this member is 'm3'" in why
    assert "must have the URI schedd://member/m3 and no other name" in why
    assert why.endswith("issue it: ISSUE, or set `name` as the certificate")
    [name, purpose] = told(worker, M1)
    assert "names 'schedd://worker/w1', and this member is 'm1'" in name
    assert "set `name`" not in name
    assert "isn't one by which a member may be called" in purpose
    [why] = told(member, W1)
    assert "and this worker is 'w1'" in why
    [why] = told(worker, bearer("w2", serves=False))
    assert "names 'schedd://worker/w1', and this worker is 'w2'" in why
    nobody = certs.Authority.create(tmp_path / "own").issue("m1")
    [why] = told(nobody, M1)
    assert "names no URI at all" in why


def test_its_time_is_judged_and_what_else_is_wrong_is_told_beside_it(
    authority: Authority, tmp_path: Path
) -> None:
    ended = authority.issue(MEMBER, tmp_path / "m", timedelta(minutes=-1))
    [why] = told(ended, M1)
    assert "m1.pem expired at 2" in why
    [time, name] = told(ended, bearer("m3", serves=True))
    assert "expired at" in time
    assert "this member is 'm3'" in name
    good = authority.issue(MEMBER, tmp_path / "g", DAY)
    [why] = told(good, M1, utcnow() - DAY)
    assert "isn't valid before 2" in why
    assert "correct this host's clock" in why


def test_the_key_is_the_certificates_own_and_can_be_read(
    authority: Authority, tmp_path: Path
) -> None:
    member = authority.issue(MEMBER, tmp_path / "m", DAY)
    worker = authority.issue(WORKER, tmp_path / "w", DAY)
    [why] = told(TLS(member.ca, member.cert, worker.key), M1)
    assert why.startswith(f"tls.key: {worker.key} is the key of another certificate than")
    secret = tmp_path / "secret.key"
    encrypt = ["openssl", "pkcs8", "-topk8", "-in", str(member.key), "-passout", "pass:geheim"]
    subprocess.run([*encrypt, "-out", secret], check=True, capture_output=True)
    [why] = told(TLS(member.ca, member.cert, secret), M1)
    assert "is encrypted: give a key without a passphrase" in why


def test_each_file_that_isn_t_there_or_is_another_is_told_by_its_key(
    authority: Authority, tmp_path: Path
) -> None:
    member = authority.issue(MEMBER, tmp_path / "m", DAY)
    absent = tmp_path / "none"
    [why] = told(TLS(absent, member.cert, member.key), M1)
    assert why.startswith(f"tls.ca: {absent} can't be read: No such file")
    assert len(told(TLS(absent, absent, absent), M1)) == 3
    assert member.cert is not None
    assert member.key is not None
    swapped = told(TLS(member.key, member.key, member.cert), M1)
    assert [why.split(":")[0] for why in swapped] == ["tls.ca", "tls.cert", "tls.key"]
    [ca, name] = told(TLS(member.key, member.cert, member.key), bearer("m3", serves=True))
    assert "has no authority's certificate in it" in ca
    assert "this member is 'm3'" in name


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads all")
def test_a_key_of_another_user_is_told(authority: Authority, tmp_path: Path) -> None:
    member = authority.issue(MEMBER, tmp_path / "m", DAY)
    assert member.key is not None
    member.key.chmod(0)
    [why] = told(member, M1)
    assert "can't be read: Permission denied" in why


def test_names_are_told_however_many_and_long_they_are() -> None:
    said = listed_names(["x" * 10_000] * 100)
    assert len(said) < 1000
    assert said.endswith(f"and {100 - MOST_NAMES} more")
    assert listed_names(["\x1b[31m\n"]) == repr("\x1b[31m\n")


@pytest.mark.parametrize(
    "uris",
    [
        [],
        ["schedd://worker/w1"],
        ["schedd://worker/w1", "schedd://worker/w1"],
        ["https://elsewhere/", "schedd://worker/w1"],
        ["schedd://worker/w1/billing", "schedd://worker/w1/mail"],
        ["schedd://worker/w1", "schedd://worker/w1/mail"],
        ["schedd://worker/w1/"],
        ["schedd://worker/w1/a/b"],
        ["schedd://worker/w1/Billing"],
        ["schedd://worker/w1/*"],
        ["schedd://worker/w11"],
        ["schedd://worker/w2"],
        ["schedd://worker/w1", "schedd://worker/w2"],
        ["schedd://worker/w1/mail", "schedd://worker/w2/mail"],
        ["schedd://worker/w1", "schedd://member/w1"],
        ["schedd://member/w1"],
        ["SCHEDD://worker/w1"],
        ["schedd://worker/w1", "SCHEDD://member/w1"],
        ["schedd://worker/w1", "schedd:worker/w1"],
        ["schedd://worker/w1?a=1"],
        ["schedd://worker/w1/billing#a"],
        ["schedd://worker/w1/bill%69ng"],
    ],
)
def test_a_worker_knows_its_names_as_members_do(uris: list[str]) -> None:
    assert names_worker("w1", uris) == W1.is_named(uris)


def test_what_is_of_this_host_s_clock_alone_is_to_be_tried_again(
    authority: Authority, tmp_path: Path
) -> None:
    ended = authority.issue(MEMBER, tmp_path / "m", timedelta(minutes=-1))
    time = problems(ended, M1, utcnow())
    assert isinstance(refusal(time), NotNow)
    both = problems(ended, bearer("m3", serves=True), utcnow())
    assert len(both) == 2
    assert not isinstance(refusal(both), NotNow)
    assert not isinstance(refusal([*time, ConfigProblem("postgres.dsn", "is missing")]), NotNow)
