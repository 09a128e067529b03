"""Whom this host trusts with TLS. gRPC's core has a list of its own, and is told the host's."""

from __future__ import annotations

import ssl
from pathlib import Path


def system_roots() -> bytes | None:
    """All certificates, PEM, as OpenSSL finds them (`SSL_CERT_FILE` too); None: there are none.

    Raises:
        OSError: they can't be read.
    """
    where = ssl.get_default_verify_paths()
    if where.cafile:
        return Path(where.cafile).read_bytes()
    hashed = sorted(Path(where.capath).glob("*.[0-9]")) if where.capath else []
    return b"\n".join(each.read_bytes() for each in hashed) or None
