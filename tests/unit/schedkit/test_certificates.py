"""Expiry of certificates, read without a library and compared with openssl."""

from __future__ import annotations

import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from schedkit.net.certificates import first_of
from support.certs import Authority


def issued(folder: Path, days: int) -> bytes:
    """Issue a self-signed certificate that ends in so many days."""
    key = ["-newkey", "rsa:2048", "-nodes", "-keyout", "k.pem"]
    made = ["openssl", "req", "-x509", *key, "-out", "c.pem", "-days", str(days), "-subj", "/CN=c"]
    subprocess.run(made, cwd=folder, check=True, capture_output=True)
    return (folder / "c.pem").read_bytes()


def test_the_expiry_equals_that_of_openssl(tmp_path: Path) -> None:
    tls = Authority.create(tmp_path / "ca").issue("m1")
    said = subprocess.run(
        ["openssl", "x509", "-enddate", "-noout", "-in", str(tls.cert)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.removeprefix("notAfter=")
    expected = datetime.strptime(said.strip(), "%b %d %H:%M:%S %Y GMT").replace(tzinfo=UTC)
    assert first_of(tls.cert.read_bytes()).not_after == expected


def test_the_start_and_the_uris_equal_those_given_to_openssl(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca")
    san = "IP:127.0.0.1,URI:schedd://member/m1,DNS:m1.example.com,URI:https://elsewhere/"
    tls = authority.issue("m1", san=san)
    found = first_of("# für m1\n".encode() + tls.cert.read_bytes())
    assert found.uris == ("schedd://member/m1", "https://elsewhere/")
    assert timedelta(0) <= datetime.now(UTC) - found.not_before < timedelta(minutes=5)
    assert first_of(authority.issue("plain").cert.read_bytes()).uris == ()


def test_years_past_2049_are_read(tmp_path: Path) -> None:
    ends = first_of(issued(tmp_path, 20_000)).not_after
    assert abs(ends - datetime.now(UTC) - timedelta(days=20_000)) < timedelta(days=1)


@pytest.mark.parametrize(
    "pem",
    [
        b"",
        b"no certificate",
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----",
        b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        b"-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----",
    ],
)
def test_an_invalid_certificate_is_rejected(pem: bytes) -> None:
    with pytest.raises(ValueError, match="readable certificate"):
        first_of(pem)


def test_a_truncated_certificate_is_rejected(tmp_path: Path) -> None:
    der = ssl.PEM_cert_to_DER_cert(issued(tmp_path, 2).decode())
    for end in range(0, 200, 7):
        with pytest.raises(ValueError, match="readable certificate"):
            first_of(ssl.DER_cert_to_PEM_cert(der[:end]).encode())
