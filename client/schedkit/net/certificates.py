"""Validity and names of a certificate: the fields of X.509 that we read, without a library for the
rest.

    Certificate ::= SEQUENCE { tbsCertificate SEQUENCE {
        [0] version?, serialNumber, signature, issuer, validity SEQUENCE { notBefore, notAfter },
        subject, subjectPublicKeyInfo, …, [3] SEQUENCE OF { OID, critical?, OCTET STRING }? …

Source: RFC 5280, 4.1; times in 4.1.2.5; alternative names in 4.2.1.6; DER lengths in X.690, 8.1.3.
"""

import ssl
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from schedkit.records import dataclass

MOST_NAMES: Final = 4
"""Names of a certificate that a message lists; a valid one of a worker may have more."""
LONGEST_NAME: Final = 140

_VERSION: Final = 0xA0
_EXTENSIONS: Final = 0xA3
_URI: Final = 0x86
_UTC_TIME: Final = 0x17
_ALTERNATIVE_NAMES: Final = bytes((0x55, 0x1D, 0x11))
_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"


@dataclass(frozen=True, slots=True)
class Certificate:
    """The validity of a certificate, and the URIs among its alternative names."""

    not_before: datetime
    not_after: datetime
    uris: tuple[str, ...]


def first_of(pem: bytes, file: Path | None = None) -> Certificate:
    """Return the first certificate in this PEM. `file`: its file, for the error. Raises ValueError:
    no certificate in it can be read.
    """
    try:
        text = pem.decode("latin-1")  # text around the certificate may have any encoding
        start = text.index(_BEGIN)
        first = text[start : text.index(_END, start) + len(_END)]
        ((_, certificate),) = _parts(ssl.PEM_cert_to_DER_cert(first))
        fields = [part for part in _parts(next(_parts(certificate))[1]) if part[0] != _VERSION]
        begins, ends = _parts(fields[3][1])  # from the serial number on
        return Certificate(_instant(begins), _instant(ends), tuple(_uris(fields)))
    except (ValueError, IndexError, StopIteration) as error:
        where = f"the file {file}" if file is not None else "the PEM text"
        raise ValueError(
            f"{where} contains no readable certificate: {error!r}; give the PEM file of a"
            " certificate"
        ) from error


def listed_names(uris: Sequence[str]) -> str:
    """Return URIs of a certificate for a message, limited in number and length."""
    cut = (uri if len(uri) <= LONGEST_NAME else f"{uri[:LONGEST_NAME]}…" for uri in uris)
    names = ", ".join(repr(each) for each, _ in zip(cut, range(MOST_NAMES), strict=False))
    more = f" and {len(uris) - MOST_NAMES} more" if len(uris) > MOST_NAMES else ""
    return f"{names}{more}" if names else "no URI at all"


def unfit(cert: Path, key: Path) -> str:
    """Return why these two PEM files can't be used together; empty if they can."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, "")  # without a prompt
    except ssl.SSLError as error:
        if "MISMATCH" in (why := error.reason or str(error)):
            return f"{key} is the key of another certificate than {cert}"
        return f"{key} and {cert} can't be used: {why.lower().replace('_', ' ')}"
    except (OSError, ValueError) as error:
        return f"{key} and {cert} can't be used: {error}"
    return ""


def _instant(time: tuple[int, bytes]) -> datetime:
    kind, written = time
    form = "%y%m%d%H%M%SZ" if kind == _UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(written.decode("ascii"), form).replace(tzinfo=UTC)


def _uris(fields: Sequence[tuple[int, bytes]]) -> Iterator[str]:
    for tag, content in fields:
        if tag != _EXTENSIONS:
            continue
        ((_, extensions),) = _parts(content)
        for _, extension in _parts(extensions):
            (_, identifier), *_, (_, value) = _parts(extension)
            if identifier == _ALTERNATIVE_NAMES:
                ((_, names),) = _parts(value)
                yield from (name.decode("latin-1") for kind, name in _parts(names) if kind == _URI)


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and content of each element."""
    at = 0
    while at < len(data):
        tag, length, at = data[at], data[at + 1], at + 2
        if length & 0x80:
            size = length & 0x7F
            length, at = int.from_bytes(data[at : at + size]), at + size
        if at + length > len(data):
            raise ValueError(
                "the certificate is incomplete: its last bytes are missing; copy the file"
                " again, or issue a new certificate"
            )
        yield tag, data[at : at + length]
        at += length
