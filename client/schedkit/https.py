"""HTTPS as all of schedd serves it: TLS 1.2 or newer, certificates that are changed on disk, and
callers that may show one of their own.

    handshake ─▶ have the files changed? ─▶ the context of this handshake
              └▶ the caller's certificate, if it shows one ─▶ scope[CERTIFICATE]
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Any, Final

from starlette.types import ASGIApp, Receive, Scope, Send

from schedkit.channel import TLS
from schedkit.errors import Misconfigured

log = logging.getLogger(__name__)

CERTIFICATE: Final = "schedd.certificate"
"""In the scope of a request: what its caller showed, `pem` and `names` (kind and name each)."""
HANDSHAKE_WITHIN: Final = 10.0
"""Seconds."""


def context_of(tls: TLS) -> ssl.SSLContext:
    """For a listener; files that change hold from the next handshake on.

    Raises:
        Misconfigured: one of them can't be read, or they don't belong together.
    """
    last = tls.read()
    first = current = _context(tls)

    def changed(handshake: ssl.SSLObject, _name: str | None, _: ssl.SSLContext) -> None:
        nonlocal last, current
        try:
            if (now := tls.read()) != last:
                current, last = _context(tls), now
                log.info("certificate changed on disk: using %s from now on", tls.cert)
        except Misconfigured as error:
            log.warning("keeping the certificate in use: %s", error)
        handshake.context = current

    first.sni_callback = changed
    return first


def _context(tls: TLS) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_OPTIONAL
    try:
        context.load_verify_locations(tls.ca)
        context.load_cert_chain(*_pair(tls))
    except (OSError, ssl.SSLError) as error:
        raise Misconfigured(f"TLS files can't be used: {tls.cert}: {error}") from error
    return context


def _pair(tls: TLS) -> tuple[Path, Path]:
    if tls.cert is None or tls.key is None:
        raise Misconfigured("a listener needs cert and key")
    return tls.cert, tls.key


def showing(app: ASGIApp, connection: ssl.SSLObject | None) -> ASGIApp:
    """The app for the requests of one connection, which tells it what its caller has shown."""
    shown = None if connection is None else connection.getpeercert(binary_form=True)
    if connection is None or not shown:
        return app
    told: dict[str, Any] = {
        "pem": ssl.DER_cert_to_PEM_cert(shown).encode(),
        "names": (connection.getpeercert() or {}).get("subjectAltName", ()),
    }

    async def with_certificate(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, CERTIFICATE: told}, receive, send)

    return with_certificate
