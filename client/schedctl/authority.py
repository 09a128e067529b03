"""A certificate authority in a folder, for clusters that have none: create it, issue certificates.

    FOLDER/ca.pem           the certificate that all processes trust
    FOLDER/ca.key           0600; its holder can impersonate anyone: keep it off the cluster

docs/security.md lists the names of certificates. Only members' certificates have host names and may
serve, so that a worker's certificate can't impersonate a member.

Invariants
- No issued file has the name of the authority's own files, in any folder.
- `issue` replaces only an earlier certificate of the same subject and its key.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from schedctl.failure import UnfitEnvironment
from schedctl.files import SECRET, File, within, write
from schedd.core.auth.rights import identity_of
from schedkit.clock import utcnow
from schedkit.net.channel import TLS
from schedkit.records import dataclass

OF_AUTHORITY: Final = timedelta(days=3650)
SKEW: Final = timedelta(minutes=5)
"""Certificates are valid from this long before they are issued: clocks differ."""
OWN: Final = "ca"
"""`ca.pem` and `ca.key` are the authority's; each folder of certificates has `ca.pem`, too."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a certificate: its file name, its URIs and the hosts it serves."""

    name: str
    uris: Sequence[str]
    hosts: Sequence[str] = ()


class Authority:
    def __init__(self, folder: Path) -> None:
        self.certificate: Final = folder / f"{OWN}.pem"
        self._key_file: Final = folder / f"{OWN}.key"
        self.folder: Final = folder

    @classmethod
    def create(cls, folder: Path) -> Authority:
        """Create an authority. Raises UnfitEnvironment: an authority, or its key, already exists.
        OSError: the folder can't be created or written to.
        """
        found = cls(folder)
        if found.certificate.exists():
            raise UnfitEnvironment(
                f"a certificate authority already exists in {folder}: {found.certificate}",
                "issue certificates with this authority: schedctl auth issue; or give another"
                " folder: --ca-dir DIR; to replace the authority, see docs/security.md, Changing"
                " certificates",
            )
        if found._key_file.exists():
            raise UnfitEnvironment(
                f"the key {found._key_file} exists without its certificate; nothing changed",
                f"put the certificate {OWN}.pem beside the key, or give another folder:"
                " --ca-dir DIR",
            )
        key = ec.generate_private_key(ec.SECP256R1())
        name = _named("schedd authority")
        made = (
            _certificate_builder(name, name, key.public_key(), OF_AUTHORITY)
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
        """Issue a key and a certificate: `NAME.key` and `NAME.pem` in `out`, beside `ca.pem`.

        Files of the same subject are replaced, each atomically. An existing `ca.pem` is kept: it
        may hold other authorities, too.

        Raises:
            UnfitEnvironment: the authority doesn't exist, can't be read, or has another key; or
                `ca.pem` of `out` lacks this authority, or a file has another subject.
            OSError: `out` can't be created, read or written to.
        """
        if subject.name.casefold() == OWN:
            raise UnfitEnvironment(
                f"the name {subject.name!r} is reserved for the files of the certificate authority",
                "choose another name for the certificate",
            )
        ca, ca_key = self._read()
        trusted = out / f"{OWN}.pem"
        if trusted.exists() and ca not in _certificates(trusted.read_bytes()):
            raise UnfitEnvironment(
                f"the file {trusted} doesn't contain the certificate of this authority,"
                f" {self.certificate}",
                f"append {self.certificate} to {trusted}, or give another folder: --out DIR; to"
                f" use the authority of {trusted}, name the folder of that authority: --ca-dir DIR",
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
            _certificate_builder(_named(subject.name), ca.subject, key.public_key(), lifetime)
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
                f"no certificate authority found in {self.folder}: {error}",
                "create an authority: schedctl auth init; or name the folder of an existing one:"
                " --ca-dir DIR",
            ) from error
        if not _may_sign(ca):
            raise UnfitEnvironment(
                f"the certificate {self.certificate} isn't that of a certificate authority:"
                " certificates that it signs would be rejected",
                "restore the authority's certificate, or name the authority's folder: --ca-dir DIR",
            )
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise UnfitEnvironment(
                f"the key file {self._key_file} isn't an elliptic-curve key as created by"
                " schedctl auth init",
                "name the folder of an authority that schedctl created: --ca-dir DIR; or sign the"
                " certificate with the program that created this key (docs/security.md lists the"
                " URI names of the certificate)",
            )
        if key.public_key() != ca.public_key():
            raise UnfitEnvironment(
                f"the key file {self._key_file} doesn't belong to the certificate"
                f" {self.certificate}: certificates that it signs would be rejected",
                "restore the key that belongs to the certificate, or name the folder with both:"
                " --ca-dir DIR",
            )
        return ca, key


def _refuse_anothers(subject: Subject, cert: Path, key: Path) -> None:
    """Raise UnfitEnvironment if the files to replace aren't an earlier pair of this subject: their
    key may be the only copy.
    """

    def anothers(what: str) -> UnfitEnvironment:
        return UnfitEnvironment(
            f"{what}; the file isn't changed",
            "choose another folder (--out DIR), or move the file away first",
        )

    if cert.exists():
        whose = _subject_of(cert.read_bytes())
        if whose != _actor(subject.uris):
            raise anothers(
                f"the file {cert} has the certificate of another subject, {whose}"
                if whose
                else f"the file {cert} exists, and isn't a certificate of schedd"
            )
    elif key.exists():
        raise anothers(
            f"the key file {key} exists without its certificate {cert}, and may be the only"
            " copy of the key"
        )
    if key.exists() and not key.is_file():
        raise anothers(f"{key} exists, and isn't a regular file")


def _certificate_builder(
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
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        return []


def _subject_of(pem: bytes) -> str | None:
    """Return the actor that a certificate names; None if it names none."""
    for found in _certificates(pem)[:1]:
        for each in found.extensions:
            if isinstance(each.value, x509.SubjectAlternativeName):
                return _actor(each.value.get_values_for_type(x509.UniformResourceIdentifier))
    return None


def _actor(uris: Iterable[str]) -> str | None:
    who = identity_of(uris)
    return who.actor if who else None


def _may_sign(certificate: x509.Certificate) -> bool:
    values = [each.value for each in certificate.extensions]
    return any(isinstance(one, x509.BasicConstraints) and one.ca for one in values) and all(
        one.key_cert_sign for one in values if isinstance(one, x509.KeyUsage)
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
