"""When a certificate ends: the one field of X.509 that we read, without a library for the rest.

    Certificate ::= SEQUENCE { tbsCertificate SEQUENCE {
        [0] version?, serialNumber, signature, issuer, validity SEQUENCE { notBefore, notAfter } …

Source: RFC 5280, 4.1; times in 4.1.2.5; DER lengths in X.690, 8.1.3.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"


def not_after(pem: bytes) -> datetime:
    """The end of the first certificate in this PEM.

    Raises:
        ValueError: there is none that can be read.
    """
    try:
        text = pem.decode("ascii")
        first = text[text.index(_BEGIN) : text.index(_END) + len(_END)]
        ((_, certificate),) = _parts(ssl.PEM_cert_to_DER_cert(first))
        body = next(_parts(certificate))[1]
        fields = [part for part in _parts(body) if part[0] != _VERSION]
        _, (kind, ends) = _parts(fields[3][1])
        form = "%y%m%d%H%M%SZ" if kind == _UTC_TIME else "%Y%m%d%H%M%SZ"
        return datetime.strptime(ends.decode("ascii"), form).replace(tzinfo=UTC)
    except (ValueError, IndexError, StopIteration) as error:
        raise ValueError(f"no certificate that can be read: {error!r}") from error


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of each element in turn."""
    at = 0
    while at < len(data):
        tag, length, at = data[at], data[at + 1], at + 2
        if length & 0x80:
            size = length & 0x7F
            length, at = int.from_bytes(data[at : at + size]), at + size
        if at + length > len(data):
            raise ValueError("the certificate is cut short")
        yield tag, data[at : at + length]
        at += length
