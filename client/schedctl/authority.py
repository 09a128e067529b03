"""A certificate authority in a folder, for clusters that have none: its making, and what it signs.

    FOLDER/ca.pem           everybody trusts it
    FOLDER/ca.key           0600; whoever has it is whoever they like: keep it off the cluster

    member m1   schedd://member/m1, the host's names; serves and calls
    worker w1   schedd://worker/w1; calls alone
    user alice  schedd://user/alice/ROLE/NAMESPACE for each namespace; calls alone

Keys are of the curve P-256. What isn't a member's has no name of a host and may not serve, so that
nobody who has a worker's certificate is taken for a member.

Invariants
- Nothing that is issued has the name of the authority's own files, wherever it goes.
- What is replaced is an earlier certificate of the same subject, with its key, and nothing else.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from schedctl.failure import UnfitEnvironment
from schedctl.files import SECRET, File, within, write
from schedd.core.jobs.rights import identity_of
from schedkit.clock import utcnow
from schedkit.net.channel import TLS

OF_AUTHORITY: Final = timedelta(days=3650)
SKEW: Final = timedelta(minutes=5)
"""A certificate is good from a little before it was made: clocks differ."""
OWN: Final = "ca"
"""`ca.pem` and `ca.key` are the authority's; `ca.pem` is what is trusted, in each folder."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom a certificate is for: its file's name, the URIs that name them, the hosts they serve."""

    name: str
    uris: Sequence[str]
    hosts: Sequence[str] = ()


class Authority:
    """The authority of a folder."""

    def __init__(self, folder: Path) -> None:
        self.certificate: Final = folder / f"{OWN}.pem"
        self._key_file: Final = folder / f"{OWN}.key"
        self.folder: Final = folder

    @classmethod
    def create(cls, folder: Path) -> Authority:
        """A new one.

        Raises:
            Unfit: there is one already, or its key.
            OSError: the folder can't be made, or written to.
        """
        found = cls(folder)
        if found.certificate.exists():
            raise UnfitEnvironment(
                f"{folder} has an authority already: {found.certificate}",
                "sign by it: schedctl auth issue; or give another folder: --ca-dir DIR;"
                " how one in use is replaced: docs/security.md, Changing certificates",
            )
        if found._key_file.exists():
            raise UnfitEnvironment(
                f"{found._key_file} is there without its certificate, and stays as it is",
                f"put its {OWN}.pem beside it, or give another folder: --ca-dir DIR",
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
        with within(folder):
            write(_key(found._key_file, key), _certificate(found.certificate, made))
        return found

    def issue(self, subject: Subject, out: Path, lifetime: timedelta) -> TLS:
        """A new key with a certificate, `NAME.pem` and `NAME.key` in `out`, beside `ca.pem`. Those
        of the same subject are replaced, each at once: who watches them sees a whole one. A
        `ca.pem` that is there stays, for it may hold others, too.

        Raises:
            Unfit: there is no authority here, or none that can be read, or its key is another's;
                or `out` trusts others alone, or holds something else by these names.
            OSError: `out` can't be made, read or written to.
        """
        if subject.name.casefold() == OWN:
            raise UnfitEnvironment(
                f"{subject.name}.pem and {subject.name}.key are the names of an authority's files",
                "choose another name",
            )
        ca, ca_key = self._read()
        trusted = out / f"{OWN}.pem"
        if trusted.exists() and ca not in _certificates(trusted.read_bytes()):
            raise UnfitEnvironment(
                f"{trusted} is of another authority",
                f"add {self.certificate} to it, or choose another --out, or the authority that it"
                " is of: --ca-dir DIR",
            )
        tls = TLS(trusted, out / f"{subject.name}.pem", out / f"{subject.name}.key")
        assert tls.cert is not None
        assert tls.key is not None
        _refuse_anothers(subject, tls.cert, tls.key)
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
        trust = [] if trusted.exists() else [_certificate(trusted, ca)]
        with within(out):
            write(*trust, _certificate(tls.cert, made), _key(tls.key, key))
        return tls

    def _read(self) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        try:
            ca = x509.load_pem_x509_certificate(self.certificate.read_bytes())
            key = serialization.load_pem_private_key(self._key_file.read_bytes(), None)
        except (OSError, ValueError) as error:
            raise UnfitEnvironment(
                f"no authority in {self.folder}: {error}",
                "make one: schedctl auth init; or say where it is: --ca-dir DIR",
            ) from error
        if not _may_sign(ca):
            raise UnfitEnvironment(
                f"{self.certificate} isn't the certificate of an authority: nobody would trust what"
                " it signs",
                "put the authority's own back there, or say where it is: --ca-dir DIR",
            )
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise UnfitEnvironment(
                f"{self._key_file} isn't one of `schedctl auth init`",
                "say where such a one is: --ca-dir DIR; or sign by the program that made it,"
                " with the URIs of docs/security.md",
            )
        if key.public_key() != ca.public_key():
            raise UnfitEnvironment(
                f"{self._key_file} isn't the key of {self.certificate}: nobody would trust what it"
                " signs",
                "put the authority's own key and certificate together there, or say where they are"
                " together: --ca-dir DIR",
            )
        return ca, key


def _refuse_anothers(subject: Subject, cert: Path, key: Path) -> None:
    """Raise Unfit where files that would be replaced aren't an earlier pair of this subject: their
    key may be the only one.
    """

    def anothers(file: Path, what: str) -> UnfitEnvironment:
        return UnfitEnvironment(
            f"{file} {what}, and stays as it is", "choose another --out, or move it away first"
        )

    if cert.exists():
        whose = _subject_of(cert.read_bytes())
        if whose != _actor(subject.uris):
            raise anothers(cert, f"is of {whose}" if whose else "isn't a certificate of schedd's")
    elif key.exists():
        raise anothers(key, "is there without a certificate")
    if key.exists() and not key.is_file():
        raise anothers(key, "isn't a file")


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


def _subject_of(pem: bytes) -> str | None:
    """Whom a certificate names; None: nobody."""
    for found in _certificates(pem)[:1]:
        for each in found.extensions:
            if isinstance(each.value, x509.SubjectAlternativeName):
                return _actor(each.value.get_values_for_type(x509.UniformResourceIdentifier))
    return None


def _actor(uris: Iterable[str]) -> str | None:
    who = identity_of(uris)
    return who.actor if who else None


def _may_sign(certificate: x509.Certificate) -> bool:
    """Whether it is an authority's."""
    told = [each.value for each in certificate.extensions]
    return any(isinstance(one, x509.BasicConstraints) and one.ca for one in told) and all(
        one.key_cert_sign for one in told if isinstance(one, x509.KeyUsage)
    )


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


def _key(path: Path, key: ec.EllipticCurvePrivateKey) -> File:
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    return File(path, key.private_bytes(serialization.Encoding.PEM, form, plain), SECRET)


def _certificate(path: Path, certificate: x509.Certificate) -> File:
    return File(path, certificate.public_bytes(serialization.Encoding.PEM))
