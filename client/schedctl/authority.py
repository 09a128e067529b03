"""A certificate authority in a folder, for clusters that have none: its making, and what it signs.

    FOLDER/ca.pem           everybody trusts it
    FOLDER/ca.key           0600; whoever has it is whoever they like: keep it off the cluster

    member m1   schedd://member/m1, the host's names; serves and calls
    worker w1   schedd://worker/w1; calls alone
    user alice  schedd://user/alice/ROLE/NAMESPACE for each namespace; calls alone

Keys are of the curve P-256. What isn't a member's has no name of a host and may not serve, so that
nobody who has a worker's certificate is taken for a member.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from schedctl.failure import Unfit
from schedkit.channel import TLS
from schedkit.clock import utcnow

OF_AUTHORITY: Final = timedelta(days=3650)
SKEW: Final = timedelta(minutes=5)
"""A certificate is good from a little before it was made: clocks differ."""
SECRET: Final = 0o600


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom a certificate is for: its file's name, the URIs that name them, the hosts they serve."""

    name: str
    uris: Sequence[str]
    hosts: Sequence[str] = ()


class Authority:
    """The authority of a folder."""

    def __init__(self, folder: Path) -> None:
        self.certificate: Final = folder / "ca.pem"
        self._key_file: Final = folder / "ca.key"
        self.folder: Final = folder

    @classmethod
    def create(cls, folder: Path) -> Authority:
        """A new one. Raises Unfit where there is one already."""
        found = cls(folder)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if found.certificate.exists():
            raise Unfit(
                f"{folder} has an authority already: {found.certificate}",
                "sign by it: schedctl auth issue; or give another folder: --ca-dir DIR;"
                " how one in use is replaced: docs/security.md, Changing certificates",
            )
        key = ec.generate_private_key(ec.SECP256R1())
        name = _named("schedd authority")
        made = (
            _begun(name, name, key.public_key(), OF_AUTHORITY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .sign(key, hashes.SHA256())
        )
        _write_key(found._key_file, key)
        _write(found.certificate, made.public_bytes(serialization.Encoding.PEM), 0o644)
        return found

    def issue(self, subject: Subject, out: Path, lifetime: timedelta) -> TLS:
        """A new key with a certificate, `NAME.pem` and `NAME.key` in `out`, beside `ca.pem`. Those
        of the same name are replaced, each at once: who watches them sees a whole one. A `ca.pem`
        that is there stays, for it may hold others, too.

        Raises:
            Unfit: there is no authority here, or none that can be read, or its key is another's;
                or `out` trusts others alone.
        """
        ca, ca_key = self._read()
        trusted = out / "ca.pem"
        if trusted.exists() and ca not in _certificates(trusted.read_bytes()):
            raise Unfit(
                f"{trusted} is of another authority",
                f"add {self.certificate} to it, or choose another --out, or the authority that it"
                " is of: --ca-dir DIR",
            )
        key = ec.generate_private_key(ec.SECP256R1())
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if subject.hosts:
            purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
        names = [*map(x509.UniformResourceIdentifier, subject.uris), *map(_host, subject.hosts)]
        made = (
            _begun(_named(subject.name), ca.subject, key.public_key(), lifetime)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()),
                critical=False,
            )
            .sign(ca_key, hashes.SHA256())
        )
        out.mkdir(parents=True, exist_ok=True, mode=0o700)
        tls = TLS(out / "ca.pem", out / f"{subject.name}.pem", out / f"{subject.name}.key")
        assert tls.cert is not None
        assert tls.key is not None
        _write_key(tls.key, key)
        _write(tls.cert, made.public_bytes(serialization.Encoding.PEM), 0o644)
        if not tls.ca.exists():
            _write(tls.ca, ca.public_bytes(serialization.Encoding.PEM), 0o644)
        return tls

    def _read(self) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        try:
            ca = x509.load_pem_x509_certificate(self.certificate.read_bytes())
            key = serialization.load_pem_private_key(self._key_file.read_bytes(), None)
        except (OSError, ValueError) as error:
            raise Unfit(
                f"no authority in {self.folder}: {error}",
                "make one: schedctl auth init; or say where it is: --ca-dir DIR",
            ) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise Unfit(
                f"{self._key_file} isn't one of `schedctl auth init`",
                "say where such a one is: --ca-dir DIR; or sign by the program that made it,"
                " with the URIs of docs/security.md",
            )
        if key.public_key() != ca.public_key():
            raise Unfit(
                f"{self._key_file} isn't the key of {self.certificate}: nobody would trust what it"
                " signs",
                "put the authority's own key and certificate together there, or say where they are"
                " together: --ca-dir DIR",
            )
        return ca, key


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, lifetime: timedelta
) -> x509.CertificateBuilder:
    until = utcnow() + lifetime
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(utcnow(), until) - SKEW)
        .not_valid_after(until)
    )


def _certificates(pem: bytes) -> list[x509.Certificate]:
    """Those in it; none where it is nothing of the kind."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        return []


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _write_key(file: Path, key: ec.EllipticCurvePrivateKey) -> None:
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    _write(file, key.private_bytes(serialization.Encoding.PEM, form, plain), SECRET)


def _write(file: Path, content: bytes, mode: int) -> None:
    """Whole, or not at all; with this mode from its first moment."""
    neighbour = file.with_name(f".{file.name}.{os.getpid()}")
    neighbour.unlink(missing_ok=True)
    with os.fdopen(os.open(neighbour, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    neighbour.replace(file)
