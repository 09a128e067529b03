"""Checks of a daemon's TLS files before it starts: all problems, at once."""

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


def problems_of(tls: TLS, whom: Bearer, now: datetime | None = None) -> list[str]:
    return [str(each) for each in problems(tls, whom, now or utcnow())]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "ca")


def test_valid_files_have_no_problems_for_all_valid_names(
    authority: Authority, tmp_path: Path
) -> None:
    hosts = ["127.0.0.1", "::1", "m1.example.com"]
    assert problems_of(authority.issue(replace(MEMBER, hosts=hosts), tmp_path / "m", DAY), M1) == []
    for number, namespaces in enumerate([[], ["billing"], ["billing", "mail"]]):
        subject = Subject("w1", uris_of_worker("w1", namespaces))
        assert problems_of(authority.issue(subject, tmp_path / f"w{number}", DAY), W1) == []


def test_an_own_authority_without_purposes_and_with_other_names_is_accepted(
    tmp_path: Path,
) -> None:
    own = certs.Authority.create(tmp_path / "own")
    san = "IP:127.0.0.1,DNS:m1.example.com,URI:spiffe://example/m1,URI:schedd://member/m1"
    assert problems_of(own.issue("m1", san=san), M1) == []


def test_one_of_several_authorities_in_the_file_is_enough(
    authority: Authority, tmp_path: Path
) -> None:
    tls = authority.issue(MEMBER, tmp_path / "m", DAY)
    other = Authority.create(tmp_path / "other").certificate.read_bytes()
    tls.ca.write_bytes(other + tls.ca.read_bytes())
    assert problems_of(tls, M1) == []
    tls.ca.write_bytes(other)
    [why] = problems_of(tls, M1)
    assert why.startswith("tls.cert: ")
    assert f"isn't signed by an authority of {tls.ca}: unable to get local issuer" in why


@pytest.mark.slow
def test_intermediate_certificates_belong_into_the_certificate_file(
    tmp_path: Path,
) -> None:
    tls = chained(tmp_path)
    assert problems_of(tls, M1) == []
    assert tls.cert is not None
    leaf = tls.cert.read_text().split("-----END CERTIFICATE-----")[0]
    tls.cert.write_text(f"{leaf}-----END CERTIFICATE-----\n")
    [why] = problems_of(tls, M1)
    assert "append the intermediate certificates to its file" in why
    between = TLS(tmp_path / "between.pem", tls.cert, tls.key)
    assert problems_of(between, M1) == [], "gRPC trusts what isn't a root, too"


def chained(folder: Path) -> TLS:
    """Make a chain: root ─▶ between ─▶ m1. The file of m1 contains `between`."""

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


def test_a_wrong_name_kind_or_purpose_is_reported_with_the_expected_one(
    authority: Authority, tmp_path: Path
) -> None:
    member = authority.issue(MEMBER, tmp_path / "m", DAY)
    worker = authority.issue(WORKER, tmp_path / "w", DAY)
    [why] = problems_of(member, bearer("m3", serves=True))
    assert "m1.pem names 'schedd://member/m1', but this member is 'm3'" in why
    assert "must have the URI schedd://member/m3 and no other name" in why
    assert why.endswith("issue it: ISSUE, or set `name` as the certificate")
    [name, purpose] = problems_of(worker, M1)
    assert "names 'schedd://worker/w1', but this member is 'm1'" in name
    assert "set `name`" not in name
    assert "doesn't allow a member to be called, by its key usage" in purpose
    [why] = problems_of(member, W1)
    assert "but this worker is 'w1'" in why
    [why] = problems_of(worker, bearer("w2", serves=False))
    assert "names 'schedd://worker/w1', but this worker is 'w2'" in why
    unnamed = certs.Authority.create(tmp_path / "own").issue("m1")
    [why] = problems_of(unnamed, M1)
    assert "names no URI at all" in why


def test_an_expired_certificate_is_reported_beside_other_problems(
    authority: Authority, tmp_path: Path
) -> None:
    ended = authority.issue(MEMBER, tmp_path / "m", timedelta(minutes=-1))
    [why] = problems_of(ended, M1)
    assert "m1.pem expired at 2" in why
    [time, name] = problems_of(ended, bearer("m3", serves=True))
    assert "expired at" in time
    assert "this member is 'm3'" in name
    good = authority.issue(MEMBER, tmp_path / "g", DAY)
    [why] = problems_of(good, M1, utcnow() - DAY)
    assert "isn't valid before 2" in why
    assert "correct this host's clock" in why


def test_the_key_must_match_the_certificate_and_be_readable(
    authority: Authority, tmp_path: Path
) -> None:
    member = authority.issue(MEMBER, tmp_path / "m", DAY)
    worker = authority.issue(WORKER, tmp_path / "w", DAY)
    [why] = problems_of(TLS(member.ca, member.cert, worker.key), M1)
    assert why.startswith(f"tls.key: {worker.key} is the key of another certificate than")
    secret = tmp_path / "secret.key"
    encrypt = ["openssl", "pkcs8", "-topk8", "-in", str(member.key), "-passout", "pass:geheim"]
    subprocess.run([*encrypt, "-out", secret], check=True, capture_output=True)
    [why] = problems_of(TLS(member.ca, member.cert, secret), M1)
    assert "is encrypted: give a key without a passphrase" in why


def test_each_missing_or_swapped_file_is_reported_by_its_setting(
    authority: Authority, tmp_path: Path
) -> None:
    member = authority.issue(MEMBER, tmp_path / "m", DAY)
    absent = tmp_path / "none"
    [why] = problems_of(TLS(absent, member.cert, member.key), M1)
    assert why.startswith(f"tls.ca: {absent} can't be read: No such file")
    assert len(problems_of(TLS(absent, absent, absent), M1)) == 3
    assert member.cert is not None
    assert member.key is not None
    swapped = problems_of(TLS(member.key, member.key, member.cert), M1)
    assert [why.split(":")[0] for why in swapped] == ["tls.ca", "tls.cert", "tls.key"]
    [ca, name] = problems_of(TLS(member.key, member.cert, member.key), bearer("m3", serves=True))
    assert "contains no certificate of an authority" in ca
    assert "this member is 'm3'" in name


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads all")
def test_an_unreadable_key_is_reported(authority: Authority, tmp_path: Path) -> None:
    member = authority.issue(MEMBER, tmp_path / "m", DAY)
    assert member.key is not None
    member.key.chmod(0)
    [why] = problems_of(member, M1)
    assert "can't be read: Permission denied" in why


def test_listed_names_are_bounded_in_number_and_length() -> None:
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
def test_a_worker_accepts_the_same_names_as_members(uris: list[str]) -> None:
    assert names_worker("w1", uris) == W1.is_named(uris)


def test_a_problem_of_this_hosts_clock_alone_may_be_retried(
    authority: Authority, tmp_path: Path
) -> None:
    ended = authority.issue(MEMBER, tmp_path / "m", timedelta(minutes=-1))
    time = problems(ended, M1, utcnow())
    assert isinstance(refusal(time), NotNow)
    both = problems(ended, bearer("m3", serves=True), utcnow())
    assert len(both) == 2
    assert not isinstance(refusal(both), NotNow)
    assert not isinstance(refusal([*time, ConfigProblem("postgres.dsn", "is missing")]), NotNow)
